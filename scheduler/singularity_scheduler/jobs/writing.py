"""Writes values as YAML that every reader takes for the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes every text that a reader could take for something else, in YAML 1.1 or 1.2."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    plain = text[:1].isalpha() and text.lower() not in ("null", "true", "false")
    plain = plain or text.startswith("/")
    plain = plain and text.isprintable()  # a line break of Unicode's at its end would be a space
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _number(dumper: Any, number: float) -> Any:
    text = json.dumps(number)
    text = text if "." in text else text.replace("e", ".0e")  # a text to YAML 1.1 without the point
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _number)


def written(job: Mapping[str, Any]) -> str:
    """`job` as YAML, in its own order."""
    text: str = yaml.dump(
        dict(job), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000
    )
    return text

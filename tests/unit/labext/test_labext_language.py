"""JupyterLab finds translations where they are put."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tomllib
from jupyterlab_server import translation_utils

ROOT = Path(__file__).resolve().parents[3]
GROUP = translation_utils.JUPYTERLAB_LOCALE_ENTRY


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """What the wheel declares, as if nothing else were installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [(name, value)] = project["entry-points"][GROUP].items()
    entry = EntryPoint(name, value, GROUP)
    monkeypatch.setattr(translation_utils, "entry_points", lambda group: [entry] * (group == GROUP))
    return entry


def test_without_a_translation_nothing_is_wrong(declared: EntryPoint) -> None:
    # A folder that is missing would keep all language packs from being used.
    assert translation_utils.get_installed_packages_locale("de_DE") == ({}, "")


def test_a_translation_beside_the_template_is_found(
    declared: EntryPoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = declared.load()
    template = Path(package.__file__).parent / "locale" / f"{declared.name}.pot"
    assert template.exists()
    made = tmp_path / "locale/de_DE/LC_MESSAGES" / f"{declared.name}.json"
    made.parent.mkdir(parents=True)
    messages = {"": {"domain": declared.name, "language": "de-DE"}, "Resize": ["Anpassen"]}
    made.write_text(json.dumps(messages))
    monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
    found = translation_utils.get_installed_packages_locale("de_DE")
    assert found == ({declared.name: messages}, "")

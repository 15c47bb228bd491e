"""Writes `requirements/*.lock` from what is installed: `.venv/bin/python tools/lock.py`.

Each part is an answer to "who needs it": the extras of `pyproject.toml` named in `PARTS`, with all
that those need, at the installed versions. A package is pinned once, in the first part that needs
it, so a part is complete together with those before it, and no two parts can disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "platform": ("kernel", "hub", "gpu", "jobs", "setup"),
    "test": ("dev", "azure", "s3", "gcs", "postgres"),
    "docs": ("docs",),
    "bench": ("simulate",),
    "libraries": ("libraries",),
}
"""Part -> extras, in the order of installing. The first one also holds what torch needs."""
APART = frozenset({"torch", "setuptools", "jupyter-singularity"})
"""Never pinned: `TORCH_SPEC` chooses torch, which brings setuptools; the last is the checkout."""
LEFT_OUT = frozenset({"rfc3987-syntax"})
"""Not needed, whoever asks for it: where it is installed, jsonschema builds a grammar with it for a
second or two in each Hub, each server and each run, for a format that nothing here names."""


@cache
def read_installed(name: str) -> tuple[str, list[Requirement]]:
    """The pin of an installed package, and what it needs. Raises PackageNotFoundError."""
    about = metadata.distribution(name).metadata
    needs = [Requirement(text) for text in about.get_all("Requires-Dist") or ()]
    return f"{about['Name']}=={about['Version']}", needs


def distributions_for(requirements: Iterable[str]) -> dict[str, str]:
    """Name -> pin of all that `requirements` need, as installed. Raises PackageNotFoundError."""
    pins: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if str(wanted) in seen or name in LEFT_OUT:
            continue
        seen.add(str(wanted))
        pins[name], needs = read_installed(name)
        for needed in needs:
            extras = wanted.extras or {""}
            if not needed.marker or any(needed.marker.evaluate({"extra": x}) for x in extras):
                waiting.append(needed)
    return pins


def make_parts() -> dict[str, list[str]]:
    """Part -> its lines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = set(APART)
    parts: dict[str, list[str]] = {}
    for part, extras in PARTS.items():
        roots = [text for extra in extras for text in project["optional-dependencies"][extra]]
        if not parts:
            roots += [*project["dependencies"], "torch"]
        pins = {name: pin for name, pin in distributions_for(roots).items() if name not in pinned}
        pinned |= pins.keys()
        parts[part] = sorted(pins.values(), key=str.lower)
    return parts


def main() -> None:
    for part, lines in make_parts().items():
        (ROOT / "requirements" / f"{part}.lock").write_text("\n".join(lines) + "\n")
        print(f"requirements/{part}.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()

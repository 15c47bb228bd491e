"""What a change can touch: the files of tests that reach a changed file, by the graph of imports.

A file reaches what it imports, and what it names in a string: a module that a process is started
with (`-m singularity_scheduler.agent`), a class that a configuration names, a command of ours.
A file that is no Python and lies in a package (C++, templates, scripts) counts as every module of
that package. What has no place in the graph (the set-up, pinned versions, this machinery) reaches
everything.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath

from singularity_scheduler.model.verbs import VERBS

PACKAGES = {
    "singularity_proxy": "proxy",
    "singularity_scheduler": "scheduler",
    "singularity_kernel": "kernel_ext",
    "singularity_spawner": "hub_spawner",
    "singularity_labext": "ui_labext",
    "benchmarks": "",
    "support": "tests",
    "chaos": "tests",
    "checks": "tests",
    "sweep": "tests",
}
"""Importable package -> folder that it lies in, from the root of the checkout."""

WORDS = {
    "jupyter-singularity": "singularity_scheduler.cli",
    "singularity": "singularity_kernel.provision.provisioner",
    "singularity-remote": "singularity_kernel.batch.engine",
    "chaos": "chaos.__main__",
}
"""First word of a string of a test (a command, a kernel, an engine of papermill) -> the module
behind it. In the product such a string is a hint to people."""

LOADED = {
    "singularity_proxy.worker.hook": (
        "singularity_proxy.standalone",
        "singularity_scheduler.agent",
    ),
    "singularity_kernel": ("singularity_kernel.kernel.shim",),
    "singularity_kernel.kernel.shim": ("singularity_kernel.provision.provisioner",),
    **{
        f"singularity_scheduler.cli.{row.command.module or 'sessions.verbs'}": (
            "singularity_scheduler.cli.framework.commands",
        )
        for row in VERBS
        if row.command
    },
}
"""Module that is loaded by a name which is made at run time, or that a session's Python loads by
itself -> packages that load it, or begin such sessions."""

PRODUCT = ("proxy", "scheduler", "kernel_ext", "hub_spawner", "ui_labext")

WHOLE = ("tests/unit/quality", "tests/unit/tools/test_docs.py", "tests/unit/proxy_wire")
"""What reads the whole product: lint, its documentation, its build."""

TOUCHES = {
    **dict.fromkeys(PRODUCT, WHOLE),
    "docs": (
        *("tests/unit/quality", "tests/unit/tools", "tests/unit/labext", "tests/unit/cli"),
        *("tests/unit/sim", "tests/integration/scheduler", "tests/e2e/test_tutorial.py"),
    ),
    "ui_labext": (*WHOLE, "tests/unit/labext", "tests/e2e"),
    "tests/e2e": ("tests/e2e",),
    "tests/gpu": ("tests/gpu",),
    "tests/checks": ("tests/integration/proxy_worker", "tests/gpu"),
    "tests/unit/proxy_wire": ("tests/unit/proxy_wire",),
    **dict.fromkeys(
        ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml", "benchmarks"),
        ("tests/unit/quality", "tests/unit/tools"),
    ),
}
"""Folder or file -> tests that it touches, beside those that reach it: of what is no module, and
those that read the whole product (lint, its documentation, its build)."""

BUILT = {"proxy/singularity_proxy/native": ("singularity_proxy.worker", "singularity_proxy.device")}
"""Folder -> packages that load what is built of it."""

NAME_ONLY = ("tests/support/changes.py", "tests/support/leaks.py", "tests/support/tiers.py")
"""What names modules and starts none."""

_NAME = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_][A-Za-z_0-9]*)*")


class UnknownRevision(Exception):
    """Git does not know what the change is to be counted from."""


def list_changed(root: Path, revision: str) -> list[str]:
    """The files that differ from `revision`, and new ones, as paths from `root`.

    Raises UnknownRevision."""

    def ask(*arguments: str) -> list[str]:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnknownRevision(f"git does not know '{revision}': {done.stderr.strip()}")
        return [name for name in done.stdout.split("\0") if name]

    changed = ask("diff", "--name-only", "--no-renames", "-z", revision, "--")
    return sorted({*changed, *ask("ls-files", "--others", "--exclude-standard", "-z")})


def module_of(path: str) -> str | None:
    """The dotted name of a Python file of a package; None for any other file."""
    for package, folder in PACKAGES.items():
        base = f"{folder}/{package}" if folder else package
        if path.startswith(f"{base}/") and path.endswith(".py"):
            inner = path[len(base) - len(package) : -len(".py")].replace("/", ".")
            return inner.removesuffix(".__init__")
    return None


@dataclass
class References:
    """Dotted names that a Python file imports or names; of things in modules too, not only of
    modules."""

    on_load: set[str] = field(default_factory=set)
    """Imported as soon as the file is."""
    later: set[str] = field(default_factory=set)
    """Imported when something in it is called, or named in a string."""


def find_references(text: str, path: str) -> References:
    """What a Python file refers to. `path`: where it lies, from the root of the checkout."""
    module, is_package = module_of(path) or "", path.endswith("/__init__.py")
    found = References()
    ahead: list[tuple[ast.AST, set[str]]] = [(ast.parse(text), found.on_load)]
    while ahead:
        node, names = ahead.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            ahead += [(child, names) for child in node.orelse]
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = found.later
        ahead += [(child, names) for child in ast.iter_child_nodes(node)]
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                parts = module.split(".")
                up = parts[: len(parts) - node.level + is_package] if node.level else []
                base = ".".join([*up, *([node.module] if node.module else [])])
                names.update(f"{base}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str() as value) if path not in NAME_ONLY:
                found.later.update(name for name in _NAME.findall(value) if "." in name)
                if path.startswith("tests/") and (name := WORDS.get(value.partition(" ")[0])):
                    found.later.add(name)
    return found


Node = tuple[str, bool]
"""A file, and whether it is only loaded (as the packages above a module are) or also used."""


class Graph:
    """Which file of a checkout reaches which; made from the texts of its Python files (path ->
    text). `loads`: as `LOADED`."""

    def __init__(
        self, texts: Mapping[str, str], loads: Mapping[str, tuple[str, ...]] = LOADED
    ) -> None:
        self._texts = set(texts)
        self.tests = sorted(p for p in texts if PurePosixPath(p).name.startswith("test_"))
        self._files = {name: path for path in texts if (name := module_of(path)) is not None}
        self._users: dict[Node, set[Node]] = defaultdict(set)
        """What reaches a file in one step."""
        for path, text in texts.items():
            loaded, used = (path, True), (path, False)
            self._users[loaded].add(used)
            references = find_references(text, path)
            for user, names in ((loaded, references.on_load), (used, references.later)):
                for name in names:
                    for reached in self._nodes_of(name):
                        self._users[reached].add(user)
            for above in PurePosixPath(path).parents:
                if path.startswith("tests/") and f"{above}/conftest.py" in texts:
                    self._users[f"{above}/conftest.py", False].add(loaded)
        for name, packages in loads.items():
            begin = (f for module, f in self._files.items() if module.startswith(packages))
            self._users[self._files[name], False].update((path, False) for path in begin)

    def _nodes_of(self, name: str) -> Iterator[Node]:
        """The file of the module that a dotted name is of, those of the packages above it, and what
        `python -m` would run of it."""
        parts, is_above = name.split("."), False
        for found in (f"{name}.__main__", *(".".join(parts[:n]) for n in range(len(parts), 0, -1))):
            if path := self._files.get(found):
                yield path, is_above
                is_above = is_above or not found.endswith(".__main__")

    def find_touched(self, changed: Iterable[str]) -> list[str] | None:
        """The files of tests that reach a changed one; None when a change reaches everything."""
        seeds: set[str] = set()
        for path in changed:
            found = self._seeds_of(path)
            if found is None:
                return None
            seeds |= found
        ahead: list[Node] = [(path, True) for path in seeds]
        seen = set(ahead)
        while ahead:
            new = self._users[ahead.pop()] - seen
            seen |= new
            ahead += new
        return [test for test in self.tests if (test, False) in seen]

    def _seeds_of(self, path: str) -> set[str] | None:
        """The files that a change of this one is a change of; None: of everything."""
        touched = [tests for place, tests in TOUCHES.items() if _lies_in(path, place)]
        also = {test for test in self.tests if test.startswith(tuple(chain(*touched)))}
        placed = any(place not in PRODUCT for place in TOUCHES if _lies_in(path, place))
        if path.endswith(".py") and (module_of(path) or path.startswith("tests/")):
            return also | {path} if placed or self._is_followed(path) else None
        for place, packages in BUILT.items():
            if path.startswith(f"{place}/"):
                return also | {f for name, f in self._files.items() if name.startswith(packages)}
        for package, folder in PACKAGES.items():
            base = f"{folder}/{package}" if folder else package
            if path.startswith(f"{base}/"):
                inside = f"{PurePosixPath(path).parent}/"
                while not (found := {f for f in self._files.values() if f.startswith(inside)}):
                    inside = f"{PurePosixPath(inside).parent}/"
                return also | found
        return also if touched else None

    def _is_followed(self, path: str) -> bool:
        """Whether it is known what uses a Python file: not of one that is gone, nor of one that is
        loaded in a way that nothing here follows (by its path, by a list of its folder)."""
        used = self._users[path, False] or self._users[path, True] - {(path, False)}
        return path in self._texts and (path in self.tests or bool(used))


def _lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def read_graph(root: Path) -> Graph:
    """The graph of the Python files of a checkout, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    paths = [name for name in done.stdout.split("\0") if name and (root / name).is_file()]
    return Graph({path: (root / path).read_text(encoding="utf-8") for path in paths})

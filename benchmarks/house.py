"""Count what makes the house hard to live in: import circles, large folders and modules, names that
mean nothing without their module.

Counts are exact, so one pass is enough and `--quick` changes nothing. Python imports are those of
import-linter's graph (grimp), without imports for types alone; TypeScript's are the relative ones.
"""

from __future__ import annotations

import ast
import asyncio
import posixpath
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .figures import Figure

DESCRIPTION = "import circles, sizes of folders and modules, names (counted in the source)"

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = {
    "proxy": "singularity_proxy",
    "scheduler": "singularity_scheduler",
    "kernel_ext": "singularity_kernel",
    "hub_spawner": "singularity_spawner",
    "ui_labext": "singularity_labext",
}
"""Folder of the checkout -> its Python package."""

CONTROL_PLANE = ("scheduler", "kernel_ext", "hub_spawner")

SOURCES = frozenset({".py", ".ts", ".tsx", ".cpp", ".h"})

FOLDER_MODULES = 15
"""Modules that a folder may have."""

MODULE_LINES = 600
"""Lines that a module may have."""

BOUNDS: dict[str, float] = {
    "import_circles": 0,
    "folders_above_15_modules": 0,
    "modules_above_600_lines": 0,
    "one_word_function_names": 0.25,
    "class_names_used_twice": 0,
    "product_python_lines": 70_000,
    "files_to_add_a_field": 5,
    "files_to_add_a_verb": 6,
}

EXAMPLES = {
    "files_to_add_a_field": "Adding a field",
    "files_to_add_a_verb": "Adding a verb",
}
"""Key -> section of `docs/explanation/change-it.md` whose patches are counted; a test applies them
and finds everything else that they need made of tables."""

Graph = Mapping[str, Iterable[str]]


def sizes(quick: bool) -> dict[str, Any]:
    """Return what stands in the report as the size of the run."""
    return {"packages": sorted(PACKAGES)}


def list_sources() -> list[PurePosixPath]:
    """Return the source files of the product that git knows, without migrations, which are written
    once and never read together."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = [PurePosixPath(line) for line in listed.stdout.splitlines()]
    return [path for path in found if path.suffix in SOURCES and "versions" not in path.parts]


def read_example(section: str) -> dict[str, str]:
    """Return the patches of a worked example: path of the file -> patch."""
    page = (ROOT / "docs/explanation/change-it.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    patches = re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {re.findall(r"^\+\+\+ b/(\S+)$", one, re.MULTILINE)[0]: one for one in patches}


def find_circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes of `graph` (node -> nodes that it names) each of which reaches all
    others of its group, by size (strongly connected components of more than one node)."""
    import networkx

    directed = networkx.DiGraph()
    directed.add_edges_from((node, other) for node, others in graph.items() for other in others)
    components = networkx.strongly_connected_components(directed)
    return sorted((sorted(c) for c in components if len(c) > 1), key=len, reverse=True)


def graph_python_imports() -> dict[str, set[str]]:
    """Return module -> modules of ours that it imports when it runs."""
    import grimp

    for folder in PACKAGES:
        sys.path.insert(0, str(ROOT / folder))
    graph = grimp.build_graph(
        *PACKAGES.values(), exclude_type_checking_imports=True, cache_dir=None
    )
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def graph_typescript_imports(sources: Iterable[PurePosixPath]) -> dict[str, set[str]]:
    """Return TypeScript module -> modules beside it that it imports, types included: they share a
    declaration whether they run or not."""
    modules = {str(path.with_suffix("")): path for path in sources if "ts" in path.suffix}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        text = (ROOT / path).read_text()
        named = re.findall(r"""(?:from|import)\s+['"](\.[^'"]*)['"]""", text)
        reached = {posixpath.normpath(path.parent / one) for one in named}
        found[name] = {one for one in reached if one in modules} - {name}
    return found


def list_functions(text: str) -> Iterator[str]:
    """Yield the names of all functions and methods in Python source, without those that Python
    itself names (`__init__`) and properties, which are nouns."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            marks = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if not (node.name.startswith("__") or marks & {"property", "cached_property"}):
                yield node.name


def list_classes(text: str) -> Iterator[str]:
    """Yield the names of the public classes of a module in Python source."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def count(sources: list[PurePosixPath], circles: list[list[str]]) -> dict[str, float]:
    """Count everything in `sources`."""
    texts = {path: (ROOT / path).read_text() for path in sources}
    python = {path: text for path, text in texts.items() if path.suffix == ".py"}
    folders = Counter(path.parent for path in sources if path.name != "__init__.py")
    names = [
        name
        for path, text in python.items()
        if path.parts[0] in CONTROL_PLANE
        for name in list_functions(text)
    ]
    classes = Counter(name for text in python.values() for name in list_classes(text))
    return {
        "import_circles": len(circles),
        "modules_in_circles": sum(map(len, circles)),
        "folders_above_15_modules": sum(n > FOLDER_MODULES for n in folders.values()),
        "largest_folder_modules": max(folders.values()),
        "modules_above_600_lines": sum(len(t.splitlines()) > MODULE_LINES for t in texts.values()),
        "one_word_function_names": sum("_" not in n.strip("_") for n in names) / len(names),
        "class_names_used_twice": sum(n > 1 for n in classes.values()),
        "product_python_lines": sum(len(text.splitlines()) for text in python.values()),
    }


async def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    """See the module's description."""
    sources = list_sources()
    circles = find_circles(await asyncio.to_thread(graph_python_imports))
    circles += find_circles(graph_typescript_imports(sources))
    for circle in circles:
        say(f"circle of {len(circle)}: {', '.join(circle)}")
    counts = count(sources, circles)
    counts |= {key: len(read_example(section)) for key, section in EXAMPLES.items()}
    return {key: Figure([value]) for key, value in counts.items()}

"""What the benchmark `house` counts in source."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from benchmarks import house


def test_a_circle_is_a_group_that_reaches_itself() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["f"], "f": ["e"]}
    assert house.find_circles(graph) == [["a", "b", "c"], ["e", "f"]]
    assert house.find_circles({"a": ["b"], "b": []}) == []


def test_properties_and_names_of_python_itself_are_no_names_to_judge() -> None:
    text = """
class Shown:
    def __init__(self): ...
    @property
    def size(self): ...
    def grow(self):
        async def one_more(): ...

class _Hidden: ...
"""
    assert sorted(house.list_functions(text)) == ["grow", "one_more"]
    assert list(house.list_classes(text)) == ["Shown"]


def test_typescript_imports_are_those_of_modules_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    written = {
        "ui/model/feed.ts": "import { a } from './words';\nimport * as React from 'react';\n",
        "ui/model/words.ts": "export const a = 1;\n",
        "ui/view/panel.tsx": "import {\n  Feed\n} from '../model/feed';\nimport './missing.css';\n",
    }
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert house.graph_typescript_imports(map(PurePosixPath, written)) == {
        "ui/model/feed": {"ui/model/words"},
        "ui/model/words": set(),
        "ui/view/panel": {"ui/model/feed"},
    }


def test_sizes_and_names_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    written = {
        "scheduler/one.py": "class Store:\n    def get(self): ...\n    def take_out(self): ...\n",
        "proxy/two.py": "class Store: ...\n" + "\n" * house.MODULE_LINES,
        "proxy/__init__.py": "",
    }
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = house.count([PurePosixPath(name) for name in written], [["a", "b"]])
    assert (found["import_circles"], found["modules_in_circles"]) == (1, 2)
    assert (found["largest_folder_modules"], found["modules_above_600_lines"]) == (1, 1)
    assert (found["one_word_function_names"], found["class_names_used_twice"]) == (0.5, 1)
    assert found["product_python_lines"] == 3 + 1 + house.MODULE_LINES

"""What a worker may put into a captured graph, and what the proxy makes of it."""

import os
import zlib
from pathlib import Path

import pytest
import torch
from singularity_proxy.device import compiled_files
from singularity_proxy.device.graphs import Graph
from singularity_proxy.wire import graphs


def graph(**changed: object) -> bytes:
    """x of shape [s, 3] -> (x + x) * 2."""
    content: dict[str, object] = {
        "symbols": [["s7", 5, 2, None]],
        "inputs": [["i", "s7"], ["t", "float32", ["s7", 3], [3, 1], 0, 0]],
        "nodes": [
            ["op.aten.add.Tensor", [{"n": 1}, {"n": 1}], {"alpha": 1}],
            ["op.aten.mul.Tensor", [{"n": 2}, 2.0], {}],
        ],
        "outputs": [3],
        "static": [],
        "visible": [0],
        "backward": False,
        "inference": True,
        "options": {},
    }
    return graphs.pack(content | changed)


def test_a_graph_is_the_same_after_its_way() -> None:
    packed = graph()
    assert graphs.pack(graphs.unpack(packed)) == packed
    built = Graph(packed, "cpu")
    assert (built.inputs, built.draws) == (2, False)


def test_arguments_that_do_not_fit_are_refused_before_compiled_code_sees_them() -> None:
    built = Graph(graph(), "cpu")
    built.check([4, torch.zeros(4, 3)])
    for wrong in (
        [4, torch.zeros(3, 3)],
        [4, torch.zeros(4, 2)],
        [4, torch.zeros(4, 3, dtype=torch.float64)],
        [4, torch.zeros(4)],
        [torch.zeros(4, 3), 4],
        [4],
    ):
        with pytest.raises(ValueError, match="a graph "):
            built.check(list(wrong))


def test_only_operators_and_listed_functions_can_be_called() -> None:
    for target in (
        "os.system",
        "operator.attrgetter",
        "op.aten.nothing.default",
        "op.x",
        "torch.load",
    ):
        with pytest.raises(ValueError, match=r"."):
            Graph(graph(nodes=[[target, [{"n": 1}], {}]], outputs=[2]), "cpu")


def test_an_argument_names_nothing_else_of_torch() -> None:
    for argument in ({"d": "Tensor"}, {"m": "load"}, {"x": 1}):
        nodes = [["op.aten.add.Tensor", [{"n": 1}, argument], {}]]
        with pytest.raises(ValueError, match="unknown argument"):
            Graph(graph(nodes=nodes, outputs=[2]), "cpu")


def test_no_text_of_a_worker_becomes_source() -> None:
    nodes = [["op.aten.add.Tensor", [{"n": 1}, {"n": 1}], {"alpha=1) or exit(": 1}]]
    with pytest.raises(ValueError, match="unknown argument"):
        Graph(graph(nodes=nodes, outputs=[2]), "cpu")


def test_what_is_no_graph_is_refused() -> None:
    for changed in ({"inputs": None}, {"nodes": [[1]]}, {"outputs": [9]}, {"static": "x"}):
        with pytest.raises(ValueError, match=r"a captured graph|invalid literal|not enough values"):
            Graph(graph(**changed), "cpu")
    for packed in (b"", b"text", zlib.compress(b"[1]"), zlib.compress(b"{")):
        with pytest.raises(ValueError, match="cannot be read"):
            graphs.unpack(packed)


def test_compiled_files_are_never_put_into_a_folder_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    usual = tmp_path / f"singularity-compiled-{os.geteuid()}"
    assert compiled_files.folder() == usual
    assert compiled_files.is_private(usual)
    usual.chmod(0o777)
    other = compiled_files.folder()
    assert other != usual
    assert compiled_files.is_private(other)
    usual.rmdir()
    usual.symlink_to(other)
    assert compiled_files.folder() != usual

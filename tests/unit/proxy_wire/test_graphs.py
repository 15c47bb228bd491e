"""What a worker may put into a captured graph, and what the proxy makes of it."""

import fcntl
import gc
import json
import mmap
import os
import sys
import time
import weakref
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


def test_compiled_files_are_bounded_and_what_is_in_use_stays(tmp_path: Path) -> None:
    def make(name: str, age: float, size: int = 4096) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (time.time() - age,) * 2)
        return path

    hour = 3600.0
    loaded = make("aa/loaded.so", 9 * hour)
    oldest, old = make("bb/oldest.py", 8 * hour), make("bb/old.py", 7 * hour)
    newer, fresh = make("cc/newer.py", 6 * hour), make("cc/fresh.py", 1.0)
    with loaded.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        os.utime(loaded, (time.time() - 9 * hour,) * 2)
        assert compiled_files.trim(tmp_path, 5 * 4096) == 0
        with compiled_files._locked(tmp_path, fcntl.LOCK_SH):  # someone compiles
            assert compiled_files.trim(tmp_path, 0) == 0
        assert compiled_files.trim(tmp_path, 3 * 4096) == 2 * 4096
        assert [p.exists() for p in (loaded, oldest, old, newer, fresh)] == [1, 0, 0, 1, 1]
        assert compiled_files.trim(tmp_path, 0) == 4096
        assert [p.exists() for p in (loaded, newer, fresh)] == [1, 0, 1]
    assert compiled_files.trim(tmp_path, 0) == 4096
    assert not loaded.exists()


def test_a_kernel_of_triton_is_kept_or_removed_as_a_whole(tmp_path: Path) -> None:
    def make(name: str, hours: float) -> Path:
        path = tmp_path / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(4096))
        os.utime(path, (time.time() - hours * 3600,) * 2)
        return path

    used = [make("AAA/kernel.json", 9), make("AAA/kernel.cubin", 1), make("AAA/sub/kernel.ptx", 9)]
    unused = [make("BBB/kernel.json", 8), make("BBB/kernel.cubin", 7)]
    fresh = [make("CCC/kernel.json", 10), make("CCC/kernel.cubin", 0)]
    assert compiled_files.trim(tmp_path, 6 * 4096) == 2 * 4096
    assert not unused[0].parent.exists()
    assert all(path.exists() for path in used + fresh)
    with used[1].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        os.utime(used[1], (time.time() - 3600,) * 2)
        assert compiled_files.trim(tmp_path, 0) == 0
    assert compiled_files.trim(tmp_path, 0) == 3 * 4096
    assert sorted(path.name for path in (tmp_path / "triton").iterdir()) == ["CCC"]
    assert all(path.exists() for path in fresh)


@pytest.mark.filterwarnings("ignore")  # importing inductor warns of what torch itself does
@pytest.mark.skipif(compiled_files.compiler() is None, reason="inductor needs a C++ compiler")
def test_a_graph_takes_along_what_was_compiled_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(compiled_files, "_chosen", None)
    for name in (compiled_files.VARIABLE, "TRITON_CACHE_DIR", "TORCH_WARM_POOL"):
        monkeypatch.setenv(name, "")
    before = {name for name in sys.modules if "codecache" in name}
    looks: list[Path] = []
    monkeypatch.setattr(compiled_files, "_compilations", 0)
    monkeypatch.setattr(compiled_files, "trim", looks.append)
    built = Graph(graph(), "cpu")
    answer = json.loads(built.compile())
    assert answer["mode"] == "inductor", answer
    (result,) = built.run([5, torch.ones(5, 3)])
    assert torch.equal(result, torch.full((5, 3), 4.0))
    assert looks == [tmp_path / f"singularity-compiled-{os.geteuid()}"]
    assert {name for name in sys.modules if "codecache" in name} <= before | {
        "torch._inductor.codecache"
    }
    compiled = weakref.ref(built._call)
    del built, result
    gc.collect()
    assert compiled() is None

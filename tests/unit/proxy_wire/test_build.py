"""Building and finding the native module, on a small package that compiles in no time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from singularity_proxy import build
from singularity_proxy.errors import Unsupported

MODULE = """
#include <Python.h>
#include "wire/answer.h"
int half();
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_singularity_native", nullptr, -1,
                                 nullptr, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit__singularity_native() {
  PyObject* m = PyModule_Create(&definition);
  PyModule_AddIntConstant(m, "answer", ANSWER + half());
  return m;
}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources and two headers in the places where the real ones are."""
    for folder in ("native", "wire", "device/src"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "native/module.cpp").write_text(MODULE)
    (tmp_path / "wire/answer.h").write_text("#define ANSWER 40\n")
    (tmp_path / "device/src/half.cpp").write_text(
        '#include "half.h"\nint half() { return HALF; }\n'
    )
    (tmp_path / "device/src/half.h").write_text("#define HALF 2\n")
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    monkeypatch.setattr(build, "LIBRARIES", ("c10",))
    return tmp_path


def answer(path: Path) -> str:
    code = (
        "import importlib.machinery as m, importlib.util as u, sys;"
        "l = m.ExtensionFileLoader('_singularity_native', sys.argv[1]);"
        "x = u.module_from_spec(u.spec_from_loader('_singularity_native', l)); print(x.answer)"
    )
    return subprocess.check_output(
        [sys.executable, "-c", code, path], text=True, timeout=100
    ).strip()


def objects(package: Path) -> dict[str, list[tuple[int, int]]]:
    """Source -> (inode, last used) of the objects kept for it, the latest one first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path in (package / "native/build/objects").glob("*.o"):
        status = path.stat()
        found.setdefault(path.name.rpartition("-")[0], []).append(
            (status.st_ino, status.st_mtime_ns)
        )
    return {
        name: sorted(kept, key=lambda one: one[1], reverse=True) for name, kept in found.items()
    }


def inodes(package: Path, source: str) -> list[int]:
    return [inode for inode, _ in objects(package)[source]]


def test_only_what_changed_is_compiled_again(package: Path) -> None:
    first = build.build()
    assert first.parent == package / "native/build"
    assert answer(first) == "42"
    module, half = inodes(package, "native-module"), inodes(package, "device-src-half")
    assert objects(package).keys() == {"native-module", "device-src-half"}
    assert (len(module), len(half)) == (1, 1)
    assert build.build() == first
    (package / "device/src/half.h").write_text("#define HALF 3\n")
    second = build.build()
    assert second != first
    assert answer(second) == "43"
    assert inodes(package, "native-module") == module
    assert inodes(package, "device-src-half")[1:] == half
    (package / "device/src/half.h").write_text("#define HALF 2\n")
    assert build.build() == first  # still there
    assert build.build(force=True) == first
    assert not set(inodes(package, "native-module")) & set(module)


def test_what_another_torch_compiled_stays(package: Path) -> None:
    """A few objects per source, those used last: switching back compiles nothing."""
    header = package / "device/src/half.h"
    for number in range(build.KEPT_OBJECTS + 2):
        header.write_text(f"#define HALF {number}\n")
        assert answer(build.build()) == str(40 + number)
    kept = inodes(package, "device-src-half")
    assert len(kept) == build.KEPT_OBJECTS
    header.write_text(f"#define HALF {build.KEPT_OBJECTS}\n")  # the last but one
    build.build().unlink()
    assert answer(build.build()) == str(40 + build.KEPT_OBJECTS)
    assert inodes(package, "device-src-half") == [kept[1], kept[0], *kept[2:]]
    assert len(inodes(package, "native-module")) == 1


def test_a_built_library_needs_no_compiler(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    built = build.build()
    monkeypatch.setenv("PATH", "")
    assert build.build() == built
    (package / "wire/answer.h").write_text("#define ANSWER 1\n")
    with pytest.raises(Unsupported, match=r"no C\+\+ compiler was found.*install g\+\+"):
        build.build()
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(Unsupported, match=r"no-such-compiler cannot be run.*correct CXX"):
        build.build()


def test_only_a_wait_is_announced(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.build(announce=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Building the device proxy's native module for this PyTorch: once")
    build.build(announce=True)
    assert capsys.readouterr().err == ""


def test_an_error_is_one_sentence(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "device/src/half.cpp").write_text("int half() { return nothing; }\nint x = y;\n")
    assert build.main(["--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("the native module cannot be built: device/src/half.cpp failed: ")
    assert "nothing" in line
    assert not list((package / "native/build").glob("*.so"))


def test_other_folders_are_used_when_the_package_is_read_only(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "native/build").write_text("in the way")
    monkeypatch.setenv("SINGULARITY_CACHE", str(package / "cache"))
    built = build.build()
    assert built.parent == package / "cache/native"
    monkeypatch.delenv("SINGULARITY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(package / "native/build"))
    with pytest.raises(Unsupported, match="set SINGULARITY_CACHE to a writable one"):
        build.build()


def test_builders_wait_for_each_other(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    real = build._run

    def counted(command: list[str], what: str) -> None:
        commands.append(what)
        real(command, what)

    monkeypatch.setattr(build, "_run", counted)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(build.build())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(set(found)) == 1
    assert len(found) == 3
    assert sorted(commands) == ["device/src/half.cpp", "linking", "native/module.cpp"]
    assert not list((package / "native/build").rglob("*.tmp"))


def test_the_real_library_is_loaded_once_and_fits_this_torch() -> None:
    code = (
        "from singularity_proxy import build; m = build.load(); assert m is build.load();"
        "assert hasattr(m, 'RingServer'); print(m.__file__)"
    )
    path = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=600).strip()
    assert os.path.basename(path) == build.library_name(build.Torch.find())

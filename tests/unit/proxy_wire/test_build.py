"""Building and finding the native module, on a small package that compiles in no time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

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
    """Two units of one source each and two headers, in the places where the real ones are."""
    for folder in ("native/units", "wire", "device/src"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "native/module.cpp").write_text(MODULE)
    (tmp_path / "wire/answer.h").write_text("#define ANSWER 40\n")
    (tmp_path / "device/src/half.cpp").write_text(
        '#include "half.h"\nint half() { return HALF; }\n'
    )
    (tmp_path / "device/src/half.h").write_text("#define HALF 2\n")
    (tmp_path / "native/units/module.cpp").write_text('#include "native/module.cpp"\n')
    (tmp_path / "native/units/half.cpp").write_text('#include "device/src/half.cpp"\n')
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


def objects(package: Path) -> dict[str, int]:
    """Unit -> when its object was written; of the only build tree."""
    (tree,) = (package / "native/build").glob("tree-*")
    return {path.stem: path.stat().st_mtime_ns for path in tree.glob("*.o")}


def test_only_what_changed_is_compiled_again(package: Path) -> None:
    first = build.build()
    assert first.parent == package / "native/build"
    assert answer(first) == "42"
    before = objects(package)
    assert before.keys() == {"module", "half"}
    assert build.build() == first
    (package / "device/src/half.h").write_text("#define HALF 3\n")
    second = build.build()
    assert second != first
    assert answer(second) == "43"
    after = objects(package)
    assert after["module"] == before["module"]
    assert after["half"] > before["half"]
    (package / "device/src/half.h").write_text("#define HALF 2\n")
    assert build.build() == first  # still there
    assert build.build(force=True) == first
    assert objects(package)["module"] > before["module"]


def test_a_changed_source_with_an_old_time_is_compiled(package: Path) -> None:
    """An installer may give files the times at which they were packed."""
    header = package / "device/src/half.h"
    assert answer(build.build()) == "42"
    header.write_text("#define HALF 7\n")
    os.utime(header, (1, 1))
    assert answer(build.build()) == "47"


def test_a_source_that_is_gone_is_not_linked(package: Path) -> None:
    (package / "native/units/more.cpp").write_text("int more() { return 1; }\n")
    build.build()
    assert objects(package).keys() == {"module", "half", "more"}
    (package / "native/units/more.cpp").unlink()
    (package / "device/src/half.h").write_text("#define HALF 4\n")
    assert b"_Z4morev" not in build.build().read_bytes()


def test_what_another_torch_compiled_stays(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each torch has a build tree of its own; the last few stay, and libraries longer."""
    found = build.Torch.find()
    libraries = []
    for number in range(build.KEPT_TREES + 2):
        other = build.Torch(found.folder, f"{number:x}")
        monkeypatch.setattr(build.Torch, "find", classmethod(lambda cls, other=other: other))
        libraries.append(build.build())
    assert len(set(libraries)) == build.KEPT_TREES + 2
    assert all(path.is_file() for path in libraries)
    assert len(list((package / "native/build").glob("tree-*"))) == build.KEPT_TREES


def test_without_ninja_the_same_is_built(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_ninja = build.build()
    before = objects(package)
    monkeypatch.setattr(build, "_ninja", lambda: None)
    assert build.build(force=True) == with_ninja
    assert answer(with_ninja) == "42"
    assert objects(package).keys() == before.keys()
    (package / "device/src/half.cpp").write_text("int half() { return nothing; }\n")
    with pytest.raises(Unsupported, match=r"device/src/half\.cpp:1:\d+: error: .*nothing"):
        build.build()


def test_a_library_that_came_with_the_package_is_taken(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build.build()
    prebuilt = package / "native/prebuilt" / built.name
    prebuilt.parent.mkdir()
    built.rename(prebuilt)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.build() == prebuilt
    (package / "wire/answer.h").write_text("#define ANSWER 1\n")  # it does not fit these sources
    with pytest.raises(Unsupported, match=r"no C\+\+ compiler was found"):
        build.build()


@pytest.mark.root
def test_a_full_disk_is_one_sentence(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = package / "native/build"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        assert build.main([]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("the native module cannot be built")
        assert "No space left on device" in line
        assert not list(folder.glob("*.so"))
    finally:
        subprocess.run(["umount", folder], check=True)
    assert answer(build.build()) == "42"  # repeated, with room


def test_a_killed_build_is_repeated(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilers of a killed builder are waited for, and half an object is never linked."""
    slow = package / "slow-compiler"
    slow.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] || {{ echo >>{package}/begun; sleep 1; }}\n'
        'exec g++ "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    code = (
        "import sys; from pathlib import Path; from singularity_proxy import build;"
        "build.PACKAGE = Path(sys.argv[1]); build.LIBRARIES = ('c10',); build.build()"
    )
    first = subprocess.Popen([sys.executable, "-c", code, package])
    while not (package / "begun").exists():
        assert first.poll() is None
    first.kill()
    first.wait()
    assert not list((package / "native/build").glob("*.so"))
    assert answer(build.build()) == "42"
    assert not list((package / "native/build").rglob("*.tmp"))


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


def test_the_compiler_has_the_shared_library_of_c_plus_plus(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has only a static libstdc++ is passed over: its module could not throw to torch."""
    monkeypatch.delenv("CXX", raising=False)
    folder = package / "bin"
    folder.mkdir()
    lesser = folder / "g++"
    lesser.write_text(
        '#!/bin/sh\n[ "$1" = -print-file-name=libstdc++.so ] && echo libstdc++.so && exit\nexit 1\n'
    )
    lesser.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{path}")
    monkeypatch.setattr(build, "_ninja", lambda: None)
    assert answer(build.build()) == "42"
    (package / "wire/answer.h").write_text("#define ANSWER 1\n")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(Unsupported, match=r"no C\+\+ compiler here has .* as a shared one"):
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
    assert line.startswith("the native module cannot be built: device/src/half.cpp:1:")
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
    built: list[Path] = []
    real = build._build

    def counted(*arguments: Any, **options: Any) -> Path:
        built.append(real(*arguments, **options))
        return built[-1]

    monkeypatch.setattr(build, "_build", counted)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(build.build())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == built * 3
    assert not list((package / "native/build").rglob("*.tmp"))


def test_every_source_is_in_one_unit() -> None:
    """What is in none would be missing in the library; torch's headers come once a unit."""
    included = [
        name
        for unit in sorted((build.PACKAGE / "native/units").glob("*.cpp"))
        for name in re.findall(r'^#include "(.*\.cpp)"$', unit.read_text(), re.MULTILINE)
    ]
    written = [*build.PACKAGE.glob("*/src/**/*.cpp"), *build.PACKAGE.glob("native/*.cpp")]
    assert sorted(included) == sorted(str(path.relative_to(build.PACKAGE)) for path in written)


def test_the_real_library_is_loaded_once_and_fits_this_torch() -> None:
    code = (
        "from singularity_proxy import build; m = build.load(); assert m is build.load();"
        "assert hasattr(m, 'RingServer'); print(m.__file__)"
    )
    path = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=600).strip()
    assert os.path.basename(path) == build.library_name(build.Torch.find())

"""Layers: what is written, that writing again changes nothing, and what counts as one."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from pathlib import Path

import pytest
from singularity_proxy.layers import LINK, OLD_LINK, Layer, first_python, is_over_this, own_packages


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each file, which change when it is written."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        if not path.is_dir() or path.is_symlink():
            found[str(path)] = (about.st_ino, about.st_mtime_ns)
    return found


def packages_of(layer: Layer) -> Path:
    vars = {"base": layer.folder, "platbase": layer.folder}
    return Path(sysconfig.get_path("purelib", "venv", vars))


def test_a_layer_is_an_environment_over_this_one(tmp_path: Path) -> None:
    layer = Layer(str(tmp_path / "a b"))
    layer.make()
    python = f"{layer.programs}/python"
    assert is_over_this(python)
    assert is_over_this(f"{layer.programs}/python3")
    assert os.path.realpath(python) == os.path.realpath(sys.executable)
    assert os.access(f"{layer.programs}/pip", os.X_OK)
    assert sysconfig.get_path("purelib") in (packages_of(layer) / LINK).read_text()
    here = os.path.dirname(sys.executable)
    assert first_python({"PATH": f"{layer.programs}:{here}"}) == python
    assert first_python({"PATH": f"{here}:{layer.programs}"}) is None
    assert first_python({}) is None


def test_making_it_again_brings_it_up_to_date_and_keeps_packages(tmp_path: Path) -> None:
    layer = Layer(str(tmp_path / "own"))
    layer.make()
    (packages_of(layer) / "mine.py").write_text("x = 1")
    before = state_of(tmp_path)
    layer.make()
    assert state_of(tmp_path) == before
    (packages_of(layer) / LINK).write_text("of an older environment")
    (Path(layer.programs) / "python").unlink()
    (Path(layer.programs) / "python").symlink_to("/nowhere/python")
    assert not is_over_this(f"{layer.programs}/python")
    layer.make()
    assert is_over_this(f"{layer.programs}/python")
    assert os.path.exists(f"{layer.programs}/python")
    assert state_of(tmp_path).keys() == before.keys()


FINDER = """
import importlib.machinery, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = {"found_a": %r}.get(name)
        return found and importlib.machinery.PathFinder.find_spec(name, [found])
sys.meta_path.append(Finder)
"""
"""What setuptools installs of a checkout, without its details."""


def test_a_checkout_that_is_installed_in_a_layer_goes_before_the_shared_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, checkout = tmp_path / "shared", tmp_path / "checkout"
    for folder in (shared, checkout):
        folder.mkdir()
        for name in ("found_a", "path_a", "path_z"):
            (folder / f"{name}.py").touch()
    (shared / "both.py").touch()
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(shared)])
    layer = Layer(str(tmp_path / "own"))
    packages = packages_of(layer)
    packages.mkdir(parents=True)
    (packages / OLD_LINK).write_text(f"import site; site.addsitedir({str(shared)!r})\n")
    layer.make()
    (packages / "__editable__.path_a.pth").write_text(f"{checkout}\n")
    (packages / "zeta.pth").write_text(f"{checkout}\n")
    (packages / "__editable__.found_a.pth").write_text("import __editable___found_a_finder\n")
    (packages / "__editable___found_a_finder.py").write_text(FINDER % str(checkout))
    (packages / "both.py").touch()
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    site.addsitedir(str(packages))
    monkeypatch.delitem(sys.modules, "__editable___found_a_finder")
    found = {}
    for name in ("found_a", "path_a", "path_z", "both"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        found[name] = spec.origin
    here = {name: f"{checkout}/{name}.py" for name in ("found_a", "path_a", "path_z")}
    assert found == {**here, "both": f"{packages}/both.py"}


def test_what_is_no_layer(tmp_path: Path) -> None:
    assert not is_over_this("/usr/bin/python3")
    assert not is_over_this(str(tmp_path / "none/bin/python"))
    assert not is_over_this(sys.executable)


def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file")
    with pytest.raises(OSError, match=r"exists|directory"):
        Layer(str(tmp_path / "own")).make()


def test_each_version_of_python_has_its_own(tmp_path: Path) -> None:
    folder = Path(own_packages(str(tmp_path)).folder)
    assert folder.name == f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert folder.is_relative_to(tmp_path / ".local/share")


@pytest.mark.parametrize("what", ["fifo", "device", "link"])
def test_what_stands_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path, what: str) -> None:
    """The Hub waits while a layer is made in a home, whose user may put anything there."""
    layer = Layer(str(tmp_path / "own"))
    layer.make()
    file = tmp_path / "own" / "pyvenv.cfg"
    file.unlink()
    if what == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if what == "device" else "/etc/hostname")
    layer.make()
    assert file.read_text().startswith("home = ")
    assert not file.is_symlink()


def test_the_shared_environment_itself_is_no_place_for_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Layer(sys.prefix).is_shared
    (tmp_path / "link").symlink_to(sys.prefix)
    assert Layer(str(tmp_path / "link")).is_shared
    layer = Layer(str(tmp_path / "own"))
    layer.make()
    assert not layer.is_shared
    shared = sys.prefix
    monkeypatch.setattr(sys, "prefix", layer.folder)  # as in a terminal of its user
    assert Layer(shared).is_shared
    assert not layer.is_shared

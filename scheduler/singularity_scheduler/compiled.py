"""The engine and the replay of the simulator as extension modules, compiled by mypyc from the very
sources that run interpreted otherwise: the same results, several times as fast.

Built ahead of time by `./dev` and administrators (`python -m singularity_scheduler.compiled`),
which needs mypy, setuptools, a C compiler and Python's headers. Whoever replays much calls `use`
before it imports any of `MODULES`; without a build of the sources as they are now, or with one that
cannot be loaded, they run interpreted. Builds lie in folders of their own, named by a hash of all
that they depend on: one of older sources is never loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from singularity_proxy import errors

PACKAGE = Path(__file__).resolve().parent
NAME = __package__ or PACKAGE.name
FOLDER = PACKAGE / "build"
"""Holds a folder for each build."""
ABI = str(sysconfig.get_config_var("SOABI"))
"""The interpreter and the machine that a build is for, as Python names them."""
KEPT = 3
"""Builds for an ABI that stay when a newer one is made."""
_NEW = "new-"
"""Begins the names of folders in which somebody prepares a build."""
_ABANDONED_S = 3600.0
"""Seconds after which one of those is nobody's: to build takes a minute."""

_ENGINE = (
    *("actions", "claims", "defrag", "elastic", "engine", "events", "harm", "headroom", "pool"),
    *("queue", "serving", "sla", "state", "victims"),
)
_SIM = ("fleet", "record", "replay", "schedulers")

MODULES = (
    *(f"{NAME}.core.allocation.{name}" for name in _ENGINE),
    f"{NAME}.core.placement.routing",
    *(f"{NAME}.sim.{name}" for name in _SIM),
)
"""What is compiled, all of it together: their objects are no use to interpreted ones."""

SEEN = (
    errors.__name__,
    f"{NAME}.core.values.parameters",
    f"{NAME}.core.reasons.reason",
    f"{NAME}.core.reasons.refusals",
    f"{NAME}.core.values.states",
    f"{NAME}.sim.traces.records",
)
"""What `MODULES` import besides each other: it stays interpreted, and the compiler goes by its
types."""

INTERPRETED = "SINGULARITY_INTERPRETED"
"""Environment variable: not empty, and `use` leaves everything interpreted."""

BUILD = f"python -m {NAME}.compiled"
COMPILED = "The scheduling engine runs compiled in simulations."
_SLOW = "The scheduling engine runs interpreted in simulations, several times slower"

_said = ""
"""What `use` has come to in this process."""


def source(module: str) -> Path:
    """The file of one of `MODULES` or `SEEN`."""
    top, _, rest = module.partition(".")
    root = PACKAGE if top == NAME else Path(errors.__file__).parent
    return root.joinpath(*rest.split(".")).with_suffix(".py")


def key() -> str:
    """Names the build of the sources as they are now, for this Python."""
    digest = hashlib.blake2b(digest_size=10)
    for path in (Path(__file__), *map(source, (*MODULES, *SEEN))):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return f"{ABI}-{digest.hexdigest()}"


def find() -> Path | None:
    """The build of the sources as they are now."""
    folder = FOLDER / key()
    return folder if folder.is_dir() else None


def state() -> tuple[bool, str]:
    """(whether a new process would try to run compiled, that or why not in a sentence)."""
    if os.environ.get(INTERPRETED):
        return False, f"{_SLOW}: {INTERPRETED} is set."
    if find() is None:
        return False, f"{_SLOW}: no build fits these sources and this Python ({BUILD} makes one)."
    return True, COMPILED


def check() -> tuple[bool, str]:
    """`state`, after another process has tried to load the build."""
    can, sentence = state()
    if not can:
        return can, sentence
    folder = FOLDER / key()
    done = subprocess.run(
        [sys.executable, "-m", f"{NAME}.compiled", "--check", os.fspath(folder)],
        cwd=PACKAGE.parent,  # where `-m` finds this very package
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return True, COMPILED
    said = done.stderr.strip().splitlines()
    return False, _useless(folder, said[-1] if said else f"exit status {done.returncode}")


def use() -> str:
    """Have this process run `MODULES` compiled if it can; how it runs them, in a sentence."""
    global _said
    if not _said:
        can, _said = state()
        if can and any(name in sys.modules for name in MODULES):
            _said = "The scheduling engine runs interpreted: it was imported before it was asked."
        elif can:
            try:
                _load(FOLDER / key())
            except errors.Unsupported as error:
                _said = _useless(FOLDER / key(), error.message)
    return _said


def _useless(folder: Path, why: str) -> str:
    return (
        f"{_SLOW}: the build in {folder} cannot be loaded ({why}); {BUILD} --force makes another."
    )


def _load(folder: Path) -> None:
    """Import all of `MODULES` from a build, now, so that none is ever interpreted beside it. Raises
    `Unsupported`, and none of them is imported, if one cannot be."""
    parents = list(dict.fromkeys(name.rpartition(".")[0] for name in MODULES))
    packages = [importlib.import_module(name) for name in parents]
    for package in packages:
        package.__path__.insert(0, os.fspath(folder.joinpath(*package.__name__.split("."))))
    try:
        [shared] = folder.glob("*__mypyc*")  # holds the code; each module's own file calls it
        name = shared.name.partition(".")[0]
        loader = importlib.machinery.ExtensionFileLoader(name, os.fspath(shared))
        spec = importlib.machinery.ModuleSpec(name, loader, origin=os.fspath(shared))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        loader.exec_module(sys.modules[name])
        for module in MODULES:
            file = importlib.import_module(module).__file__
            if not file or folder not in Path(file).parents:
                raise ImportError(f"it lacks {module}")
    except Exception as error:  # whatever a damaged file comes to
        for module in MODULES:
            sys.modules.pop(module, None)
            parent, _, child = module.rpartition(".")
            vars(sys.modules[parent]).pop(child, None)
        raise errors.Unsupported(str(error)) from error
    finally:
        for package in packages:
            del package.__path__[0]


# -- building -------------------------------------------------------------------------------


def build(force: bool = False) -> Path:
    """Compile the sources as they are now, if that was not done before. Changes the working folder
    meanwhile, so it is for a process of its own. Raises `Unsupported` where it cannot be done."""
    target = FOLDER / key()
    if target.is_dir() and not force:
        return target
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=FOLDER, prefix=_NEW))
    except OSError as error:
        raise errors.Unsupported(f"{FOLDER} cannot be written ({error.strerror})") from None
    here = Path.cwd()
    try:
        with tempfile.TemporaryDirectory(prefix="singularity-engine-") as work:
            try:
                _compile(Path(work))
            finally:
                os.chdir(here)
            shutil.copytree(Path(work, "out"), new / "build")
        if force:
            with contextlib.suppress(FileNotFoundError):
                target.rename(new / "replaced")
        try:
            (new / "build").rename(target)
        except OSError:
            if not target.is_dir():  # else somebody has built the same meanwhile
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    _sweep(target)
    return target


def _sweep(latest: Path) -> None:
    """Remove older builds for this ABI, and what builders who were killed have left."""
    ages = []
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):  # somebody else sweeps
            ages.append((path.stat().st_mtime, path))
    builds = [path for _, path in sorted(ages) if path.name.startswith(f"{ABI}-")]
    old = [path for path in builds if path != latest][: -KEPT + 1 or None]
    until = time.time() - _ABANDONED_S
    old += [path for at, path in ages if path.name.startswith(_NEW) and at < until]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)


def _compile(work: Path) -> None:
    """Extension modules in `work / "out"`, from copies of exactly the files that `key` is of."""
    try:
        from mypyc.build import mypycify
        from setuptools import setup
    except ImportError as error:
        raise errors.Unsupported(
            f"{error.name} is not installed here: pip install mypy setuptools"
        ) from None
    tree = work / "tree"
    for module in (*MODULES, *SEEN):
        copy = tree.joinpath(*module.split(".")).with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source(module), copy)
    os.chdir(tree)
    options = ["--explicit-package-bases", "--namespace-packages", "--follow-imports=silent"]
    options += ["--ignore-missing-imports", "--config-file=", f"--cache-dir={work / 'cache'}"]
    files = [os.fspath(Path(*name.split(".")).with_suffix(".py")) for name in MODULES]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            modules = mypycify(
                [*options, *files], opt_level="2", debug_level="0", target_dir=str(work / "c")
            )
            arguments = ["build_ext", "--build-lib", str(work / "out")]
            arguments += ["--build-temp", str(work / "objects")]
            setup(name="compiled", packages=[], ext_modules=modules, script_args=arguments)
    except SystemExit as error:
        end = " ".join(said.getvalue().split()[-40:]) or error
        raise errors.Unsupported(f"the engine cannot be compiled here: {end}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog=BUILD, description="Compile the scheduling engine.")
    parser.add_argument("--force", action="store_true", help="also when that was done before")
    parser.add_argument("--key", action="store_true", help="only print what the build is named by")
    parser.add_argument("--check", type=Path, metavar="BUILD", help="only load that build")
    options = parser.parse_args()
    if options.key:
        print(key())
        return 0
    try:
        if options.check:
            _load(options.check)
        else:
            print(build(options.force))
    except errors.Unsupported as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

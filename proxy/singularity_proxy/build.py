"""Builds and loads the native module of the data plane (`_singularity_native`).

Called by the worker's import hook and by the device proxy (`load`), and by `./dev` and
administrators ahead of time (`python -m singularity_proxy.build`). Needs a C++ compiler, Python's
headers and the headers that torch itself ships; no CUDA toolkit. One library serves the CPU and the
CUDA build of one torch version, because both have the same `git_version`.

The few translation units in `native/units` are described in one `build.ninja`, and ninja compiles
what changed. Where there is no ninja (a bare GPU machine) the same commands run side by side.

The library is cached under a name that holds a hash of everything it depends on, so a changed
source, another torch or another Python never loads a wrong one. A wheel brings libraries of the
same names in `native/prebuilt`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from .errors import SingularityError, Unsupported

MODULE = "_singularity_native"
PACKAGE = Path(__file__).resolve().parent
COMPILER_BYTES = 2 << 30
"""Memory set aside for one compiler process when the number of parallel ones is chosen."""
KEPT_LIBRARIES = 8
"""Older libraries stay this long: a process image may still map one of them."""
KEPT_TREES = 3
"""Build trees kept, so that two torches (or a sanitizer's build) do not evict each other's."""
FLAGS = [
    "-std=c++20",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-DNDEBUG",
    "-DTORCH_API_INCLUDE_EXTENSION_H",
    "-ffile-prefix-map=.=singularity_proxy",  # torch says of each kernel in which file it is
]
PROGRAM_FLAGS = ["-std=c++20", "-O2", "-g0", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra"]
LIBRARIES = ("torch_cpu", "torch_python", "c10")
COMPILERS = ("g++", "c++", "clang++")
SANITIZE = "SINGULARITY_SANITIZE"
"""Environment variable for tests: `address` builds and loads a second library, of the device half
alone, that ends the process at the first wrong memory access or undefined behaviour. The process
needs libasan in LD_PRELOAD (`sanitizer_runtime`)."""
SANITIZERS = {
    "address": (
        *("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
        # A library with hidden symbols does not share torch's type information.
        *("-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
    )
}
NINJA_FILE = """\
builddir = .
rule compile
  command = {compile} -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = compiling $in
rule link
  command = {link}
  description = linking
{units}
build {library}: link {objects}
"""


@dataclass(frozen=True)
class Torch:
    """The torch that the library is for; found without importing it."""

    folder: Path
    git_version: str

    @classmethod
    def find(cls) -> Torch:
        """Raises Unsupported when no torch is installed."""
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            raise Unsupported("PyTorch is not installed here, so there is nothing to build for.")
        folder = Path(spec.submodule_search_locations[0])
        text = (folder / "version.py").read_text()
        found = re.search(r"^git_version\b[^=\n]*= *'([0-9a-f]+)'", text, re.MULTILINE)
        if found is None:
            raise Unsupported(
                f"{folder / 'version.py'} names no git version; use a released torch."
            )
        return cls(folder, found[1])


def sanitizer() -> str:
    """The sanitizer that the environment asks for; "" for none. Raises Unsupported."""
    name = os.environ.get(SANITIZE, "")
    if name and name not in SANITIZERS:
        raise Unsupported(f"{SANITIZE} can be {', '.join(SANITIZERS)} or nothing, not '{name}'.")
    return name


def sanitizer_runtime() -> Path | None:
    """What a process with a sanitized module needs in LD_PRELOAD; None: not installed."""
    command = [*_compiler(), "-print-file-name=libasan.so"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return Path(answer).resolve() if "/" in answer and Path(answer).exists() else None


def flags() -> list[str]:
    """What the compiler is told, besides where the headers are."""
    return [*FLAGS, *SANITIZERS.get(sanitizer(), ())]


def sources(root: Path | None = None) -> list[Path]:
    """Every C++ file of the package (or of `root`) that the library is made of, in a fixed order.

    A sanitizer's build leaves the units of the worker half out.
    """
    root = root or PACKAGE
    patterns = (
        "*/src/**/*.cpp",
        "*/src/**/*.h",
        "native/*.cpp",
        "native/*.h",
        "native/units/*",
        "wire/*.h",
    )
    return sorted(
        path
        for pattern in patterns
        for path in root.glob(pattern)
        if not (sanitizer() and path.parent.name == "units" and path.name.startswith("worker"))
    )


def library_name(torch: Torch, root: Path | None = None) -> str:
    """File name of the library for `torch`, this Python and the sources as they are in `root`."""
    root = root or PACKAGE
    digest = hashlib.blake2b(_environment_key(torch).encode(), digest_size=10)
    for path in sources(root):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(data)}\n".encode())
        digest.update(data)
    return f"{MODULE}-{digest.hexdigest()}.so"


def find(torch: Torch) -> Path | None:
    """The library for `torch` if it came with the package or is already built."""
    return _find_file(library_name(torch))


def cache_folders() -> list[Path]:
    """Where libraries are looked for, and (first writable one) built."""
    folders = [PACKAGE / "native" / "build"]
    if named := os.environ.get("SINGULARITY_CACHE"):
        folders.append(Path(named) / "native")
    user = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no home folder
        base = Path(user) if user else Path.home() / ".cache"
        folders.append(base / "jupyter-singularity" / "native")
    return [folder / name for folder in folders] if (name := sanitizer()) else folders


def build(*, force: bool = False, verbose: bool = False, announce: bool = False) -> Path:
    """Compile what changed and return the library's path; waits for another builder's result.

    `verbose` names the files on stderr, `announce` says there why somebody who did not ask for a
    build has to wait. Raises Unsupported with one sentence when it cannot be compiled here.
    """
    torch = Torch.find()
    if not force and (found := find(torch)):
        return found
    if announce:
        _compile_command(torch, PACKAGE)  # what is missing is not announced as a wait
        print(
            "Building the device proxy's native module for this PyTorch: once, a minute or two.",
            file=sys.stderr,
            flush=True,
        )
    with _writable_folder() as folder, _lock(folder) as lock:
        if not force and (found := find(torch)):  # built by someone else meanwhile
            return found
        return _build(torch, folder, lock, force=force, verbose=verbose)


def build_program(source: Path) -> Path:
    """Compile the one C++ file `source`, with the headers beside it, to a program of its own, and
    return its path.

    Called by the node agent for the small programs it starts (`capsule.holder`). Needs a compiler
    and the C library, nothing else; cached like the native module. Linked statically where that is
    possible, because it starts faster and then asks nothing of a folder it may not see. Raises
    Unsupported with one sentence when it cannot be compiled here.
    """
    name = _program_name(source)
    if found := _find_file(name):
        return found
    command = [*_compiler(), *PROGRAM_FLAGS]
    with _writable_folder() as folder, _lock(folder):
        if found := _find_file(name):
            return found
        with _replace_file(folder / name) as temporary:
            last = [os.fspath(source), "-o", os.fspath(temporary)]
            try:
                _run([*command, "-static", *last])
            except Unsupported:  # no static C library
                _run([*command, *last])
        return folder / name


def find_program(source: Path) -> Path | None:
    """Return the program that `build_program` has made of `source`; None: not yet."""
    return _find_file(_program_name(source))


def _program_name(source: Path) -> str:
    parts = [source, *sorted(source.parent.glob("*.h"))]
    key = f"{platform.machine()} {' '.join(PROGRAM_FLAGS)}\n".encode()
    key += b"".join(part.read_bytes() for part in parts)
    return f"{source.stem}-{hashlib.blake2b(key, digest_size=10).hexdigest()}"


def load() -> ModuleType:
    """The native module, built first if needed. Imports torch when `torch._C` is not loaded yet.

    Called by the device proxy at its start and by the worker's import hook (there right after
    `torch._C`, so that the library resolves against the user's own torch).
    """
    if (loaded := sys.modules.get(MODULE)) is not None:
        return loaded
    if "torch._C" not in sys.modules:
        importlib.import_module("torch")
    path = build(announce=True)
    loader = importlib.machinery.ExtensionFileLoader(MODULE, os.fspath(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    if spec is None:
        raise Unsupported(f"Python cannot load an extension module from {path}.")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise Unsupported(
            f"the native module {path.name} does not fit this PyTorch ({error}); "
            "run 'python -m singularity_proxy.build --force'."
        ) from error
    sys.modules[MODULE] = module
    return module


def _environment_key(torch: Torch) -> str:
    return " ".join(
        (
            torch.git_version,
            platform.machine(),
            sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
            *flags(),
            *LIBRARIES,
        )
    )


def _find_file(name: str) -> Path | None:
    for folder in (PACKAGE / "native" / "prebuilt", *cache_folders()):
        with contextlib.suppress(PermissionError):  # another user's folder has nothing for us
            if (folder / name).is_file():
                return folder / name
    return None


@contextlib.contextmanager
def _writable_folder() -> Iterator[Path]:
    """The first cache folder that can be written. A full disk, now or later, raises Unsupported."""
    tried = []
    for folder in cache_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                break
        except OSError as error:
            tried.append(f"{folder} ({error.strerror})")
    else:
        raise Unsupported(
            f"no folder to build the native module in: {', '.join(tried)}; "
            "set SINGULARITY_CACHE to a writable one."
        )
    try:
        yield folder
    except OSError as error:
        raise Unsupported(
            f"the native module cannot be built in {folder}: {error.strerror}; "
            "make room there or set SINGULARITY_CACHE to another folder."
        ) from error


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[int]:
    """Hold the folder's lock. Compilers inherit it: those of a killed builder are waited for."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _replace_file(path: Path) -> Iterator[Path]:
    """A temporary name that becomes `path` at the end, so that nobody sees half a file."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _compiler() -> list[str]:
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise Unsupported(
        "no C++ compiler was found, so the native module cannot be built; "
        "install g++ (on Debian and Ubuntu: sudo apt-get install g++)."
    )


def _library_compiler() -> list[str]:
    """The compiler of the module: the one that CXX names, else the first on PATH that has the C++
    library as a shared one. With a copy of its own inside, the module could not throw to torch."""
    first = _compiler()
    if os.environ.get("CXX"):
        return first
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = (shutil.which(name, path=folder) for name in COMPILERS for folder in folders)
    for path in dict.fromkeys([*first, *filter(None, others)]):
        command = [path, "-print-file-name=libstdc++.so"]  # the bare name where there is none
        if os.path.isabs(_run(command).strip()):
            return [path]
    raise Unsupported(
        "no C++ compiler here has the C++ library as a shared one (libstdc++.so), so the native "
        "module cannot be built; install g++ (on Debian and Ubuntu: sudo apt-get install g++)."
    )


def _ninja() -> str | None:
    """The ninja of this environment (the package `ninja`), else one on PATH."""
    own = Path(sys.executable).with_name("ninja")
    return os.fspath(own) if os.access(own, os.X_OK) else shutil.which("ninja")


def _abi_flags(torch: Torch) -> list[str]:
    """The old ABI of the C++ library, for a torch before 2.7 that says so in its CMake files."""
    text = ""
    with contextlib.suppress(OSError):
        text = (torch.folder / "share/cmake/Torch/TorchConfig.cmake").read_text()
    old = "-D_GLIBCXX_USE_CXX11_ABI=0"
    return [old] if old in text else []


def _parallel() -> int:
    jobs = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                jobs = min(jobs, int(line.split()[1]) * 1024 // COMPILER_BYTES)
    return max(1, jobs)


def _compile_command(torch: Torch, root: Path) -> list[str]:
    include = torch.folder / "include"
    python = sysconfig.get_path("include")
    if not (Path(python) / "Python.h").is_file():
        raise Unsupported(
            f"Python's headers are missing ({python}/Python.h), so the native module cannot be "
            "built; install them (on Debian and Ubuntu: sudo apt-get install python3-dev)."
        )
    return [
        *_library_compiler(),
        *flags(),
        *_abi_flags(torch),
        f"-I{root}",
        f"-isystem{include}",
        f"-isystem{include / 'torch/csrc/api/include'}",
        f"-isystem{python}",
    ]


def _link_command(torch: Torch, objects: list[str], library: str) -> list[str]:
    return [
        *_library_compiler(),
        *("-shared", "-o", library),
        *(flag for flag in flags() if flag.startswith("-fsanitize")),
        *objects,
        f"-L{torch.folder / 'lib'}",
        *(f"-l{name}" for name in LIBRARIES),
        f"-Wl,-rpath,{torch.folder / 'lib'}",
        "-Wl,--no-undefined-version",
    ]


def _run(command: list[str], *, cwd: Path | None = None, lock: int | None = None) -> str:
    """What `command` printed. Raises Unsupported with the first error in that."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            pass_fds=() if lock is None else (lock,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise Unsupported(
            f"the native module cannot be built: {command[0]} cannot be run ({error.strerror}); "
            "correct CXX or install g++ (on Debian and Ubuntu: sudo apt-get install g++)."
        ) from error
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        telling = re.compile("No space left|: not found|Killed|error: |undefined reference")
        first = next((line for line in lines if telling.search(line)), (lines or ["no message"])[0])
        raise Unsupported(f"the native module cannot be built: {first.removeprefix('./')}")
    return done.stdout


def _build(torch: Torch, folder: Path, lock: int, *, force: bool, verbose: bool) -> Path:
    key = hashlib.blake2b(_environment_key(torch).encode(), digest_size=6).hexdigest()
    tree = folder / f"tree-{key}"
    if force:
        shutil.rmtree(tree, ignore_errors=True)
    _copy_sources(tree)
    name = library_name(torch, tree)  # of what is compiled, whatever somebody edits meanwhile
    compile_command = _compile_command(torch, Path("."))
    units = sorted(path.relative_to(tree) for path in sources(tree) if path.parent.name == "units")
    objects = [f"{unit.stem}.o" for unit in units]
    link_command = _link_command(torch, objects, MODULE)
    if ninja := _ninja():
        (tree / "build.ninja").write_text(
            NINJA_FILE.format(
                compile=shlex.join(compile_command).replace("$", "$$"),
                link=shlex.join(link_command).replace("$", "$$"),
                units="\n".join(
                    f"build {unit.stem}.o: compile {unit.as_posix()}" for unit in units
                ),
                objects=" ".join(objects),
                library=MODULE,
            )
        )
        _run([*_compiler(), "--version"])  # a compiler that cannot be run is told as that
        said = _run(
            [ninja, f"-j{_parallel()}", *([] if verbose else ["--quiet"])], cwd=tree, lock=lock
        )
    else:
        commands = [
            [*compile_command, "-c", unit.as_posix(), "-o", name]
            for unit, name in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(_parallel()) as pool:
            said = "".join(pool.map(lambda command: _run(command, cwd=tree, lock=lock), commands))
        said += _run(link_command, cwd=tree, lock=lock)
    print(said, end="", file=sys.stderr)
    with _replace_file(folder / name) as temporary:
        shutil.copyfile(tree / MODULE, temporary)
        temporary.chmod(0o755)
    _prune(folder)
    return folder / name


def _copy_sources(tree: Path) -> None:
    """Bring the build tree's copies of the sources up to date.

    Ninja goes by the times of files, and an installer or a checkout may give a changed source an
    old time. A copy is written when its contents change, and then it is new.
    """
    wanted = {path.relative_to(PACKAGE): path.read_bytes() for path in sources()}
    for path in sources(tree):
        if path.relative_to(tree) not in wanted:
            path.unlink()
    for name, data in wanted.items():
        path = tree / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _prune(folder: Path) -> None:
    """Remove all but the libraries and the build trees that were used last."""
    for pattern, kept in ((f"{MODULE}-*.so", KEPT_LIBRARIES), ("tree-*", KEPT_TREES)):
        for path in sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)[:-kept]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line: build ahead of time, or say where the library is."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.build",
        description="Build the native module for the installed PyTorch.",
    )
    parser.add_argument("--force", action="store_true", help="compile everything again")
    parser.add_argument("--print-path", action="store_true", help="print the library's path")
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    parser.add_argument("--program", metavar="FILE", help="compile this file of the package alone")
    options = parser.parse_args(arguments)
    try:
        if options.program:
            print(build_program(PACKAGE / options.program))
            return 0
        path = build(force=options.force, verbose=not options.quiet)
    except SingularityError as error:
        print(error.message, file=sys.stderr)
        return 1
    if options.print_path:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builds and loads the native module of the data plane (`_singularity_native`).

Called by the worker's import hook and by the device proxy (`load`), and by `./dev` and
administrators ahead of time (`python -m singularity_proxy.build`). Needs a C++ compiler, Python's
headers and the headers that torch itself ships; no CUDA toolkit. One library serves the CPU and the
CUDA build of one torch version, because both have the same `git_version`.

The library is cached under a name that holds a hash of everything it depends on, so a changed
source, another torch or another Python never loads a wrong one.
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
KEPT_OBJECTS = 3
"""Objects kept per source, so that two torches (or branches) do not evict each other's."""
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
]
LIBRARIES = ("torch_cpu", "torch_python", "c10")
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

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


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


def sources() -> list[Path]:
    """Every C++ file of the package that goes into the library, in a fixed order."""
    found = sorted([*PACKAGE.glob("*/src/*.cpp"), *PACKAGE.glob("native/*.cpp")])
    return [p for p in found if not sanitizer() or p.relative_to(PACKAGE).parts[0] != "worker"]


def sanitizer() -> str:
    """The sanitizer that the environment asks for; "" for none. Raises Unsupported."""
    name = os.environ.get(SANITIZE, "")
    if name and name not in SANITIZERS:
        raise Unsupported(f"{SANITIZE} can be {', '.join(SANITIZERS)} or nothing, not '{name}'.")
    return name


def flags() -> list[str]:
    """What the compiler is told, besides where the headers are."""
    return [*FLAGS, *SANITIZERS.get(sanitizer(), ())]


def sanitizer_runtime() -> Path | None:
    """What a process with a sanitized module needs in LD_PRELOAD; None: not installed."""
    command = [*_compiler(), "-print-file-name=libasan.so"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return Path(answer).resolve() if "/" in answer and Path(answer).exists() else None


def headers() -> list[Path]:
    """Every header of the package, in a fixed order."""
    return sorted(
        [*PACKAGE.glob("*/src/*.h"), *PACKAGE.glob("native/*.h"), *PACKAGE.glob("wire/*.h")]
    )


def library_name(torch: Torch) -> str:
    """File name of the library for `torch`, this Python and the sources as they are now."""
    digest = hashlib.blake2b(_environment_key(torch).encode(), digest_size=10)
    for path in (*sources(), *headers()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)} {len(data)}\n".encode())
        digest.update(data)
    return f"{MODULE}-{digest.hexdigest()}.so"


def find(torch: Torch) -> Path | None:
    """The library for `torch` if it is already built in one of the cache folders."""
    name = library_name(torch)
    for folder in cache_folders():
        path = folder / name
        with contextlib.suppress(PermissionError):  # another user's folder has nothing for us
            if path.is_file():
                return path
    return None


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
        _compile_command(torch)  # what is missing is not announced as a wait
        print(
            "Building the device proxy's native module for this PyTorch: once, a minute or two.",
            file=sys.stderr,
            flush=True,
        )
    folder = _writable_folder()
    with _lock(folder):
        if not force and (found := find(torch)):  # built by someone else meanwhile
            return found
        return _build(torch, folder, force=force, verbose=verbose)


def build_program(source: Path) -> Path:
    """Compile the one C++ file `source`, with the headers beside it, to a program of its own, and
    return its path.

    Called by the node agent for the small programs it starts (`capsule.holder`). Needs a compiler
    and the C library, nothing else; cached like the native module. Linked statically where that is
    possible, because it starts faster and then asks nothing of a folder it may not see. Raises
    Unsupported with one sentence when it cannot be compiled here.
    """
    flags = ["-std=c++20", "-O2", "-g0", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra"]
    parts = [source, *sorted(source.parent.glob("*.h"))]
    key = f"{platform.machine()} {' '.join(flags)}\n".encode()
    key += b"".join(part.read_bytes() for part in parts)
    name = f"{source.stem}-{hashlib.blake2b(key, digest_size=10).hexdigest()}"

    def existing() -> Path | None:
        for folder in cache_folders():
            with contextlib.suppress(PermissionError):
                if (folder / name).is_file():
                    return folder / name
        return None

    if found := existing():
        return found
    command = [*_compiler(), *flags]
    folder = _writable_folder()
    with _lock(folder):
        if found := existing():
            return found
        temporary = folder / f"{name}.{os.getpid()}.tmp"
        last = [os.fspath(source), "-o", os.fspath(temporary)]
        try:
            try:
                _run([*command, "-static", *last], source.name)
            except Unsupported:  # no static C library
                _run([*command, *last], source.name)
            temporary.replace(folder / name)
        finally:
            temporary.unlink(missing_ok=True)
    return folder / name


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


def _writable_folder() -> Path:
    tried = []
    for folder in cache_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            tried.append(f"{folder} ({error.strerror})")
    raise Unsupported(
        f"no folder to build the native module in: {', '.join(tried)}; "
        "set SINGULARITY_CACHE to a writable one."
    )


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compiler() -> list[str]:
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise Unsupported(
        "no C++ compiler was found, so the native module cannot be built; "
        "install g++ (on Debian and Ubuntu: sudo apt-get install g++)."
    )


def _cxx11_abi() -> int:
    # torch._C is loaded already in every process that goes on to `load`.
    module = sys.modules.get("torch._C") or importlib.import_module("torch")._C
    return int(getattr(module, "_GLIBCXX_USE_CXX11_ABI", True))


def _parallel() -> int:
    jobs = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                jobs = min(jobs, int(line.split()[1]) * 1024 // COMPILER_BYTES)
    return max(1, jobs)


def _compile_command(torch: Torch) -> list[str]:
    include = torch.folder / "include"
    python = sysconfig.get_path("include")
    if not (Path(python) / "Python.h").is_file():
        raise Unsupported(
            f"Python's headers are missing ({python}/Python.h), so the native module cannot be "
            "built; install them (on Debian and Ubuntu: sudo apt-get install python3-dev)."
        )
    return [
        *_compiler(),
        *flags(),
        f"-D_GLIBCXX_USE_CXX11_ABI={_cxx11_abi()}",
        f"-I{PACKAGE}",
        f"-isystem{include}",
        f"-isystem{include / 'torch/csrc/api/include'}",
        f"-isystem{python}",
    ]


def _object_key(path: Path, command: list[str], torch: Torch) -> str:
    """Hash of a source, of our headers that it includes (directly or not) and of the command."""
    digest = hashlib.blake2b(digest_size=10)
    digest.update(f"{_environment_key(torch)}\n{shlex.join(command)}\n".encode())
    waiting, seen = [path], {path}
    while waiting:
        current = waiting.pop()
        data = current.read_bytes()
        digest.update(f"{current.relative_to(PACKAGE)}\n".encode())
        digest.update(data)
        for name in _INCLUDE.findall(data):
            for base in (current.parent, PACKAGE):
                header = (base / name.decode()).resolve()
                if header.is_file() and header.is_relative_to(PACKAGE):
                    if header not in seen:
                        seen.add(header)
                        waiting.append(header)
                    break
    return digest.hexdigest()


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unsupported(
            f"the native module cannot be built: {command[0]} cannot be run ({error.strerror}); "
            "correct CXX or install g++ (on Debian and Ubuntu: sudo apt-get install g++)."
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error: " in line or "undefined reference" in line]
        first = (errors or lines or ["no message"])[0]
        raise Unsupported(f"the native module cannot be built: {what} failed: {first.strip()}")
    if done.stderr.strip():
        print(done.stderr.rstrip(), file=sys.stderr)


def _build(torch: Torch, folder: Path, *, force: bool, verbose: bool) -> Path:
    name = library_name(torch)
    command = _compile_command(torch)
    objects = folder / "objects"
    objects.mkdir(exist_ok=True)
    wanted: list[Path] = []
    missing: list[tuple[Path, Path]] = []
    for source in sources():
        label = "-".join(source.relative_to(PACKAGE).with_suffix("").parts)
        target = objects / f"{label}-{_object_key(source, command, torch)}.o"
        wanted.append(target)
        if force or not target.is_file():
            missing.append((source, target))
        else:
            os.utime(target)  # `_prune` keeps what was used last

    def compile_one(job: tuple[Path, Path]) -> None:
        source, target = job
        if verbose:
            print(f"compiling {source.relative_to(PACKAGE)}", file=sys.stderr)
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            _run(
                [*command, "-c", os.fspath(source), "-o", os.fspath(temporary)],
                f"{source.relative_to(PACKAGE)}",
            )
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    with ThreadPoolExecutor(_parallel()) as pool:
        results = [pool.submit(compile_one, job) for job in missing]
        try:
            for result in results:
                result.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

    library = folder / name
    temporary = folder / f"{name}.{os.getpid()}.tmp"
    link = [*command[: len(_compiler())], "-shared", "-o", os.fspath(temporary)]
    link += [flag for flag in flags() if flag.startswith("-fsanitize")]
    link += [os.fspath(path) for path in wanted]
    link += [f"-L{torch.folder / 'lib'}", *(f"-l{lib}" for lib in LIBRARIES)]
    link += [f"-Wl,-rpath,{torch.folder / 'lib'}", "-Wl,--no-undefined-version"]
    try:
        _run(link, "linking")
        temporary.replace(library)
    finally:
        temporary.unlink(missing_ok=True)
    _prune(folder, objects)
    return library


def _prune(folder: Path, objects: Path) -> None:
    """Forget all but the objects of each source and the libraries that were used last."""
    by_source: dict[str, list[Path]] = {}
    for path in objects.glob("*.o"):
        by_source.setdefault(path.name.rpartition("-")[0], []).append(path)
    libraries = list(folder.glob(f"{MODULE}-*.so"))
    for group, kept in [
        (libraries, KEPT_LIBRARIES),
        *((g, KEPT_OBJECTS) for g in by_source.values()),
    ]:
        for path in sorted(group, key=lambda path: path.stat().st_mtime)[:-kept]:
            path.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line: build ahead of time, or say where the library is."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.build",
        description="Build the native module for the installed PyTorch.",
    )
    parser.add_argument("--force", action="store_true", help="compile everything again")
    parser.add_argument("--print-path", action="store_true", help="print the library's path")
    parser.add_argument("--quiet", action="store_true", help="do not name the files being compiled")
    options = parser.parse_args(arguments)
    try:
        path = build(force=options.force, verbose=not options.quiet)
    except SingularityError as error:
        print(error.message, file=sys.stderr)
        return 1
    if options.print_path:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

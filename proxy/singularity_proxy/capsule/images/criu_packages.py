"""CRIU from Debian's archive without touching the system: its newest packages, or a build.

apt works in private state and with the mirrors of the machine's own configuration. `Newest` takes
the binary package of Debian sid with every library it needs. `build_from_source` takes the source
package from there, unpacks what its build needs privately, too (from the machine's own release, so
that it fits the machine's compiler), and keeps the program with the libraries it was linked to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LIBRARY = re.compile(r"(/\S+) \(0x")


class Failed(Exception):
    """A step did not succeed; the text is the rest of the sentence."""


def run(
    argv: list[str], limit_s: float, folder: Path | None = None, env: dict[str, str] | None = None
) -> tuple[int, str]:
    """Exit status and joined output; a command is killed after `limit_s` seconds (status 124).

    The time limit is not optional: a failing CRIU can wait on a futex for ever.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=max(limit_s, 0.1),
            check=False,
            cwd=folder,
            env=env,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {limit_s:.0f} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return (errors or lines or ["no output"])[-1][:200]


def _debian_source() -> str:
    """The apt source line of Debian sid on the mirror that this machine's apt already uses."""
    fields = "$(ORIGIN)|$(LABEL)|$(SIGNED_BY)|$(REPO_URI)"
    status, output = run(
        ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], 10
    )
    if status != 0:
        raise Failed("apt does not tell which mirror it uses")
    for line in output.splitlines():
        parts = line.split("|")
        if len(parts) != 4:
            continue
        origin, label, signed_by, uri = parts
        # Before the first `apt-get update` there is no origin to read, only the address.
        debian = origin == "Debian" or (origin in ("", "$(ORIGIN)") and uri.endswith("/debian/"))
        if debian and "ecurity" not in label and "security" not in uri:
            keyring = signed_by if signed_by.startswith("/") else _KEYRING
            return f"deb [signed-by={keyring}] {uri} sid main\n"
    raise Failed("apt has no Debian mirror configured")


def _apt_options(state: Path, own: Mapping[str, object]) -> list[str]:
    for folder in ("lists/partial", "cache/archives/partial", "dpkg"):
        (state / folder).mkdir(parents=True)
    # Other programs' hooks on `apt-get update` have no business in private state.
    clear = state / "clear.conf"
    clear.write_text("#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n")
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "15",
        "Debug::NoLocking": "true",
        **own,
    }
    options = ["-c", str(clear)]
    for name, value in settings.items():
        options += ["-o", f"{name}={value}"]
    return options


class Newest:
    """Debian sid as apt in private state sees it. Every step ends at `deadline` at the latest."""

    def __init__(self, state: Path, deadline: float) -> None:
        state.mkdir()
        self.state = state
        self.deadline = deadline
        source = state / "sid.list"
        line = _debian_source()
        source.write_text(line + line.replace("deb ", "deb-src ", 1))
        status = state / "status"
        status.touch()  # nothing is installed there, so apt resolves every library CRIU needs
        self.options = _apt_options(
            state,
            {
                "Dir::Etc::sourcelist": source,
                "Dir::Etc::sourceparts": "/dev/null",
                "Dir::Etc::preferences": "/dev/null",
                "Dir::Etc::preferencesparts": "/dev/null",
                "Dir::State::status": status,
            },
        )
        _apt(self.options, ["update"], deadline)

    def download(self, root: Path) -> None:
        """The newest CRIU and every library it needs, unpacked below `root`."""
        _unpack(self.options, self.state, ["criu"], root, self.deadline)


def build_from_source(newest: Newest, root: Path, work: Path, deadline: float) -> None:
    """Compile the newest source package in `work`; the program and its libraries go below `root`,
    laid out like the packages. Raises `Failed`."""
    for tool in ("make", "gcc"):
        if shutil.which(tool) is None:
            raise Failed(f"{tool} is missing; install it with apt-get install build-essential")
    source, needed = work / "source", work / "needed"
    source.mkdir()
    _apt(newest.options, ["source", "--tar-only", "--download-only", "criu"], deadline, source)
    archives = list(source.glob("criu_*.orig.tar.*"))
    if len(archives) != 1:
        raise Failed("the source package holds no sources")
    tree = source / "tree"
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tree, filter="data") if hasattr(tarfile, "data_filter") else (
            archive.extractall(tree)
        )
    (top,) = tree.iterdir()
    state = work / "release"
    own = {"Dir::State::status": "/var/lib/dpkg/status"}
    options = _apt_options(state, own)
    _apt(options, ["update"], deadline)
    _unpack(options, state, _build_needs(newest), needed, deadline)
    for described in needed.glob("usr/**/pkgconfig/*.pc"):
        text = described.read_text(encoding="utf-8", errors="replace")
        described.write_text(text.replace("=/usr", f"={needed}/usr"))
    status, triplet = run(["gcc", "-print-multiarch"], 10)
    env = _build_environment(needed, triplet.strip())
    jobs = f"-j{os.cpu_count() or 1}"
    status, output = run(["make", jobs, "criu"], deadline - time.monotonic(), top, env)
    if status != 0:
        wrong = [line for line in output.splitlines() if "error:" in line or "***" in line]
        raise Failed(f"the compilation failed: {(wrong or [last_line(output)])[0].strip()[:200]}")
    _collect(top / "criu" / "criu", root, triplet.strip() or "lib", env)


def _build_needs(newest: Newest) -> list[str]:
    """The libraries, and the compilers of their interfaces, among what the source package says it
    needs; its documentation and Python bindings are not built."""
    words = ["apt-cache", *newest.options, "showsrc", "--only-source", "criu"]
    status, output = run(words, newest.deadline - time.monotonic())
    found = re.search(r"^Build-Depends: (.*)$", output, re.MULTILINE)
    if status != 0 or found is None:
        raise Failed("apt does not tell what the source package needs")
    names = [re.split(r"[\s(\[<|]", one.strip())[0] for one in found[1].split(",")]
    kinds = ("protobuf", "pkgconf", "pkg-config")
    return [name for name in names if name.endswith("-dev") or name.startswith(kinds)]


def _build_environment(needed: Path, triplet: str) -> dict[str, str]:
    libraries = f"{needed}/usr/lib/{triplet}:{needed}/lib/{triplet}"
    include = needed / "usr" / "include"
    return {
        **os.environ,
        "CPATH": f"{include}:{include}/{triplet}:{include}/libnl3",
        "LIBRARY_PATH": libraries,
        "LD_LIBRARY_PATH": libraries,
        "PKG_CONFIG_PATH": f"{needed}/usr/lib/{triplet}/pkgconfig:{needed}/usr/share/pkgconfig",
        "PATH": f"{needed}/usr/bin:{os.environ.get('PATH', '')}",
        "LC_ALL": "C",
    }


def _collect(program: Path, root: Path, triplet: str, env: dict[str, str]) -> None:
    """The program and every library that it is linked to, the dynamic loader among them."""
    status, output = run(["ldd", str(program)], 10, None, env)
    libraries = _LIBRARY.findall(output)
    if status != 0 or not libraries or "not found" in output:
        raise Failed("the compiled program lacks a library")
    (root / "usr" / "sbin").mkdir(parents=True)
    (root / "usr" / "lib" / triplet).mkdir(parents=True)
    shutil.copy(program, root / "usr" / "sbin" / "criu")
    for library in libraries:
        shutil.copy(library, root / "usr" / "lib" / triplet)


def _apt(options: list[str], words: list[str], deadline: float, folder: Path | None = None) -> None:
    command = ["apt-get", "-q", *options, *words]
    status, output = run(command, deadline - time.monotonic(), folder)
    if status != 0:
        raise Failed(f"apt-get {words[0]} failed: {last_line(output)}")


def _unpack(
    options: list[str], state: Path, packages: list[str], root: Path, deadline: float
) -> None:
    install = ["install", "-y", "--download-only", "--no-install-recommends", *packages]
    _apt(options, install, deadline)
    root.mkdir(parents=True)
    for archive in sorted((state / "cache/archives").glob("*.deb")):
        status, output = run(
            ["dpkg-deb", "-x", str(archive), str(root)], deadline - time.monotonic()
        )
        if status != 0:
            raise Failed(f"{archive.name} cannot be unpacked: {last_line(output)}")

"""Whether CRIU can dump and restore processes here, and a private CRIU where the machine lacks one.

`probe` is called by the doctor and by the node agent before it offers process images; `obtain` by
the set-up (`python -m singularity_proxy.capsule.criu obtain`). Nothing is installed into the
system: apt resolves CRIU and the libraries it needs in private state, the packages are unpacked
below the Python environment, and CRIU runs with its own dynamic loader and libraries.

CRIU older than 4.2 cannot dump a Jupyter kernel (SO_PASSCRED on its TCP sockets), and the one of
Debian 12 does not even start on newer kernels, so a system package of that age does not count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

MINIMUM = (4, 2)
_VERSION = re.compile(r"^Version:\s*([0-9]+(?:\.[0-9]+)*)", re.MULTILINE)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Criu:
    """What `probe` and `obtain` found."""

    ok: bool
    """True when process images can be taken and restored here."""
    path: str | None
    """The command to run, None when there is none; set also when it does not work."""
    version: str | None
    reason: str
    """One sentence for people: what was found, and why it cannot be used if it cannot."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def command(self) -> list[str]:
        """The words that start it. The private one is started by its own loader, without a shell:
        inside a capsule, nothing of the user's is trusted. Empty when there is none."""
        if self.path is None:
            return []
        found = _program(Path(self.path).parent) if Path(self.path) == private_path() else None
        if found is None:
            return [self.path]
        program, loader = found
        return [str(loader), "--library-path", str(loader.parent), str(program)]


class _Failed(Exception):
    """A step of `obtain` did not succeed; the text is the rest of the sentence."""


def private_path() -> Path:
    """Where `obtain` puts CRIU's command: below the Python environment, readable for every uid."""
    return Path(sys.prefix) / "var" / "lib" / "singularity" / "criu" / "criu"


def _run(argv: list[str], limit_s: float) -> tuple[int, str]:
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
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {limit_s:.0f} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return (errors or lines or ["no output"])[-1][:200]


def _examine(path: Path) -> Criu:
    status, output = _run([str(path), "--version"], 10)
    match = _VERSION.search(output)
    if status != 0 or match is None:
        return Criu(False, str(path), None, f"{path} does not start: {_last_line(output)}")
    version = match.group(1)
    if tuple(int(part) for part in version.split(".")) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        return Criu(
            False,
            str(path),
            version,
            f"CRIU {version} cannot dump a notebook kernel; {wanted} or newer can.",
        )
    check = [str(path), "check"]
    if os.geteuid() != 0:  # the rights it has inside a capsule, which has a user namespace then
        check = ["unshare", "--user", "--map-root-user", "--", *check, "--unprivileged"]
    status, output = _run(check, 20)
    if status != 0 and not _only_tcp(output):
        return Criu(
            False,
            str(path),
            version,
            f"CRIU {version} is here but this machine refuses it: {_last_line(output)}",
        )
    return Criu(True, str(path), version, f"CRIU {version} can dump and restore processes here.")


def _only_tcp(output: str) -> bool:
    """Whether the check misses only what we never ask for: to take TCP connections along. In a user
    namespace that is never permitted."""
    errors = [x for x in output.splitlines() if "rror" in x and "Unexpected error: -1" not in x]
    return bool(errors) and all("TCP repair mode" in line for line in errors)


def probe() -> Criu:
    """The CRIU of this machine: the private one first, then the one on PATH.

    Takes well under a second; never raises. The answer is about CRIU alone, not about a session.
    """
    candidates = [private_path()]
    if system := shutil.which("criu"):
        candidates.append(Path(system))
    found = [_examine(path) for path in candidates if path.exists()]
    if not found:
        return Criu(False, None, None, "There is no CRIU on this machine.")
    return next((criu for criu in found if criu.ok), found[0])


def _debian_source() -> str:
    """The apt source line of Debian sid on the mirror that this machine's apt already uses."""
    fields = "$(ORIGIN)|$(LABEL)|$(SIGNED_BY)|$(REPO_URI)"
    status, output = _run(
        ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], 10
    )
    if status != 0:
        raise _Failed("apt does not tell which mirror it uses")
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
    raise _Failed("apt has no Debian mirror configured")


def _apt_options(state: Path) -> list[str]:
    for folder in ("lists/partial", "cache/archives/partial", "dpkg"):
        (state / folder).mkdir(parents=True)
    status = state / "dpkg" / "status"
    status.touch()  # nothing is installed there, so apt resolves every library CRIU needs
    # Other programs' hooks on `apt-get update` have no business in private state.
    clear = state / "clear.conf"
    clear.write_text("#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n")
    source = state / "sid.list"
    source.write_text(_debian_source())
    settings = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": status,
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "15",
    }
    options = ["-c", str(clear)]
    for name, value in settings.items():
        options += ["-o", f"{name}={value}"]
    return options


_WRAPPER = """#!/bin/sh
# CRIU with its own loader and libraries; the system's are older than it needs.
here=$(dirname "$(readlink -f "$0")")/root
exec "$here/{loader}" --library-path "{libraries}" "$here/{program}" "$@"
"""


def _unpack(archives: list[Path], target: Path, deadline: float) -> None:
    """Unpacks the packages below `target`/root and writes the command `target`/criu."""
    root = target / "root"
    for archive in archives:
        status, output = _run(
            ["dpkg-deb", "-x", str(archive), str(root)], deadline - time.monotonic()
        )
        if status != 0:
            raise _Failed(f"{archive.name} cannot be unpacked: {_last_line(output)}")
    found = _program(target)
    if found is None:
        raise _Failed("the packages hold no CRIU or no dynamic loader")
    program, loader = found
    command = target / "criu"
    command.write_text(
        _WRAPPER.format(
            loader=loader.relative_to(root),
            libraries=f"$here/{loader.parent.relative_to(root)}",
            program=program.relative_to(root),
        )
    )
    command.chmod(0o755)


def _program(target: Path) -> tuple[Path, Path] | None:
    """CRIU and its dynamic loader among the packages unpacked below `target`/root."""
    root = target / "root"
    programs = [p for p in (root / "usr/sbin/criu", root / "usr/bin/criu") if p.exists()]
    loaders = sorted(root.glob("usr/lib/*/ld-linux*.so*"))
    return (programs[0], loaders[0]) if programs and loaders else None


def obtain(limit_s: float = 55.0) -> Criu:
    """Makes sure that there is a usable CRIU, and says why when there cannot be one.

    Called by the set-up; answers within `limit_s` seconds. Does nothing when `probe` finds one that
    works. A private CRIU replaces an older private one only after it has started once.
    """
    before = probe()
    if before.ok:
        return before
    deadline = time.monotonic() + limit_s
    final = private_path().parent
    try:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise _Failed(f"{tool} is missing, this is not a Debian system")
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="criu-", dir=final.parent) as scratch:
            state, new = Path(scratch) / "apt", Path(scratch) / "criu"
            state.mkdir()
            (new / "root").mkdir(parents=True)
            apt = ["apt-get", "-q", *_apt_options(state)]
            for arguments in (
                ["update"],
                ["install", "-y", "--download-only", "--no-install-recommends", "criu"],
            ):
                status, output = _run([*apt, *arguments], deadline - time.monotonic())
                if status != 0:
                    raise _Failed(f"apt-get {arguments[0]} failed: {_last_line(output)}")
            _unpack(sorted((state / "cache/archives").glob("*.deb")), new, deadline)
            candidate = _examine(new / "criu")
            if candidate.version is None or "cannot dump" in candidate.reason:
                raise _Failed(candidate.reason)
            shutil.rmtree(final, ignore_errors=True)
            new.chmod(0o755)
            new.rename(final)
    except (_Failed, OSError) as error:
        return Criu(
            False,
            before.path,
            before.version,
            f"{before.reason} None could be fetched: {error}".rstrip(".") + ".",
        )
    return probe()


def main(argv: list[str]) -> int:
    """`python -m singularity_proxy.capsule.criu probe|obtain`: says the sentence; 0 when usable."""
    if argv not in (["probe"], ["obtain"]):
        print("usage: python -m singularity_proxy.capsule.criu probe|obtain", file=sys.stderr)
        return 2
    criu = probe() if argv == ["probe"] else obtain()
    print(criu.reason)
    return 0 if criu.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Whether CRIU can dump and restore processes here, and a private CRIU where the machine lacks one.

`probe` is called by the doctor and by the node agent before it offers process images; `obtain` by
the set-up (`python -m singularity_proxy.capsule.images.criu obtain`). Nothing is installed into the
system: apt resolves CRIU and the libraries it needs in private state, the packages are unpacked
below the Python environment, and CRIU runs with its own dynamic loader and libraries. Where the
packages are too old, it is built from Debian's source (`criu_packages`).

CRIU older than 4.2 cannot dump a Jupyter kernel (SO_PASSCRED on its TCP sockets), and the one of
Debian 12 does not even start on newer kernels, so a system package of that age does not count.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from singularity_proxy.capsule.rights import missing_right
from singularity_proxy.probes import CutShort, ask_again, run_probe

from .criu_packages import Failed, Newest, build_from_source, last_line

MINIMUM = (4, 2)
_VERSION = re.compile(r"^Version:\s*([0-9]+(?:\.[0-9]+)*)", re.MULTILINE)


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
    conclusive: bool = True
    """False: it was asked and could not answer (it was killed, the machine was full), which says
    nothing about it. Ask again, and keep it nowhere."""

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


def private_path() -> Path:
    """Where `obtain` puts CRIU's command: below the Python environment, readable for every uid."""
    return Path(sys.prefix) / "var" / "lib" / "singularity" / "criu" / "criu"


def _examine(path: Path) -> Criu:
    try:
        return ask_again(lambda: _ask(path))
    except CutShort as error:
        return Criu(
            False,
            str(path),
            None,
            f"{path} could not be asked whether it works here: {error}.",
            conclusive=error.crashed,
        )


def _ask(path: Path) -> Criu:
    """Raises `CutShort`."""
    status, output = _run(str(path), "--version", limit_s=10)
    match = _VERSION.search(output)
    if status != 0 or match is None:
        return Criu(False, str(path), None, f"{path} does not start: {last_line(output)}")
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
    status, output = _run(*check, limit_s=20)
    if status != 0 and not _only_tcp(output):
        why = f"{lacks}." if (lacks := missing_right()) else last_line(output)
        return Criu(
            False,
            str(path),
            version,
            f"CRIU {version} is here but this machine refuses it: {why}",
        )
    return Criu(True, str(path), version, f"CRIU {version} can dump and restore processes here.")


def _run(*argv: str, limit_s: float) -> tuple[int, str]:
    try:
        done = run_probe(argv, limit_s)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def _only_tcp(output: str) -> bool:
    """Whether the check misses only what we never ask for: to take TCP connections along. In a user
    namespace that is never permitted."""
    errors = [x for x in output.splitlines() if "rror" in x and "Unexpected error: -1" not in x]
    return bool(errors) and all("TCP repair mode" in line for line in errors)


def probe() -> Criu:
    """The CRIU of this machine: the private one first, then the one on PATH.

    Takes well under a second; never raises. The answer is about CRIU alone, not about a session,
    and counts only when it is `conclusive`.
    """
    candidates = [private_path()]
    if system := shutil.which("criu"):
        candidates.append(Path(system))
    found = [_examine(path) for path in candidates if path.exists()]
    if not found:
        return Criu(False, None, None, "There is no CRIU on this machine.")
    return next((criu for criu in found if criu.ok), found[0])


_WRAPPER = """#!/bin/sh
# CRIU with its own loader and libraries; the system's are older than it needs.
here=$(dirname "$(readlink -f "$0")")/root
exec "$here/{loader}" --library-path "{libraries}" "$here/{program}" "$@"
"""


def _finish(target: Path) -> None:
    """Write the command `target`/criu for what was put below `target`/root."""
    found = _program(target)
    if found is None:
        raise Failed("the packages hold no CRIU or no dynamic loader")
    program, loader = found
    root = target / "root"
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


def obtain(limit_s: float = 55.0, build_s: float = 300.0, *, build: bool = False) -> Criu:
    """Makes sure that there is a usable CRIU, and says why when there cannot be one.

    Called by the set-up. Does nothing when `probe` finds one that works. First the newest packages
    are tried (answers within `limit_s` seconds); when those are too old or cannot run here, CRIU is
    built from its source package, within `build_s` seconds more. `build`: only that, and also when
    there is one. A private CRIU replaces an older private one only after it has started once.
    """
    before = probe()
    if before.ok and not build:
        return before
    deadline = time.monotonic() + limit_s
    final = private_path().parent
    reasons = []
    try:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Failed(f"{tool} is missing, this is not a Debian system")
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="criu-", dir=final.parent) as scratch:
            work = Path(scratch)
            newest = Newest(work / "newest", deadline)
            if not build:
                try:
                    new = work / "packages"
                    newest.download(new / "root")
                    _take(new, final)
                    return probe()
                except Failed as error:
                    reasons.append(f"none could be fetched: {error}")
            new = work / "built"
            build_from_source(newest, new / "root", work, time.monotonic() + build_s)
            _take(new, final)
    except (Failed, OSError) as error:
        verb = "built" if reasons or build else "fetched"
        reasons.append(f"none could be {verb}: {error}")
        said = "; ".join(reason.rstrip(".") for reason in reasons)
        sentence = f"{before.reason} {said[0].upper()}{said[1:]}."
        return Criu(before.ok, before.path, before.version, sentence)
    return probe()


def _take(new: Path, final: Path) -> None:
    """Put the new CRIU in its place, if it starts here and is new enough."""
    _finish(new)
    candidate = _examine(new / "criu")
    if candidate.version is None or "cannot dump" in candidate.reason:
        raise Failed(candidate.reason)
    shutil.rmtree(final, ignore_errors=True)
    new.chmod(0o755)
    new.rename(final)


def main(argv: list[str]) -> int:
    """`python -m singularity_proxy.capsule.images.criu probe|obtain|build`: says the sentence; 0
    when there is a usable one. `build` makes one from Debian's source package."""
    if argv not in (["probe"], ["obtain"], ["build"]):
        print(
            "usage: python -m singularity_proxy.capsule.images.criu probe|obtain|build",
            file=sys.stderr,
        )
        return 2
    criu = probe() if argv == ["probe"] else obtain(build=argv == ["build"])
    print(criu.reason)
    return 0 if criu.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A session's own files as one file of a checkpoint: its folder, private /tmp and /dev/shm.

`pack` and `unpack` are called by the node agent, with the tree frozen and before it is restored.
They run this file as a program inside the capsule, as the session's user: names and links among
those files are the user's work, and lead no further than the user may go. Sizes, modes and times
come back exactly (CRIU compares them). Sockets stay behind: the agent makes its own again, and CRIU
those of the session.

The format is a tar archive (pax): one top folder per root, in the order of the roots.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from singularity_proxy.capsule.namespace import NamespaceCapsule


def pack(
    capsule: NamespaceCapsule, target: str, roots: Sequence[str], skip: Sequence[str] = ()
) -> int:
    """Write everything below the folders `roots` (paths inside) to the new file `target`, which
    belongs to the agent (0600); returns its size. `skip`: paths inside that stay behind. Raises
    `ImageFailed` or `NoSpace`, and removes `target` then."""
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _inside(capsule, ["pack", *roots, "--", *skip], stdout=fd)
        return os.fstat(fd).st_size
    except BaseException:
        os.unlink(target)
        raise
    finally:
        os.close(fd)


def unpack(capsule: NamespaceCapsule, source: str, roots: Sequence[str]) -> None:
    """Put the files in `source` back below `roots`, in the same order as they were packed. What
    has the same name is replaced. Raises `ImageFailed` or `NoSpace`."""
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _inside(capsule, ["unpack", *roots, "--"], stdin=fd)
    finally:
        os.close(fd)


def _inside(capsule: NamespaceCapsule, words: list[str], **ends: Any) -> None:
    from singularity_proxy.errors import ImageFailed, NoSpace

    with capsule.entering(rights=False) as (enter, descriptors):
        done = subprocess.run(
            [*enter, sys.executable, "-I", "-S", "-B", os.path.abspath(__file__), *words],
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            env={"LC_ALL": "C.UTF-8"},
            cwd="/",
            check=False,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **ends},
        )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        if "No space left" in said[-1]:
            raise NoSpace(f"there is no room for the session's files ({said[-1]})")
        verb = "saved" if words[0] == "pack" else "restored"
        raise ImageFailed(
            f"the session's own files could not be {verb}: {said[-1]}; nothing else was changed",
            step=words[0],
            log=said[-5:],
        )


# -- inside the capsule ----------------------------------------------------------------------------


def _walk(root: str, skip: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """(path, what it is) of everything below `root`; folders before what is in them."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if path in skip:
                continue
            info = os.lstat(path)
            yield path, info
            if stat.S_ISDIR(info.st_mode):
                with contextlib.suppress(PermissionError):
                    os.listdir(path)
                    waiting.append(path)


def _pack(roots: list[str], skip: list[str], out: IO[bytes]) -> None:
    hidden = {*skip, *mount_points()}
    seen: dict[tuple[int, int], str] = {}
    pax = tarfile.PAX_FORMAT
    with tarfile.open(fileobj=out, mode="w|", format=pax, bufsize=1 << 20) as archive:
        for number, root in enumerate(roots):
            for path, info in _walk(root, hidden):
                item = tarfile.TarInfo(f"{number}/{os.path.relpath(path, root)}")
                item.mode = stat.S_IMODE(info.st_mode)
                nanoseconds = f"{info.st_mtime_ns // 10**9}.{info.st_mtime_ns % 10**9:09d}"
                item.pax_headers = {"mtime": nanoseconds}
                inode = (info.st_dev, info.st_ino)
                if stat.S_ISDIR(info.st_mode):
                    item.type = tarfile.DIRTYPE
                elif stat.S_ISLNK(info.st_mode):
                    item.type, item.linkname = tarfile.SYMTYPE, os.readlink(path)
                elif stat.S_ISFIFO(info.st_mode):
                    item.type = tarfile.FIFOTYPE
                elif not stat.S_ISREG(info.st_mode):
                    continue
                elif info.st_nlink > 1 and inode in seen:
                    item.type, item.linkname = tarfile.LNKTYPE, seen[inode]
                else:
                    seen[inode] = item.name
                    item.size = info.st_size
                    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    with open(fd, "rb") as file:
                        archive.addfile(item, file)
                    continue
                archive.addfile(item)


def _unpack(roots: list[str], source: IO[bytes]) -> None:
    folders: list[tuple[str, tarfile.TarInfo]] = []
    with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as archive:
        for item in archive:
            path = _place(roots, item.name)
            if item.isdir():
                # Places of mounts are the holder's, and those of an older capsule are empty.
                with contextlib.suppress(FileExistsError, PermissionError):
                    os.mkdir(path, 0o700)
                folders.append((path, item))
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            if item.issym():
                os.symlink(item.linkname, path)
                continue
            if item.islnk():
                os.link(_place(roots, item.linkname), path)
                continue
            if item.isfifo():
                os.mkfifo(path, item.mode)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(path, flags, 0o600), "wb") as file:
                    content = archive.extractfile(item)
                    while content and (data := content.read(1 << 20)):
                        file.write(data)
            os.chmod(path, item.mode)
            _set_time(path, item)
    for path, item in reversed(folders):
        with contextlib.suppress(PermissionError, FileNotFoundError):
            os.chmod(path, item.mode)
            _set_time(path, item)


def _place(roots: list[str], name: str) -> str:
    number, _, rest = name.partition("/")
    if ".." in rest.split("/"):
        raise ValueError(f"{name} leads out of its folder")
    return os.path.join(roots[int(number)], rest)


def _set_time(path: str, item: tarfile.TarInfo) -> None:
    seconds, _, part = item.pax_headers.get("mtime", "0.0").partition(".")
    nanoseconds = int(seconds) * 10**9 + int(part.ljust(9, "0")[:9] or 0)
    os.utime(path, ns=(nanoseconds, nanoseconds))


def mount_points(pid: int | str = "self") -> set[str]:
    """Paths at which something is mounted, as process `pid` sees them. Raises OSError."""
    path = f"/proc/{pid}/mountinfo"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return {line.split()[4].encode().decode("unicode_escape") for line in file}


def main() -> None:
    verb, words = sys.argv[1], sys.argv[2:]
    end = words.index("--")
    try:
        if verb == "pack":
            _pack(words[:end], words[end + 1 :], sys.stdout.buffer)
        else:
            _unpack(words[:end], sys.stdin.buffer)
    except (OSError, ValueError, tarfile.TarError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

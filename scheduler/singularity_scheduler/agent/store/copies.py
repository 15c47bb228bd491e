"""Copies of a session's files in the agent's own folder, made while the session is frozen.

The files are their user's, who may put a link in the place of one at any time: they are opened the
way the store opens them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from singularity_proxy.checkpoint.files import FILE, LINK, Part, examine, open_part, read_link

_BLOCK = 8 << 20
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def take_over(folder: str, target: str) -> bool:
    """Move a folder that a session's processes have made to the agent's own place `target`, out of
    their reach. False: that is another file system, and nothing was moved."""
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def copy_parts(parts: Sequence[Part], folder: str, uid: int) -> list[Part]:
    """The same parts, copied into `folder`, which is made. Raises OSError (no space) and
    FileChanged."""
    os.makedirs(folder, 0o700)
    copied: list[Part] = []
    for number, part in enumerate(parts):
        target = os.path.join(folder, str(number))
        info = examine(part, uid)
        if info is None:
            copied.append(part)
            continue
        if part.type != FILE:
            if part.type == LINK:
                os.symlink(read_link(part), target)
            else:
                os.mkdir(target)
                os.chmod(target, info.st_mode & 0o1777)
            times = (info.st_mtime_ns, info.st_mtime_ns)
            os.utime(target, ns=times, follow_symlinks=False)
            copied.append(Part(part.name, part.kind, target, type=part.type))
            continue
        source = open_part(part, info, uid)
        try:
            _copy(source, target)
        finally:
            os.close(source)
        os.chmod(target, info.st_mode & 0o777)
        os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))
        copied.append(Part(part.name, part.kind, target))
    return copied


def _copy(source: int, target: str) -> None:
    """All of the open file `source`, sharing its blocks where the file system can."""
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        by_kernel = True
        while True:
            if by_kernel:
                try:
                    count = os.copy_file_range(source, fd, _BLOCK)
                except OSError as error:
                    if error.errno not in _CANNOT:
                        raise
                    by_kernel = False
                    continue
            else:
                count = os.sendfile(fd, source, None, _BLOCK)
            if count == 0:
                return
    finally:
        os.close(fd)

"""Per-user home folders below one folder, owned by the uid that the user's processes get."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL


def folder_name(user: str) -> str:
    """A file name for the Hub user `user`: itself when that is safe, else percent-encoded.

    Different users get different names, none leaves the parent folder or is hidden.
    """
    name = quote(user, safe="@+=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    return name or "%"


def make_home(parent: Path, user: str, uid: int, gid: int) -> Path:
    """Create (or check) `user`'s home below `parent` with mode 0700 and return it. `parent` is
    made (0711: to be passed, not to be listed) when it is missing.

    Raises `PermissionError` with a sentence when what is there is not a folder of that uid:
    another user's files are never handed over by a change of owner.
    """
    parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    home = parent / folder_name(user)
    try:
        home.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        if os.geteuid() == 0:
            os.chown(home, uid, gid)
    found = os.lstat(home)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise PermissionError(
            f"{home} belongs to uid {found.st_uid} and not to {user}'s uid {uid}; nothing was "
            "changed: move it away, or give it back to that user with chown"
        )
    return home


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite database at `path`, in which a % stands for itself."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def blocked_folder(path: Path) -> Path | None:
    """The first folder on the way to `path` that other uids cannot pass (no x for others), or
    None when all are open. The platform asks before it runs servers under mapped uids."""
    for folder in reversed([path, *path.parents]):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None

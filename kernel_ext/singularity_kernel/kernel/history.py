"""IPython's history of a session is its own: `keep_own_history` in the kernel, at its start.

All kernels of a user write to one SQLite file in home. A kernel that is stopped in the middle, or
goes back to a checkpoint, would carry a database connection to a file that others have changed. So
each kernel of a session gets a file in the session's folder, which travels with its checkpoints,
filled with the newest lines of the shared one: arrow keys and `%history -g` find them as ever. The
node agent merges it into the shared file (`singularity_proxy.capsule.files.histories`).

What the user has set is left alone: another `hist_file`, or `enabled=False`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.files.histories import FILE, About, open_to_read, write_about

from singularity_kernel.provision.environment import NESTED

SEED_LINES = 20_000
"""So many of the newest lines of earlier sessions a kernel starts with."""

log = logging.getLogger(__name__)


class OwnConnection(sqlite3.Connection):
    """A connection to the kernel's own file. Its rollback journal is in memory: a file of a session
    is another inode after it came back, and SQLite makes no journal for one that was moved."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("pragma journal_mode=memory")
        self.execute("pragma synchronous=off")


def keep_own_history(ip: Any) -> Path | None:
    """Give the shell `ip` of a kernel that starts a history file of its own; returns its path, None
    where it keeps the one it has. Raises nothing: a kernel never fails to start for its history."""
    path = os.environ.get("SINGULARITY_SOCKET")
    session = os.environ.get("SINGULARITY_SESSION")
    manager = getattr(ip, "history_manager", None)
    if not path or not session or os.environ.get(NESTED) or manager is None:
        return None
    own = Path(path).parent / FILE
    shared = Path(ip.profile_dir.location) / FILE
    if not _is_default(ip, manager, shared) or own.exists():
        return None
    options = dict(manager.connection_options)
    try:
        _switch(manager, own, {"factory": OwnConnection, **options})
        about = About(os.fspath(shared), session, manager.session_number)
        _seed(manager.db, about)
        return own
    except (sqlite3.Error, OSError) as error:
        log.warning("the history of this session is not kept apart: %s", error)
        _switch(manager, shared, options)
        with contextlib.suppress(OSError):
            own.unlink()
        return None


def _is_default(ip: Any, manager: Any, shared: Path) -> bool:
    """Whether the history is where IPython puts it by itself, and nothing is in it yet."""
    config = ip.config
    is_set = any("hist_file" in config[name] for name in ("HistoryManager", "HistoryAccessor"))
    return (
        bool(manager.enabled)
        and not is_set
        and os.fspath(manager.hist_file) == os.fspath(shared)
        and shared.is_file()
        and len(manager.input_hist_raw) == 1
    )


def _switch(manager: Any, path: Path, options: dict[str, Any]) -> None:
    """Close the database of the history and open another one, with its thread."""
    thread = manager.save_thread
    if thread is not None:
        thread.stop()
    manager.db.close()
    manager.hist_file = path
    manager.connection_options = options
    manager.init_db()
    if thread is not None:
        manager.save_thread = type(thread)(manager)
        manager.save_thread.start()


def _seed(db: sqlite3.Connection, about: About) -> None:
    """Fill the kernel's own file with its number and the newest lines of earlier sessions."""
    with contextlib.closing(open_to_read(about.shared)) as shared:
        before = shared.execute(
            "select session, line, source, source_raw from history where session < ? "
            "order by session desc, line desc limit ?",
            (about.session, SEED_LINES),
        ).fetchall()
        oldest = before[-1][0] if before else about.session
        sessions = shared.execute(
            "select session, start, end, num_cmds, remark from sessions "
            "where session between ? and ?",
            (oldest, about.session),
        ).fetchall()
        outputs = shared.execute(
            "select session, line, output from output_history where session between ? and ?",
            (oldest, about.session - 1),
        ).fetchall()
    with db:
        db.executemany("insert into sessions values (?, ?, ?, ?, ?)", sessions)
        db.executemany("insert into history values (?, ?, ?, ?)", before)
        db.executemany("insert or ignore into output_history values (?, ?, ?)", outputs)
    write_about(db, about)

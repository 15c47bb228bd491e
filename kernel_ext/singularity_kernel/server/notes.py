"""What a notebook server writes down for the one that comes after it.

Below the user's data folder, one folder for each server (0700): `kernels.json` says of each kernel
what Jupyter alone knows (kernelspec, folder, notebook, sessions), `notebooks.db` which notebook has
which kernel, `<kernel id>.outputs` what no page has shown yet. What is lost here costs comfort: the
sessions themselves are the platform's.

Of a kernel that is there no more all of that stays for `KEEP_GONE_S`: the end of its session may be
taken back, and a scheduler that does not name it may simply not know it yet.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jupyter_core.paths import jupyter_data_dir

log = logging.getLogger("singularity.server")

KEEP_GONE_S = 7 * 86400.0
"""How long is kept what was noted of a kernel that is there no more."""

SESSIONS = 8
"""So many sessions of a kernel, the last ones, are remembered: each restart begins another one."""

_GONE_AT = "gone_at"


def server_name() -> str:
    """The Hub's name of this server; "" is the default one."""
    return os.environ.get("JUPYTERHUB_SERVER_NAME", "")


def server_folder() -> Path:
    """The folder of this server's notes, which may not exist."""
    name = server_name()
    place = f"server-{quote(name, safe='')}" if name else "server"
    return Path(jupyter_data_dir()) / "singularity" / place


class Notes:
    """`kernels.json`. A disk that takes nothing is logged and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "kernels.json"
        self._kernels = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        found = found if isinstance(found, dict) else {}
        return {key: value for key, value in found.items() if isinstance(value, dict)}

    def of(self, kernel_id: str) -> dict[str, Any]:
        """What was noted of a kernel; {} for an unknown one."""
        return dict(self._kernels.get(kernel_id, {}))

    def note(self, kernel_id: str, **facts: Any) -> None:
        """Add `facts` to what is known of a kernel."""
        self._kernels[kernel_id] = {**self.of(kernel_id), **facts}
        self._write()

    def note_session(self, kernel_id: str, session: str | None) -> None:
        """Remember which session a kernel has now."""
        sessions = self.of(kernel_id).get("sessions", [])
        if session and session not in sessions:
            self.note(kernel_id, sessions=[*sessions, session][-SESSIONS:])

    def kernel_of(self, session: str) -> str | None:
        """The id of the kernel that has, or had, a session; None: it is not known."""
        known = self._kernels.items()
        return next((kid for kid, facts in known if session in facts.get("sessions", ())), None)

    def inherit(self, kernel_id: str, source: str) -> None:
        """Note of a kernel that nothing is known of, and that began as a copy of the session
        `source`, what goes for the kernel of that one."""
        first = self.of(self.kernel_of(source) or "")
        if kernel_id not in self._kernels and first:
            kept = ("kernel_name", "cwd")
            self.note(kernel_id, **{key: first[key] for key in kept if key in first})

    def mark_gone(self, kernel_id: str) -> None:
        """Remember that the kernel is there no more, and since when."""
        if _GONE_AT not in self._kernels.get(kernel_id, {_GONE_AT: 0}):
            self.note(kernel_id, **{_GONE_AT: time.time()})

    def mark_back(self, kernel_id: str) -> None:
        """Remember that the kernel is there again."""
        if self._kernels.get(kernel_id, {}).pop(_GONE_AT, None) is not None:
            self._write()

    def gone_of(self, notebook: str) -> set[str]:
        """Ids of the kernels that a notebook (its path) had and that are there no more."""
        return {
            kernel_id
            for kernel_id, facts in self._kernels.items()
            if _GONE_AT in facts and facts.get("notebook") == notebook
        }

    def expected(self) -> set[str]:
        """Ids of the kernels that the server before had, or this one has, and that nobody ended."""
        return {kernel_id for kernel_id, facts in self._kernels.items() if _GONE_AT not in facts}

    def is_gone(self, kernel_id: str) -> bool:
        """Whether it is noted of a kernel that it is there no more."""
        return _GONE_AT in self._kernels.get(kernel_id, {})

    def keep_only(self, kernel_ids: set[str], now: float | None = None) -> None:
        """Mark all other kernels as gone, and forget those that have been for `KEEP_GONE_S`, with
        what waited for their pages. Called at the start of a server; `now`: UNIX seconds."""
        now = time.time() if now is None else now
        for kernel_id, facts in list(self._kernels.items()):
            if kernel_id in kernel_ids:
                facts.pop(_GONE_AT, None)
            elif now - facts.setdefault(_GONE_AT, now) > KEEP_GONE_S:
                del self._kernels[kernel_id]
                with contextlib.suppress(OSError):
                    self.outputs(kernel_id).unlink(missing_ok=True)
        self._write()

    def outputs(self, kernel_id: str) -> Path:
        """The file of what no page has shown."""
        return self.folder / f"{quote(kernel_id, safe='')}.outputs"

    def _write(self) -> None:
        partial = self._path.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_text(json.dumps(self._kernels))
            os.replace(partial, self._path)
        except OSError as error:
            log.warning(
                "%s cannot be written (%s): after the next start of this server its kernels come "
                "back without their names",
                self._path,
                error,
            )

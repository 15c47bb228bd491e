"""`SingularitySessionManager`: which notebook has which kernel, also for the next server."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from jupyter_server.services.sessions.sessionmanager import SessionManager
from tornado.web import HTTPError
from traitlets import default

from .kernels import SingularityKernelManager
from .notes import server_folder
from .status import not_known_yet


class SingularitySessionManager(SessionManager):  # type: ignore[misc]
    """Keeps Jupyter's own table in a file, so that a notebook opens on the kernel it had.

    Rows whose kernel has ended are removed by Jupyter itself, but only once it is known which
    kernels there are.
    """

    @default("database_filepath")  # type: ignore[untyped-decorator]
    def _default_database(self) -> str:
        path = server_folder() / "notebooks.db"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check(path)
        except (OSError, sqlite3.Error) as error:
            self.log.warning(
                "Singularity: %s cannot be used (%s): after the next start of this server "
                "notebooks open on new kernels",
                path,
                error,
            )
            return ":memory:"
        return str(path)

    async def _known(self) -> bool:
        """Wait for the kernels of the server before; False when the scheduler did not tell yet."""
        kernels = self.kernel_manager
        return not isinstance(kernels, SingularityKernelManager) or await kernels.restored()

    def _one_may_come(self) -> bool:
        """Whether one of the kernels that were just selected may yet be named."""
        kernels, rows = self.kernel_manager, self.cursor.fetchall()
        ours = isinstance(kernels, SingularityKernelManager)
        return ours and any(kernels.may_come(row["kernel_id"]) for row in rows)

    async def row_to_model(self, row: Any, tolerate_culled: bool = False) -> Any:
        if not await self._known() and row["kernel_id"] not in self.kernel_manager:
            if tolerate_culled:
                return None
            raise KeyError(f"kernel {row['kernel_id']} is not known yet")
        return await super().row_to_model(row, tolerate_culled)

    async def session_exists(self, path: Any) -> Any:
        await self._known()
        return await super().session_exists(path)

    async def create_session(
        self,
        path: Any = None,
        name: Any = None,
        type: Any = None,  # as Jupyter's own
        kernel_name: Any = None,
        kernel_id: Any = None,
    ) -> Any:
        """Open a notebook. Raises 503 for one that had a kernel, as long as it is not known whether
        it still has: another one would take its place. One whose session ended, and whose end was
        taken back since, gets its old kernel instead of a new one."""
        if not await self._known():
            self.cursor.execute("SELECT kernel_id FROM session WHERE path = ?", (path,))
            if self._one_may_come():
                raise HTTPError(
                    503,
                    f"the kernel of {path} is not known yet, because the scheduler does not "
                    "answer: nothing is lost, open the notebook again in a moment",
                )
        kernels = self.kernel_manager
        if kernel_id is None and path and isinstance(kernels, SingularityKernelManager):
            notebook = self.get_kernel_env(path, name).get("JPY_SESSION_NAME", "")
            kernel_id = await kernels.find_kernel_of(str(notebook))
        return await super().create_session(path, name, type, kernel_name, kernel_id)

    async def get_session(self, **kwargs: Any) -> Any:
        await self._known()
        return await super().get_session(**kwargs)

    async def delete_session(self, session_id: Any) -> None:
        """Close a notebook and end its kernel. Where the same notebook is open a second time, on a
        kernel that is there, only this row goes: JupyterLab opens it twice when a cell is run
        before the page knows the notebook's kernel, and then closes it once, for good."""
        self.cursor.execute(
            "SELECT twin.kernel_id FROM session AS twin "
            "JOIN session AS own ON twin.path = own.path "
            "WHERE own.session_id = ? AND twin.session_id <> own.session_id AND own.path <> ''",
            (session_id,),
        )
        if any(row["kernel_id"] in self.kernel_manager for row in self.cursor.fetchall()):
            self.cursor.execute("DELETE FROM session WHERE session_id = ?", (session_id,))
            return
        await super().delete_session(session_id)

    async def list_sessions(self) -> Any:
        """Which notebook has which kernel; called by the REST handler. Raises 504 while that is not
        known of one: a page drops the kernel of a notebook that is not listed."""
        if not await self._known():
            self.cursor.execute("SELECT kernel_id FROM session")
            if self._one_may_come():
                raise not_known_yet("which notebooks have kernels")
        return await super().list_sessions()


def _check(path: Path) -> None:
    """Put a file that is no database aside; raises where there can be none."""
    for _ in range(2):
        try:
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
                database.execute("PRAGMA quick_check").fetchall()
                database.execute(
                    "CREATE TABLE IF NOT EXISTS session (session_id, path, name, type, kernel_id)"
                )
                found = [row[1] for row in database.execute("PRAGMA table_info(session)")]
            if found == ["session_id", "path", "name", "type", "kernel_id"]:
                path.chmod(0o600)
                return
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
        os.replace(path, path.with_suffix(".unusable"))

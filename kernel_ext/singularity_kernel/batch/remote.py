"""papermill's runs on the platform's devices while papermill only looks on.

The notebook, with its parameters in it, is submitted as a batch session of its own. papermill's
output is the session's, copied whenever that changes, and papermill ends as the run ends. Reading
the input and writing the output is papermill's, here: the session never sees an address or what
opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from typing import Any

from singularity_proxy.errors import Conflict, SingularityError, Unavailable, Unreached

from .addresses import is_address, why, without_secret, write_errors
from .loop import on_own_loop
from .running.fates import (
    BadRun,
    Cancelled,
    Fate,
    KernelDied,
    NoKernel,
    NoNotebook,
    NotWritten,
    TimedOut,
)
from .running.stop import Stop

LOOK_S = 1.0
"""How often is looked whether the run has written its output."""
AWAY_S = 300.0
"""So long a service that does not answer is waited for."""
END_S = 20.0
"""The same when somebody wants the run to end."""
BEFORE = frozenset({"queued", "starting"})

_FATES: dict[int | None, type[Fate]] = {
    kind.exit_code: kind
    for kind in (BadRun, NoNotebook, NoKernel, KernelDied, NotWritten, TimedOut, Cancelled)
}
_OURS = ("input_path", "output_path", "parameters", "default_parameters", "environment_variables")
"""What papermill knows here and the run does not."""


class RemoteRun:
    """One notebook; made by the engine."""

    def __init__(
        self, nb: Any, kernel_name: str, output_path: str | None, name: str, progress_bar: Any
    ) -> None:
        from papermill.engines import NotebookExecutionManager  # type: ignore[import-untyped]

        self.nb = nb
        self._kernel = kernel_name
        self._output = output_path
        self._name = name
        self._about = {k: nb.metadata.papermill.get(k) for k in _OURS}
        self._manager = NotebookExecutionManager(nb, output_path, progress_bar=progress_bar)
        self._told = 0
        self._seen: tuple[int, int] | None = None
        self._unsaved = ""
        self._session = ""
        here = os.path.dirname(output_path or "") if output_path else ""
        local = output_path is None or not is_address(output_path)
        self._staging = os.path.abspath(here or "." if local else ".")

    def run(self, stop: Stop, log_output: bool) -> Any:
        """The executed notebook; raises the `Fate` of a run that ended otherwise than by its cells,
        and what the service refuses."""
        from papermill.iorw import write_ipynb  # type: ignore[import-untyped]

        self._manager.notebook_start()
        # Readable as the output is: there is nothing in it that is not in the output as well.
        folder = os.path.join(self._staging, f".papermill-{uuid.uuid4().hex[:12]}")
        os.mkdir(folder)
        self._source, self._result = (os.path.join(folder, n) for n in ("in.ipynb", "out.ipynb"))
        goes_on = False
        try:
            write_ipynb(self.nb, self._source)
            on_own_loop(lambda: self._follow(stop, log_output))
        except Unreached as error:
            goes_on = True  # or it may: nothing of what a run begins with is taken away
            if self._session:
                raise
            raise Unreached(
                f"the run may have been started, with its output in {self._result}: its answer was "
                f"lost ({error.message}); 'jupyter singularity ls' shows it if it was"
            ) from None
        except Unavailable:
            goes_on = bool(self._session)
            raise
        finally:
            self._manager.cleanup_pbar()
            if not goes_on:
                shutil.rmtree(folder, ignore_errors=True)
        return self.nb

    async def _follow(self, stop: Stop, log_output: bool) -> None:
        from papermill.log import logger  # type: ignore[import-untyped]
        from singularity_scheduler.client import ServiceClient

        client = ServiceClient.from_environment()
        session = await client.submit(**self._request(), key=uuid.uuid4().hex)
        self._session = str(session["id"])
        logger.info(f"Session: {self._session}")
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        with stop.waking(lambda: loop.call_soon_threadsafe(asked.set)):
            ended = asyncio.ensure_future(client.wait(self._session, away_s=AWAY_S))
            async with _beside(self._log(client, logger) if log_output else None):
                await self._until(ended, asked, client)
        self._look()
        self._finish(self._result_of(ended), stop)

    async def _until(self, ended: asyncio.Future[Any], asked: asyncio.Event, client: Any) -> None:
        """Look at the output until the run has ended; end it when that is asked for."""
        ending = asyncio.ensure_future(asked.wait())
        give_up_at: float | None = None
        try:
            while not ended.done():
                waited = {ended} if ending.done() else {ended, ending}
                await asyncio.wait(waited, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if ending.done() and asked.is_set():
                    now = asyncio.get_running_loop().time()
                    give_up_at = give_up_at or now + END_S
                    try:
                        with contextlib.suppress(Conflict):  # it ended meanwhile
                            await client.end_session(self._session, "its papermill was stopped")
                        asked.clear()
                    except Unavailable as error:
                        if now >= give_up_at:
                            raise self._goes_on(error) from None
                await asyncio.to_thread(self._look)
        finally:
            ending.cancel()
            ended.cancel()

    def _request(self) -> dict[str, Any]:
        from singularity_scheduler.jobs.wishes import merged

        from .submitting.submission import Asked, described
        from .submitting.submit import surroundings

        asked = Asked(self._source, self._result, self._kernel, os.getcwd())
        run, _, wishes = described(asked, os.environ)
        wishes.pop("timeout_s", None)  # the run's own, see below
        found = merged(wishes, surroundings(wishes, os.environ))
        return {"run": run, "name": self._name, **found}

    async def _log(self, client: Any, logger: Any) -> None:
        with contextlib.suppress(SingularityError):
            await client.wait(self._session, lambda found: found["process_state"] not in BEFORE)
            async for text in client.logs(self._session, follow=True):
                for line in text.splitlines():
                    logger.info(line)

    def _look(self) -> None:
        """Take over what the run has written, if it is new."""
        from papermill.execute import remove_error_markers  # type: ignore[import-untyped]

        from .files import read_notebook

        try:
            found = os.stat(self._result)
            seen = (found.st_mtime_ns, found.st_ino)
            if seen == self._seen:
                return
            notebook = read_notebook(self._result)
        except (OSError, SingularityError):
            return
        self._seen = seen
        self.nb.cells = remove_error_markers(notebook).cells  # papermill here adds its own
        mine = {k: v for k, v in self._about.items() if v is not None}
        self.nb.metadata.update(notebook.metadata)
        self.nb.metadata.papermill.update(mine)
        self._save()
        done = sum(
            cell.metadata.get("papermill", {}).get("status") in ("completed", "failed")
            for cell in self.nb.cells
        )
        if self._manager.pbar is not None and done > self._told:
            self._manager.pbar.update(done - self._told)
        self._told = max(done, self._told)

    def _save(self) -> None:
        from papermill.iorw import write_ipynb

        if self._output is None:
            return
        try:
            write_ipynb(self.nb, self._output)
            self._unsaved = ""
        except write_errors() as error:
            self._unsaved = why(error)

    def _result_of(self, ended: asyncio.Future[Any]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = ended.result()
        except Unavailable as error:
            raise self._goes_on(error) from None
        return found

    def _goes_on(self, error: Unavailable) -> Unavailable:
        return Unavailable(
            f"the run goes on as session {self._session}, with its output in {self._result}, "
            f"but how it ends is not known here: {error.message}"
        )

    def _finish(self, session: dict[str, Any], stop: Stop) -> None:
        """Raise what the run ended with, unless papermill finds that in the notebook itself."""
        where = without_secret(self._output or "")
        if self._unsaved:
            raise NotWritten(
                f"the output notebook {where} cannot be written ({self._unsaved}); session "
                f"{self._session} {session['state']}: free space and run it again"
            )
        if session["process_state"] == "completed":
            return
        if stop.signum is not None:
            raise stop.fate(f"the outputs so far are in {where}")
        if session["exit_code"] == 1 and _raised(self.nb):
            return
        kind = _FATES.get(session["exit_code"], Fate)
        if session["process_state"] == "cancelled":
            kind = Cancelled
        raise kind(f"session {self._session} {session['state']}: {session['reason']}")


def _raised(nb: Any) -> bool:
    """Whether a cell has an error for papermill to raise."""
    return any(
        output["output_type"] == "error" for cell in nb.cells for output in cell.get("outputs", ())
    )


@contextlib.asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    """`work` (None: nothing) goes on meanwhile, and gets a moment to end by itself."""
    task = asyncio.ensure_future(work) if work is not None else None
    try:
        yield
    finally:
        if task is not None:
            await asyncio.wait({task}, timeout=5.0)
            task.cancel()
            await asyncio.wait({task})


__all__ = ["RemoteRun"]

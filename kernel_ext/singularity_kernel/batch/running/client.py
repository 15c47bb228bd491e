"""Runs the cells of a notebook: papermill's client, with an end that can be asked for.

The kernel is a session of its own (papermill in a terminal of the platform) or a plain child inside
this session (the runner, and papermill in a notebook's ``!``); that is the provisioner's business.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient  # type: ignore[import-untyped]
from singularity_proxy.errors import SingularityError
from tornado.web import HTTPError

from singularity_kernel.batch.addresses import without_secret
from singularity_kernel.batch.loop import on_own_loop, within_awake
from singularity_kernel.kernel.recording import recorded_in

from .fates import CellFailed, KernelDied, NoKernel
from .outputs import add_stream, settle
from .stop import Stop

PROVISIONER = "singularity"

SAVE_NEWS_S = 1.0
"""How often is looked whether outputs have to be saved."""

NEVER_S = 10 * 365 * 24 * 3600
"""The kernel has answered and its outputs are still to be taken: that is waited for as long as the
kernel lives. A run may be late by hours, when it was in the store meanwhile."""

INTERRUPT_S = 2.0
"""A cell gets so long to end after it was interrupted; the agent kills a cancelled run after its
grace, 5 s by default, and the notebook is to be saved before."""


class SessionKernelManager(AsyncKernelManager):  # type: ignore[misc]
    """Starts kernels through our provisioner, as batch sessions where they are sessions. Said here
    and not in the environment or a singleton: papermill may run in a process that does more.

    Inside a session the kernel's sockets lie in the session's own folder, which nobody else may
    enter and which the agent removes.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        path = os.environ.get("SINGULARITY_SOCKET")
        if path:
            self.transport = "ipc"
            self.ip = os.path.join(os.path.dirname(path), f"k{os.urandom(2).hex()}")

    def client(self, **kwargs: Any) -> Any:
        """A client whose sockets queue whatever comes: by themselves they drop outputs, without a
        word, that are more than a thousand ahead of who takes them."""
        made = super().client(**kwargs)
        made.context.rcvhwm = 0
        return made

    @property
    def kernel_spec(self) -> Any:
        """The kernelspec with our provisioner in it, unless it names one."""
        spec = super().kernel_spec
        if spec is not None:
            stanza = spec.metadata.setdefault("kernel_provisioner", {})
            if stanza.setdefault("provisioner_name", PROVISIONER) == PROVISIONER:
                stanza.setdefault("config", {})["kind"] = "batch"
        return spec


class Live:
    """What a run says while it goes on; this one says nothing."""

    def cell(self, number: int, count: int) -> None:
        """Cell `number` of `count` that run begins."""

    def output(self, output: Any) -> None:
        """A cell has made `output`."""

    def recorded(self, name: str, value: Any) -> None:
        """A cell has recorded a value."""


class RunClient(PapermillNotebookClient):  # type: ignore[misc]
    """Executes `record.nb` once. `stop` may ask for the end at any time."""

    def __init__(
        self, record: Any, *, stop: Stop, live: Live, start_timeout_s: float, **kwargs: Any
    ) -> None:
        super().__init__(record, **{"iopub_timeout": NEVER_S, "startup_timeout": NEVER_S, **kwargs})
        self._start_timeout_s = start_timeout_s
        self.stop = stop
        self.live = live
        self.session: str | None = None
        """The session that the kernel is, once it has started; None when it is this one's."""
        self._exit_code: int | None = None
        """How the kernel had ended when it was last cleaned up after; None: it lived."""
        self._numbers = {
            index: number
            for number, index in enumerate(
                (i for i, cell in enumerate(self.nb.cells) if self._runs(cell)), start=1
            )
        }

    def _runs(self, cell: Any) -> bool:
        tags = cell.metadata.get("tags", [])
        return (
            cell.cell_type == "code"
            and bool(cell.source.strip())
            and self.skip_cells_with_tag not in tags
        )

    def number(self, index: int) -> str:
        """What people call the cell at `index`: its place among those that run, its In[...]."""
        return f"cell {self._numbers.get(index, index + 1)} of {len(self._numbers)}"

    def execute(self, **kwargs: Any) -> Any:
        """Run all cells. Raises `NoKernel`; `KernelDied`, also when the kernel was killed while it
        started; `CellFailed`; `Cancelled`. A cell that raised is in the notebook, as with
        papermill's own client."""
        self.reset_execution_trackers()
        on_own_loop(lambda: self._execute(kwargs))
        return self.nb

    async def _execute(self, kwargs: dict[str, Any]) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        with self.stop.waking(lambda: loop.call_soon_threadsafe(asked.set)):
            ending = asyncio.ensure_future(asked.wait())
            saving = asyncio.ensure_future(self._save_news())
            try:
                await self._unless(ending, self._start(kwargs))
                if not asked.is_set():
                    await self._cells(ending)
            finally:
                ending.cancel()
                saving.cancel()
                if self.km is not None:
                    if asked.is_set():
                        self.shutdown_kernel = "immediate"
                    await self._async_cleanup_kernel()
        if asked.is_set():
            raise self.stop.fate(f"the outputs so far are in {self._place}")

    @property
    def _place(self) -> str:
        """The output, for people."""
        return without_secret(str(self.nb_man.output_path))

    async def _save_news(self) -> None:
        while True:
            await asyncio.sleep(SAVE_NEWS_S)
            self.nb_man.save_news()

    async def _unless(self, ending: asyncio.Future[Any], work: Coroutine[Any, Any, Any]) -> None:
        """`work` to its end, or cancelled when the run is to end; raises what it raised."""
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            _forget(task)
        elif ending.done():
            _forget(task)
        else:
            task.result()

    async def _start(self, kwargs: dict[str, Any]) -> None:
        try:
            self.km = self.create_kernel_manager()
            await self.async_start_new_kernel(**kwargs)
            self.session = getattr(self.km.provisioner, "session_id", None)
            await within_awake(self._start_timeout_s, self.async_start_new_kernel_client())
        except NoSuchKernel as error:
            raise NoKernel(
                f"there is no kernel '{error.name}' here; nothing was run: name another one"
            ) from None
        except (SingularityError, HTTPError) as error:
            raise NoKernel(str(error)) from None
        except TimeoutError:
            raise NoKernel(
                f"the kernel '{self.kernel_name}' did not answer within {self._start_timeout_s} s; "
                "nothing was run"
            ) from None
        except (RuntimeError, OSError, ModuleNotFoundError) as error:
            if signum := signal_of(self._exit_code):
                raise KernelDied(
                    f"the kernel '{self.kernel_name}' was ended by signal {signum} while it "
                    "started; nothing was run"
                ) from None
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise NoKernel(
                f"the kernel '{self.kernel_name}' could not start ({said[-1]}); nothing was run"
            ) from None

    async def _async_cleanup_kernel(self) -> None:
        """Remove what is left of the kernel. How it ended is noted before: nbclient cleans up after
        a kernel that died before it raises, and so ends what could tell."""
        try:
            if self.km is not None and self.km.provisioner is not None:
                self._exit_code = await self.km.provisioner.poll()
        finally:
            await super()._async_cleanup_kernel()

    async def _cells(self, ending: asyncio.Future[Any]) -> None:
        for index, cell in enumerate(self.nb.cells):
            if index in self._numbers:
                self.live.cell(self._numbers[index], len(self._numbers))
            self.nb_man.cell_start(cell, index)
            try:
                good = await self._cell(cell, index, ending)
            finally:
                if self._runs(cell):
                    settle(cell.outputs)
                self.nb_man.cell_complete(self.nb.cells[index], cell_index=index)
            if not good:
                return
        if not ending.done():
            await self._last_words()

    async def _cell(self, cell: Any, index: int, ending: asyncio.Future[Any]) -> bool:
        """Run one cell; False when the run is over with it."""
        task = asyncio.ensure_future(self.async_execute_cell(cell, index))
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await self._interrupt(task)
            self.nb_man.cell_exception(cell, cell_index=index)
            return False
        try:
            task.result()
        except CellExecutionError as error:
            self.nb_man.cell_exception(cell, cell_index=index, exception=error)
            return False
        except (DeadKernelError, CellTimeoutError) as error:
            self.nb_man.cell_exception(cell, cell_index=index, exception=error)
            died = isinstance(error, DeadKernelError)
            what = "the kernel died" if died else "time was up"
            raise (KernelDied if died else CellFailed)(
                f"{what} in {self.number(index)}; the outputs so far are in {self._place}"
            ) from None
        return not ending.done()

    async def _interrupt(self, task: asyncio.Task[Any]) -> None:
        """Interrupt the cell that runs and give it a moment to end with its outputs."""
        try:
            async with asyncio.timeout(INTERRUPT_S):
                await self.km.interrupt_kernel()
                await asyncio.wait({task})
        except (TimeoutError, SingularityError, RuntimeError, OSError):
            pass  # it waits in a call that cannot be interrupted: it ends with its kernel
        if not task.done():
            task.cancel()
            if self.task_poll_for_reply is not None:
                self.task_poll_for_reply.cancel()
        await asyncio.wait({task})
        _forget(task)

    async def _last_words(self) -> None:
        """What papermill's client adds to the notebook at the end."""
        try:
            info = await self.async_wait_for_reply(self.kc.kernel_info())
        except DeadKernelError:
            return  # `exit()` in the last cell
        if info is not None:
            self.nb.metadata["language_info"] = info["content"]["language_info"]
        self.set_widgets_metadata()

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """See what is recorded, in outputs and in what replaces them."""
        if msg["msg_type"] in ("display_data", "update_display_data"):
            for name, value in recorded_in(msg["content"].get("data") or {}).items():
                self.live.recorded(name, value)
        return super().process_message(msg, cell, cell_index)

    def output(self, outs: list[Any], msg: Any, display_id: Any, cell_index: int) -> Any:
        """Streams are joined as they come; see `outputs`."""
        before = len(outs)
        made = super().output(outs, msg, display_id, cell_index)
        if made is None:
            return None
        self.live.output(made)
        if made["output_type"] == "stream" and before == len(outs) - 1:
            add_stream(outs, outs.pop())
        return made


def signal_of(exit_code: int | None) -> int:
    """Return the signal that ended a process with `exit_code`, as Popen (-N) or sh (128 + N) tell
    it; 0 for a process that ended by itself, or lives. Codes above those of all signals are a
    process's own: 255 is what `exit(-1)` makes."""
    if exit_code is None or exit_code >= 128 + signal.NSIG:
        return 0
    return -exit_code if exit_code < 0 else max(0, exit_code - 128)


def _forget(task: asyncio.Task[Any]) -> None:
    """Whatever `task` raised: the run is ending anyway."""
    if not task.cancelled():
        task.exception()


__all__ = ["Live", "RunClient", "SessionKernelManager", "signal_of"]

"""Carries the policy's actions out: one task per command to a node's agent.

A command whose answer got lost (the agent or the connection went away) is sent again with the same
epoch and sequence number as soon as the node is back, as long as the session still stands where the
command was decided; an agent that has done it answers what it answered then. Every outcome goes
back to the controller as an event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from singularity_proxy.errors import (
    LayoutRefused,
    NotFound,
    SingularityError,
    Unavailable,
    Unreached,
)

from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import BatchRun
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.service.ports import Fleet
from singularity_scheduler.text.reasons import render

from .peers import gang_launch
from .transfers import Transfers

log = logging.getLogger("singularity.service")

RETRY_S = 5.0
"""Pause before the end of a session is tried again when its agent could not do it."""

TELL_S = 2.0
"""Who started a session hears of it after so long even when the ledger cannot take it in now: it
runs, and its node tells so again."""

TOLD = (ev.TakeCheckpoint, ev.PutBack)
"""Whoever asks for these waits for them and gets their error; one that the scheduler makes by
itself must not fail what somebody else has asked for meanwhile."""

Key = tuple[type, str, int, int, str]


class Commander:
    """`report` takes an outcome (it must not fail); `look` finds a session as it is now."""

    def __init__(
        self,
        fleet: Fleet,
        report: Callable[[ev.Event], Coroutine[Any, Any, None]],
        look: Callable[[str], SessionView | None],
        *,
        ttl_s: float,
        batch_python: str,
        whole: Callable[[str], bool] = lambda node: False,
    ) -> None:
        """`whole`: whether the agent of this node knows the commands about whole sessions."""
        self._fleet = fleet
        self._whole = whole
        self._report = report
        self._look = look
        self._ttl_s = ttl_s
        self._batch_python = batch_python
        self._tasks: dict[Key, asyncio.Task[Any]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._launches: dict[str, dict[str, Any]] = {}
        self._generation: dict[str, int] = {}
        self._connected: dict[str, asyncio.Event] = {}
        self.failures: dict[str, SingularityError] = {}
        """Last failed command by session; who asked for it takes its sentence from here."""
        self.transfers = Transfers(fleet, self._call, report, look, self.failures.__setitem__)
        self.over: Callable[[str], None] = lambda session: None
        """Told when a command that reports progress has ended."""
        self.bridged: Callable[[str, str], None] = lambda session, address: None
        """Told where the bridge of a part of a gang listens, that was just started."""
        self.unknown: Callable[[str], object] = lambda node: None
        """Told of a node whose agent does not know a session that the ledger has there."""

    # -- told by the controller -------------------------------------------------------------

    def connection(self, node: str, connected: bool) -> None:
        """A connection came or went: commands wait for the next one, or go on."""
        self._generation[node] = self._generation.get(node, 0) + 1
        gate = self._connected.setdefault(node, asyncio.Event())
        if connected:
            gate.set()
        else:
            gate.clear()

    def starting(self) -> frozenset[str]:
        """Sessions whose start command is under way."""
        return frozenset(
            sid
            for (kind, sid, *_), task in self._tasks.items()
            if kind is ev.Start and not task.done()
        )

    def prepare(self, session: str, launch: dict[str, Any]) -> None:
        """What to start, before the action to start it comes; kept in memory only until then."""
        self._launches[session] = launch

    def forget(self, session: str) -> None:
        self._launches.pop(session, None)
        self.failures.pop(session, None)

    def carry_out(self, action: ev.Action) -> asyncio.Task[Any]:
        """Begin an action; the same one twice is carried out once."""
        key: Key = (type(action), action.session, action.epoch, action.seq, action.node)
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.ensure_future(self._dispatch(action))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        return task

    async def close(self) -> None:
        """Stop everything under way; the next start goes on with it from the ledger."""
        tasks = [*self._tasks.values(), *self._telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.transfers.cuts.close()

    def _done(self, key: Key, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled() and (error := task.exception()):
            if isinstance(error, SingularityError):
                view = self._look(key[1])
                if view is not None and not view.final and key[0] not in TOLD:
                    self.failures[key[1]] = error
            else:
                log.error("a command for session %s failed", key[1], exc_info=error)

    # -- the commands -----------------------------------------------------------------------

    async def _dispatch(self, action: ev.Action) -> Any:
        if isinstance(action, ev.Attach):
            return await self._attach(action)
        if isinstance(action, ev.Park):
            return await self._park(action)
        if isinstance(action, ev.Resize):
            return await self._resize(action)
        if isinstance(action, ev.Start):
            return await self._start(action)
        if isinstance(action, ev.End):
            return await self._end(action)
        if isinstance(action, ev.Fence):
            return await self.transfers.fence(action)
        try:
            if isinstance(action, ev.Suspend):
                return await self.transfers.suspend(action)
            if isinstance(action, ev.Resume):
                await self._after_fences(action)
                if not self._in_process(action, ProcessState.RESUMING):
                    return None  # it was ended meanwhile, or goes on elsewhere
                return await self.transfers.resume(action)
            if isinstance(action, ev.PutBack):
                return await self.transfers.put_back(action)
            assert isinstance(action, ev.TakeCheckpoint)
            return await self.transfers.checkpoint(action, self._whole(action.node))
        finally:
            self.over(action.session)

    async def _after_fences(self, action: ev.Action) -> None:
        """Where old processes of the session are just being ended, it starts after that."""
        here = (ev.Fence, action.session, action.node)
        fences = [t for k, t in self._tasks.items() if (k[0], k[1], k[4]) == here]
        await asyncio.gather(*fences, return_exceptions=True)

    async def _start(self, action: ev.Start) -> dict[str, Any]:
        """Returns the agent's ``{pid, connection, env}``; raises what it refused."""
        await self._after_fences(action)
        launch = self._launches.get(action.session)
        view = self._look(action.session)
        if view is not None and view.run is not None:
            launch = run_launch(view, view.run, self._batch_python)
            if (gang := gang_launch(view)) is not None:
                launch["gang"] = gang
        try:
            if launch is None or view is None:
                raise Unavailable("the scheduler was restarted before it could be started")
            answer: dict[str, Any] = await self._call(
                action,
                "session.start",
                lambda: self._in_process(action, ProcessState.STARTING),
                user=view.user,
                kind=view.kind.value,
                tier=view.tier.value,
                name=view.name,
                virtual_devices=view.virtual_devices,
                launch=launch,
                epoch=action.epoch,
                seq=action.seq,
            )
        except SingularityError as error:
            await self._report(ev.StartFailed(action.session, error.message))
            raise
        finally:
            self._launches.pop(action.session, None)
        if bridge := answer.get("bridge"):
            self.bridged(action.session, str(bridge))
        telling = asyncio.create_task(self._report(ev.Started(action.session)))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)
        await asyncio.wait([telling], timeout=TELL_S)
        return answer

    async def start_again(self, view: SessionView, launch: dict[str, Any]) -> dict[str, Any]:
        """The agent's stored answer to the start command of a session that runs already."""
        answer: dict[str, Any] = await self._fleet.call(
            view.node,
            "session.start",
            timeout=None,
            session=view.id,
            user=view.user,
            kind=view.kind.value,
            tier=view.tier.value,
            name=view.name,
            virtual_devices=view.virtual_devices,
            launch=launch,
            epoch=0,
            seq=1,
        )
        return answer

    async def _attach(self, action: ev.Attach) -> None:
        await self._place(action, DeviceState.ATTACHING, ev.Attached, ev.AttachFailed)

    async def _resize(self, action: ev.Resize) -> None:
        await self._place(action, DeviceState.RESIZING, ev.Resized, ev.ResizeFailed)

    async def _place(
        self,
        action: ev.Attach | ev.Resize,
        meanwhile: DeviceState,
        done: type[ev.Attached | ev.Resized],
        failed: type[ev.AttachFailed | ev.ResizeFailed],
    ) -> None:
        """Put a session's virtual devices on the physical ones that were decided."""
        try:
            answer = await self._call(
                action,
                "device.attach" if meanwhile is DeviceState.ATTACHING else "device.resize",
                lambda: self._in_device(action, meanwhile),
                epoch=action.epoch,
                seq=action.seq,
                devices=list(action.devices),
                reason=render(action.why),
                ttl_s=self._ttl_s,
            )
        except SingularityError as error:
            if self._in_device(action, meanwhile):
                self.failures[action.session] = error
                await self._report(
                    failed(action.session, action.epoch, error.message, _least(error))
                )
                self._look_again(action, error)
            return
        placed = tuple(answer.get("devices") or ())
        await self._report(done(action.session, action.epoch, float(answer["ms"]), placed))

    async def _park(self, action: ev.Park) -> None:
        try:
            answer = await self._call(
                action,
                "device.park",
                lambda: self._in_device(action, DeviceState.PARKING),
                epoch=action.epoch,
                seq=action.seq,
                reason=render(action.why),
                **({"force": True} if action.force else {}),
                **({"moving": True} if action.moving else {}),
            )
        except SingularityError as error:
            if self._in_device(action, DeviceState.PARKING):
                self.failures[action.session] = error
                await self._report(ev.ParkFailed(action.session, action.epoch, error.message))
                self._look_again(action, error)
            return
        await self._report(
            ev.Parked(
                action.session,
                action.epoch,
                int(answer["bytes"]),
                float(answer["ms"]),
                bool(answer.get("stays", False)),
            )
        )

    async def _end(self, action: ev.End) -> None:
        starts = [
            task
            for (kind, session, _, _, node), task in self._tasks.items()
            if session == action.session
            and (kind is ev.Start or (kind is ev.Resume and node == action.node))
        ]
        await asyncio.gather(*starts, return_exceptions=True)  # half of one cannot be removed
        while True:
            try:
                answer = await self._call(
                    action,
                    "session.end",
                    lambda: self._wanted(action),
                    reason=render(action.why),
                    grace_s=action.grace_s,
                )
            except NotFound:
                answer = {}
            except SingularityError as error:
                if not self._wanted(action):
                    return
                log.error("session %s could not be ended yet: %s", action.session, error.message)
                self.failures[action.session] = error
                await asyncio.sleep(RETRY_S)
                continue
            await self._report(ev.Ended(action.session, answer.get("exit_code"), action.node))
            return

    # -- sending ----------------------------------------------------------------------------

    async def _call(
        self, action: ev.Action, method: str, wanted: Callable[[], bool], **params: Any
    ) -> Any:
        """Call the agent until it answers. `Unavailable` when nobody wants the answer any more,
        `Unreached` when it may have done it."""
        first = True
        lost: Unreached | None = None
        while True:
            gate = self._connected.setdefault(action.node, asyncio.Event())
            first = first and gate.is_set()
            await gate.wait()
            if not first and not wanted():
                raise lost or Unavailable(f"node {action.node} is away; the command was not sent")
            first = False
            generation = self._generation.get(action.node)
            try:
                return await self._fleet.call(
                    action.node, method, timeout=None, session=action.session, **params
                )
            except Unavailable as error:
                # The agent's own word, unless the connection broke meanwhile.
                if self._generation.get(action.node) == generation:
                    raise
                if isinstance(error, Unreached):
                    lost = Unreached(
                        f"the connection to node {action.node} broke before it answered, so "
                        "whether it did what was asked is not known",
                        session=action.session,
                    )
                if not wanted():
                    raise lost or error from None

    def _look_again(self, action: ev.Action, error: SingularityError) -> None:
        """Have the node asked what it has, when its agent does not know the session: it was lost
        there without a word."""
        if isinstance(error, NotFound):
            self.unknown(action.node)

    def _in_device(self, action: ev.Action, state: DeviceState) -> bool:
        view = self._look(action.session)
        return (
            view is not None
            and view.device_state is state
            and (view.epoch, view.seq) == (action.epoch, action.seq)
        )

    def _in_process(self, action: ev.Action, state: ProcessState) -> bool:
        view = self._look(action.session)
        return view is not None and view.process_state is state

    def _wanted(self, action: ev.Action) -> bool:
        """Whether the end of the session is still to be confirmed (an unknown one: once is
        enough, the agent will tell again)."""
        view = self._look(action.session)
        return view is not None and view.final


def _least(error: SingularityError) -> int:
    """On how many devices a session can be at least, where it was refused for that."""
    return int(error.fields["least"]) if isinstance(error, LayoutRefused) else 0


def run_launch(view: SessionView, run: BatchRun, batch_python: str) -> dict[str, Any]:
    """How the node agent starts a run: papermill and its kernel, or a command, in one capsule,
    which belongs to no other process; see `singularity_kernel.batch`."""
    folder = run.folder or "/"
    description = {
        "command": run.command,
        "ranks": view.virtual_devices if run.ranked else 0,
        "notebook": run.notebook,
        "output": run.output,
        "parameters": json.loads(run.parameters),
        "kernel": run.kernel,
        "name": view.name,
        "timeout_s": run.timeout_s,
        "started_at": view.started_at,
        "attempt": view.attempt,
        "attempts": run.attempts,
    }
    return {
        "mode": "capsule",
        "argv": [run.python or batch_python, "-m", "singularity_kernel.batch"],
        "env": {
            "HOME": folder,
            **json.loads(run.variables),
            "RUN_DESCRIPTION": json.dumps(description),
        },
        "cwd": folder,
        "connection": None,
        "owner_pid": None,
        "restartable": run.attempts > 1,
    }

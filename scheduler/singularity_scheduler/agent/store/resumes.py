"""The way back: a session from a checkpoint in the store, on this node, frozen until all is there.

What was downloaded lies in a folder of the agent's own until it is whole; then the rings go to
their place, the session's files are unpacked inside an empty capsule, as its user, and its
processes come back in there. Its device state is downloaded meanwhile. The checkpoint stays as it
is, whatever happens: an attempt that fails leaves nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from singularity_proxy.capsule.files import reconcile, scratch
from singularity_proxy.capsule.files import record as open_files
from singularity_proxy.capsule.files.rules import Way
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.images.machine import Machine, why_not
from singularity_proxy.capsule.launcher import CapsuleSpec
from singularity_proxy.capsule.namespace import NamespaceCapsule, NamespaceLauncher
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.manifest import StoredPart, Summary
from singularity_proxy.checkpoint.progress import Progress
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    ImageFailed,
    SingularityError,
    StoreRefused,
    StoreUnavailable,
    Unavailable,
    Unsupported,
)
from singularity_proxy.wire.ring import RingFile, RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.launch import (
    KINDS,
    TIERS,
    Gang,
    gang_of,
    number,
    one_of,
    text,
)
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.logs import CAPSULE_LOG
from singularity_scheduler.agent.sessions.record import GangPart, Phase, RingRecord, SessionRecord
from singularity_scheduler.client.words import size

from . import parts as files
from .stores import teller

STEPS = {
    "begun": "the ledger says that the session is being started",
    "claimed": "no agent of an older epoch can publish a checkpoint of it any more",
    "fetched": "all but the device state is here",
    "prepared": "there is an empty capsule",
    "unpacked": "the session's files are in it",
    "states": "its device state is here",
    "restored": "its processes are in it, frozen",
    "recorded": "the ledger says that it lives, and is still to be thawed",
    "thawed": "it runs",
}
"""Where an agent can die in the middle; `Node.on_step` is called there, by tests alone."""


_IN_MEMORY = ("device", "ring")
_FIRST = ("image", "ring", "record", "scratch")
_MEANWHILE = ("device",)
"""The kinds of parts that are fetched before the processes can be restored, and those meanwhile."""


@dataclass(frozen=True)
class ResumeRequest:
    """A checked command to resume. `source` is the session whose checkpoint it is: another one for
    a fork. `undo`: requests that came since that checkpoint are not carried out again.
    `connection` is Jupyter's client-facing one, or None."""

    session: str
    source: str
    user: str
    kind: str
    tier: str
    name: str
    virtual_devices: int
    epoch: int
    checkpoint: str | None
    incarnation: int
    undo: bool
    reason: str
    connection: dict[str, Any] | None = field(repr=False)
    owner_pid: int | None = None
    gang: Gang | None = None

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> ResumeRequest:
        """From the parameters of the call; raises `BadRequest` naming the first wrong one."""
        connection = params.get("connection")
        if connection is not None and not isinstance(connection, Mapping):
            raise BadRequest("the connection must be Jupyter's connection info")
        session = text(params, "session")
        checkpoint = params.get("checkpoint")
        owner_pid = params.get("owner_pid")
        return cls(
            session=session,
            source=str(params.get("from_session") or session),
            user=text(params, "user"),
            kind=one_of(params, "kind", KINDS),
            tier=one_of(params, "tier", TIERS),
            name=str(params.get("name") or ""),
            virtual_devices=number(params, "virtual_devices"),
            epoch=number(params, "epoch"),
            checkpoint=None if checkpoint is None else str(checkpoint),
            incarnation=int(params.get("incarnation") or 1),
            undo=params.get("undo") is True,
            reason=str(params.get("reason") or ""),
            connection=None if connection is None else dict(connection),
            owner_pid=owner_pid if isinstance(owner_pid, int) else None,
            gang=gang_of(params),
        )


class Resumer:
    """Brings sessions back; `lifecycle` makes them, watches them and cleans up after a failure."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _step(self, name: str) -> None:
        self._node.on_step(f"resume.{name}")

    async def look(self, request: ResumeRequest) -> tuple[Summary, dict[str, Any]]:
        """The checkpoint and its record; refuses what cannot come back here, before anything is
        made."""

        def read(box: Checkpoints) -> tuple[Summary, dict[str, Any]]:
            found = box.find(request.source, request.checkpoint)
            return found, box.manifest(request.source, found.id).record

        try:
            summary, record = await self._node.stores.call(request.user, read)
        except SingularityError as error:
            say_kept(error)
            raise
        await self._refuse(request, summary, record)
        return summary, record

    async def _refuse(
        self, request: ResumeRequest, summary: Summary, record: dict[str, Any]
    ) -> None:
        node = self._node
        kept = "the checkpoint was kept"
        if summary.level != "process":
            raise Unsupported(
                f"checkpoint {summary.id} holds no processes, only the state of level "
                f"'{summary.level}', so no session can be started from it; {kept}",
                checkpoint=summary.id,
            )
        if record.get("format") != files.FORMAT:
            raise Unsupported(
                f"checkpoint {summary.id} was taken by another version of the node agent; {kept}"
            )
        found = await node.images.capability()
        if not found["available"] or not isinstance(node.launcher, NamespaceLauncher):
            why = str(found["reason"]).rstrip(".")
            raise Unsupported(f"no session can be resumed on node {node.settings.node}: {why}")
        await refuse_machine(node, record)
        ours = node.torch.git_version if node.torch else ""
        if record["rings"] and record["torch"] != ours:
            raise Unsupported(
                f"the session uses another torch than the device proxies of node "
                f"{node.settings.node}; {kept}, resume it on a node like {record['node']}",
                checkpoint=summary.id,
            )
        if record["virtual_devices"] != request.virtual_devices:
            raise BadRequest(
                f"the session had {record['virtual_devices']} virtual devices, not "
                f"{request.virtual_devices}; {kept}"
            )
        _refuse_part(request.gang, record.get("part"), kept)
        settings = node.settings
        for name, here in (
            ("folder", settings.session_dir(request.session)),
            ("shm", settings.session_shm(request.session)),
        ):
            there = record["places"][name]
            private = there.startswith("/dev/shm/") or (
                there.startswith("/tmp/") and record["kept"] is not None
            )
            if there != here and not private:
                raise Unsupported(
                    f"the session knows its folder as {there}, which this node cannot show it; "
                    f"{kept}: resume it on node {record['node']}, or set runtime_dir below /tmp "
                    "on every node",
                    path=there,
                )
        missing = [path for path in record["kept"] or () if _is_missing(path, record)]
        if missing:
            raise Conflict(
                f"the session works in {missing[0]}, which is not on node {settings.node}; {kept}: "
                "put it on storage that all nodes share, or resume it where it is",
                path=missing[0],
            )

    def record_of(
        self, request: ResumeRequest, summary: Summary, told: dict[str, Any]
    ) -> SessionRecord:
        """The session's document in the ledger, as it will be."""
        return SessionRecord(
            session=request.session,
            user=request.user,
            kind=request.kind,
            tier=request.tier,
            name=request.name,
            mode="capsule",
            virtual_devices=request.virtual_devices,
            uid=told["uid"],
            gid=told["gid"],
            epoch=request.epoch,
            phase=Phase(told["phase"]),
            busy=told["busy"],
            rings_made=told["rings_made"],
            log_cut=told["log_cut"],
            incarnation=request.incarnation,
            cwd=told["cwd"],
            kept=told["kept"],
            places=dict(told["places"]),
            reason=request.reason,
            connected=told["connected"],
            restartable=True,
            part=_part(request.gang, told.get("part")),
        )

    async def restore(
        self,
        live: LiveSession,
        request: ResumeRequest,
        summary: Summary,
        told: dict[str, Any],
        on_exit: Any,
    ) -> dict[str, Any]:
        """Everything up to the frozen processes; returns the loss report. The session's folders
        are there and empty. `on_exit`: for the capsule's watch."""
        record, node = live.record, self._node
        settings = node.settings
        self._step("begun")
        await node.stores.call(record.user, lambda box: box.claim(record.session, record.epoch))
        self._step("claimed")
        shm = settings.session_shm(record.session)
        folder = os.path.join(settings.images_dir, f"{record.session}-{os.urandom(4).hex()}")
        stage = shm + files.STAGE  # beside its place, in shared memory: nothing is copied twice
        try:
            os.makedirs(folder, 0o700)
            os.mkdir(stage, 0o700)
            fetch = self._fetcher(live, request, summary, folder, stage)
            checked = await fetch(_FIRST)
            self._install(record, stage, shm)
            self._step("fetched")
            opened = open_files.Record.from_json(told["opened"])
            rest = asyncio.ensure_future(fetch(_MEANWHILE))
            try:
                reconciled = await self._reconcile(live, request, summary, told, opened, rest)
                await self._processes(live, told, opened, reconciled.plan, folder, on_exit)
            except BaseException:
                live.cancel.set()
                await asyncio.wait([rest])
                rest.exception()  # the one that is raised is the cause
                raise
            checked += await rest
            self._install(record, stage, shm)
            self._step("states")
            self._open_rings(live, told)
            stopped = sorted(opened.stopped)
            record.saving = {"id": summary.id, "level": "process", "stopped": stopped}
            self._step("restored")
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)
            await asyncio.to_thread(shutil.rmtree, stage, True)
        return _loss(request, summary, told, checked, opened, reconciled)

    def _fetcher(
        self, live: LiveSession, request: ResumeRequest, summary: Summary, folder: str, stage: str
    ) -> Callable[[Collection[str]], Awaitable[int]]:
        """A function that brings the parts of some kinds here, and returns how many hashes were
        checked. Its calls are one transfer for people who look at the progress."""
        total = summary.bytes
        done = sent = 0

        async def fetch(kinds: Collection[str]) -> int:
            nonlocal done, sent
            before = done, sent
            tell = teller(self._node, request.session)

            def progress(now: Progress) -> None:
                nonlocal done, sent
                done, sent = before[0] + now.bytes_done, before[1] + now.bytes_sent
                left = total - done
                eta = 0.0 if left <= 0 else left / now.rate if now.rate > 0 else None
                tell(Progress(done, total, sent, now.rate, eta))

            def place(part: StoredPart) -> str | None:
                if part.kind not in kinds:
                    return None
                return stage if part.kind in _IN_MEMORY else folder

            def restore(box: Checkpoints) -> int:
                return box.restore(
                    request.source,
                    summary.id,
                    place=place,
                    progress=progress,
                    cancel=live.cancel,
                    on_step=self._node.on_step,
                ).hashes_checked

            return await self._node.stores.call(request.user, restore)

        return fetch

    async def _reconcile(
        self,
        live: LiveSession,
        request: ResumeRequest,
        summary: Summary,
        told: dict[str, Any],
        opened: open_files.Record,
        rest: asyncio.Future[int],
    ) -> reconcile.Reconciled:
        """Decide and do what becomes of files outside that the session has open. The user's files
        are changed only when all of the checkpoint is known to be whole."""
        record, settings = live.record, self._node.settings
        owner: dict[str, Any] = {"uid": record.uid, "gid": record.gid}
        way = _way(request, summary)
        shared: frozenset[str] = frozenset()
        if way is Way.ROLLBACK and opened.written_outside():
            shared = await self._written_by_others(request, summary)
            shared |= self._node.writers.foreign(request.session, summary.time)
        outlook = await asyncio.to_thread(
            reconcile.check,
            opened,
            way=way,
            own=(told["places"]["folder"], settings.session_dir(record.session)),
            shared=shared,
            other_node=told["node"] != settings.node,
            **owner,
        )
        if outlook.cuts:
            await asyncio.shield(rest)
        name = f"after-{summary.id}" if way is not Way.FORK else f"fork-{request.session}"

        def carry_out() -> reconcile.Reconciled:
            with self._node.writers.ignoring(request.session):
                return reconcile.carry_out(outlook, label=name, **owner)

        reconciled = await asyncio.to_thread(carry_out)
        live.reconciled = reconciled.sentences()
        return reconciled

    async def _written_by_others(self, request: ResumeRequest, summary: Summary) -> frozenset[str]:
        """Paths that others of the user's sessions had open for writing at a checkpoint of theirs
        that is newer than this one: what is in those files since may be theirs."""
        but = [request.session, request.source]

        def read(box: Checkpoints) -> frozenset[str]:
            found: set[str] = set()
            for record in box.records_since(summary.time, but):
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    found |= open_files.Record.from_json(record["opened"]).written_outside()
            return frozenset(found)

        return await self._node.stores.call(request.user, read)

    async def _processes(
        self,
        live: LiveSession,
        told: dict[str, Any],
        opened: open_files.Record,
        plan: reconcile.Plan,
        folder: str,
        on_exit: Any,
    ) -> None:
        """A capsule with the session's files and its frozen processes in it."""
        capsule = await self._prepare(live, told, on_exit)
        self._step("prepared")
        roots, _ = files.scratch_roots(live.record, told["places"]["folder"])
        archive = os.path.join(folder, files.SCRATCH)
        await asyncio.to_thread(scratch.unpack, capsule, archive, roots)
        self._step("unpacked")
        await asyncio.to_thread(
            image.restore,
            capsule,
            os.path.join(folder, files.IMAGE),
            stopped=opened.stopped,
            plan=plan,
        )
        session = live.record.session
        await asyncio.to_thread(self._node.writers.begin, session, capsule, opened)

    def _install(self, record: SessionRecord, stage: str, shm: str) -> None:
        """Rings and their state to their place, as their user's and as nobody's who served them."""
        found = os.path.join(stage, files.SHM)
        names = os.listdir(found) if os.path.isdir(found) else []
        for name in names:
            path = os.path.join(found, name)  # where nobody else can put a link in its place
            os.chmod(path, 0o600)
            if name.endswith(".ring"):
                ring = RingFile.open(path)
                try:
                    if ring.state in (RingState.ATTACHED, RingState.MOVING):
                        ring.set_state(RingState.DETACHED)
                    ring.clear_executing()
                    ring.set_epoch(record.epoch)
                finally:
                    ring.close()
            if os.geteuid() == 0:
                os.chown(path, record.uid, record.gid, follow_symlinks=False)
            os.rename(path, os.path.join(shm, name))

    async def _prepare(
        self, live: LiveSession, told: dict[str, Any], on_exit: Any
    ) -> NamespaceCapsule:
        record, node = live.record, self._node
        settings = node.settings
        assert isinstance(node.launcher, NamespaceLauncher)
        folder, shm = settings.session_dir(record.session), settings.session_shm(record.session)
        places = told["places"]
        spec = CapsuleSpec(
            argv=("restored",),
            env={},
            cwd="/",
            log_path=os.path.join(folder, CAPSULE_LOG),
            uid=record.uid,
            gid=record.gid,
            tmp=None if record.kept is None else settings.session_tmp(record.session),
            keep=tuple(p for p in record.kept or () if p not in places.values()),
            moved={places["folder"]: folder, places["shm"]: shm},
            lease=node.lease.begin(live),
        )
        if record.kept is None and places["folder"] == folder:
            spec = _without_folder(spec, places["folder"])
        capsule = await node.launcher.prepare(spec, on_exit)
        live.capsule = capsule
        record.process = capsule.identity
        node.save(live)
        return capsule

    def _open_rings(self, live: LiveSession, told: dict[str, Any]) -> None:
        record, capsule = live.record, live.capsule
        assert isinstance(capsule, NamespaceCapsule)
        shm = self._node.settings.session_shm(record.session)
        for ring in told["rings"]:
            worker = capsule.host_process(ring["worker"])
            if worker is None:
                raise ImageFailed(
                    f"process {ring['worker']} of the session did not come back; the checkpoint "
                    "is as it was",
                    step="restore",
                    log=[],
                )
            ring_id = ring["ring_id"]
            path = os.path.join(shm, f"{ring_id}.ring")
            record.rings[ring_id] = RingRecord(ring_id, path, ring["virtual_device"], worker)
        lost = live.rings.adopt()
        if lost:
            raise Unavailable(f"ring {lost[0].ring_id} of the session is gone; try again")


async def refuse_machine(agent: Node, record: dict[str, Any]) -> None:
    """Refuse an image that needs more of its machine than is here, or other files."""
    node, there = agent.settings.node, record["node"]
    instead = f"the checkpoint was kept, resume it on a node like {there}"
    why = why_not(Machine.from_json(record.get("machine")), await agent.images.machine())
    if why:
        raise Unsupported(f"the session cannot come back here: node {node} {why}; {instead}")
    opened = open_files.Record.from_json(record["opened"])
    others = await asyncio.to_thread(open_files.other_libraries, opened)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise Unsupported(
            f"the session cannot come back here: node {node} has another or no {others[0]}"
            f"{more}, which it has loaded; {instead}, or install the same there",
            files=others[:20],
        )


def say_kept(error: SingularityError) -> None:
    """Add what became of the checkpoint to what a store says that does not answer."""
    if isinstance(error, StoreUnavailable | StoreRefused):
        error.message += "; nothing was left here and the checkpoint was kept, try again"


def why_not_resumed(live: LiveSession, error: OSError) -> SingularityError:
    """What people are told about an attempt that the system made fail."""
    words = (
        f"session {live.record.session} could not be resumed ({error}); nothing was left here and "
        "the checkpoint was kept"
    )
    return SingularityError("; ".join([words, *live.reconciled]))


def _refuse_part(gang: Gang | None, told: Mapping[str, Any] | None, kept: str) -> None:
    """Refuse to bring a part back as another one, or without its gang."""
    wanted = None if gang is None else (gang.number, gang.parts)
    stored = None if told is None else (told["number"], told["parts"])
    if wanted != stored:
        raise BadRequest(f"the checkpoint is of {_named(stored)}, not of {_named(wanted)}; {kept}")


def _rolls_back(request: ResumeRequest, summary: Summary) -> bool:
    return request.incarnation > summary.incarnation


def _way(request: ResumeRequest, summary: Summary) -> Way:
    if request.source != request.session:
        return Way.FORK
    return Way.ROLLBACK if _rolls_back(request, summary) else Way.RESUME


def _named(part: tuple[int, int] | None) -> str:
    return "no part of a gang" if part is None else f"part {part[0]} of a gang on {part[1]} nodes"


def _part(gang: Gang | None, told: Mapping[str, Any] | None) -> GangPart | None:
    """With the port that its ranks know for their rendezvous."""
    if gang is None or told is None:
        return None
    return GangPart(
        gang.id, gang.number, gang.parts, gang.key, master_port=int(told["master_port"])
    )


def _is_missing(path: str, record: dict[str, Any]) -> bool:
    return path not in record["places"].values() and not os.path.isdir(path)


def _without_folder(spec: CapsuleSpec, place: str) -> CapsuleSpec:
    """/tmp is the machine's, and with it the session's folder is where it always was."""
    return replace(spec, moved={k: v for k, v in spec.moved.items() if k != place})


def _loss(
    request: ResumeRequest,
    summary: Summary,
    told: dict[str, Any],
    hashes_checked: int,
    opened: open_files.Record,
    reconciled: reconcile.Reconciled,
) -> dict[str, Any]:
    """The report of a restore, in words for people."""
    count = told["processes"]
    back = [f"{count} process{'' if count == 1 else 'es'}"]
    device = summary.parts.get("device", {}).get("bytes", 0)
    if told["rings"]:
        rings = len(told["rings"])
        back.append(
            f"the device state of {rings} process{'' if rings == 1 else 'es'} ({size(device)})"
        )
    scratch_bytes = summary.parts.get("scratch", {}).get("bytes", 0)
    back.append(f"its own files ({size(scratch_bytes)})")
    rolled_back = _rolls_back(request, summary)
    # The one to the relay is made again, and nothing on it is lost.
    others = [one for one in opened.tcp if one.remote != told["tunnel"]]
    lost = [*reconciled.sentences(), *replace(opened, tcp=others).lost()]
    if rolled_back:
        at = datetime.fromisoformat(summary.at)
        lost.insert(0, f"what the session did after {at:%Y-%m-%d %H:%M:%S} UTC")
    return {
        "level": summary.level,
        "back": back,
        "lost": lost,
        "rolled_back": rolled_back,
        "hashes_checked": hashes_checked,
        "checkpoint": summary.id,
    }

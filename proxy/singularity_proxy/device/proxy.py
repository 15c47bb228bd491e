"""The device proxy's work, without its socket: rings, state files, memory. All calls may block."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity_proxy import build
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    NoSpace,
    NotFound,
    ProxyFailed,
    SingularityError,
    StaleEpoch,
)

from . import barrier, process

native = build.load()

CHECK_SQUASHING_EVERY = 100
"""Windows; what a check costs is then a hundredth of what squashing saves."""


def _make_graph(packed: bytes, device: str) -> Any:
    from . import graphs

    return graphs.Graph(packed, device)


native.set_graph_maker(_make_graph)


@dataclass(frozen=True)
class Binding:
    """Whose proxy this is and what it may use; fixed for the life of the process."""

    session: str
    device: str
    """Physical device id of the node: "cpu:1", "cuda:0"."""
    capacity_bytes: int
    """What the device holds at most; 0: no limit."""
    threads: int
    """Compute threads of a cpu device, per ring."""
    epoch: int

    @property
    def torch_device(self) -> str:
        """The device as torch knows it: all cpu devices of a node are torch's one "cpu"."""
        kind, _, index = self.device.partition(":")
        return "cpu" if kind == "cpu" else f"{kind}:{index or 0}"


class DeviceProxy:
    """One physical device for one session. Used by `control.Control`, one call at a time."""

    def __init__(self) -> None:
        self.binding: Binding | None = None
        self._rings: dict[str, Any] = {}
        self._held = False
        self._targets: dict[str, int] | None = None
        """Of the barrier that rings are held for."""
        self._facts: dict[str, Any] = _facts_of_cpu()

    def warm_up(self) -> None:
        """Let torch and its math libraries set themselves up, which they do at their first use."""
        import torch

        with torch.inference_mode():
            a = torch.zeros(64, 64)
            torch.nn.functional.softmax(a @ a + a, dim=-1).sum().item()

    def bind(
        self,
        *,
        session: str,
        uid: int,
        gid: int,
        device: str,
        capacity_bytes: int,
        threads: int,
        epoch: int,
        check_squashing_every: int = CHECK_SQUASHING_EVERY,
    ) -> dict[str, Any]:
        """Make this proxy the session's, once. -> {pid}

        Of the windows in which ranks would compute equal things once, every
        `check_squashing_every`th is not squashed and its results are compared (0: only the first
        comparison, before anything is shared).
        """
        if self.binding is not None:
            raise Conflict(
                f"this device proxy already belongs to session {self.binding.session}",
                session=self.binding.session,
            )
        kind = device.partition(":")[0]
        if kind not in ("cpu", "cuda"):
            raise BadRequest(
                f"unknown device '{device}': a device proxy serves cpu:N or cuda:N", device=device
            )
        if capacity_bytes < 0 or threads < 1:
            raise BadRequest(
                f"a device needs at least 1 thread and a capacity of 0 (no limit) or more, "
                f"not {threads} and {capacity_bytes}"
            )
        if check_squashing_every < 0:
            raise BadRequest(
                "squashing is checked in every so manyth window, or 0 for only once, "
                f"not {check_squashing_every}"
            )
        binding = Binding(session, device, capacity_bytes, threads, epoch)
        process.check_may_become(uid)
        process.set_name(f"sg-{device}-{session}")  # before: another uid may not open /proc/self
        process.become(uid, gid)
        if kind == "cpu":
            native.install_capacity(capacity_bytes)
        else:
            _limit_cuda(binding)
            self._facts = _facts_of_cuda(binding)
        native.check_arguments_of_kernels()
        native.check_squashing_every(check_squashing_every)
        # Ranks of another session meet these when both are parts of a gang: cpu:0 of its node is
        # another device.
        native.name_device(f"{session}/{device}")
        self.binding = binding
        return {"pid": os.getpid()}

    def attach(
        self,
        *,
        ring_id: str,
        path: str,
        state_prefix: str,
        journal_bytes: int,
        epoch: int,
        journal_records: int = 0,
        give_up_seq: int = 0,
        deaths: int = 0,
    ) -> dict[str, Any]:
        """Rebuild a ring's state and serve it. -> {restored_bytes, replayed_records, given_up, ms}

        A new snapshot is made when the journal has more than `journal_bytes` bytes (more for a
        larger state; 0: there is no journal) or `journal_records` records (0: only the bytes
        count). `give_up_seq` is a record that ended `deaths` proxies: it fails without being
        executed, and "given_up" is the name of its operation.
        """
        binding = self._bound()
        if ring_id in self._rings:
            raise Conflict(f"ring {ring_id} is already served by this device proxy", ring=ring_id)
        if epoch < binding.epoch:
            raise StaleEpoch(
                f"ring {ring_id} was to be attached under epoch {epoch}, but this device proxy was "
                f"started under epoch {binding.epoch}",
                epoch=epoch,
                newest=binding.epoch,
            )
        begin = time.monotonic()
        ring = native.RingServer(
            path,
            state_prefix,
            binding.torch_device,
            journal_bytes,
            epoch,
            binding.capacity_bytes,
            binding.threads,
            journal_records,
            give_up_seq,
            deaths,
        )
        ring.set_facts(**self._facts)
        if self._targets is not None:
            ring.hold(self._targets, 0)
        with _typed(ring_id):
            restored, replayed, given_up = ring.start()
        self._rings[ring_id] = ring
        return {
            "restored_bytes": restored,
            "replayed_records": replayed,
            "given_up": given_up,
            "ms": _ms_since(begin),
        }

    def close_ring(self, *, ring_id: str) -> dict[str, Any]:
        """Forget a ring whose worker has ended, with its state and its files."""
        self._served(ring_id)
        self._rings.pop(ring_id).stop(True)
        return {}

    def park(self) -> dict[str, Any]:
        """Write the state of all rings and detach them. -> {bytes, ms, rings}

        All or nothing: when one cannot be written all of them are served on, and NoSpace or
        SingularityError is raised. After success the proxy holds nothing and should end.
        """
        self._not_held()
        begin = time.monotonic()
        with self._paused(dict(self._rings)) as rings:
            total = _write(rings)
            for ring_id, ring in rings.items():
                ring.leave()
                # Not its destructor: the process ends now, and its memory with it.
                _parked.append(self._rings.pop(ring_id))
        return {"bytes": total, "ms": _ms_since(begin), "rings": list(rings)}

    def park_rings(self, *, rings: list[str]) -> dict[str, Any]:
        """Write the state of these rings and detach them; the others go on, and this proxy stays.
        What the rings had of its device is free. -> {bytes, ms, rings}

        All or nothing, as `park`. Raises NotFound for a ring that is not served here.
        """
        binding = self._bound()
        begin = time.monotonic()
        for ring_id in rings:
            self._served(ring_id)
        with self._paused({ring_id: self._rings[ring_id] for ring_id in rings}) as leaving:
            total = _write(leaving)
            for ring_id in rings:
                ring = self._rings.pop(ring_id)
                ring.leave()
                ring.stop(False)
            ring = None
            leaving.clear()  # the last references: their storages go with them
        _settle(binding)
        return {"bytes": total, "ms": _ms_since(begin), "rings": rings}

    def barrier_ask(self) -> dict[str, Any]:
        """How far the ranks are that are served here, for `elastic.coordinator.View`; never waits.
        -> {groups: {key: {rank: contributed}}, open: [key], names, devices, held}"""
        stats = [ring.stats() for ring in list(self._rings.values())]
        return barrier.answer([ring for ring in stats if not ring["broken"]])

    def barrier_hold(self, targets: dict[str, int], grace_s: float) -> None:
        """Have rings stop for the barrier, and those that are attached from now on; returns at
        once. A call with higher targets lets those go on that are behind."""
        self._targets = dict(targets)
        for ring in list(self._rings.values()):
            ring.hold(self._targets, int(grace_s * 1e9))

    def barrier_release(self) -> dict[str, Any]:
        """All rings go on; also when none was held. -> {}"""
        self._targets = None
        for ring in list(self._rings.values()):
            ring.let_go()
        return {}

    def checkpoint(self, *, directory: str, durable: bool = True) -> dict[str, Any]:
        """Write the state of all rings below `directory` and go on. -> {bytes, ms, files}

        With `durable` all of it is on disk when this returns. On an error no new file is left.
        """
        self._not_held()
        begin = time.monotonic()
        folder = Path(directory)
        files: dict[str, str] = {}
        total = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _no_space(error, f"cannot make the folder {folder}") from error
        with self._paused(dict(self._rings)) as rings:
            try:
                for ring_id, ring in rings.items():
                    path = folder / f"{ring_id}.snap"
                    with _typed(ring_id):
                        total += ring.save_copy(os.fspath(path), durable)
                    files[ring_id] = os.fspath(path)
            except BaseException:
                for written in files.values():
                    Path(written).unlink(missing_ok=True)
                raise
        return {"bytes": total, "ms": _ms_since(begin), "files": files}

    def hold(self) -> dict[str, Any]:
        """Stop between two records and leave the state on the device, for the driver to take this
        whole process off it (`checkpoint.driver`). -> {bytes, ms, rings}

        All or nothing. `release` goes on. Raises Conflict when a ring keeps no journal, because
        its state would be lost with this process.
        """
        binding = self._bound()
        begin = time.monotonic()
        rings = dict(self._rings)
        aside: list[Any] = []
        for ring in rings.values():
            ring.request_pause()
        for ring in rings.values():
            ring.wait_paused()
        try:
            for ring_id, ring in rings.items():
                with _typed(ring_id):
                    ring.step_aside()
                aside.append(ring)
            held = _settle(binding)
        except BaseException:
            for ring in aside:
                with contextlib.suppress(
                    native.Refused
                ):  # broken or closed meanwhile: only that one
                    ring.come_back(binding.epoch)
            for ring in rings.values():
                ring.resume()
            raise
        self._held = True
        return {"bytes": held, "ms": _ms_since(begin), "rings": list(rings)}

    def release(self, *, epoch: int) -> dict[str, Any]:
        """Serve on after `hold`, under the lease `epoch`. -> {rings}: those that go on."""
        if not self._held or self.binding is None:
            raise Conflict("this device proxy is not held")
        self.binding = dataclasses.replace(self.binding, epoch=max(epoch, self.binding.epoch))
        self._held = False
        going_on = []
        for ring_id, ring in self._rings.items():
            with contextlib.suppress(Conflict), _typed(ring_id):  # closed meanwhile: it stays held
                ring.come_back(epoch)
                ring.resume()
                going_on.append(ring_id)
        return {"rings": going_on}

    def stats(self) -> dict[str, Any]:
        """-> {memory_current, memory_peak, memory_capacity, held (for the driver), turn_switches
        (how often the device passed to another rank), published_bytes (of collectives, for ranks
        elsewhere), squashing (what ranks share: {state, why_off, ...}), rings: {id: {...}}}; never
        waits."""
        device = self.binding.torch_device if self.binding else "cpu"
        current, peak, _ = native.memory(device)
        return {
            "pid": os.getpid(),
            "session": self.binding.session if self.binding else None,
            "device": self.binding.device if self.binding else None,
            "memory_current": current,
            "memory_peak": peak,
            "memory_capacity": self.binding.capacity_bytes if self.binding else 0,
            "held": self._held,
            "turn_switches": native.turn_switches(),
            "published_bytes": native.published_bytes(),
            "squashing": native.squashing(),
            "rings": {ring_id: ring.stats() for ring_id, ring in list(self._rings.items())},
        }

    @property
    def held(self) -> bool:
        """True between `hold` and `release`."""
        return self._held

    @property
    def holds_state(self) -> bool:
        """True while rings are served: ending now would lose something (or need a replay)."""
        return bool(self._rings)

    def _served(self, ring_id: str) -> None:
        if ring_id not in self._rings:
            raise NotFound(f"this device proxy serves no ring {ring_id}", ring=ring_id)

    def _bound(self) -> Binding:
        if self.binding is None:
            raise Conflict("this device proxy belongs to no session yet; call bind first")
        self._not_held()
        return self.binding

    def _not_held(self) -> None:
        if self._held:
            raise Conflict("this device proxy is held for the driver; release it first")

    @contextlib.contextmanager
    def _paused(self, rings: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """These rings stop between two records; those still served afterwards go on."""
        try:
            for ring in rings.values():
                ring.request_pause()
            for ring in rings.values():
                ring.wait_paused()
            for ring in rings.values():  # before one is saved: others may need what it has
                ring.settle_collectives()
            yield rings
        finally:
            for ring_id, ring in rings.items():
                if ring_id in self._rings:
                    ring.resume()


_parked: list[Any] = []


def _write(rings: dict[str, Any]) -> int:
    """Write the state of paused rings, of all of them or of none. Returns its bytes."""
    total = 0
    try:
        for ring_id, ring in rings.items():
            with _typed(ring_id):
                total += ring.prepare_park()
        for ring_id, ring in rings.items():
            with _typed(ring_id):
                ring.commit_park()
    except BaseException:
        for ring in rings.values():
            ring.abandon_park()
        raise
    return total


def _ms_since(begin: float) -> float:
    return round((time.monotonic() - begin) * 1000, 3)


def _no_space(error: OSError, what: str) -> SingularityError:
    sentence = f"{what}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(
            f"{sentence}. Nothing was changed and the session goes on; make room and try again.",
            path=error.filename,
        )
    return SingularityError(
        f"{sentence}. Nothing was changed and the session goes on.", path=error.filename
    )


@contextlib.contextmanager
def _typed(ring_id: str) -> Iterator[None]:
    """Errors of the native module as the project's own."""
    try:
        yield
    except OSError as error:
        raise _no_space(error, f"the device state of ring {ring_id}") from error
    except native.Stale as error:
        raise StaleEpoch(str(error), ring=ring_id) from error
    except native.Refused as error:
        raise Conflict(str(error), ring=ring_id) from error
    except native.StateError as error:
        raise ProxyFailed(str(error), ring=ring_id) from error
    except RuntimeError as error:
        raise SingularityError(f"ring {ring_id}: {error}", ring=ring_id) from error


def _settle(binding: Binding) -> int:
    """Wait for the device, give back what its allocator keeps for later; bytes still in use."""
    if binding.torch_device == "cpu":
        return int(native.memory("cpu")[0])
    import torch

    index = torch.device(binding.torch_device).index or 0
    torch.cuda.synchronize(index)
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved(index))


def _facts_of_cpu() -> dict[str, Any]:
    """What a cpu device tells its workers: they keep their own defaults."""
    return {"name": "", "memory": 0, "cudnn_version": 0, "capability": 0, "multiprocessors": 0}


def _facts_of_cuda(binding: Binding) -> dict[str, Any]:
    """What workers are told of the physical device (`RingServer.set_facts`)."""
    import torch

    properties = torch.cuda.get_device_properties(torch.device(binding.torch_device))
    try:
        cudnn = torch.backends.cudnn.version() or 0
    except RuntimeError:  # this cuDNN does not support the device, so no operator will use it
        cudnn = 0
    return {
        "name": properties.name,
        "memory": properties.total_memory,
        "cudnn_version": cudnn,
        "capability": properties.major << 16 | properties.minor,
        "multiprocessors": properties.multi_processor_count,
    }


def _limit_cuda(binding: Binding) -> None:
    import torch

    index = torch.device(binding.torch_device).index or 0
    try:
        total = torch.cuda.get_device_properties(index).total_memory
        if binding.capacity_bytes:
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, binding.capacity_bytes / total), index
            )
    except (RuntimeError, AssertionError) as error:
        raise BadRequest(
            f"device {binding.device} cannot be used here: {str(error).splitlines()[0]}",
            device=binding.device,
        ) from error

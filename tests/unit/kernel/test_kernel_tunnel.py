"""The tunnel between relay and shim as pure state: whatever breaks, each message arrives once and
in order; and after a rollback exactly what the rule says."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_kernel.relay import store as relay_store
from singularity_kernel.relay import tunnel
from singularity_kernel.relay.core import Core
from singularity_kernel.relay.incarnations import Join, Positions
from singularity_kernel.relay.store import Store
from singularity_kernel.relay.tunnel import Dialer, Frame, Inbox, Kind, Outbox, TunnelError

LANES = ("shell", "control", "iopub")

OPS = (
    *("request", "output", "request", "output", "send", "send", "arrive", "arrive", "settle"),
    *("commit", "commit", "break", "kill_relay", "dial", "late"),
)


class World:
    """A shim with its kernel, a relay with its disk, and connections that break at any moment.

    `kernel`: requests the kernel got, by lane; `clients`: outputs the relay took from the core.
    """

    def __init__(self, folder: str) -> None:
        self.path = str(Path(folder) / "relay.db")
        self.core = Core("s", Store(self.path))
        self.shim = Dialer("s", 1)
        self.joins = 1
        self.kernel: dict[str, list[bytes]] = {lane: [] for lane in LANES}
        self.pending: list[Frame] = []  # accepted by the shim, not in the kernel's socket yet
        self.asked: dict[str, list[bytes]] = {lane: [] for lane in LANES}
        self.said: dict[str, list[bytes]] = {lane: [] for lane in LANES}
        self.clients: dict[str, list[bytes]] = {lane: [] for lane in LANES}
        self.up: list[list[bytes]] = []
        self.down: list[list[bytes]] = []
        self.old: list[list[bytes]] = []
        self.connected = False
        self.began: dict[str, Any] | None = None
        self.unwritten: list[tuple[str, bytes]] = []
        self.kills = 0
        self.diligent = True
        """False: the relay is killed each time before it could note what the clients were sent."""
        self.count = 0
        self.images: list[tuple[Any, Positions]] = []

    # clients and kernel
    def request(self, lane: str) -> None:
        if lane != "iopub":
            self.unwritten.append((lane, self._text()))
            self.core.request(lane, "execute_request", [self.unwritten[-1][1]])

    def output(self, lane: str) -> None:
        self.said[lane].append(self._text())
        self.shim.out[lane].add([self.said[lane][-1]])

    def _text(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    # the shim
    def dial(self, _: str = "") -> None:
        self.break_()
        self.connected = True
        self.up.append(self.shim.hello(self.joins).encode())

    def break_(self, _: str = "") -> None:
        self.old = [parts for parts in self.up if Frame.decode(parts).kind is Kind.DATA]
        self.up, self.down, self.pending, self.connected = [], [], [], False
        self.shim.closed()
        self.core.lost()

    def send(self, _: str = "") -> None:
        if self.connected:
            self.up += [frame.encode() for frame in self.shim.take()]

    def settle(self, _: str = "") -> None:
        """One accepted request goes into the kernel's socket."""
        if self.pending:
            frame = self.pending.pop(0)
            if frame.parts:
                self.kernel[frame.lane].append(frame.parts[0])
            self.shim.into[frame.lane].done(frame.number)

    # the connection
    def arrive(self, _: str = "") -> None:
        if self.down:
            frame = Frame.decode(self.down.pop(0))
            if frame.kind is Kind.WELCOME:
                self.shim.welcome(frame)
            elif frame.kind is Kind.REFUSE:
                raise TunnelError(tunnel.refusal(frame))
            elif (data := self.shim.receive(frame)) is not None:
                self.pending.append(data)
        if self.up and self.connected:
            frame = Frame.decode(self.up.pop(0))
            if frame.kind is Kind.HELLO:
                answer, began = self.core.greet(tunnel.read_hello(frame))
                self.written()
                self.began = began or self.began
                self.down.append(answer.encode())
            else:
                self.core.receive(frame)

    def late(self, _: str = "") -> None:
        """A message of a broken connection arrives (again) on the present one."""
        if self.old and self.core.tunnel.open:
            try:
                self.core.receive(Frame.decode(self.old.pop()))
            except TunnelError:  # one before it is still missing
                self.break_()

    # the relay
    def commit(self, _: str = "") -> None:
        assert self.core.commit()
        self.written()
        outputs = self.core.take_outputs()
        for output in outputs:
            self.clients[output.lane].append(output.parts[0])
        if self.diligent:
            self.core.sent(outputs)
        self.down += [frame.encode() for frame in self.core.tunnel.take()]

    def written(self) -> None:
        for lane, text in self.unwritten:
            self.asked[lane].append(text)
        self.unwritten.clear()

    def kill_relay(self, _: str = "") -> None:
        """SIGKILL: what was not written is gone, and with it every connection."""
        self.core.store.close()
        self.break_()
        self.unwritten.clear()
        self.kills += 1
        self.core = Core("s", Store(self.path))

    # checkpoints
    def checkpoint(self, _: str = "") -> None:
        positions = self.core.store.positions()
        if self.core.store.floor is None:
            self.core.store.keep_from([positions])
        state = (self.shim, self.kernel, self.pending, self.said)
        self.images.append((copy.deepcopy(state), positions))

    def rollback(self, place: int) -> None:
        """Take the node down and start an older image: the rule, checked."""
        (state, _), before = self.images[place % len(self.images)], self.said
        self.commit()
        taken = {lane: self.core.store.history.now.received[lane] for lane in LANES}
        self.break_()
        self.joins += 1
        assert self.core.begin(self.joins, fresh=False)
        assert not self.core.begin(self.joins, fresh=False)
        if place % 3 == 0:
            self.kill_relay()
        self.shim, self.kernel, self.pending, self.said = copy.deepcopy(state)
        gone = {
            text
            for lane in LANES
            for text in before[lane][: taken[lane]]
            if text not in self.said[lane]
        }
        self.began = None
        self.heal()
        assert self.began is not None
        assert self.began["outputs_rolled_back"] == len(gone)
        rows = self.core.store.rolled_back(self.joins, limit=10_000)
        assert len(rows) == len(gone)

    def heal(self) -> None:
        """Everything works for long enough."""
        self.dial()
        quiet = 0
        while quiet < 4:
            self.commit()
            quiet = 0 if self.up or self.down or self.pending else quiet + 1
            self.arrive()
            self.settle()
            self.send()
        self.commit()
        self.check()

    def check(self) -> None:
        assert self.kernel == self.asked
        for lane in LANES:
            mine = [text for text in self.clients[lane] if text in set(self.said[lane])]
            assert list(dict.fromkeys(mine)) == self.said[lane]
            if not self.kills and self.diligent:
                assert len(mine) == len(set(mine))

    def run(self, ops: list[tuple[str, str]]) -> None:
        for op, lane in ops:
            action: Callable[[str], None] = getattr(self, "break_" if op == "break" else op)
            action(lane)


ops = st.lists(st.tuples(st.sampled_from(OPS), st.sampled_from(LANES)), max_size=120)


@given(ops, st.booleans())
@settings(max_examples=60, deadline=None)
def test_each_message_arrives_once_and_in_order_whatever_breaks(
    schedule: list[tuple[str, str]], diligent: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder)
        world.diligent = diligent
        try:
            world.run(schedule)
            world.heal()
        finally:
            world.core.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from((*OPS, "checkpoint")), st.sampled_from(LANES)),
        st.tuples(st.just("rollback"), st.integers(0, 20)),
    ),
    max_size=80,
)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_a_rollback_queues_again_what_the_image_had_not_received(
    schedule: list[tuple[str, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder)
        world.heal()
        try:
            world.checkpoint()
            world.run(schedule)
            world.heal()
        finally:
            world.core.close()


def linked(folder: Path) -> World:
    world = World(str(folder))
    world.heal()
    return world


def test_what_is_undone_again_is_told_again(tmp_path: Path) -> None:
    """An image from after an output brings it back; going back before it takes it away again."""
    world = linked(tmp_path)
    world.checkpoint()
    world.output("iopub")
    world.heal()
    world.checkpoint()
    for image, gone in ((0, 1), (1, 0), (0, 1)):
        world.rollback(image)
        assert len(world.core.store.rolled_back(world.joins)) == gone


def test_so_is_what_another_start_of_the_image_received(tmp_path: Path) -> None:
    """The image had it, and only an incarnation that was undone brought it to the relay."""
    world = linked(tmp_path)
    world.checkpoint()
    world.output("shell")
    world.checkpoint()
    for image in (1, 0, 1, 0):
        world.rollback(image)
    assert len(world.core.store.rolled_back(world.joins)) == 1


def test_a_kernel_started_anew_goes_on_with_what_nobody_received(tmp_path: Path) -> None:
    world = linked(tmp_path)
    for _ in range(3):
        world.request("shell")
        world.output("iopub")
    world.heal()
    world.break_()
    world.request("shell")
    world.commit()
    assert world.core.begin(2, fresh=True)
    start = world.core.store.fact("start")
    world.shim, world.joins = Dialer("s", 2), 2
    world.output("iopub")  # it speaks before it is connected
    world.shim.start_at(start["requests"], start["outputs"])
    world.heal()
    assert world.kernel["shell"] == world.asked["shell"]
    assert world.began is not None
    assert world.began["outputs_rolled_back"] == world.began["requests_again"] == 0


def test_a_fork_begins_with_its_image_at_a_relay_that_knows_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    world = linked(tmp_path / "a")
    for _ in range(3):
        world.request("shell")
        world.output("iopub")
    world.heal()
    world.output("iopub")  # not taken by the first relay when the image is made
    fork = World(str(tmp_path / "b"))
    assert fork.core.begin(2, fresh=False)
    fork.shim, fork.joins = copy.deepcopy(world.shim), 2
    fork.request("shell")
    fork.heal()
    assert fork.clients["iopub"] == world.said["iopub"][-1:]
    assert fork.kernel["shell"] == fork.asked["shell"]


def test_an_interrupt_that_was_carried_out_is_not_repeated(tmp_path: Path) -> None:
    world = linked(tmp_path)
    world.checkpoint()
    for kind in ("interrupt_request", "debug_request"):
        world.unwritten.append(("control", kind.encode()))
        world.core.request("control", kind, [kind.encode()])
    world.heal()
    world.core.store.flush()
    image, _ = world.images[0]
    assert world.core.begin(2, fresh=False)
    world.shim, world.kernel, world.pending, world.said = copy.deepcopy(image)
    world.joins = 2
    with pytest.raises(AssertionError):
        world.heal()
    assert world.kernel["control"] == [b"debug_request"]
    assert world.began is not None
    assert world.began["requests_again"] == 1


def test_who_may_not_join(tmp_path: Path) -> None:
    world = linked(tmp_path)
    old = copy.deepcopy(world.shim)
    world.request("shell")
    world.heal()

    def refused(shim: Dialer, joins: int) -> str:
        with pytest.raises(TunnelError) as error:
            world.core.greet(tunnel.read_hello(shim.hello(joins)))
        return str(error.value)

    assert "begin an incarnation" in refused(old, 1)  # an older image without a rollback
    assert "relay of session s" in refused(Dialer("other", 1), 1)
    assert world.core.begin(2, fresh=False)
    assert "may not join" in refused(world.shim, 1)
    assert "newer than" in refused(Dialer("s", 3), 2)
    world.joins = 2
    world.heal()
    world.request("shell")
    world.output("iopub")
    world.heal()
    assert "another capsule has joined" in refused(old, 2)
    with pytest.raises(ValueError, match="not new"):
        world.core.begin(1, fresh=False)


def test_what_is_not_kept_any_more_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_store, "KEPT_REQUEST_BYTES", 10_000)
    monkeypatch.setattr(relay_store, "KEPT_OUTPUT_BYTES", 10_000)
    monkeypatch.setattr(relay_store, "PRUNE_ROWS", 2)
    world = linked(tmp_path)
    world.checkpoint()
    for n in range(40):
        world.unwritten.append(("shell", b"%d" % n + b"x" * 1000))
        world.core.request("shell", "execute_request", [world.unwritten[-1][1]])
        world.said["iopub"].append(b"%d" % n + b"y" * 1000)
        world.shim.out["iopub"].add([world.said["iopub"][-1]])
        world.heal()
        world.core.store.prune_requests()
    assert Path(world.path).stat().st_size < 200_000
    image, positions = world.images[0]
    assert world.core.begin(2, fresh=False)
    world.shim, world.kernel, world.pending, world.said = copy.deepcopy(image)
    world.joins = 2
    with pytest.raises(AssertionError):
        world.heal()
    assert world.began is not None
    assert world.began["outputs_rolled_back"] == 40
    lost = world.began["requests_lost"]
    assert 25 <= lost < 40
    assert world.began["requests_again"] == 40 - lost
    assert world.kernel["shell"] == world.asked["shell"][lost:]
    assert positions == Positions.from_json(positions.to_json())


def test_what_any_of_several_checkpoints_needs_is_kept(tmp_path: Path) -> None:
    """One of a later incarnation can need more than an older one that was taken further on."""
    world = linked(tmp_path)

    def work() -> None:
        world.request("shell")
        world.output("iopub")
        world.heal()

    world.checkpoint()
    for _ in range(5):
        work()
    world.checkpoint()  # behind five
    world.rollback(0)
    world.heal()
    world.checkpoint()  # carried out again: behind the same five
    for _ in range(3):
        work()
    world.core.store.keep_from([positions for _, positions in world.images[1:]])
    world.rollback(2)
    world.heal()
    assert world.began is not None
    assert world.began["requests_again"] == 3
    assert world.began["requests_lost"] == 0
    assert world.kernel["shell"] == world.asked["shell"]


def test_a_full_disk_in_the_middle_of_a_greeting_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = linked(tmp_path)
    world.checkpoint()
    world.request("shell")
    world.output("iopub")
    world.heal()
    image, _ = world.images[0]
    assert world.core.begin(2, fresh=False)
    world.shim, world.kernel, world.pending, world.said = copy.deepcopy(image)
    world.joins = 2
    hello = tunnel.read_hello(world.shim.hello(2))
    joined = world.core.store.join

    def full(join: Join, answers: None) -> None:
        def flush() -> None:
            raise relay_store.Full("no space")

        with monkeypatch.context() as patch:
            patch.setattr(world.core.store, "flush", flush)
            joined(join, answers)

    with monkeypatch.context() as patch:
        patch.setattr(world.core.store, "join", full)
        with pytest.raises(TunnelError, match="disk is full; nothing was lost"):
            world.core.greet(hello)
    assert world.core.stuck == "no space"
    assert not world.core.store.history.now.joined
    world.heal()
    assert world.began is not None
    assert world.began["requests_again"] == 1
    assert world.kernel["shell"] == world.asked["shell"]


def test_a_queue_says_when_it_is_full_and_sends_within_its_window() -> None:
    box = Outbox(queue_bytes=100, queue_messages=5, window_bytes=25, window_messages=3)
    box.add([b"x" * 40])
    assert [number for number, _ in box.take()] == [1]  # larger than the window: alone
    for _ in range(3):
        box.add([b"x" * 10])
    assert list(box.take()) == []
    assert box.room
    box.add([b"x" * 30])
    assert not box.room
    assert box.ack(1) == 1
    assert [number for number, _ in box.take()] == [2, 3]
    box.rewind()
    assert [number for number, _ in box.take()] == [2, 3]
    with pytest.raises(TunnelError):
        box.ack(9)


def test_a_gap_and_a_repetition_are_told_apart() -> None:
    box = Inbox(3)
    assert box.accept(4)
    assert not box.accept(3)
    with pytest.raises(TunnelError, match="message 6 came after message 4"):
        box.accept(6)
    assert box.take_ack() is None
    box.done(4)
    assert box.take_ack() == 4
    assert box.take_ack() is None


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"x"],
        [b"HTTP" + bytes(16)],
        [tunnel.HEADER.pack(tunnel.MAGIC, 1, 99, 0, 1, 1)],
        [tunnel.HEADER.pack(tunnel.MAGIC, 1, 3, 9, 1, 1)],
    ],
)
def test_what_is_no_frame_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(TunnelError):
        Frame.decode(parts)


@pytest.mark.parametrize(
    "body",
    [
        (b"s", b"\0\0\0\1"),
        (b"s", b"\0\0\0\1", b"short"),
        (b"s", b"\0", bytes(96)),
        (b"s", b"\0\0\0\1", b"\xff" * 96),
        (b"s", b"\0\0\0\1", tunnel.LANE_STATE.pack(0, 2, 1) + bytes(72)),
    ],
)
def test_a_greeting_that_cannot_be_is_refused(body: tuple[bytes, ...]) -> None:
    with pytest.raises(TunnelError, match="a greeting has"):
        tunnel.read_hello(Frame(Kind.HELLO, 1, parts=body))


def test_another_version_is_named() -> None:
    head = tunnel.HEADER.pack(tunnel.MAGIC, tunnel.VERSION + 1, 3, 0, 1, 1)
    with pytest.raises(TunnelError, match="speaks version 2 of the tunnel, this one 1"):
        Frame.decode([head])


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(0, 2**64 - 1))
def test_a_frame_survives_its_encoding(parts: list[bytes], number: int) -> None:
    frame = Frame(Kind.DATA, 7, "stdin", number, tuple(parts))
    assert Frame.decode(frame.encode()) == frame
    assert relay_store.unpack(relay_store.pack(parts)) == parts

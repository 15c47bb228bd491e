"""What a rank writes into its queue, byte by byte as `wire/records.h` has it: no proxy is there."""

import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone
from singularity_proxy.wire.ring import HEADER_BYTES, RingState

ALLOCATE, JOIN, LEAVE, COLLECTIVE = 4, 16, 17, 18
NO_OUTPUTS = 4
TENSOR, INTEGER, VALUE_REAL, TENSOR_LIST = 1, 5, 10, 16
CONTIGUOUS = 1
NONE = -1
WHAT = dict(
    zip(
        (
            "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
            "gather", "scatter", "barrier", "send", "recv",
        ),
        range(1, 12), strict=True,
    )
)  # fmt: skip
SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)
BYTE, INT8, INT32, INT64, HALF, FLOAT, BFLOAT = 0, 1, 3, 4, 5, 6, 15
GROUP_ID = bytes(range(16))

Stretch = tuple[int, int, int, int]
"""dtype, elements, storage, offset in elements."""


@dataclass
class Record:
    kind: int
    flags: int
    seq: int
    base: int
    key: bytes
    values: bytes


@dataclass
class Call:
    group: int
    sequence: int
    what: int
    reduction: int
    factor: float
    root: int
    inputs: list[Stretch] = field(default_factory=list)
    outputs: list[Stretch] = field(default_factory=list)


def records(data: bytes) -> Iterator[Record]:
    at = 0
    while at < len(data):
        length, kind, flags, seq, _, key, base = struct.unpack_from("<IHHQIIQ", data, at)
        assert length % 8 == 0
        assert length >= 32
        body = data[at + 32 : at + length]
        yield Record(kind, flags, seq, base, body[:key], body[(key + 7) & ~7 :])
        at += length


def stretches(key: bytes, at: int, values: bytes, there: int) -> tuple[list[Stretch], int, int]:
    tag, count = struct.unpack_from("<BI", key, at)
    assert tag == TENSOR_LIST
    at += 5
    found = []
    for _ in range(count):
        tag, dtype, dim, flags, elements = struct.unpack_from("<BBBBq", key, at)
        assert (tag, dim, flags) == (TENSOR, 1, CONTIGUOUS)
        storage, offset = struct.unpack_from("<Qq", values, there)
        found.append((dtype, elements, storage, offset))
        at, there = at + 12, there + 16
    return found, at, there


def call(record: Record) -> Call:
    key, values = record.key, record.values
    assert struct.unpack_from("<H", key)[0] == 7
    tags_and_numbers = struct.unpack_from("<BqBqBqBBq", key, 2)
    assert tags_and_numbers[0::2][:3] == (INTEGER,) * 3
    sequence, what, reduction = tags_and_numbers[1:6:2]
    assert tags_and_numbers[6:8] == (VALUE_REAL, INTEGER)
    (factor,) = struct.unpack_from("<d", values)
    inputs, at, there = stretches(key, 2 + 9 * 3 + 1 + 9, values, 8)
    outputs, at, there = stretches(key, at, values, there)
    assert at == len(key)
    return Call(
        record.base, sequence, what, reduction, factor, tags_and_numbers[8], inputs, outputs
    )


PROLOGUE = """
import datetime, torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
store = dist.HashStore()
store.set("singularity/id-1", bytes(range(16)).decode("latin-1"))
options = dist.ProcessGroupNCCL.Options()
options._timeout = datetime.timedelta(seconds=5)
options.group_name = "my group"
group = dist.ProcessGroupNCCL(store, 1, 4, options)
D = "cuda:1"
t = torch.empty(8, device=D)
u = torch.empty(8, device=D)
"""


class Written:
    """A worker's code, and the records that it left in its queue to cuda:1."""

    def __init__(self, folder: Path, code: str) -> None:
        with Standalone(devices=2, keep_rings=True) as session:
            session.automatic = False
            worker = subprocess.Popen(
                [sys.executable, "-c", PROLOGUE + textwrap.dedent(code)],
                env=session.env(), stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            deadline = time.monotonic() + 60
            while worker.poll() is None and time.monotonic() < deadline:
                for ring in session.rings():
                    if ring.state == RingState.DETACHED:
                        ring.set_state(RingState.ATTACHED)
                time.sleep(0.02)
            if worker.poll() is None:
                worker.kill()
            _, errors = worker.communicate()
            assert worker.returncode == 0, errors
            (ring,) = (r for r in session.rings() if r.read().virtual_device == 1)
            published = ring.queue()[0]
            data = Path(ring.path).read_bytes()[HEADER_BYTES : HEADER_BYTES + published]
        self.all = list(records(data))
        assert [r.seq for r in self.all] == list(range(1, len(self.all) + 1))
        self.storages = [r.base for r in self.all if r.kind == ALLOCATE]
        self.calls = [call(r) for r in self.all if r.kind == COLLECTIVE]
        assert all(r.flags == NO_OUTPUTS for r in self.all if r.kind == COLLECTIVE)

    def of_kind(self, kind: int) -> list[Record]:
        return [r for r in self.all if r.kind == kind]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(
        tmp_path_factory.mktemp("records"),
        """
        Op = dist.ReduceOp
        def reduced(tensors, op):
            o = c10d.AllreduceOptions()
            o.reduceOp = op
            group.allreduce(tensors, o)
        def rooted(options, root):
            options.rootRank = root
            return options
        reduced([t], Op.SUM)
        reduced([t[2:5]], Op.MAX)
        reduced([t], dist._make_nccl_premul_sum(0.25))
        reduced([torch.empty(3, device=D, dtype=torch.bool)], Op.SUM)
        reduced([torch.empty(3, device=D, dtype=torch.complex64)[1:]], Op.AVG)
        group.broadcast([t], rooted(c10d.BroadcastOptions(), 0))
        group.broadcast([t], rooted(c10d.BroadcastOptions(), 1))
        group.reduce([t], rooted(c10d.ReduceOptions(), 3))
        group.reduce([t], rooted(c10d.ReduceOptions(), 1))
        group._allgather_base(u, t[:2], c10d.AllgatherOptions())
        group._reduce_scatter_base(t[:2], u, c10d.ReduceScatterOptions())
        group.alltoall_base(t, u, [1, 2, 0, 5], [2, 2, 2, 2], c10d.AllToAllOptions())
        group.gather([], [t], rooted(c10d.GatherOptions(), 0))
        group.scatter([t[:2]], [list(u.chunk(4))], rooted(c10d.ScatterOptions(), 1))
        group.send([t], 2, 0)
        group.recv([u], 2, 0)
        group.send([t], 2, 0)
        group.send([t], 3, 0)
        reduced([t], Op.PRODUCT)
        """,
    )


def test_it_joins_before_its_first_collective(written: Written) -> None:
    (join,) = written.of_kind(JOIN)
    body = join.key + join.values
    assert join.base == 1
    assert body[:16] == GROUP_ID
    rank, size, timeout, name = struct.unpack_from("<IIQI", body, 16)
    assert (rank, size, timeout) == (1, 4, 5000)
    assert body[36 : 36 + name] == b"my group"
    first = written.of_kind(COLLECTIVE)[0]
    assert join.seq + 1 == first.seq
    assert {c.group for c in written.calls} == {1}


def test_reductions(written: Written) -> None:
    t = written.storages[0]
    whole = [(FLOAT, 8, t, 0)]
    assert written.calls[0] == Call(1, 1, WHAT["all_reduce"], SUM, 1, NONE, whole, whole)
    part = [(FLOAT, 3, t, 2)]
    assert written.calls[1] == Call(1, 2, WHAT["all_reduce"], MAX, 1, NONE, part, part)
    scaled = written.calls[2]
    assert (scaled.reduction, scaled.factor) == (PREMUL_SUM, 0.25)


def test_booleans_travel_as_bytes_and_complex_numbers_as_pairs(written: Written) -> None:
    booleans, numbers = written.calls[3], written.calls[4]
    assert booleans.reduction == MAX
    assert [s[:2] for s in booleans.inputs] == [(BYTE, 3)]
    assert numbers.reduction == AVG
    assert [(s[0], s[1], s[3]) for s in numbers.inputs] == [(FLOAT, 4, 2)]
    assert numbers.inputs == numbers.outputs


def test_collectives_with_a_root(written: Written) -> None:
    whole = [(FLOAT, 8, written.storages[0], 0)]
    elsewhere, here = written.calls[5], written.calls[6]
    assert elsewhere == Call(1, 6, WHAT["broadcast"], SUM, 1, 0, [], whole)
    assert here == Call(1, 7, WHAT["broadcast"], SUM, 1, 1, whole, whole)
    assert written.calls[7] == Call(1, 8, WHAT["reduce"], SUM, 1, 3, whole, [])
    assert written.calls[8] == Call(1, 9, WHAT["reduce"], SUM, 1, 1, whole, whole)
    gather, scatter = written.calls[12], written.calls[13]
    assert gather == Call(1, 13, WHAT["gather"], SUM, 1, 0, whole, [])
    assert scatter.what == WHAT["scatter"]
    assert [s[3] for s in scatter.inputs] == [0, 2, 4, 6]
    assert scatter.outputs == [(FLOAT, 2, written.storages[0], 0)]


def test_tensors_are_cut_into_a_piece_for_each_rank(written: Written) -> None:
    t, u = written.storages[:2]
    quarters = [(FLOAT, 2, u, 2 * r) for r in range(4)]
    assert written.calls[9] == Call(
        1, 10, WHAT["all_gather"], SUM, 1, NONE, [(FLOAT, 2, t, 0)], quarters
    )
    assert written.calls[10] == Call(
        1, 11, WHAT["reduce_scatter"], SUM, 1, NONE, quarters, [(FLOAT, 2, t, 0)]
    )
    split = written.calls[11]
    assert split.inputs == quarters
    assert [(s[1], s[3]) for s in split.outputs] == [(1, 0), (2, 1), (0, 3), (5, 3)]


def test_pairs_count_for_themselves(written: Written) -> None:
    pairs = written.calls[14:18]
    assert [(c.what, c.root, c.sequence) for c in pairs] == [
        (WHAT["send"], 2, 1),
        (WHAT["recv"], 2, 1),
        (WHAT["send"], 2, 2),
        (WHAT["send"], 3, 1),
    ]
    assert [bool(c.inputs) for c in pairs] == [True, False, True, True]
    assert written.calls[18].sequence == 15  # the others do not count them


def test_groups_have_numbers_and_are_left(tmp_path: Path) -> None:
    written = Written(
        tmp_path,
        """
        group.allreduce([t])
        store.set("singularity/id-2", "z" * 16)
        other = dist.ProcessGroupNCCL(store, 1, 2, options)
        other.allreduce([t])
        group.allreduce([t])
        other.abort()
        group._set_default_timeout(datetime.timedelta(seconds=9))
        group.allreduce([t])
        del group, other
        torch.empty(1, device=D)
        """,
    )
    joins = written.of_kind(JOIN)
    assert [j.base for j in joins] == [1, 2, 1]  # the last one tells the new timeout
    assert joins[1].values[:16] == b"z" * 16
    assert struct.unpack_from("<Q", joins[2].values, 24)[0] == 9000
    assert [(c.group, c.sequence) for c in written.calls] == [(1, 1), (2, 1), (1, 2), (1, 3)]
    assert [r.base for r in written.of_kind(LEAVE)] == [2, 1]

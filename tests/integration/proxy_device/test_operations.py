"""One ring on one proxy: what records do, what replies say, how failures are told."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest
from support import proxy_device as w
from support.proxy_device import Device, Gen, Proxy, RingClient, T, Value


def test_results_are_described_and_readable(served: RingClient) -> None:
    served.allocate(1, 24)
    served.write(1, w.pack_floats([1, 2, 3, 4, 5, 6]))
    reply = served.call("mm", T(1, (2, 3)), T(1, (3, 2), (1, 3)), base=2)
    made, results = reply.results()
    assert made == 1
    kind, index, offset, size, sizes, strides, dtype, _ = results[0]
    assert (kind, index, offset, size, dtype) == (1, 0, 0, 16, w.FLOAT)
    assert (sizes, strides) == ((2, 2), (2, 1))
    assert w.floats(served.read(2, 16)) == [14, 32, 32, 77]


def test_in_place_and_views_share_the_storage(served: RingClient) -> None:
    served.allocate(1, 16)
    served.write(1, w.pack_floats([1, 2, 3, 4]))
    reply = served.call(
        "add_.Scalar", T(1, (2,), offset=2), Value(10), Value(1), flags=w.NO_OUTPUTS
    )
    assert reply.results() == (0, [])
    assert w.floats(served.read(1, 16)) == [1, 2, 13, 14]
    made, results = served.call("transpose.int", T(1, (2, 2)), 0, 1, base=5).results()
    assert made == 0
    assert results[0][:2] == (2, 0)  # the storage of the first input tensor


def test_several_results_and_out_arguments(served: RingClient) -> None:
    served.allocate(1, 16)
    served.write(1, w.pack_floats([3, 9, 4, 1]))
    made, results = served.call("max.dim", T(1, (2, 2)), 1, False, base=2).results()
    assert made == 2
    assert [r[1] for r in results] == [0, 1]
    assert w.floats(served.read(2, 8)) == [9, 4]
    assert struct.unpack("<2q", served.read(3, 16)) == (1, 0)
    served.allocate(4, 8)
    served.allocate(5, 16)
    values, indices = T(4, (2,)), T(5, (2,), dtype=w.LONG)
    made, results = served.call("max.dim_max", T(1, (2, 2)), 0, False, values, indices).results()
    assert made == 0
    assert [(r[0], r[1]) for r in results] == [(2, 1), (2, 2)]
    assert w.floats(served.read(4, 8)) == [4, 9]


def test_lists_and_host_results(served: RingClient) -> None:
    served.allocate(1, 16)
    served.write(1, w.pack_floats([1, 2, 3, 4]))
    parts = [T(1, (2,)), T(1, (2,), offset=2)]
    served.call("_foreach_add_.Scalar", parts, Value(1.0), flags=w.NO_OUTPUTS)
    made, results = served.call("_foreach_mul.Scalar", parts, Value(2.0), base=2).results()
    assert made == 2
    assert [r[1] for r in results] == [0, 1]
    assert w.floats(served.read(3, 8)) == [8, 10]
    made, (total,) = served.call("equal", T(1, (4,)), T(1, (4,))).results()
    assert (made, total) == (0, 1)
    _, (item,) = served.call("_local_scalar_dense", T(1, (), offset=3)).results()
    assert item == 5.0


def test_resize_keeps_the_contents_and_the_id(served: RingClient) -> None:
    served.allocate(1, 8)
    served.write(1, w.pack_floats([1, 2]))
    served.record(w.RESIZE, struct.pack("<Q", 16), base=1)
    served.call("fill_.Scalar", T(1, (2,), offset=2), Value(7), flags=w.NO_OUTPUTS)
    assert w.floats(served.read(1, 16)) == [1, 2, 7, 7]
    served.record(w.RESIZE, struct.pack("<Q", 4), base=1)
    assert w.floats(served.read(1, 4)) == [1]


def test_free_gives_the_memory_back(shared: Proxy, served: RingClient) -> None:
    served.allocate(1, 32 << 20)
    assert served.sync() == (1, 1)
    assert served.word(104) >= 32 << 20
    served.record(
        w.FREE, struct.pack("<2Q", 1, 77), base=2
    )  # freeing one that never was is no error
    assert served.sync()[1] == 0
    assert served.word(104) < 32 << 20
    assert served.error_seq == 0
    assert served.word(112) >= 32 << 20  # the peak stays
    served.word(112, 0)  # ... until the worker asks for a new one
    served.sync()
    assert 0 < served.word(112) < 32 << 20
    assert shared.call("stats")["memory_capacity"] == 256 << 20


def test_errors_have_the_types_of_torch(served: RingClient) -> None:
    served.allocate(1, 16)
    served.write(1, w.pack_floats([0, 0, 0, 0]))
    square = T(1, (2, 2))
    wrong = served.call("mm", square, T(1, (4,)), base=2)
    assert (wrong.status, wrong.text) == (w.RUNTIME, "mat2 must be a matrix")
    far = served.call("select.int", square, 5, 0, base=2)
    assert far.status == w.INDEX
    assert "Dimension out of range" in far.text
    singular = served.call("linalg_inv", square, base=2)
    assert singular.status == w.LINALG
    assert "the input matrix is singular" in singular.text
    unknown = served.call("no_such_operator", square, base=2)
    assert unknown.status == w.NOT_IMPLEMENTED
    assert "aten::no_such_operator does not exist in the device proxy's PyTorch" in unknown.text
    quantized = served.call("quantize_per_tensor", square, 0.1, 0, 12, base=2)
    assert quantized.status == w.NOT_IMPLEMENTED
    assert "quantize on the host" in quantized.text
    few = served.call("neg", base=2)
    assert "came with 0 arguments instead of 1" in few.text
    outside = served.call("neg", T(1, (5,)), base=2)
    assert "does not fit its device memory of 16 bytes" in outside.text
    assert served.error_seq == 0


def test_async_errors_name_the_operator_and_its_victims(served: RingClient) -> None:
    served.allocate(1, 16)
    served.write(1, w.pack_floats([1, 2, 3, 4]))
    seq = served.op("mm", T(1, (2, 2)), T(1, (4,)), base=2)
    served.op("neg", T(2, (2, 2)), base=3)  # works on what was never made: not an error of its own
    served.sync()
    assert served.error_seq == seq
    assert served.word(656, bits=32) == w.RUNTIME
    assert served.failure == "aten::mm: mat2 must be a matrix"
    served.word(648, 0)  # the worker has told its user
    victim = served.call("abs", T(3, (2, 2)), base=4)
    assert victim.text == (
        "this tensor was never computed, because an earlier operation failed: "
        "aten::mm: mat2 must be a matrix"
    )
    assert served.error_seq == 0
    fine = served.call("abs", T(1, (2, 2)), base=3)  # the ids are given again after a told failure
    assert fine.status == w.OK
    assert w.floats(served.read(3, 16)) == [1, 2, 3, 4]


def test_rings_have_their_own_default_generator(
    shared: Proxy, served: RingClient, ring_two: RingClient
) -> None:
    arguments = ([8], w.FLOAT, None, Device(), None)
    for client in (served, ring_two):
        client.record(w.SEED, struct.pack("<Q", 5))
    served.op("randn", *arguments, base=1)
    ring_two.op("randn", *arguments, base=1)
    served.op("randn", *arguments, base=2)
    ring_two.op("randn", *arguments, base=2)
    dropped = served.call("native_dropout", T(1, (8,)), 0.5, True, base=3)
    assert dropped.results()[0] == 2
    assert served.read(1, 32) == ring_two.read(1, 32)
    assert served.read(2, 32) == ring_two.read(2, 32)
    code = (
        "import torch, json; torch.manual_seed(5); a = torch.randn(8); b = torch.randn(8);"
        "d, m = torch.native_dropout(a, 0.5, True);"
        "print(json.dumps([t.tolist() for t in (a, b, d)]))"
    )
    native = json.loads(subprocess.check_output([sys.executable, "-c", code], timeout=100))
    ours = [w.floats(served.read(i, 32)) for i in (1, 2, 3)]
    assert ours == native


def test_generators_by_id_and_their_state(served: RingClient) -> None:
    served.record(w.SEED, struct.pack("<Q", 9), base=3)
    before = served.ask(w.GET_RNG, base=3).payload
    assert struct.unpack_from("<Q", before) == (9,)
    arguments = ([4], Gen(3), w.FLOAT, None, Device(), None)
    served.op("rand.generator", *arguments, base=1)
    state = before[8:]
    served.record(w.SET_RNG, struct.pack("<Q", len(state)) + state, base=3)
    served.op("rand.generator", *arguments, base=2)
    assert served.read(1, 16) == served.read(2, 16)
    assert served.ask(w.GET_RNG, base=3).payload != before


def test_events_measure_time(served: RingClient) -> None:
    early = served.ask(w.EVENT_TIME, struct.pack("<Q", 2), base=1)
    assert early.status == w.VALUE
    served.record(w.EVENT_RECORD, base=1)
    served.call("randn", [1 << 16], w.FLOAT, None, Device(), None, base=1)
    served.record(w.EVENT_RECORD, base=2)
    (ms,) = struct.unpack("<d", served.ask(w.EVENT_TIME, struct.pack("<Q", 2), base=1).payload)
    assert 0 < ms < 60_000


def test_a_long_stream_wraps_both_queues(shared: Proxy, small_ring: RingClient) -> None:
    ring_id = small_ring.path.parent.name
    shared.attach(small_ring, ring_id=ring_id)
    small_ring.allocate(1, 1 << 14)
    pattern = bytes(range(256)) * 16
    for i in range(200):
        small_ring.write(1, pattern, offset=(i % 4) * 4096)
        small_ring.op(
            "add_.Scalar", T(1, (2,), dtype=w.LONG), Value(1), Value(1), flags=w.NO_OUTPUTS
        )
        assert small_ring.read(1, 2000, offset=4096 * (i % 4) + 96) == pattern[96:2096]
    assert small_ring.word(192) > 10 * small_ring.request_bytes
    assert small_ring.word(448) > 10 * small_ring.reply_bytes
    too_long = small_ring.ask(w.READ, struct.pack("<QQ", 0, 1 << 14), base=1)
    assert "too long for one reply" in too_long.text
    shared.call("close_ring", ring_id=ring_id)


def test_the_header_tells_that_the_proxy_lives(served: RingClient) -> None:
    assert (served.state, served.word(68, bits=32), served.word(96)) == (1, 1, 256 << 20)
    before = served.word(80)
    served.wait(f"self.word(80) > {before}")
    last = served.word(120)
    served.sync()
    assert served.word(120) > last


@pytest.mark.parametrize(
    "damage",
    [
        struct.pack("<IHHQIIQ", 40, w.SYNC, 1, 9, 0, 0, 0) + b"\0" * 8,  # numbers are missing
        struct.pack("<IHHQIIQ", 17, w.SYNC, 1, 1, 0, 0, 0),  # no such length
        struct.pack("<IHHQIIQ", 4096, w.SYNC, 1, 1, 0, 0, 0),  # longer than what was published
    ],
)
def test_an_unreadable_record_fails_the_ring_with_a_sentence(
    shared: Proxy, ring: RingClient, damage: bytes
) -> None:
    ring_id = ring.path.parent.name
    shared.attach(ring, ring_id=ring_id)
    ring._put(damage)
    ring.publish()
    ring.wait("self.state == 3")
    assert "a record that the device proxy cannot read" in ring.failure
    assert "cannot read" in shared.call("stats")["rings"][ring_id]["broken"]
    shared.call("close_ring", ring_id=ring_id)
    assert ring.state == 3


def test_a_short_body_is_an_error_of_that_record_only(served: RingClient) -> None:
    reply = served.ask(w.ALLOCATE, b"", base=1)
    assert reply.text == "a record for the device proxy is shorter than it says"
    reply = served.ask(99)
    assert reply.text == "the device proxy knows no record of kind 99"
    assert served.sync()[1] == 0

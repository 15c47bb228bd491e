"""A cpu device has a size: what does not fit fails as on a GPU, and everything else goes on."""

from __future__ import annotations

import struct

from support import proxy_device as w
from support.proxy_device import Device, Proxy, RingClient, T, Value

MIB = 1 << 20


def test_the_error_says_what_cuda_says(served: RingClient) -> None:
    served.allocate(1, 200 * MIB)
    reply = served.call("neg", T(1, (50 * MIB,)), base=2)
    assert reply.status == w.OUT_OF_MEMORY
    assert reply.text == (
        "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of "
        "256.00 MiB of which 56.00 MiB is free. Of the allocated memory 200.00 MiB is allocated by "
        "PyTorch."
    )
    assert served.sync()[1] == 1
    small = served.call("neg", T(1, (MIB,)), base=2)
    assert small.status == w.OK
    served.record(w.FREE, struct.pack("<2Q", 1, 2), base=2)
    served.sync()
    assert served.word(104) < MIB


def test_results_temporaries_and_rings_count_together(
    served: RingClient, ring_two: RingClient
) -> None:
    ring_two.allocate(1, 150 * MIB)
    assert ring_two.sync()[1] == 1
    full = served.ask(w.ALLOCATE, struct.pack("<Q", 150 * MIB), base=1)
    assert full.status == w.OUT_OF_MEMORY
    assert "GPU 0 has" in full.text
    full = ring_two.ask(w.ALLOCATE, struct.pack("<Q", 150 * MIB), base=2)
    assert "GPU 1 has" in full.text  # as the worker of that ring knows the device
    served.allocate(1, 60 * MIB)
    sort = served.call("sort", T(1, (15 * MIB,)), 0, False, base=2)  # values 60, indices 120
    assert sort.status == w.OUT_OF_MEMORY
    assert served.sync()[1] == 1
    assert served.word(104) < 211 * MIB
    ring_two.wait(f"self.word(104) > {209 * MIB}")  # also told to the other worker


def test_a_refused_allocation_poisons_only_its_users(served: RingClient) -> None:
    served.allocate(1, 300 * MIB)
    served.op("fill_.Scalar", T(1, (4,)), Value(1), flags=w.NO_OUTPUTS)
    served.op("rand", [4], w.FLOAT, None, Device(), None, base=2)
    served.sync()
    assert served.error_seq == 1
    assert served.word(656, bits=32) == w.OUT_OF_MEMORY
    assert served.failure.startswith("allocating memory: CUDA out of memory. Tried to allocate 300")
    assert "allocating memory: CUDA out of memory" in served.call("abs", T(1, (4,)), base=3).text
    assert served.call("abs", T(2, (4,)), base=3).status == w.OK


def test_a_failed_resize_keeps_what_was_there(served: RingClient) -> None:
    served.allocate(1, 8)
    served.write(1, w.pack_floats([1, 2]))
    refused = served.ask(w.RESIZE, struct.pack("<Q", 300 * MIB), base=1)
    assert refused.status == w.OUT_OF_MEMORY
    assert w.floats(served.read(1, 8)) == [1, 2]
    beyond = served.call("neg", T(1, (MIB,)), base=2)
    assert "an earlier resize may have failed" in beyond.text


def test_no_limit_when_the_capacity_is_zero(proxies: w.Proxies, ring: RingClient) -> None:
    proxy = proxies.bound(capacity=0)
    proxy.attach(ring)
    assert ring.word(96) == 0
    ring.allocate(1, 600 * MIB)
    assert ring.sync()[1] == 1


def test_stats_name_the_memory(shared: Proxy, served: RingClient) -> None:
    before = shared.call("stats")["memory_current"]
    served.allocate(1, 10 * MIB)
    served.sync()
    stats = shared.call("stats")
    assert stats["memory_current"] == before + 10 * MIB
    assert stats["memory_peak"] >= stats["memory_current"]
    assert stats["device"] == "cpu:0"

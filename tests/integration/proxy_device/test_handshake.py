"""Worker and proxy may run different versions of PyTorch: what differs is refused, by operator."""

from __future__ import annotations

import struct

import torch
from support import proxy_device as w
from support.proxy_device import Proxies, Proxy, RingClient, T, Value

OTHER = 0x1234
"""A hash that no schema has."""


def test_the_proxy_says_what_it_runs(served: RingClient) -> None:
    assert served.text("proxy_torch") == torch.__version__.partition("+")[0]


def test_an_operator_that_differs_is_refused_and_no_other(shared: Proxy, ring: RingClient) -> None:
    ring.text("worker_torch", "2.1.7")
    shared.attach(ring, ring_id=ring.path.parent.name)
    try:
        ring.allocate(1, 8)
        ring.write(1, w.pack_floats([1, 2]))
        reply = ring.reply(
            ring.op("mul.Tensor", T(1, (2,)), T(1, (2,)), base=2, schema=OTHER, flags=w.REPLY)
        )
        assert reply.status == w.NOT_IMPLEMENTED
        assert "aten::mul.Tensor is another operator" in reply.text
        assert "(2.1.7)" in reply.text
        assert f"({ring.text('proxy_torch')})" in reply.text
        assert "install the same version" in reply.text
        made, _ = ring.call("add.Tensor", T(1, (2,)), T(1, (2,)), Value(1), base=3).results()
        assert made == 1
        assert w.floats(ring.read(3, 8)) == [2, 4]
    finally:
        shared.call("close_ring", ring_id=ring.path.parent.name)


def test_a_refusal_is_kept_with_the_state(proxies: Proxies, ring: RingClient) -> None:
    """The next proxy compares again: it may run yet another version."""
    first = proxies.bound()
    first.attach(ring, journal=1 << 20)
    ring.allocate(1, 8)
    arguments = (T(1, (2,)), T(1, (2,)))
    one = ring.op("mul.Tensor", *arguments, base=2, schema=OTHER, flags=w.REPLY)
    assert ring.reply(one).status == w.NOT_IMPLEMENTED
    for end in ("park", "kill"):
        if end == "park":
            first.call("park")
            first.finish()
        else:
            first.kill()
        first = proxies.bound()
        first.attach(ring, journal=1 << 20)
        reply = ring.call("mul.Tensor", *arguments, base=4)
        assert reply.status == w.NOT_IMPLEMENTED
        assert "another operator" in reply.text


def test_settings_that_make_no_sense_change_nothing(served: RingClient) -> None:
    """A worker runs user code: whatever it writes, the proxy computes on."""
    for body in (bytes(range(200, 256)), b"\xff" * 56, bytes(56)):
        served.record(w.SETTINGS, body + struct.pack("<Q", 0))
    served.publish()
    served.allocate(1, 8)
    served.write(1, w.pack_floats([1, 2]))
    served.call("add.Tensor", T(1, (2,)), T(1, (2,)), Value(1), base=3).results()
    assert w.floats(served.read(3, 8)) == [2, 4]
    served.record(w.SETTINGS, b"short")
    served.publish()
    served.sync()
    assert served.error_seq > 0
    assert "shorter than it says" in served.failure

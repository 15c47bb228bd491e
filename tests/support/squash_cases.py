"""The rules of content identity as a table: what two ranks do, and whether the results are equal.

`found` does it on two rings of this very process; as a script it prints what it found, so that a
test can have a process for it.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support import proxy_device as w
from support.proxy_collectives import Rank, make_ranks
from support.proxy_device import Device, Gen, RingClient, T, Value

Does = Callable[[RingClient], object]
A, B, OUT, MORE = 1, 2, 3, 4
"""Storages: two of eight numbers each, equal on both ranks; results from 3 on."""
FULL = (8,)
HALF = (4,)


@dataclass(frozen=True)
class Case:
    """What the ranks do (the second one the same as the first unless said), and for which storage
    their identities are looked at."""

    first: Does
    equal: bool
    second: Does | None = None
    storage: int = OUT


def _op(name: str, *arguments: object, base: int = 0, flags: int = 0) -> Does:
    return lambda c: c.op(name, *arguments, base=base, flags=flags)


def _then(*steps: Does) -> Does:
    return lambda c: [step(c) for step in steps]


def _floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _write(storage: int, data: bytes, offset: int = 0) -> Does:
    return lambda c: c.write(storage, data, offset)


def _allocate(storage: int, size: int) -> Does:
    return lambda c: c.allocate(storage, size)


def _resize(storage: int, size: int) -> Does:
    return lambda c: c.record(w.RESIZE, struct.pack("<Q", size), base=storage)


def _seed(value: int, generator: int = 0) -> Does:
    return lambda c: c.record(w.SEED, struct.pack("<Q", value), base=generator)


IN_PLACE = w.NO_OUTPUTS
a, b, out = T(A, FULL), T(B, FULL), T(OUT, FULL)
mine = _write(A, _floats(*range(8)))
"""The second rank has something else in A."""
other = _write(A, _floats(*range(1, 9)))
fresh = _allocate(OUT, 32)
norm = [T(A, (2, 4)), None, None, T(OUT, (4,)), T(MORE, (4,)), True, 0.1, 1e-5]
statistics = _then(
    *(_allocate(OUT, 16), _allocate(MORE, 16)),
    *(_write(OUT, _floats(0, 0, 0, 0)), _write(MORE, _floats(1, 1, 1, 1))),
)

CASES: dict[str, Case] = {
    "a result": Case(_op("mul.Tensor", a, b, base=OUT), True),
    "another operator": Case(
        _op("mul.Tensor", a, b, base=OUT), False, _op("maximum", a, b, base=OUT)
    ),
    "another order": Case(
        _op("sub.Tensor", a, b, Value(1), base=OUT),
        False,
        _op("sub.Tensor", b, a, Value(1), base=OUT),
    ),
    "another scalar": Case(
        _op("mul.Scalar", a, Value(2.0), base=OUT),
        False,
        _op("mul.Scalar", a, Value(3.0), base=OUT),
    ),
    "another number in the key": Case(
        _op("sum.dim_IntList", T(A, (2, 4)), [0], False, None, base=OUT),
        False,
        _op("sum.dim_IntList", T(A, (2, 4)), [1], False, None, base=OUT),
    ),
    "another offset": Case(
        _op("neg", T(A, HALF), base=OUT), False, _op("neg", T(A, HALF, offset=4), base=OUT)
    ),
    "other strides": Case(
        _op("neg", T(A, (2, 2)), base=OUT), False, _op("neg", T(A, (2, 2), (1, 2)), base=OUT)
    ),
    "another input": Case(_op("neg", a, base=OUT), False, _then(other, _op("neg", a, base=OUT))),
    "an input written again as it was": Case(
        _then(other, mine, _op("neg", a, base=OUT)), True, _op("neg", a, base=OUT)
    ),
    "the second of two results": Case(
        _op("max.dim", T(A, (2, 4)), 1, False, base=OUT), True, storage=MORE
    ),
    "in place": Case(_op("add_.Tensor", a, b, Value(1), flags=IN_PLACE), True, storage=A),
    "in place on something else": Case(
        _op("add_.Tensor", a, b, Value(1), flags=IN_PLACE),
        False,
        _then(other, _op("add_.Tensor", a, b, Value(1), flags=IN_PLACE)),
        A,
    ),
    "a part, in place": Case(
        _op("fill_.Scalar", T(A, HALF), Value(1.0), flags=IN_PLACE), True, storage=A
    ),
    "another part": Case(
        _op("fill_.Scalar", T(A, HALF), Value(1.0), flags=IN_PLACE),
        False,
        _op("fill_.Scalar", T(A, HALF, offset=4), Value(1.0), flags=IN_PLACE),
        A,
    ),
    "a part of something else": Case(
        _op("fill_.Scalar", T(A, HALF), Value(1.0), flags=IN_PLACE),
        False,
        _then(other, _op("fill_.Scalar", T(A, HALF), Value(1.0), flags=IN_PLACE)),
        A,
    ),
    "overwritten": Case(
        _op("fill_.Scalar", a, Value(1.0), flags=IN_PLACE),
        True,
        _then(other, _op("fill_.Scalar", a, Value(1.0), flags=IN_PLACE)),
        A,
    ),
    "zeroed": Case(
        _op("zero_", a, flags=IN_PLACE), True, _then(other, _op("zero_", a, flags=IN_PLACE)), A
    ),
    "copied over": Case(
        _op("copy_", a, b, False, flags=IN_PLACE),
        True,
        _then(other, _op("copy_", a, b, False, flags=IN_PLACE)),
        A,
    ),
    "copied over with other strides": Case(
        _op("copy_", T(A, (4, 2), (1, 4)), T(B, (4, 2)), False, flags=IN_PLACE),
        False,
        _then(other, _op("copy_", T(A, (4, 2), (1, 4)), T(B, (4, 2)), False, flags=IN_PLACE)),
        A,
    ),
    "copied over from itself": Case(
        _op("copy_", a, T(A, FULL), False, flags=IN_PLACE),
        False,
        _then(other, _op("copy_", a, T(A, FULL), False, flags=IN_PLACE)),
        A,
    ),
    "a list copied over": Case(
        _op("_foreach_copy_", [a], [b], False, flags=IN_PLACE),
        True,
        _then(other, _op("_foreach_copy_", [a], [b], False, flags=IN_PLACE)),
        A,
    ),
    "out= of its size": Case(_then(fresh, _op("mul.out", a, b, out, flags=IN_PLACE)), True),
    "out= that shrinks": Case(_then(fresh, _op("neg.out", T(A, HALF), out, flags=IN_PLACE)), False),
    "out= that is an input": Case(
        _op("mul.out", a, b, a, flags=IN_PLACE),
        False,
        _then(other, _op("mul.out", a, b, a, flags=IN_PLACE)),
        A,
    ),
    "one tensor twice, or two": Case(
        _then(
            _op("clone", a, None, base=OUT),
            _op("clone", a, None, base=MORE),
            _op("_foreach_add_.Scalar", [out, out], Value(1.0), flags=IN_PLACE),
        ),
        False,
        _then(
            _op("clone", a, None, base=OUT),
            _op("clone", a, None, base=MORE),
            _op("_foreach_add_.Scalar", [out, T(MORE, FULL)], Value(1.0), flags=IN_PLACE),
        ),
    ),
    "no memory yet": Case(
        _op("empty.memory_format", [8], w.FLOAT, None, Device(), None, None, base=OUT), False
    ),
    "an allocation": Case(fresh, False),
    "zeros": Case(_op("zeros", [8], w.FLOAT, None, Device(), None, base=OUT), True),
    "random with one seed": Case(
        _then(_seed(1), _op("normal_", a, 0.0, 1.0, None, flags=IN_PLACE)), False, storage=A
    ),
    "random of an own generator": Case(
        _then(_seed(1, 7), _op("normal_", a, 0.0, 1.0, Gen(7), flags=IN_PLACE)), False, storage=A
    ),
    "dropout": Case(_op("native_dropout", a, 0.5, True, base=OUT), False),
    "of a random one": Case(
        _then(_op("normal_", a, 0.0, 1.0, None, flags=IN_PLACE), _op("neg", a, base=OUT)), False
    ),
    "uploaded": Case(_then(fresh, _write(OUT, _floats(*range(8)))), True),
    "uploaded in parts": Case(
        _then(fresh, _write(OUT, _floats(1, 2, 3, 4)), _write(OUT, _floats(5, 6, 7, 8), 16)), True
    ),
    "uploaded in parts, not in a row": Case(
        _then(fresh, _write(OUT, _floats(5, 6, 7, 8), 16), _write(OUT, _floats(1, 2, 3, 4))), False
    ),
    "uploaded in parts, something between": Case(
        _then(
            fresh,
            _write(OUT, _floats(1, 2, 3, 4)),
            _op("neg_", out, flags=IN_PLACE),
            _write(OUT, _floats(5, 6, 7, 8), 16),
        ),
        False,
    ),
    "other bytes uploaded": Case(
        _then(fresh, _write(OUT, _floats(*range(8)))),
        False,
        _then(fresh, _write(OUT, _floats(*range(1, 9)))),
    ),
    "a part uploaded": Case(_write(A, _floats(9, 9), 8), True, storage=A),
    "a part uploaded elsewhere": Case(
        _write(A, _floats(9, 9), 8), False, _write(A, _floats(9, 9), 16), A
    ),
    "a part uploaded into something else": Case(
        _write(A, _floats(9, 9), 8), False, _then(other, _write(A, _floats(9, 9), 8)), A
    ),
    "shrunk": Case(_resize(A, 16), True, storage=A),
    "grown": Case(_resize(A, 64), False, storage=A),
    "running statistics": Case(_then(statistics, _op("native_batch_norm", *norm, base=10)), True),
    "running statistics of something else": Case(
        _then(statistics, _op("native_batch_norm", *norm, base=10)),
        False,
        _then(other, statistics, _op("native_batch_norm", *norm, base=10)),
        MORE,
    ),
    "data-dependent": Case(_op("nonzero", a, base=OUT, flags=w.REPLY), True),
}


def found() -> dict[str, bool]:
    """Case -> whether both ranks' storages have the same, known identity."""
    from singularity_proxy import build

    native = build.load()
    answers: dict[str, bool] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="singularity-test-") as folder:
            ranks = make_ranks(Path(folder), 2)
            seen = [
                _one(native, rank, case.first if number == 0 else case.second or case.first)
                for number, rank in enumerate(ranks)
            ]
            ids = [identities[case.storage] for identities in seen]
            assert "0" * 32 not in ids, name
            answers[name] = ids[0] == ids[1]
    return answers


def _one(native: object, rank: Rank, does: Does) -> dict[int, str]:
    client = rank.client
    prefix = os.fspath(client.path.with_suffix(""))
    server = native.RingServer(os.fspath(client.path), prefix, "cpu", 0, 1, 0, 1)  # type: ignore[attr-defined]
    server.start()
    rank.floats(range(8))
    rank.floats(range(8, 16))
    client.sync()
    server.request_pause()
    server.wait_paused()
    server.keep_lineage()
    server.resume()
    mine(client)
    does(client)
    client.sync()
    assert not client.error_seq, client.failure
    server.request_pause()
    server.wait_paused()
    identities = dict(server.identities())
    server.stop(True)
    client.close()
    return identities


if __name__ == "__main__":
    json.dump(found(), sys.stdout)

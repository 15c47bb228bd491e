"""Random programs of several ranks: what data-parallel training does to storages, and more.

A program is a list of steps that all ranks take, with data of their own in some; `Issue` writes one
rank's records of it. `run` executes it on rings of this very process and tells what they held at
the end; as a script it reads requests from stdin, so that a test can have processes for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import proxy_device as w
from support.proxy_collectives import ALL_REDUCE, AVG, BROADCAST, SUM, Group, Rank, make_ranks
from support.proxy_device import Device, T, Value

Step = tuple[Any, ...]
SIZE = 96
"""Elements of every tensor, unless a request says otherwise."""


KINDS = (
    *("binary", "binary", "unary", "inplace", "partial", "over", "zeros", "out", "empty", "random"),
    *("free", "reduce", "reduce", "step", "step", "lone", "upload", "again", "skew"),
)
"""Of steps, as likely as they are often here."""


def program(seed: int, steps: int) -> list[Step]:
    """Steps with the numbers of tensors (0, 1, ...) that exist by then; the first four are
    parameters, the fifth is data of the rank."""
    r = random.Random(seed)
    made: list[Step] = [("broadcast", i) for i in range(4)]
    live = list(range(5))
    following = 5

    def pick() -> int:
        return r.choice(live)

    for _ in range(steps):
        kind = r.choice(KINDS)
        if kind in ("binary", "unary", "zeros", "empty", "skew"):
            made.append((kind, pick(), pick(), r.randrange(3)))
            live.append(following)
            following += 1
        elif kind == "free":
            if len(live) > 8:
                gone = live.pop(r.randrange(5, len(live)))
                made.append(("free", gone))
        elif kind == "step":
            grads = r.sample(live, 2)
            made.append(("reduce", grads[0], r.choice((SUM, AVG))))
            made.append(("step", r.sample(live, 3), grads[0], round(r.uniform(-0.1, 0.1), 3)))
        elif kind == "reduce":
            made.append(("reduce", pick(), r.choice((SUM, AVG))))
        else:
            made.append((kind, pick(), pick(), r.randrange(SIZE // 2), r.randrange(3)))
    return made


def training(steps: int) -> list[Step]:
    """Four parameters with a state each; gradients of own data, averaged, applied, freed."""
    made: list[Step] = [("broadcast", i) for i in range(4)]
    made += [("zeros", 0, 0, 0)] * 4
    following = 9
    for _ in range(steps):
        grads = list(range(following, following + 4))
        following += 4
        made += [("binary", i, 4, 0) for i in range(4)]
        made += [("reduce", grad, AVG) for grad in grads]
        for i, grad in enumerate(grads):
            made += [("inplace", 5 + i, grad, 0, 0), ("step", [i], 5 + i, -0.01)]
        made += [("free", grad) for grad in grads]
    return [*made, ("reduce", 0, AVG)]  # a last sync point: what is equal is one again


PIECE = 1 << 16
"""Bytes of one copy at most."""


@dataclass
class Issue:
    """One rank's records of a program."""

    rank: Rank
    count: int
    ids: list[int] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)

    def begin(self, group: Group) -> None:
        self.rank.join(group)
        self.rank.client.ask(w.SEED, struct.pack("<Q", 1000 + self.rank.rank))
        r = random.Random(self.rank.rank)
        for _ in range(5):  # unlike each other until they are broadcast
            self.create([r.uniform(-1, 1) for _ in range(96)])

    def create(self, values: Sequence[float]) -> None:
        """A tensor of these values, again and again."""
        data = struct.pack(f"<{len(values)}f", *values) * (SIZE // len(values) + 1)
        storage = self.new()
        self.rank.client.allocate(storage, SIZE * 4)
        for at in range(0, SIZE * 4, PIECE):
            self.rank.client.write(storage, data[at : min(at + PIECE, SIZE * 4)], at)

    def tensor(self, number: int, sizes: tuple[int, ...] = (SIZE,), offset: int = 0) -> T:
        return T(self.ids[number], sizes, offset=offset)

    def new(self) -> int:
        self.rank.storages += 1
        self.ids.append(self.rank.storages)
        return self.rank.storages

    def take(self, step: Step) -> None:
        c = self.rank.client
        kind = step[0]
        if kind == "broadcast":
            t = self.tensor(step[1])
            self.rank.collective(BROADCAST, [t] if self.rank.rank == 0 else [], [t], root=0)
        elif kind == "reduce":
            t = self.tensor(step[1])
            self.rank.collective(ALL_REDUCE, [t], [t], reduction=step[2])
            c.op("clamp_", t, Value(-8.0), Value(8.0), flags=w.NO_OUTPUTS)
        elif kind == "binary":
            name = ("mul.Tensor", "sub.Tensor", "maximum")[step[3]]
            more = [Value(1)] if name.startswith("sub") else []
            c.op(name, self.tensor(step[1]), self.tensor(step[2]), *more, base=self.new())
        elif kind == "unary":
            name = ("tanh", "abs", "neg")[step[3]]
            c.op(name, self.tensor(step[1]), base=self.new())
        elif kind == "skew":
            factor = Value(1.0 + self.rank.rank / 16)
            c.op("mul.Scalar", self.tensor(step[1]), factor, base=self.new())
        elif kind == "zeros":
            c.op("zeros", [SIZE], w.FLOAT, None, Device(), None, base=self.new())
        elif kind == "empty":
            made = self.new()
            c.op("empty.memory_format", [SIZE], w.FLOAT, None, Device(), None, None, base=made)
            c.op("copy_", T(made, (SIZE,)), self.tensor(step[1]), False, flags=w.NO_OUTPUTS)
        elif kind == "inplace":
            name = ("add_.Tensor", "mul_.Tensor", "tanh_")[step[4]]
            more = [Value(1)] if name == "add_.Tensor" else []
            other = [self.tensor(step[2])] if step[4] < 2 else []
            c.op(name, self.tensor(step[1]), *other, *more, flags=w.NO_OUTPUTS)
        elif kind == "partial":
            half = (SIZE // 2,)
            into, of = self.tensor(step[1], half, step[3]), self.tensor(step[2], half)
            if step[4] and step[1] != step[2]:
                c.op("copy_", into, of, False, flags=w.NO_OUTPUTS)
            else:
                c.op("fill_.Scalar", into, Value(0.5), flags=w.NO_OUTPUTS)
        elif kind == "over":
            if step[4]:
                c.op("copy_", self.tensor(step[1]), self.tensor(step[2]), False, flags=w.NO_OUTPUTS)
            else:
                c.op("zero_", self.tensor(step[1]), flags=w.NO_OUTPUTS)
        elif kind == "out":
            c.op(
                "sub.out",
                *(self.tensor(step[1]), self.tensor(step[2]), Value(1), self.tensor(step[1])),
                flags=w.NO_OUTPUTS,
            )
        elif kind == "random":
            c.op("normal_", self.tensor(step[1]), 0.0, 1.0, None, flags=w.NO_OUTPUTS)
        elif kind == "free":
            c.record(w.FREE, struct.pack("<Q", self.ids[step[1]]), base=1)
            self.freed.add(step[1])
            c.publish()
        elif kind == "step":
            targets = [self.tensor(i) for i in step[1]]
            c.op("_foreach_mul_.Scalar", targets, Value(0.9), flags=w.NO_OUTPUTS)
            grads = [self.tensor(step[2])] * len(targets)
            c.op("_foreach_add_.List", targets, grads, Value(step[3]), flags=w.NO_OUTPUTS)
        elif kind == "lone":
            if self.rank.rank == step[4] % self.count:
                c.op("mul_.Scalar", self.tensor(step[1]), Value(1.0), flags=w.NO_OUTPUTS)
        elif kind == "upload":
            half = struct.pack(f"<{SIZE // 2}f", *([step[3] / SIZE] * (SIZE // 2)))
            c.write(self.ids[step[1]], half)
            if step[4]:
                c.write(self.ids[step[1]], half, len(half))
        elif kind == "again":
            c.op("mul_.Tensor", *[self.tensor(step[1])] * 2, flags=w.NO_OUTPUTS)
        else:
            raise AssertionError(step)

    def state(self) -> list[str]:
        """What each storage holds."""
        found = []
        for number, storage in enumerate(self.ids):
            if number not in self.freed:
                data = hashlib.sha256()
                for at in range(0, SIZE * 4, PIECE):
                    data.update(self.rank.client.read(storage, min(PIECE, SIZE * 4 - at), at))
                found.append(data.hexdigest()[:16])
        found.append(hashlib.sha256(self.rank.client.ask(w.GET_RNG).payload).hexdigest()[:16])
        return found


def issue(ranks: Sequence[Rank], steps: Sequence[Step]) -> list[Issue]:
    """Write the records of all ranks, a step of each at a time."""
    issues = [Issue(rank, len(ranks)) for rank in ranks]
    group = Group(len(ranks))
    for one in issues:
        one.begin(group)
    for step in steps:
        for one in issues:
            one.take(step)
    return issues


def begin_checked_window(native: Any, issues: Sequence[Issue], check_every: int) -> int:
    """Reductions until the ranks are in a window that is not squashed. How many that took."""
    for count in range(50):
        for one in issues:
            one.rank.client.sync()
        if native.squashing()["windows"] % check_every == 0:
            return count
        for one in issues:
            one.take(("reduce", 1, AVG))
    raise AssertionError(f"the ranks do not come together: {native.squashing()}")


def run(
    *,
    seed: int,
    steps: int,
    ranks: int,
    squash: bool,
    check_every: int = 3,
    broken: str = "",
    broken_late: str = "",
    late_after: int = 0,
    capacity: int = 0,
    size: int = SIZE,
    train: bool = False,
) -> dict[str, Any]:
    """A program on rings of this process. -> {states, squashing, failures, stats, memory}

    `broken`: the operator whose identity is wrong from the beginning. `broken_late`: after the
    program, in a window that is checked, and `before` is what was known until then; without
    squashing that is after `late_after` more reductions.
    """
    from singularity_proxy import build

    global SIZE
    SIZE = size
    native = build.load()
    native.install_capacity(capacity)
    native.check_squashing_every(check_every)
    native.break_identity_of(broken)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="singularity-test-") as folder:
        place = Path(folder)
        if not squash:
            (place / "squashing-off").write_text("a test wants to know what comes out without it")
        made = make_ranks(place, ranks)
        servers = []
        for rank in made:
            prefix = os.fspath(rank.client.path.with_suffix(""))
            server = native.RingServer(
                os.fspath(rank.client.path), prefix, "cpu", 1 << 30, 1, capacity, 1
            )
            server.start()
            servers.append(server)
        issues = issue(made, training(steps) if train else program(seed, steps))
        before: dict[str, Any] = {}
        if broken_late:
            if squash:
                late_after = begin_checked_window(native, issues, check_every)
            else:
                for _ in range(late_after):
                    for one in issues:
                        one.take(("reduce", 1, AVG))
            before = native.squashing()
            native.break_identity_of(broken_late)
            for step in (("skew", 0, 0, 0), ("reduce", 0, AVG), ("step", [1, 2], 0, 0.1)):
                for one in issues:
                    one.take(step)
        states = [one.state() for one in issues]
        result = {
            "states": states,
            "failures": [rank.client.failure for rank in made if rank.client.error_seq],
            "squashing": native.squashing(),
            "before": before,
            "late_after": late_after,
            "memory": native.memory("cpu"),
            "stats": [server.stats() for server in servers],
        }
        for server in servers:
            server.stop(True)
        for rank in made:
            rank.client.close()
    return result


def main() -> None:
    from singularity_proxy import build

    build.load()  # once for all
    requests = json.load(sys.stdin)
    began = time.monotonic()
    answers = []
    for request in requests:
        pid = os.fork()  # a process per program: what the crew of one knows is not the next one's
        if pid == 0:
            with Path(request.pop("into")).open("w") as out:
                json.dump(run(**request), out)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        answers.append(status)
    json.dump({"statuses": answers, "seconds": time.monotonic() - began}, sys.stdout)


if __name__ == "__main__":
    main()

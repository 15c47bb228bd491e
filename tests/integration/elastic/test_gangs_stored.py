"""One program on two nodes is stored where the ranks of both stand, and comes back elsewhere: it
computes the same bits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
from singularity_proxy.errors import Conflict, SingularityError, Unsupported
from support.agent import until
from support.agent_gang import (
    BOTH,
    Gang,
    Numbers,
    on_one_node,
    ours,
    result,
    torchrun,
    training,
    two_nodes,
)
from support.agent_moves import checkpoint, gone, suspend
from support.capsules import needs_criu

pytestmark = [needs_criu, pytest.mark.timeout(400), pytest.mark.asyncio]

STEPS = 600
HANGS_S = 10.0


@pytest.fixture(scope="module")
def undisturbed() -> Numbers:
    return asyncio.run(on_one_node(STEPS))


async def suspended(gang: Gang, seq: int = 1) -> dict[int, str]:
    """Suspend all parts, which stand; number -> checkpoint."""
    done = await asyncio.gather(
        *(
            suspend(box, session, gang.epoch, seq=seq, standing=True)
            for box, session in zip(gang.boxes, gang.sessions, strict=True)
        )
    )
    return {number: one["checkpoint"]["id"] for number, one in enumerate(done)}


def meets(gang: Gang, number: int) -> int:
    """The port at which the ranks of a part look for the rendezvous."""
    ports = gang.boxes[number].runtime / "b" / gang.sessions[number] / "ports.json"
    return int(json.loads(ports.read_text())["master_port"])


async def train(gang: Gang, out: Path) -> None:
    """Start a training on the devices of both nodes and wait until it has made steps."""
    await gang.start(ours(training(out, STEPS)))
    await gang.attach()
    await gang.goes_on()


async def finish(gang: Gang, out: Path, undisturbed: Numbers) -> None:
    for reason in await gang.ended():
        assert "exit code 0" in reason, gang.log()
    assert result(out) == undisturbed
    await until(lambda: gang.left() == [], lambda: str(gang.left()))


async def test_each_part_comes_back_at_the_other_node(
    out: Path, undisturbed: Numbers, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    async with two_nodes(store, store) as gang:
        await train(gang, out)
        first, second = gang.boxes
        part0, part1 = gang.sessions

        # A part alone is refused, and goes on.
        with pytest.raises(Unsupported, match="it is part 0 of a gang on 2 nodes, which is stored"):
            await suspend(first, part0, 1, seq=10)
        with pytest.raises(Conflict, match="do not stand together with those of the other parts"):
            await suspend(first, part0, 1, seq=11, standing=True)
        await gang.goes_on()

        meeting = [meets(gang, number) for number in range(len(gang.boxes))]

        # A device proxy is killed while all stand: another one holds its ranks at the same place.
        async with gang.standing() as cut:
            assert all(not group.elsewhere for group in cut.groups)
            steps = gang.step(0), gang.step(1)
            os.kill(second.proxies_of(part1)[0], signal.SIGKILL)
            await second.event("proxy.recovered", part1)
            await asyncio.sleep(0.3)
            assert (gang.step(0), gang.step(1)) == steps
            stands = await second.call("session.barrier", session=part1, epoch=1, call="ask")
            assert stands["held"]
            counts = {key: set(ranks.values()) for key, ranks in stands["groups"].items()}
            assert counts == {key: {count} for key, count in cut.contributed.items()}
            stored = await suspended(gang)
        await gone(first, part0)
        await gone(second, part1)
        assert not list((first.runtime / "b").iterdir())

        for back in await gang.resume(stored, [second, first]):
            assert back["loss"]["rolled_back"] is False
        assert [meets(gang, 0), meets(gang, 1)] == meeting
        await gang.goes_on()

        # A checkpoint of both at one place, and back to it.
        async with gang.standing():
            at = gang.step(0)
            kept = await asyncio.gather(
                checkpoint(second, part0, gang.epoch, standing=True),
                checkpoint(first, part1, gang.epoch, standing=True),
            )
        await gang.goes_on()
        for box, session in zip(gang.boxes, gang.sessions, strict=True):
            await box.call("session.end", session=session, reason="test", grace_s=0.0, keep=True)
        numbers = {number: one["id"] for number, one in enumerate(kept)}
        for back in await gang.resume(numbers, [first, second], incarnation=2, seq=2):
            assert back["loss"]["rolled_back"] is True
        assert gang.step(0) >= at
        await finish(gang, out, undisturbed)


async def test_one_part_stays_and_the_other_one_comes_back(
    out: Path, undisturbed: Numbers, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    own = tmp_path / "own"
    own.symlink_to(tmp_path / "store")
    quiet = ["--NodeAgent.joint_barrier_s=1"]
    async with two_nodes(str(own), str(tmp_path / "store"), options=quiet) as gang:
        await train(gang, out)
        first, second = gang.boxes
        part0, part1 = gang.sessions

        # Whoever held the ranks is gone: they go on by themselves.
        began = time.monotonic()
        async with gang.standing():
            await gang.goes_on()
            assert time.monotonic() - began < HANGS_S
            with pytest.raises(Conflict, match="do not stand together"):
                await suspend(second, part1, 1, seq=10, standing=True)

        # The store of one node is gone while both are on their way there.
        async with gang.standing():
            own.unlink()
            own.write_text("no folder")
            failed, done = await asyncio.gather(
                suspend(first, part0, 1, standing=True),
                suspend(second, part1, 1, standing=True),
                return_exceptions=True,
            )
        assert isinstance(failed, SingularityError), failed
        assert isinstance(done, dict), done
        await gone(second, part1)
        assert (await first.session(part0))["devices"] == BOTH
        assert len(first.processes(part0)) == len(BOTH) + 1

        await gang.resume({1: done["checkpoint"]["id"]}, gang.boxes)
        await gang.goes_on()
        await finish(gang, out, undisturbed)


async def test_torchrun_comes_back_with_its_rendezvous(
    out: Path, undisturbed: Numbers, tmp_path: Path
) -> None:
    """Its launchers are connected with the store of part 0 all the time, and meet there at the
    end."""
    store = str(tmp_path / "store")
    async with two_nodes(store, store) as gang:
        await gang.start(torchrun(training(out, STEPS)))
        await gang.attach()
        await gang.goes_on()
        async with gang.standing():
            stored = await suspended(gang)
        for box, session in zip(gang.boxes, gang.sessions, strict=True):
            await gone(box, session)
        await gang.resume(stored, gang.boxes[::-1])
        await gang.goes_on()
        await finish(gang, out, undisturbed)


async def test_each_part_is_proved_alone_while_all_go_on(
    out: Path, undisturbed: Numbers, tmp_path: Path
) -> None:
    """A proof needs no other part: nothing of it runs, so nobody meets."""
    store = str(tmp_path / "store")
    async with two_nodes(store, store) as gang:
        await train(gang, out)
        async with gang.standing():
            kept = await asyncio.gather(
                *(
                    checkpoint(box, session, gang.epoch, standing=True)
                    for box, session in zip(gang.boxes, gang.sessions, strict=True)
                )
            )
        await gang.goes_on()
        told = await asyncio.gather(
            *(
                box.call("checkpoints.prove", session=session, user="alice", id=one["id"])
                for box, session, one in zip(gang.boxes, gang.sessions, kept, strict=True)
            )
        )
        assert [(one["proved"], one["why"]) for one in told] == [(True, ""), (True, "")]
        await finish(gang, out, undisturbed)

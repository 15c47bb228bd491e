"""Gangs in the world of `scheduler_core`."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.gangs.members import HAS
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Kind, Part, SessionSpec, Tier
from support.scheduler_core import World


def gang(
    name: str,
    nodes: int = 2,
    tier: Tier = Tier.STANDARD,
    devices: int = 1,
    user: str = "alice",
    max_retries: int = 0,
    **more: Any,
) -> ev.GangCreated:
    """A run of a command on so many nodes: its parts are NAME0, NAME1, ..."""
    run = BatchRun(command="python train.py", folder="/home/alice", max_retries=max_retries)
    sessions = tuple(f"{name}{number}" for number in range(nodes))
    return ev.GangCreated(
        name,
        user,
        tuple(
            (
                sid,
                SessionSpec(
                    Kind.BATCH,
                    tier,
                    devices,
                    sid,
                    run,
                    nodes=nodes,
                    part=Part(name, number, sessions, f"secret of {name}"),
                    **more,
                ),
            )
            for number, sid in enumerate(sessions)
        ),
    )


def submit_gang(world: World, name: str, nodes: int = 2, **more: Any) -> list[str]:
    """Submit one; it is started if there is room. Its parts' ids."""
    world.do(gang(name, nodes, **more))
    world.answer(ev.Start)
    return [f"{name}{number}" for number in range(nodes)]


def computing_gang(world: World, name: str, nodes: int = 2, **more: Any) -> list[str]:
    """One that holds devices."""
    found = submit_gang(world, name, nodes, **more)
    world.need(found[0])
    world.answer()
    assert [world[sid].word for sid in found] == ["running"] * nodes
    return found


def words(world: World, *sessions: str) -> list[str]:
    return [world.known[sid].word for sid in sessions]


def has(world: World, *sessions: str) -> list[bool]:
    """Whether each of them has devices and is to keep them."""
    return [world[sid].device_state in HAS for sid in sessions]

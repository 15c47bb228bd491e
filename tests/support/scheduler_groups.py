"""Groups of runs in the world of `scheduler_core`."""

from __future__ import annotations

from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Kind, Member, SessionSpec, Tier
from support.scheduler_core import World


def submit_group(
    world: World,
    name: str,
    members: int,
    tier: Tier = Tier.STANDARD,
    devices: int = 1,
    **limits: object,
) -> list[str]:
    """A group of runs called NAME1, NAME2, ...; those with room are started."""
    found = []
    for number in range(1, members + 1):
        sid = f"{name}{number}"
        run = BatchRun(f"/home/alice/{sid}.ipynb", f"/home/alice/{sid}-out.ipynb")
        member = Member(name, number, members, name, **limits)  # type: ignore[arg-type]
        spec = SessionSpec(Kind.BATCH, tier, devices, sid, run, member=member)
        found.append((sid, spec))
    world.do(ev.GroupCreated(name, "alice", tuple(found)))
    world.answer(ev.Start)
    return [sid for sid, _ in found]


def started(world: World) -> list[str]:
    return [a.session for a in world.all_actions if isinstance(a, ev.Start)]


def end(world: World, sid: str, code: int = 0) -> None:
    world.do(ev.ProcessExited(sid, code))
    world.answer(ev.End, ev.Start)

"""The node agent on a machine whose processor lacks one instruction that this one has."""

from dataclasses import replace

from singularity_proxy.capsule.images import machine
from singularity_scheduler.agent import app
from singularity_scheduler.agent.sessions import capsules


def lesser(criu: str | None) -> machine.Machine:
    found = machine.here(criu)
    return replace(found, cpu=found.cpu - {min(found.cpu)})


capsules.here = lesser  # type: ignore[attr-defined]
app.main()

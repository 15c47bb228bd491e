"""Whether the processes of a checkpoint come back, tried without a trace: they never run.

`prove` is called by the node agent with an image that it has fetched from the store and a *sealed*
capsule (`CapsuleSpec.views`) with the session's own files in it. Processes are dumped stopped and
CRIU brings them back stopped, so no instruction of theirs is executed; then they are held against
the image, and the caller ends the capsule. Blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from singularity_proxy.capsule.files.reconcile import Plan
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.errors import ImageFailed

from . import image, whole


def prove(
    capsule: NamespaceCapsule,
    folder: str,
    *,
    plan: Plan,
    processes: int,
    command: Sequence[str] | None = None,
) -> float:
    """Restore the image in `folder` inside `capsule` and compare what is there; returns the
    seconds it took. `processes`: how many the checkpoint's record knows. Raises what
    `image.restore` raises, and `ImageFailed` when not all is back."""
    seconds = image.restore(capsule, folder, plan=plan, command=command)
    whole.check_back(capsule, folder)
    found = len(capsule.members())
    if found != processes:
        raise ImageFailed(
            f"{found} processes came back where the session had {processes}; the checkpoint is as "
            "it was",
            step="restore",
            log=[],
        )
    return seconds

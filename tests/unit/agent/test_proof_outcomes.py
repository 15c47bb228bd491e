"""What an error in a proof says of the checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from singularity_proxy.errors import (
    CheckpointCancelled,
    DamagedCheckpoint,
    ImageFailed,
    NoSpace,
    OpenFilesChanged,
    StoreUnavailable,
    Unavailable,
    Unsupported,
)
from singularity_scheduler.agent.store.proofs import Prover


def criu(line: str) -> ImageFailed:
    return ImageFailed(f"the process image could not be restored: {line}", log=[line])


class Failing(Prover):
    """Each proof ends with `error`; `moved`: the session was moved meanwhile."""

    def __init__(self, error: Exception | None, moved: bool = False) -> None:
        node = SimpleNamespace(stopping=False, sessions={})
        super().__init__(cast(Any, node))
        self.error, self.moved = error, moved

    async def _try(self, job: Any, user: str, checkpoint: str) -> None:
        if self.moved:
            self.give_way("of somebody else")
            self.give_way(job.session)
        if self.error is not None:
            raise self.error


async def proved(error: Exception | None, moved: bool = False) -> dict[str, Any]:
    prover = Failing(error, moved)
    try:
        return await prover.prove("s", "ada", "k1")
    finally:
        await prover.close()


@pytest.mark.asyncio
async def test_one_without_a_fault_is_proved() -> None:
    answer = await proved(None)
    assert (answer["proved"], answer["why"]) == (True, "")
    assert answer["ms"] >= 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [
        DamagedCheckpoint("a chunk is missing"),
        OpenFilesChanged("/home/ada/weights is gone"),
        criu("Can't open a file"),
    ],
)
async def test_what_is_a_fault_of_the_checkpoint(error: Any) -> None:
    assert (await proved(error))["why"] == error.message


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (criu("Can't link /home/ada/x: Read-only file system"), Unsupported),
        (criu("Can't open /nfs/x: Permission denied"), Unsupported),
        (Unsupported("another processor"), Unsupported),
        (NoSpace("the disk is nearly full"), NoSpace),
        (StoreUnavailable("the store does not answer"), StoreUnavailable),
        (OSError(24, "Too many open files"), Unavailable),
    ],
)
async def test_what_says_nothing_of_the_checkpoint(error: Any, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        await proved(error)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [criu("it was killed"), Unavailable("killed"), OSError(5, "I/O")])
async def test_what_a_move_ended_is_no_fault(error: Any) -> None:
    with pytest.raises(CheckpointCancelled, match="because its session is being moved or stored"):
        await proved(error, moved=True)

"""Whole sessions between agents and a store, for tests: suspend, resume, checkpoint."""

from __future__ import annotations

from typing import Any

from support.agent import AgentBox, until
from support.agent_trains import losses


async def suspend(box: AgentBox, session: str, epoch: int, **more: Any) -> dict[str, Any]:
    """`session.suspend`; returns the answer."""
    words = {"name": "", "reason": "test", "seq": 1, **more}
    return dict(await box.call("session.suspend", session=session, epoch=epoch, **words))


async def resume(
    box: AgentBox, session: str, epoch: int, checkpoint: str, **more: Any
) -> dict[str, Any]:
    """`session.resume`; returns the answer."""
    words = {
        "user": "alice",
        "kind": "batch",
        "tier": "standard",
        "name": "",
        "virtual_devices": 1,
        "seq": 1,
        "from_session": session,
        "incarnation": 1,
        "connection": None,
        "reason": "test",
        **more,
    }
    params = {"session": session, "epoch": epoch, "checkpoint": checkpoint, **words}
    return dict(await box.call("session.resume", **params))


async def checkpoint(
    box: AgentBox, session: str, epoch: int, name: str = "", **more: Any
) -> dict[str, Any]:
    """`session.checkpoint`; returns the reference."""
    words = {"level": None, "seq": 1, **more}
    return dict(
        await box.call("session.checkpoint", session=session, epoch=epoch, name=name, **words)
    )


async def listed(box: AgentBox, session: str, user: str = "alice") -> list[dict[str, Any]]:
    """`checkpoints.list`."""
    return list(await box.call("checkpoints.list", session=session, user=user))


async def after(box: AgentBox, session: str, step: int) -> None:
    """Wait until the training has done `step`."""
    await until(lambda: step in losses(box.log(session)), lambda: box.log(session))


async def gone(box: AgentBox, session: str) -> None:
    """Nothing of the session is on the node."""
    [hello] = await box.fleet.hello()
    mine = [s for s in hello["sessions"] if s["session"] == session]
    assert [s for s in mine if not s.get("suspended")] == []
    assert not box.folder(session).exists()
    assert not (box.shm / session).exists()
    assert not (box.runtime / "l" / f"{session}.lease").exists()
    assert box.everything_of(session) == []
    assert box.proxies_of(session) == []
    assert list((box.root / "state" / "images").iterdir()) == []

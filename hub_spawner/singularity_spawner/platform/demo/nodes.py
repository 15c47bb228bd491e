"""The tour's acts 6 and 7, on a platform of their own: two nodes on this machine, each in a network
namespace with an address and folders of its own.

A notebook is moved to the other node in the middle of a cell. Then that node dies: its network is
gone and everything in it killed. The notebook goes on by itself on the first node, from its last
checkpoint, and its losses are those of an uninterrupted run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from singularity_scheduler.fleet import namespaces

from singularity_spawner.platform.notebook import Cell, Notebook
from singularity_spawner.platform.platform import Platform
from singularity_spawner.platform.ports import free_ports

from .notebooks import GPT, PACED, SETUP
from .tour import ONE_THREAD, SECONDS, Sessions, Tour, native_losses, printed, until

STEPS = 100
SEED = 17
HURRY = "N.hurry"

SETTINGS = (
    # So short that nobody has to wait long: a node is given up after 4 s of silence, ...
    "--Controller.lease_ttl_s=3",
    "--Controller.lease_margin_s=1",
    # ... and what runs is stored every 8 s.
    "--Controller.checkpoint_every_s=8",
    ONE_THREAD,
)


async def nodes(t: Tour, folder: Path) -> None:
    """Every claim is a check; where a node cannot have a network of its own, or store processes,
    one sentence says so."""
    if why := await asyncio.to_thread(namespaces.why_not):
        t.say(f"Acts 6 and 7, two nodes on this machine, are left out: {why}")
        return
    platform = Platform(
        folder / "nodes",
        devices=1,
        port=free_ports(1)[0],
        nodes=2,
        netns=True,
        service_args=SETTINGS,
    )
    try:
        await t.step("a platform with two nodes starts", platform.start())
        able = (await platform.service().cluster())["nodes"]
        if reasons := [node["images"]["reason"] for node in able if node["images"]["reason"]]:
            t.say(f"Acts 6 and 7, a session that moves, are left out: {reasons[0]}")
            return
        url = await t.step("dora's server starts", platform.start_server("dora", {"devices": 1}))
        notebook = Notebook(url, await platform.user_token("dora"), "N")
        try:
            await t.step("kernel of notebook N", notebook.open())
            await _acts(t, platform, notebook, folder)
        finally:
            await notebook.close()
    finally:
        await t.step("the platform with two nodes stops", platform.stop())


async def _acts(t: Tour, platform: Platform, notebook: Notebook, folder: Path) -> None:
    sessions, service = Sessions(platform.service()), platform.service()
    await sessions.remember(notebook)
    first = (await sessions.of("N"))["node"]
    second = next(node for node in platform.settings.nodes if node != first)
    await notebook.run(SETUP.format(device="cuda", seed=SEED) + GPT, SECONDS)
    cell = await notebook.start(PACED.format(steps=STEPS, hurry=HURRY, pause=0.5))
    await t.step("N trains", printed(cell, 5))

    t.say(f"Act 6: N is moved from {first} to {second} in the middle of its cell")
    session = str((await sessions.of("N"))["id"])
    moved = await t.step(f"N moves to {second}", service.migrate(session, node=second))
    t.check(
        f"N is on {second}, and nothing was undone",
        moved["node"] == second and moved["loss"]["rolled_back"] is False,
    )
    await t.step("its cell goes on there", _goes_on(cell))

    t.say(f"Act 7: {second} dies; its network is gone, and everything in it is killed")
    await t.step("N is stored by itself", _stored(sessions))
    last = (await sessions.of("N"))["last_checkpoint"]
    t.check("N is in the middle of its cell", not cell.done.is_set())
    await asyncio.to_thread(namespaces.destroy, platform.settings.netns[second])
    back = await t.step(f"N goes on by itself on {first}", _back(sessions, first))
    why = [c["reason"] for c in await sessions.history("N") if c["rule"] == "node.lost"]
    t.say(f"N: {why[-1] if why else back['reason']}")
    t.check(
        "N went on from its last checkpoint, and its report says what it lost",
        back["loss"]["checkpoint"] >= last["id"]
        and any("what the session did after" in line for line in back["loss"]["lost"]),
    )
    await notebook.put_file(HURRY, "")
    await t.step("N's cell ends", cell.wait(SECONDS))
    losses = (await notebook.run("print(*[x.hex() for x in losses])", SECONDS)).split()
    native = await t.step("native run of N", native_losses(GPT, SEED, STEPS, folder))
    t.check(
        f"N's {len(native)} losses are bitwise those of an uninterrupted run",
        len(native) == STEPS and losses == native,
    )


async def _goes_on(cell: Cell) -> None:
    seen = len(cell.text)

    async def more() -> bool:
        return len(cell.text) > seen

    await until("more output of N", more)


async def _stored(sessions: Sessions) -> None:
    """Wait for the next checkpoint."""
    before = ((await sessions.of("N"))["last_checkpoint"] or {}).get("id")

    async def another() -> bool:
        return ((await sessions.of("N"))["last_checkpoint"] or {}).get("id") != before

    await until("a checkpoint of N", another)


async def _back(sessions: Sessions, node: str) -> dict[str, Any]:
    async def there() -> bool:
        found = await sessions.of("N")
        older = bool(found["loss"]) and bool(found["loss"]["rolled_back"])
        return found["node"] == node and found["process_state"] == "live" and older

    await until(f"N on {node}", there)
    return await sessions.of("N")

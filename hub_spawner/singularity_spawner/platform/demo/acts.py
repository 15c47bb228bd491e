"""The tour's acts 1 to 4: two notebooks give their devices to two batch runs and go on.

A (alice, standard) is idle when P1 wants a device, B (bob, basic) is in the middle of a cell when
P2 wants one; P1 and P2 are notebooks that carol (premium) submits from a terminal of her server.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from singularity_spawner.platform.notebook import Notebook
from singularity_spawner.platform.server import Server

from .notebooks import CNN, GPT, PACED, SETUP, UNTIL_FLAG, steps_of
from .runs import submit
from .tour import SECONDS, Sessions, Tour, native_losses, printed

A_STEPS = 60
"""Steps of notebook A's first cell."""
B_STEPS = 600
"""Steps of notebook B's one cell: long enough to be caught in its middle."""
PREMIUM_STEPS = 30
"""So many steps a premium run does at least."""
PREMIUM = ("P1", "P2")
WHEN_TOLD = """
import os, time
print("loaded", flush=True)
while not os.path.exists("{name}.go"):
    time.sleep(0.05)
"""


async def notebooks(
    t: Tour, sessions: Sessions, folder: Path, carol: Server, a: Notebook, b: Notebook
) -> None:
    """Every claim is a check."""
    for name in PREMIUM:
        train = CNN + UNTIL_FLAG.format(name=name)
        setup = SETUP.format(device="cuda", seed=13) + "import sklearn.datasets"
        await carol.put_notebook(f"{name}.ipynb", setup, WHEN_TOLD.format(name=name), train)
    ids = await t.step(
        "carol submits P1 and P2 (premium, 1 device each)",
        submit(carol, *PREMIUM, options="--devices 1"),
    )
    for name, session in zip(PREMIUM, ids, strict=True):
        sessions.name(name, session)

    t.say("Act 1: A (standard) trains a small GPT, B (basic) starts a long cell with a CNN")
    answer = await a.run(SETUP.format(device="cuda", seed=11) + "print(torch.cuda.is_available())")
    t.check(
        "torch.cuda.is_available() is True in a kernel without accelerator",
        answer.split() == ["True"],
    )
    t.check(
        "code that has not called a device holds none", (await sessions.of("A"))["devices"] == []
    )
    await a.run(GPT, SECONDS)
    first = await t.step(f"A trains {A_STEPS} steps", a.run(f"train({A_STEPS})", SECONDS))
    a_device = (await sessions.of("A"))["devices"]
    await b.run(SETUP.format(device="cuda", seed=12) + CNN, SECONDS)
    for name in PREMIUM:
        await t.step(f"{name} has started and uses no device yet", sessions.prints(name, "loaded"))
    long_cell = await b.start(PACED.format(steps=B_STEPS, hurry="B.hurry", pause=0.05))
    await t.step("B is in the middle of its cell", printed(long_cell, 20))
    b_device = (await sessions.of("B"))["devices"]
    await t.step("A counts as idle: no call reaches its device", sessions.idles("A"))
    t.say(f"A is idle and keeps {a_device}, B trains on {b_device}")
    t.check("A and B hold one device each", len({*a_device, *b_device}) == 2)

    t.say("Act 2: carol's runs ask for devices and train until they are told to end")
    await carol.put_file("P1.go", "")
    await t.step("P1 gets a device and trains", sessions.trains("P1", PREMIUM_STEPS))
    parked = await sessions.of("A")
    t.say(f"A: {parked['state']}: {parked['reason']}")
    t.check("idle A was parked for P1", parked["device_state"] == "parked")
    t.check("B went on meanwhile", (await sessions.of("B"))["devices"] == b_device)
    await carol.put_file("P2.go", "")
    await t.step("P2 gets a device and trains", sessions.trains("P2", PREMIUM_STEPS))
    waiting = await sessions.wait("B", "waiting")
    t.say(f"B: {waiting['state']}: {await sessions.preempted_for('B')}")
    stopped_at = len(steps_of(long_cell.text))
    t.check(
        f"B was preempted in the middle of its cell (after step {stopped_at} of {B_STEPS})",
        20 <= stopped_at < B_STEPS and not long_cell.done.is_set(),
    )
    await b.put_file("B.hurry", "")
    next_cell = await a.start(UNTIL_FLAG.format(name=a.name))
    await sessions.wait("A", "waiting")

    t.say("Act 3: P1 and P2 end; A's next cell and B's blocked cell go on by themselves")
    # A (standard) is served before B (basic), so the one on B's old device ends first.
    first_to_end, last_to_end = "P2", "P1"
    if (await sessions.of("P1"))["devices"] == b_device:
        first_to_end, last_to_end = last_to_end, first_to_end
    await carol.put_file(f"{first_to_end}.flag", "")
    await t.step("the run on B's old device ends", sessions.end(first_to_end))
    await t.step("A's next cell goes on by itself", printed(next_cell, 1))
    a_now = (await sessions.of("A"))["devices"]
    t.check("B still waits: no device is free", not long_cell.done.is_set())
    await carol.put_file(f"{last_to_end}.flag", "")
    await t.step("the run on A's old device ends", sessions.end(last_to_end))
    b_now = (await sessions.wait("B", "held"))["devices"]
    await a.put_file(f"{a.name}.flag", "")
    await t.step("B's blocked cell goes on by itself and ends", long_cell.wait(SECONDS))
    second = (await t.step("A's cell ends", next_cell.wait(SECONDS))).text
    t.say(f"A went from {a_device} to {a_now}, B from {b_device} to {b_now}")
    t.check("A went on on another device than before", bool(a_now) and a_now != a_device)
    t.check("B went on on another device than before", bool(b_now) and b_now != b_device)

    t.say("Act 4: the same code, uninterrupted, natively on the CPU")
    a_losses = steps_of(first + second)
    a_native, b_native = await asyncio.gather(
        t.step("native run of A", native_losses(GPT, 11, len(a_losses), folder)),
        t.step("native run of B", native_losses(CNN, 12, B_STEPS, folder)),
    )
    t.check(
        f"A's {len(a_native)} losses are bitwise those of the uninterrupted run",
        len(a_losses) > A_STEPS and a_losses == a_native,
    )
    t.check(
        f"B's {len(b_native)} losses are bitwise those of the uninterrupted run",
        len(b_native) == B_STEPS and steps_of(long_cell.text) == b_native,
    )

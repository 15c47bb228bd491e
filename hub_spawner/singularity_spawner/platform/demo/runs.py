"""Batch runs in the tour: submitted as a person does, and the act that is about them alone.

Act 5: R (bob, basic) is one notebook with one long cell. Three premium runs want both devices, one
after the other; each takes R's device in the middle of that cell, and R goes on by itself, though
the server it was submitted from has been stopped. What R leaves is what an uninterrupted run
leaves.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError

from singularity_spawner.platform.platform import Platform
from singularity_spawner.platform.server import Server

from .notebooks import BOTH_DEVICES, CNN, PACED, SETUP, steps_of
from .tour import Sessions, Tour, native_losses

R_SEED = 15
R_STEPS = 600
"""Steps of R's one long cell; it lasts while three runs start one after the other (`PACED`)."""
PREMIUM = ("Q1", "Q2", "Q3")
HURRY = "R.hurry"


async def submit(server: Server, *names: str, options: str) -> list[str]:
    """Type ``jupyter singularity submit`` into a terminal of `server` for the notebooks `names`;
    the sessions' ids."""
    # A login shell's PATH may not have this environment.
    jupyter = Path(sys.prefix, "bin", "jupyter")
    line = " && ".join(
        f"{jupyter} singularity submit {name}.ipynb -o {name}-out.ipynb {options}" for name in names
    )
    code, shown = await server.command(line)
    found = re.findall(r"session ([0-9a-f]{12}) is", shown)
    if code or len(found) != len(names):
        raise SingularityError(f"'{line}' ended with exit code {code}: {shown}")
    return found


async def runs(
    t: Tour, sessions: Sessions, folder: Path, platform: Platform, bob: Server, carol: Server
) -> None:
    """Every claim is a check."""
    t.say("Act 5: bob submits R (basic, one long cell); three premium runs want both devices")
    setup = SETUP.format(device="cuda", seed=R_SEED)
    await bob.put_notebook(
        "R.ipynb", setup, CNN, PACED.format(steps=R_STEPS, hurry=HURRY, pause=0.1)
    )
    for name in PREMIUM:
        await carol.put_notebook(f"{name}.ipynb", BOTH_DEVICES)
    (session,) = await t.step("bob submits R", submit(bob, "R", options="--tier basic"))
    sessions.name("R", session)
    await t.step("R is in the middle of its cell", sessions.trains("R", 10))
    ids = await t.step(
        "carol submits Q1, Q2 and Q3 (premium, 2 devices)",
        submit(carol, *PREMIUM, options="--tier premium --devices 2"),
    )
    for name, premium in zip(PREMIUM, ids, strict=True):
        sessions.name(name, premium)
    await t.step("bob's server is stopped", platform.stop_server("bob"))
    seen = [await preempted(t, sessions, name) for name in PREMIUM]
    hurry(await sessions.of("R"))
    first = await t.step("R goes on and ends by itself", sessions.end("R"))
    t.check(
        f"R was preempted three times in the middle of its cell (after {seen} of {R_STEPS} steps)",
        all(0 < n < R_STEPS for n in seen) and seen == sorted(set(seen)),
    )
    taken = [c for c in await sessions.history("R") if c["rule"] == "preempt.tier"]
    t.check(
        "each time for another premium run, as its history says",
        [change["reason_args"].get("by") for change in taken[: len(PREMIUM)]]
        == [f"carol/{name}.ipynb" for name in PREMIUM],
    )
    interrupted = notebook_at(first)

    t.say("The same notebook once more, with nothing else on the devices")
    url = await platform.start_server("bob", {"tier": "basic", "devices": 1})
    bob = Server(url, await platform.user_token("bob"))
    (again,) = await submit(bob, "R", options="--tier basic")
    sessions.name("R again", again)
    last, native = await asyncio.gather(
        t.step("uninterrupted run of R", sessions.end("R again")),
        t.step("native run of R", native_losses(CNN, R_SEED, R_STEPS, folder)),
    )
    uninterrupted = notebook_at(last)
    counts = [n["metadata"]["singularity"]["preemptions"] for n in (interrupted, uninterrupted)]
    t.check(f"the notebooks say so: preemptions {counts}", counts == [3, 0])
    t.check(
        "R's output notebook equals the uninterrupted one except times and metadata.singularity",
        first["id"] != last["id"] and without_times(interrupted) == without_times(uninterrupted),
    )
    t.check(
        f"R's {len(native)} losses are bitwise those of the native run",
        len(native) == R_STEPS and steps_of(printed_in(interrupted)) == native,
    )


async def preempted(t: Tour, sessions: Sessions, premium: str) -> int:
    """Wait until R gave its device to the run `premium` and got one back; its steps until then."""
    waiting = await t.step(f"R is preempted for {premium}", sessions.wait("R", "waiting"))
    done = await sessions.steps("R")
    why = await sessions.preempted_for("R")
    t.say(f"R: {waiting['state']} after step {done}: {why}")
    await t.step(f"{premium} ends", sessions.end(premium))
    await sessions.wait("R", "held")
    await t.step("R goes on by itself", sessions.trains("R", done + 5))
    return done


def hurry(session: dict[str, Any]) -> None:
    """Let R's cell take no more pauses: what it waited for has happened."""
    Path(session["run"]["folder"], HURRY).touch()


def notebook_at(session: dict[str, Any]) -> dict[str, Any]:
    """The output notebook of a run."""
    found: dict[str, Any] = json.loads(Path(session["run"]["output"]).read_text(encoding="utf-8"))
    return found


def printed_in(notebook: dict[str, Any]) -> str:
    """What its cells printed."""
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", ())]
    return "".join("".join(o["text"]) for o in outputs if o["output_type"] == "stream")


def without_times(notebook: dict[str, Any]) -> dict[str, Any]:
    """`notebook` without the times and without what tells of the session."""
    found = copy.deepcopy(notebook)
    found["metadata"].pop("singularity")
    abouts = [found["metadata"]["papermill"]]
    for cell in found["cells"]:
        cell["metadata"].pop("execution", None)  # nbclient's times
        cell["metadata"].pop("singularity", None)
        abouts.append(cell["metadata"]["papermill"])
    for about in abouts:
        for key in ("start_time", "end_time", "duration"):
            about.pop(key)
    return found

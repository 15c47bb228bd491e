"""Every kind of kernel object that a session can hold comes back, or is refused by name before
anything was taken down. `support.kernel_objects` makes and checks them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.sockets import end_without_trace
from singularity_proxy.errors import ImageFailed, Unavailable
from support import kernel_objects
from support.capsule_returns import back, bring_back, saved
from support.capsules import Places, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

VERDICTS = json.loads(Path(kernel_objects.__file__).with_suffix(".json").read_text())
"""Of each kind, in words as well; docs/reference/kernel-objects.md is made of it."""

REFUSED = {one["kind"]: one["names"] for one in VERDICTS if one["verdict"] == "refused"}
"""Kind -> what the sentence names."""

BACK = [one["kind"] for one in VERDICTS if one["verdict"] == "back"]


def said(log: str, word: str) -> dict[str, str]:
    """Kind -> the rest of the line, of lines that begin with `word`."""
    lines = [line.split(" ", 2) for line in log.splitlines() if line.startswith(f"{word} ")]
    return {name: " ".join(rest) for _, name, *rest in lines}


@pytest.mark.parametrize("name", BACK)
async def test_what_comes_back(name: str, tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.start(sys.executable, "-c", kernel_objects.RUN, name)
        await place.logged("on\n")
        assert said(place.log(), "absent") == {}, "this machine does not permit it"
        folder = tmp_path / "checkpoint"
        record = await saved(place, capsule, folder)
        pids = [member.identity.pid for member in capsule.members()]
        await asyncio.to_thread(end_without_trace, pids)  # as for every suspend
        await capsule.end(0)
        plan = await asyncio.to_thread(reconcile.reconcile, record, **back(place), label="x")
        assert plan.sentences() == []
        capsule = await bring_back(place, folder, plan.plan, record.stopped)
        (place.tmp / "go").touch()
        await place.logged("end\n")
        assert said(place.log(), "wrong") == {}
        assert [*said(place.log(), "ok")] == [name]


async def test_each_kind_has_a_verdict() -> None:
    kinds = [one["kind"] for one in VERDICTS]
    assert sorted(kinds) == sorted(kernel_objects.KINDS)
    assert len(kinds) >= 60


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(name: str, tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.start(sys.executable, "-c", kernel_objects.RUN, name)
        await place.logged("on\n")
        if absent := said(place.log(), "absent"):
            pytest.skip(f"this machine does not permit it: {absent[name]}")
        with pytest.raises((ImageFailed, Unavailable), match=REFUSED[name]) as caught:
            await saved(place, capsule, tmp_path / "checkpoint")
        assert "it goes on" in caught.value.message or "goes on as it was" in caught.value.message
        await asyncio.to_thread(capsule.thaw)
        (place.tmp / "go").touch()
        await place.logged("end\n")
        assert said(place.log(), "wrong") == {}

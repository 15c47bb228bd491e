"""Process images that are proved beside the tree they are of, with the real CRIU."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.namespace import NamespaceCapsule, NamespaceLauncher
from singularity_proxy.capsule.tree import is_stopped, namespace_of
from singularity_proxy.errors import ImageFailed
from support import capsules, kernel_objects, proofs
from support.capsules import Places, needs_criu
from support.matrix import some_of
from support.proofs import BUSY, Taken, fingerprint
from support.sanitizer import build_holder
from support.uids import needs_own_uids, run_without_root

pytestmark = [needs_criu, pytest.mark.asyncio]

VERDICTS = json.loads(Path(kernel_objects.__file__).with_suffix(".json").read_text())
BACK = [one["kind"] for one in VERDICTS if one["verdict"] == "back"]


async def take_busy(place: Places, folder: Path) -> tuple[NamespaceCapsule, Taken]:
    """Start a tree that works all the time, and take an image of it below `folder`; the tree stands
    still."""
    running = await place.python(BUSY)
    await place.logged("ready")
    taken = Taken(place, folder / "taken")
    await taken.take(running)
    return running, taken


async def test_a_proof_touches_nothing_of_the_tree_that_it_is_of(tmp_path: Path) -> None:
    async with Places() as place:
        running = await place.python(BUSY)
        await place.logged("ready")
        own = place.tmp / "own"
        await place.until(lambda: own.exists() and own.stat().st_size > 5)
        taken = Taken(place, tmp_path / "taken")
        await taken.take(running)
        before = fingerprint(place.home), fingerprint(place.folder)
        assert {"counter", "fifo", "named"} <= {p.name for p in place.home.iterdir()}
        capsule = await taken.sealed()
        await taken.prove(capsule)
        assert capsule.frozen
        assert all(is_stopped(m.identity.pid) for m in capsule.members())
        for kind in ("net", "ipc", "mnt", "pid"):
            assert namespace_of(capsule.init.pid, kind) != namespace_of(os.getpid(), kind)
        assert (fingerprint(place.home), fingerprint(place.folder)) == before
        # It writes there all the time when it runs.
        assert (taken.own / "s/tmp/own").stat().st_size == own.stat().st_size > 5
        await capsule.end(0)
        assert (fingerprint(place.home), fingerprint(place.folder)) == before
        lines = (place.home / "counter").read_text().splitlines()
        await asyncio.to_thread(running.thaw)
        await place.until(
            lambda: len((place.home / "counter").read_text().splitlines()) > len(lines) + 20
        )
        now = (place.home / "counter").read_text().splitlines()
        assert now == [str(n + 1) for n in range(len(now))]


@needs_own_uids
async def test_an_agent_that_is_not_root_proves_too(short_dir: Path) -> None:
    namespace.holder_program()  # in a folder that everybody may read
    script = Path(proofs.__file__).with_name("proof_without_root.py")
    found = await asyncio.to_thread(run_without_root, script, short_dir, 120)
    assert {key: found[key] for key in ("user_namespace", "frozen", "unchanged")} == {
        "user_namespace": True,
        "frozen": True,
        "unchanged": True,
    }


async def test_this_machine_says_that_it_can_make_such_capsules() -> None:
    """As the doctor asks; all others here make them."""
    seen = Path("/proc/self/mountinfo")
    mounts = await asyncio.to_thread(seen.read_text)
    assert await asyncio.to_thread(namespace.probe_sealed, namespace.holder_program()) == ""
    assert await asyncio.to_thread(seen.read_text) == mounts


async def test_a_sanitized_holder_makes_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it seals a capsule nor where it lets CRIU in: it would have ended."""
    program = await asyncio.to_thread(build_holder, tmp_path)
    async with Places() as place:
        running, taken = await take_busy(place, tmp_path)
        await asyncio.to_thread(running.thaw)
        user_namespace = running.user_namespace
        launcher = NamespaceLauncher(program, user_namespace=user_namespace)
        monkeypatch.setattr(capsules, "LAUNCHER", launcher)
        monkeypatch.setattr(namespace, "holder_program", lambda: program)
        capsule = await taken.sealed()
        assert taken.rehearsal.views
        assert os.readlink(f"/proc/{capsule.init.pid}/exe") == str(program)
        await taken.prove(capsule)
        assert capsule.watch.alive
        await capsule.end(0)
        assert await asyncio.to_thread(namespace.probe_sealed, program) == ""


async def test_an_image_that_is_not_whole_is_told(tmp_path: Path) -> None:
    async with Places() as place:
        running, taken = await take_busy(place, tmp_path)
        await asyncio.to_thread(running.thaw)
        (taken.image / "pstree.img").unlink()
        capsule = await taken.sealed()
        with pytest.raises(ImageFailed, match="the process image could not be restored: ") as told:
            await taken.prove(capsule)
        assert "\n" not in told.value.message
        await capsule.end(0)
        assert capsule.members() == []


async def test_a_process_too_few_is_told(tmp_path: Path) -> None:
    async with Places() as place:
        _, taken = await take_busy(place, tmp_path)
        taken.processes += 1
        capsule = await taken.sealed()
        with pytest.raises(ImageFailed, match="2 processes came back where the session had 3"):
            await taken.prove(capsule)
        await capsule.end(0)


@pytest.mark.parametrize("name", some_of(BACK, 6))
async def test_every_kind_of_object_is_proved_and_stays_what_it_is(
    name: str, tmp_path: Path
) -> None:
    async with Places() as place:
        running = await place.start(sys.executable, "-c", kernel_objects.RUN, name)
        await place.logged("on\n")
        taken = Taken(place, tmp_path / "taken")
        await taken.take(running)
        capsule = await taken.sealed()
        await taken.prove(capsule)
        await capsule.end(0)
        await asyncio.to_thread(running.thaw)
        (place.tmp / "go").touch()
        await place.logged("end\n")
        lines = place.log().splitlines()
        assert [line for line in lines if line.startswith(("ok", "wrong"))] == [f"ok {name}"]

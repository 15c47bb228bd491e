"""A probe that was killed, or met a full machine, is made again and never kept as the answer."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
from singularity_proxy import probes
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images import criu
from singularity_proxy.errors import Unavailable
from singularity_proxy.probes import CutShort
from singularity_scheduler.agent import processes
from singularity_scheduler.agent.devices import probe
from singularity_scheduler.agent.ledger import Ledger
from singularity_scheduler.agent.processes import ask_process
from singularity_scheduler.agent.rights import identity
from singularity_scheduler.agent.rights.identity import Identities, parse_uid_range
from singularity_scheduler.agent.sessions import capsules
from singularity_scheduler.agent.sessions.capsules import ProcessImages, choose_launcher

KILLED = criu.Criu(False, "/criu", None, "it was killed.", conclusive=False)
WORKS = criu.Criu(True, "/criu", "4.2.1", "CRIU 4.2.1 can dump and restore processes here.")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PAUSE_S", 0.0)
    monkeypatch.setattr(probes.time, "sleep", lambda _: None)


def kills_itself(folder: Path, times: int) -> list[str]:
    """A command that is killed at its first `times` starts, and prints "here" at the next ones."""
    code = (
        "import os, sys\n"
        f"name = {str(folder)!r} + '/' + str(len(os.listdir({str(folder)!r})))\n"
        f"if len(os.listdir({str(folder)!r})) < {times}:\n"
        "    open(name, 'w').close(); os.kill(os.getpid(), 9)\n"
        "print('here')"
    )
    return [sys.executable, "-c", code]


@pytest.mark.asyncio
async def test_the_answer_about_process_images_is_kept_only_when_it_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [KILLED, WORKS]
    monkeypatch.setattr(criu, "probe", lambda: answers.pop(0))
    images = ProcessImages()
    assert await images.machine() is None
    assert answers == [WORKS]
    found = await images.capability()
    assert (found["available"], found["reason"]) == (True, WORKS.reason)
    assert found["machine"] is not None
    assert (await images.capability())["available"]  # and nobody is asked again
    assert answers == []


@pytest.mark.asyncio
@pytest.mark.parametrize("times", [0, 1, 2])
async def test_a_process_that_is_killed_is_asked_again(tmp_path: Path, times: int) -> None:
    (tmp_path / "starts").mkdir()
    command = kills_itself(tmp_path / "starts", times)
    assert await ask_process(command, str(tmp_path)) == (0, "here\n")


@pytest.mark.asyncio
async def test_a_process_that_is_killed_each_time_has_not_answered(tmp_path: Path) -> None:
    (tmp_path / "starts").mkdir()
    with pytest.raises(CutShort, match="ended by signal 9"):
        await ask_process(kills_itself(tmp_path / "starts", 9), str(tmp_path))
    with pytest.raises(CutShort, match="did not answer in time"):
        await ask_process(["/bin/sleep", "60"], str(tmp_path), timeout=0.05)


@pytest.mark.asyncio
async def test_users_are_not_thrown_together_by_a_killed_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    async def ask(*_: object, **__: object) -> tuple[int, str]:
        if not codes:
            raise CutShort("it was ended by signal 9 (Killed)")
        return codes.pop(), ""

    monkeypatch.setattr(identity, "ask_process", ask)
    ledger = Ledger(str(tmp_path / "agent.sqlite"))
    try:
        uids = parse_uid_range("1900000000-1900000009")
        found = Identities(ledger, uids, str(tmp_path), euid=0)
        with pytest.raises(Unavailable, match="could not be found out"):
            await found.of("alice")
        codes.append(0)
        assert (await found.of("alice")).mapped
    finally:
        ledger.close()


@pytest.mark.asyncio
async def test_no_node_is_taken_for_one_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object, **__: object) -> tuple[int, str]:
        raise CutShort("it did not answer in time")

    monkeypatch.setattr(probe, "_driver_present", lambda: True)
    monkeypatch.setattr(probe, "ask_process", ask)
    with pytest.raises(Unavailable, match="could not be asked which GPUs"):
        await probe.probe_devices("auto", 0, 1 << 30, str(tmp_path))


@pytest.mark.asyncio
@pytest.mark.parametrize("times", [1, 9])
async def test_a_killed_capsule_says_nothing_about_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    (tmp_path / "starts").mkdir()
    holder = tmp_path / "holder"
    words = kills_itself(tmp_path / "starts", times)
    holder.write_text(f"#!{words[0]}\n{words[2]}\n")
    holder.chmod(0o755)
    monkeypatch.setattr(namespace, "holder_program", lambda: holder)
    monkeypatch.setattr(capsules, "ProcessImages", lambda *_: None)
    if times == 1:
        launcher, _ = await choose_launcher("auto")
        assert isinstance(launcher, namespace.NamespaceLauncher)
    else:
        with pytest.raises(Unavailable, match="could not be found out: it was ended by signal 9"):
            await choose_launcher("auto")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN])
def test_a_full_machine_is_no_answer(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(probes.subprocess, "run", run)
    with pytest.raises(CutShort, match="could not be started"):
        probes.run_probe(["x"], 1)

"""Content identity, sharing and squashing: several ranks of one group on one device proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import matrix, sanitizer, squash_cases, squash_programs
from support.proxy_collectives import make_ranks
from support.proxy_device import Proxies

RANDOM_PROGRAMS = range(40) if matrix.is_full() else range(6)


def script(module: Any, request: Any = None, env: dict[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, str(module.__file__)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": f"{Path(module.__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}",
            "OPENBLAS_NUM_THREADS": "1",
            **(env or {}),
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def execute(tmp_path: Path, *requests: dict[str, Any], env: Any = None) -> list[dict[str, Any]]:
    """Random programs, each in a process of its own."""
    files = [tmp_path / f"{i}.json" for i in range(len(requests))]
    asked = [{**one, "into": str(file)} for one, file in zip(requests, files, strict=True)]
    assert script(squash_programs, asked, env)["statuses"] == [0] * len(files)
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def found() -> dict[str, bool]:
    """What identities say of each case of the table."""
    answer: dict[str, bool] = script(squash_cases)
    return answer


@pytest.mark.parametrize("name", squash_cases.CASES)
def test_the_rules_of_identity(found: dict[str, bool], name: str) -> None:
    assert found[name] == squash_cases.CASES[name].equal


@pytest.mark.timeout(300)
def test_random_programs_end_the_same_with_and_without_squashing(tmp_path: Path) -> None:
    requests = [
        {
            "seed": seed,
            "steps": 150,
            "ranks": 2 + seed % 3,
            "squash": squash,
            "check_every": seed % 4,
        }
        for seed in RANDOM_PROGRAMS
        for squash in (True, False)
    ]
    answers = execute(tmp_path, *requests)
    spared = 0
    for request, squashed, alone in zip(requests[::2], answers[::2], answers[1::2], strict=True):
        assert squashed["failures"] == alone["failures"] == [], request
        assert squashed["states"] == alone["states"], request
        assert squashed["squashing"]["why_off"] == "", request
        assert alone["squashing"]["state"] == "off"
        assert alone["squashing"]["skipped"] == 0
        spared += squashed["squashing"]["skipped"]
    assert spared > 10 * len(RANDOM_PROGRAMS)


@pytest.mark.timeout(300)
def test_a_wrong_identity_is_found_and_changes_nothing(tmp_path: Path) -> None:
    """Scalars that do not count: reported at the first comparison, before anything was shared."""
    base = {"seed": 3, "steps": 150, "ranks": 3, "check_every": 1}
    broken, alone = execute(
        tmp_path,
        {**base, "squash": True, "broken": "aten::mul.Scalar"},
        {**base, "squash": False},
    )
    assert broken["squashing"]["state"] == "off"
    why = broken["squashing"]["why_off"]
    assert "should be equal and are not" in why
    assert "(384 bytes, last written by aten::" in why
    assert broken["failures"] == []
    assert broken["states"] == alone["states"]


@pytest.mark.timeout(300)
def test_an_identity_that_goes_wrong_later_is_found_by_the_next_check(tmp_path: Path) -> None:
    """When storages are shared and calls spared already."""
    base: dict[str, Any] = {"seed": 5, "steps": 150, "ranks": 3, "check_every": 3}
    base["broken_late"] = "aten::mul.Scalar"
    (broken,) = execute(tmp_path, {**base, "squash": True})
    after = broken["late_after"]
    (alone,) = execute(tmp_path, {**base, "squash": False, "late_after": after})
    assert broken["before"]["state"] == "proven"
    assert broken["before"]["why_off"] == ""
    assert broken["before"]["skipped"] > 0
    assert broken["squashing"]["state"] == "off"
    why = broken["squashing"]["why_off"]
    assert "(384 bytes, last written by aten::mul) should be equal and are not" in why
    assert broken["failures"] == alone["failures"] == []
    assert broken["states"] == alone["states"]


MIB = 1 << 20
TRAINING = {"seed": 0, "steps": 8, "ranks": 4, "train": True, "size": MIB // 4, "check_every": 3}


@pytest.mark.timeout(300)
def test_replicas_are_held_once_and_updated_once(tmp_path: Path) -> None:
    """Four parameters and four states of 1 MiB, in four ranks."""
    squashed, alone = execute(
        tmp_path, *({**TRAINING, "check_every": 0, "squash": squash} for squash in (True, False))
    )
    assert squashed["states"] == alone["states"]
    assert squashed["failures"] == alone["failures"] == []
    # At the end: parameters, states, and the data of each rank. A busy machine may part the ranks.
    assert alone["memory"][0] >= 4 * 9 * MIB
    assert squashed["memory"][0] <= alone["memory"][0] - 8 * MIB
    assert squashed["squashing"]["skipped"] == 3 * squashed["squashing"]["executed"] > 0


@pytest.mark.timeout(300)
def test_memory_of_waiting_ranks_makes_room(tmp_path: Path) -> None:
    """All ranks' replicas, 36 MiB and what collectives need, on a device of 30 MiB."""
    small, alone = execute(
        tmp_path,
        {**TRAINING, "squash": True, "capacity": 30 * MIB},
        {**TRAINING, "squash": False},
    )
    assert small["failures"] == []
    assert small["states"] == alone["states"]
    assert small["squashing"]["swapped_out_bytes"] > 0
    assert small["squashing"]["swapped_back_bytes"] > 0
    assert small["memory"][1] <= 30 * MIB
    assert alone["memory"][1] > 36 * MIB


@pytest.mark.timeout(sanitizer.BUILD_SECONDS + 200)
def test_squashing_in_a_sanitized_process(tmp_path: Path) -> None:
    environment = sanitizer.environment()
    squashed, alone = execute(
        tmp_path,
        *({"seed": 11, "steps": 120, "ranks": 3, "squash": squash} for squash in (True, False)),
        env=environment,
    )
    assert squashed["states"] == alone["states"]


@pytest.mark.timeout(200)
def test_a_killed_proxy_rebuilds_each_rank_from_its_own_journal(
    shm: Path, proxies: Proxies
) -> None:
    steps = squash_programs.program(5, 120)
    states = []
    for kill in (False, True):
        folder = shm / str(kill)
        folder.mkdir()
        ranks = make_ranks(folder, 3)
        proxy = proxies.bound()
        for rank in ranks:
            proxy.attach(rank.client, ring_id=f"{kill}{rank.rank}", journal=64 << 20)
        issues = squash_programs.issue(ranks, steps)
        for rank in ranks:
            rank.client.sync()
        squashing = proxy.call("stats")["squashing"]
        assert squashing["why_off"] == ""
        assert squashing["skipped"] > 0
        if kill:
            proxy.kill()
            proxy = proxies.bound(epoch=2)
            for rank in ranks:
                proxy.attach(rank.client, ring_id=f"{kill}{rank.rank}", journal=64 << 20, epoch=2)
        states.append([one.state() for one in issues])
        for rank in ranks:
            rank.client.close()
    assert states[0] == states[1]


def test_what_identity_costs_a_record() -> None:
    """The figure of `./dev bench elastic`; here only that it is measured, and no disaster."""
    from singularity_proxy import build

    assert 0 < min(build.load().identity_ns(200_000) for _ in range(3)) < 2_000

"""What a server knows of who is going to stop it, or its kernels."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from singularity_labext.planned import AGAIN_S, UNTIL, Kernel, Rules, again_s, planned, until_of

AT = datetime(2026, 1, 1, 10, 0, tzinfo=timezone.utc)
KERNEL = Kernel("k1", AT, busy=False, connections=1, limit_s=3600)
CULLS = Rules(culls=True, culls_connected=True)


def test_an_old_server_is_stopped_whatever_its_kernels_do() -> None:
    rules = Rules(until=AT.timestamp() + 90, hibernates=True)
    plan = planned([replace(KERNEL, busy=True)], rules)["k1"]
    assert (plan["what"], plan["rule"]) == ("suspend", "server.age")
    assert plan["at"] == "2026-01-01T10:01:30.000+00:00"
    assert planned([KERNEL], replace(rules, hibernates=False))["k1"]["what"] == "end"
    assert again_s(rules) is None, "that time does not change"


def test_an_idle_kernel_is_shut_down_where_jupyter_culls_those_with_a_page() -> None:
    plan = planned([KERNEL], CULLS)["k1"]
    assert (plan["what"], plan["at"]) == ("end", "2026-01-01T11:00:00.000+00:00")
    assert "idle for 60 min (cull_idle_timeout)" in plan["why"]
    assert again_s(CULLS) == AGAIN_S


@pytest.mark.parametrize(
    ("kernel", "rules"),
    [
        (KERNEL, Rules()),
        (KERNEL, Rules(culls=True)),
        (replace(KERNEL, busy=True), CULLS),
        (replace(KERNEL, limit_s=0), CULLS),
    ],
    ids=["nobody culls", "it has a page", "it is busy", "its kernelspec says never"],
)
def test_nothing_is_planned_for_kernels_that_are_spared(kernel: Kernel, rules: Rules) -> None:
    assert planned([kernel], rules) == {}
    assert again_s(Rules(culls=True)) is None


def test_what_is_first_is_told() -> None:
    both = replace(CULLS, until=AT.timestamp() + 7200)
    assert planned([KERNEL], both)["k1"]["rule"] == "kernel.idle"
    assert planned([replace(KERNEL, limit_s=9000)], both)["k1"]["rule"] == "server.age"
    busy = replace(KERNEL, busy=True)
    assert planned([busy], replace(both, culls_busy=True))["k1"]["rule"] == "kernel.idle"


def test_the_time_comes_from_the_environment() -> None:
    assert until_of({UNTIL: "1767261600"}) == 1767261600.0
    assert until_of({}) is None
    assert until_of({UNTIL: "soon"}) is None

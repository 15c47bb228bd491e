"""Accounting: exact figures from histories, in part for part of the time, and as CSV."""

from __future__ import annotations

import csv
import io
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest
from singularity_scheduler.client.usage import BY, FIGURES, columns, to_csv
from singularity_scheduler.core.state.usage import DAY_S, NAMES, SPENT, Meter, Usage
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Tier
from singularity_scheduler.service.ledger import accounts
from singularity_scheduler.service.ledger.rows import MAX_EXPERIMENT, experiment_of, session_to_row
from support.scheduler_core import World, used

SCRIPT = [
    (100.0, "queued", "none", "submit"),
    (130.0, "starting", "none", "queue.admit"),
    (135.0, "live", "none", "process.live"),
    (140.0, "live", "waiting", "device.lazy"),
    (150.0, "live", "attaching", "queue.grant"),
    (152.0, "live", "held", "device.attached"),
    (200.0, "live", "parking", "preempt.tier"),
    (203.0, "live", "parked", "device.parked"),
    (223.0, "live", "waiting", "device.lazy"),
    (233.0, "live", "attaching", "queue.grant"),
    (234.0, "live", "held", "device.attached"),
    (300.0, "suspending", "held", "user.suspend"),
    (304.0, "suspended", "parked", "process.suspended"),
    (404.0, "resuming", "parked", "queue.return"),
    (410.0, "live", "parked", "process.resumed"),
    (411.0, "live", "waiting", "device.lazy"),
    (412.0, "live", "attaching", "queue.grant"),
    (413.0, "live", "held", "device.attached"),
    (500.0, "completed", "parking", "process.exited"),
    (502.0, "completed", "none", "process.ended"),
]
"""A run of two devices that was queued, preempted, suspended and came back."""

WHOLE = Usage(
    sessions=1,
    queued_s=30.0,
    waiting_s=10.0 + 10.0 + 1.0,
    device_s=2 * (53.0 + 71.0 + 90.0),
    parked_s=20.0 + 1.0,
    suspended_s=100.0 + 6.0,
    preemptions=1,
)


def metered(
    since: float, until: float, daily: bool = False, shift: float = 0.0
) -> dict[int, Usage]:
    meter = Meter(2, since, until, daily)
    for at, *rest in SCRIPT:
        if at + shift < until:
            meter.line(at + shift, *rest)
    meter.close(until)
    return meter.found


def test_every_second_of_a_history_counts_for_what_it_was() -> None:
    assert metered(0.0, 1000.0) == {0: WHOLE}


def test_what_crosses_the_boundary_counts_in_part() -> None:
    assert metered(160.0, 210.0) == {
        0: Usage(sessions=1, device_s=2 * 43.0, parked_s=7.0, preemptions=1)
    }
    assert metered(240.0, 250.0) == {0: Usage(sessions=1, device_s=20.0)}
    assert metered(136.0, 139.0) == {0: Usage(sessions=1)}  # it was there and used nothing
    assert metered(600.0, 700.0) == {}
    assert metered(0.0, 100.0) == {}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(50, 550), max_size=6))
def test_parts_add_up_to_the_whole(cuts: list[int]) -> None:
    edges = [0.0, *map(float, sorted(set(cuts))), 1000.0]
    total = Usage()
    for since, until in pairwise(edges):
        for usage in metered(since, until).values():
            total.add(usage)
    assert replace(total, sessions=1) == WHOLE


def test_a_day_ends_at_midnight_in_utc() -> None:
    midnight = 3 * DAY_S
    found = metered(0.0, 10 * DAY_S, daily=True, shift=midnight - 240.0)
    assert set(found) == {2, 3}
    assert found[2] == Usage(1, 30.0, 20.0, 2 * (53.0 + 7.0), 20.0, 0.0, 1)
    total = Usage()
    for usage in found.values():
        total.add(usage)
    assert replace(total, sessions=1) == WHOLE


def test_a_clock_that_was_set_back_counts_nothing_twice() -> None:
    meter = Meter(1, 0.0, 1000.0)
    for at, device in ((100.0, "held"), (200.0, "held"), (150.0, "parked"), (160.0, "held")):
        meter.line(at, "live", device, "recover")
    meter.close(300.0)
    assert meter.found == {0: Usage(sessions=1, device_s=200.0)}


def test_checkpoints_count_when_they_were_made() -> None:
    meter = Meter(1, 0.0, 2 * DAY_S, daily=True)
    meter.line(10.0, "live", "none", "process.live")
    meter.checkpoint(20.0, 100, 30)
    meter.checkpoint(DAY_S + 1.0, 100, 5)
    meter.close(DAY_S + 10.0)
    assert [(u.checkpoints, u.stored_bytes, u.sent_bytes) for u in meter.found.values()] == [
        (1, 100, 30),
        (1, 100, 5),
    ]


def test_only_devices_that_were_taken_for_others_count_as_preemptions() -> None:
    world = World(1)
    world.holding("low", Tier.BASIC)
    world.computing("run", Tier.PREMIUM)  # takes them
    world.do(ev.ParkAsked("run", "alice"))  # its own wish
    world.answer()
    world.need("low")
    world.answer()
    world.do(ev.PreemptAsked("low", "root"))
    world.answer()
    assert used(world).preemptions == 2
    assert used(world).device_s == world.leased_s


@pytest.mark.parametrize("seed", range(5))
def test_histories_tell_every_second_under_a_lease(seed: int) -> None:
    """Also cut in two anywhere; the state machine of the policy's properties checks it for every
    kind of trouble."""
    random_, world, at_cut = random.Random(seed), World(3), None
    for number in range(60):
        sid = random_.choice([*world.state.sessions, ""])
        what = random_.choice(["new", "need", "idle", "end", "park", "time", "answer", "answer"])
        world.now += random_.random() * 50 if what == "time" else 0.0
        if what == "new" or not sid:
            world.create(f"s{number}", random_.choice(list(Tier)), random_.randint(1, 3))
        elif what == "answer":
            world.answer()
        elif what == "need" and not world[sid].final:
            world.need(sid)
        elif what == "idle" and not world[sid].final:
            world.idle(sid)
        elif what == "end":
            world.do(ev.EndAsked(sid, "alice"))
        elif what == "park" and world[sid].word == "running":
            world.do(ev.ParkAsked(sid, "alice"))
        if number == 30:
            at_cut = world.now, world.leased_s
    world.do(ev.Tick("local"))  # counts up to now
    assert at_cut is not None
    cut, before = at_cut
    assert world.leased_s > before > 0
    assert used(world).device_s == pytest.approx(world.leased_s)
    assert used(world, until=cut).device_s == pytest.approx(before)
    assert used(world, since=cut).device_s == pytest.approx(world.leased_s - before)


def test_every_state_is_spent_somehow_and_every_figure_has_its_words() -> None:
    assert set(SPENT.values()) - {"over", ""} == {n for n in NAMES if n.endswith("_s")}
    assert set(FIGURES) == set(NAMES)


# ---- the time that is asked for --------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, (1_000_000.0 - 7 * DAY_S, 1_000_000.0)),
        ("900000", "950000.5", (900_000.0, 950_000.5)),
        ("1970-01-11", "1970-01-12T00:00:00Z", (10 * DAY_S, 11 * DAY_S)),
        ("1970-01-11T02:00:00+02:00", None, (10 * DAY_S, 1_000_000.0)),
        ("-1e300", "1e300", (0.0, 1_000_000.0)),
        (None, "2000000", (1_000_000.0 - 7 * DAY_S, 1_000_000.0)),  # what is not over yet
    ],
)
def test_windows(since: Any, until: Any, expected: tuple[float, float]) -> None:
    found = accounts.window(since, until, 1_000_000.0)
    assert (found.since, found.until) == expected


@pytest.mark.parametrize(
    ("since", "until", "said"),
    [
        ("yesterday", None, "since must be a time"),
        (None, "1e9999x", "until must be a time"),
        ("nan", None, "since must be a time"),
        ("inf", None, "since must be a time"),
        ("500", "400", "since must be before until"),
        ("2000000", None, "since must be before until, and before now"),
    ],
)
def test_windows_that_cannot_be(since: Any, until: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        accounts.window(since, until, 1_000_000.0)


# ---- experiments and CSV ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ("{}", ""),
        ('{"experiment_name": "lr sweep"}', "lr sweep"),
        ('{"experiment_name": 5}', ""),
        ('{"tags": {"experiment_name": "x"}}', ""),
        ('{"experiment_name": "a\\u0000b\\n"}', "ab"),
        ('{"experiment_name": "' + "x" * 300 + '"}', "x" * MAX_EXPERIMENT),
    ],
)
def test_the_experiment_of_a_run(metadata: str, name: str) -> None:
    assert experiment_of(metadata) == name
    world = World(1)
    view = replace(world.create("a"), run=BatchRun("/n.ipynb", "/o.ipynb", metadata=metadata))
    assert session_to_row(view)["experiment"] == name


@pytest.mark.parametrize("by", BY)
def test_csv_has_the_same_figures_under_the_same_names(by: str) -> None:
    row = {name: f"={name}" for name in columns(by)} | dict.fromkeys(FIGURES, 7)
    header, line = csv.reader(io.StringIO(to_csv(by, [row])))
    assert tuple(header) == columns(by)
    assert set(line[-len(FIGURES) :]) == {"7"}
    assert line[0] == f"'={header[0]}"  # no formula for a spreadsheet
    assert to_csv(by, [], header=False) == ""


def test_csv_quotes_what_names_may_contain() -> None:
    text = to_csv("user", [{"user": 'a "b",\nc', "device_s": 1.5}, {"user": None}])
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [(r["user"], r["device_s"]) for r in rows] == [('a "b",\nc', "1.5"), ("", "")]

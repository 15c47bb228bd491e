"""What the dashboard's pages show, as pure functions: the map at 10,000 devices, the queue, a day,
its pictures, and logins."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from singularity_proxy.errors import Unavailable
from singularity_scheduler.cli import COMMANDS
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.devices import DeviceMark, DeviceView
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import Abilities, SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import Kind, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.service.dashboard import charts
from singularity_scheduler.service.dashboard.cluster_map import (
    NODES_PER_PAGE,
    SQUARES_PER_NODE,
    Doing,
    Only,
    Use,
    cluster_map,
    natural,
)
from singularity_scheduler.service.dashboard.logins import Logins
from singularity_scheduler.service.dashboard.pace import GAP_S, LONGEST_S, SHARE, Pace
from singularity_scheduler.service.dashboard.past import Past
from singularity_scheduler.service.dashboard.queue_rows import (
    ROWS_PER_PAGE,
    queue,
    session_row,
    waiting_by_tier,
)
from singularity_scheduler.service.dashboard.render import count, environment
from singularity_scheduler.service.dashboard.series import BUCKETS, WIDTH_S, beginning, day_of
from singularity_scheduler.service.ledger.ledger import Ledger
from singularity_scheduler.service.ledger.occupancy_rows import BEFORE, Shift

NOW = 1_800_000_000.0

WAITING = 2000
"""Sessions that wait in the large state."""

PAGE_BYTES = 200_000
PAGE_S = 2.0
"""Largest page, and the most that a thread computes for it, on a slow machine."""


def session(
    number: int, node: str, devices: tuple[str, ...], tier: Tier = Tier.STANDARD, **more: Any
) -> SessionView:
    held = DeviceState.HELD if devices else DeviceState.NONE
    return SessionView(
        **{
            "id": f"s{number}",
            "user": f"user-{number % 100}",
            "kind": Kind.BATCH,
            "name": f"train-{number}",
            "tier": tier,
            "virtual_devices": max(1, len(devices)),
            "node": node,
            "created_at": NOW - number,
            "updated_at": NOW - number,
            "process_state": ProcessState.LIVE,
            "device_state": held,
            "devices": devices,
            "why": because("runs", number=1, attempts=1),
            **more,
        }
    )


def cluster(nodes: int, devices: int, clusters: int = 1) -> ClusterState:
    """Nodes without sessions."""
    state = ClusterState()
    for number in range(nodes):
        node = state.node(f"node-{number}")
        node.connected = True
        node.abilities = Abilities(cluster=f"rack-{number % clusters}")
        node.devices = {
            f"cuda:{n}": DeviceView(f"cuda:{n}", node.id, "cuda", 80 << 30) for n in range(devices)
        }
    return state


@pytest.fixture(scope="module")
def large() -> ClusterState:
    """10,000 devices of 1,250 nodes in 10 clusters, 9,000 of them held, and many who wait."""
    state = cluster(1250, 8, 10)
    tiers = list(Tier)
    views = [
        session(8 * n + d, f"node-{n}", (f"cuda:{d}",), tiers[(n + d) % 3])
        for n in range(1125)
        for d in range(8)
    ]
    views += [
        session(
            10_000 + n,
            f"node-{n % 1250}",
            (),
            tiers[n % 3],
            device_state=DeviceState.WAITING,
            waiting_since=NOW - n,
            queue_order=n,
        )
        for n in range(WAITING)
    ]
    state.load(views)
    state.latest = NOW
    return state


def rendered(template: str, state: ClusterState, **values: Any) -> str:
    """A page as an administrator gets it."""
    return (
        environment()
        .get_template(template)
        .render(
            base="/d/",
            hub="/hub/",
            user="root",
            admin=True,
            xsrf="x",
            path="map",
            now=NOW,
            standing="",
            link=lambda path, **query: f"/d/{path}?{query}",
            node_link=lambda name: f"/d/nodes/{name}",
            waiting=waiting_by_tier(state),
            sessions=len(state.sessions),
            **values,
        )
    )


def test_the_map_of_10_000_devices_is_sums_first(large: ClusterState) -> None:
    began = time.thread_time()
    found = cluster_map(large)
    page = rendered("map.html", large, map=found)
    took = time.thread_time() - began
    assert (found.total.devices, found.total.nodes, found.nodes) == (10_000, 1250, ())
    assert [row.name for row in found.clusters] == [f"rack-{n}" for n in range(10)]
    assert sum(part.count for row in found.clusters for part in row.parts) == 10_000
    assert found.total.summary == (
        "10000 devices: 3000 premium, 3000 standard, 3000 basic, 1000 free"
    )
    assert sum(part.length for part in found.total.parts) == pytest.approx(100, abs=0.01)
    assert "Choose a cluster" in page
    assert len(page) < 20_000
    assert took < PAGE_S, f"{took:.2f} s"


def test_a_cluster_of_many_nodes_comes_in_pages(large: ClusterState) -> None:
    began = time.thread_time()
    first = cluster_map(large, "rack-0")
    page = rendered("map.html", large, map=first)
    took = time.thread_time() - began
    assert (first.found, first.pages, len(first.nodes)) == (125, 3, NODES_PER_PAGE)
    assert len(page) < PAGE_BYTES, len(page)
    assert took < PAGE_S, f"{took:.2f} s"
    names = [n.id for number in (1, 2, 3) for n in cluster_map(large, "rack-0", page=number).nodes]
    assert names == sorted(names, key=natural)
    assert len(set(names)) == 125
    assert cluster_map(large, "rack-0", page=99).page == 3
    free = cluster_map(large, "rack-0", Only.FREE)
    assert free.found == 12
    assert {one.use for node in free.nodes for one in node.squares} == {Use.FREE}
    assert cluster_map(large, "rack-0", Only.TROUBLE).found == 0


def test_a_queue_of_many_works_out_one_page(large: ClusterState) -> None:
    began = time.thread_time()
    found = queue(large, NOW)
    page = rendered("queue.html", large, queue=found, tier="")
    took = time.thread_time() - began
    assert found.found == WAITING
    assert (len(found.rows), found.pages) == (ROWS_PER_PAGE, WAITING // ROWS_PER_PAGE)
    assert {row.view.tier for row in found.rows} == {Tier.PREMIUM}
    waits = [row.waited_s for row in found.rows]
    assert waits == sorted(waits, reverse=True)
    assert sum(found.of_tier.values()) == WAITING
    assert waiting_by_tier(large) == found.of_tier
    assert len(page) < PAGE_BYTES
    assert took < PAGE_S, f"{took:.2f} s"
    own = queue(large, NOW, "user-7", tier="basic")
    assert {row.view.user for row in own.rows} == {"user-7"}
    assert {row.view.tier for row in own.rows} == {Tier.BASIC}


def test_a_row_says_whether_its_newest_checkpoint_comes_back() -> None:
    state = cluster(1, 1)
    stored = CheckpointRef("k1", NOW - 600, 2048, "process", "good")
    tried = replace(stored, proof_at=NOW - 120)
    failed = replace(tried, proof_fault="a file is gone")
    said = [
        session_row(state, session(1, "node-0", (), checkpoints=(one,)), NOW).checkpoint
        for one in (stored, tried, failed)
    ]
    assert said == [
        '"good", 10 min ago, 2 KiB',
        '"good", 10 min ago, 2 KiB, proved 2 min ago',
        '"good", 10 min ago, 2 KiB, could not be proved: a file is gone',
    ]


def test_a_row_says_how_many_devices_stand_for_how_many() -> None:
    state = cluster(1, 4)
    shared = session(1, "node-0", ("cuda:0", "cuda:1", "cuda:0", "cuda:1"))
    apart = session(2, "node-0", ("cuda:2", "cuda:3"))
    state.load([shared, apart])
    assert session_row(state, shared, NOW).where == "node-0 cuda:0, cuda:1 for 4 virtual"
    assert session_row(state, apart, NOW).where == "node-0 cuda:2, cuda:3"


def test_the_commands_that_pages_name_are_there() -> None:
    templates = environment().loader
    assert templates is not None
    named = {
        word
        for name in templates.list_templates()
        for word in re.findall(
            r"jupyter singularity ([\w-]+)", templates.get_source(environment(), name)[0]
        )
    }
    assert named
    assert named <= COMMANDS.keys()


def test_a_square_says_what_its_device_does() -> None:
    state = cluster(1, 7)
    node = state.nodes["node-0"]
    state.load(
        [
            session(1, "node-0", ("cuda:0",), Tier.PREMIUM),
            session(2, "node-0", ("cuda:1",), Tier.BASIC, device_state=DeviceState.PARKING),
            replace(session(3, "node-0", ("cuda:2",)), unused_since=NOW - 60),
        ],
        [DeviceMark("node-0", "cuda:3", "cuda:3", True, "root", "hot")],
    )
    [row] = cluster_map(state).nodes
    assert [(one.use, one.doing) for one in row.squares] == [
        (Use.PREMIUM, Doing.WORKING),
        (Use.BASIC, Doing.MOVING),
        (Use.STANDARD, Doing.IDLE),
        (Use.DRAINED, None),
        *[(Use.FREE, None)] * 3,
    ]
    assert row.squares[0].title == "cuda:0: premium, user-1/train-1, in use"
    assert row.summary == "7 devices: 1 premium, 1 standard, 1 basic, 3 free, 1 drained"
    assert cluster_map(state, only=Only.TROUBLE).found == 1
    node.duty = replace(node.duty, duty=NodeDuty.CORDONED, by="root")
    [row] = cluster_map(state).nodes
    assert [one.use for one in row.squares[4:]] == [Use.CLOSED] * 3
    assert row.why == "is cordoned by root"
    node.connected = False
    [row] = cluster_map(state).nodes
    assert {one.use for one in row.squares} == {Use.AWAY}


def test_a_node_of_very_many_devices_shows_some_on_the_map() -> None:
    [row] = cluster_map(cluster(1, 100)).nodes
    assert (len(row.squares), row.more) == (SQUARES_PER_NODE, 100 - SQUARES_PER_NODE)


def test_a_map_without_nodes_says_so() -> None:
    state = ClusterState()
    assert "No node has connected so far" in rendered("map.html", state, map=cluster_map(state))


def test_names_sort_as_people_count() -> None:
    names = ["node-10", "node-9", "a", "node-1", "9", "10", "node-", "²"]
    assert sorted(names, key=natural)[:2] == ["9", "10"]
    assert [n for n in sorted(names, key=natural) if n.startswith("node-")] == [
        "node-",
        "node-1",
        "node-9",
        "node-10",
    ]


# -- a day ----------------------------------------------------------------------------------


def test_a_day_is_the_area_below_what_changed() -> None:
    now = beginning(NOW) + BUCKETS * WIDTH_S - 900
    hour = 2 * WIDTH_S
    at = 3 * WIDTH_S + 600
    day = day_of(
        [
            Shift("basic", BEFORE, 4.0, 0.0, 1.0, 0.0, 3),
            Shift("basic", 3, 2.0, 2.0 * at, -1.0, -1.0 * at, 1),
            Shift("premium", BUCKETS - 1, 8.0, 8.0 * (BUCKETS - 1) * WIDTH_S, 0.0, 0.0, 0),
        ],
        now,
    )
    assert day.buckets[0].served("basic") == 4.0
    assert day.buckets[0].tiers["basic"].attained == pytest.approx(0.8)
    assert day.buckets[3].served("basic") == pytest.approx(4 + 2 * 1200 / 1800)
    assert day.buckets[3].waiting("basic") == pytest.approx(600 / 1800)
    assert day.buckets[4].served("basic") == 6.0
    assert day.buckets[4].tiers["basic"].attained == 1.0
    assert day.buckets[-1].seconds == 900
    assert day.buckets[-1].served("premium") == 8.0
    assert day.of("premium").served_s == 8.0 * 900
    assert day.of("basic").taken == 1, "what was before the day is not of it"
    assert day.of("standard").attained is None
    assert day.of("basic").waiting_s == pytest.approx(1.5 * hour + 600)


def test_a_day_of_nothing_has_no_bars_and_axes() -> None:
    day = day_of([], NOW)
    chart = charts.devices_chart(day, 0)
    assert chart.bars == ()
    assert [word.value for word in chart.up] == [0, 1, 2, 3, 4]
    assert charts.attained_chart(day, "premium", Parameters()).bars == ()


@pytest.mark.parametrize("devices", [1, 3, 8, 10, 19, 100, 10_000, 123_456])
def test_bars_are_inside_the_picture(devices: int) -> None:
    shifts = [Shift(tier.value, BEFORE, devices / 4, 0.0, devices / 3, 0.0, 0) for tier in Tier]
    day = day_of(shifts, NOW)
    for chart in (
        charts.devices_chart(day, devices),
        *(charts.attained_chart(day, tier.value, Parameters()) for tier in Tier),
    ):
        assert chart.bars
        for bar in chart.bars:
            assert charts.LEFT <= bar.x <= chart.size.width - bar.width
            assert 8 <= bar.y <= bar.y + bar.height <= chart.size.height - charts.BOTTOM + 0.2
        assert len({word.value for word in chart.up}) == len(chart.up)
        assert 4 <= len(chart.across) <= 8


class SickLedger:
    """Answers the first question with an error, the others slowly."""

    def __init__(self) -> None:
        self.asked = 0

    async def look(self, read: Any) -> list[Shift]:
        self.asked += 1
        number = self.asked
        await asyncio.sleep(0)
        if number == 1:
            raise Unavailable("the scheduler's ledger does not answer")
        return [Shift("basic", BEFORE, 1.0, 0.0, 0.0, 0.0, 0)]


@pytest.mark.asyncio
async def test_a_day_is_worked_out_once_for_all_and_again_after_an_error() -> None:
    ledger = SickLedger()
    past = Past(cast(Ledger, ledger))
    with pytest.raises(Unavailable):
        await past.day(NOW)
    days = await asyncio.gather(*(past.day(NOW) for _ in range(10)))
    assert {id(day) for day in days} == {id(days[0])}
    assert days[0].of("basic").served_s > 0
    assert await past.day(NOW + 1) is days[0]
    assert ledger.asked == 2


# -- words and logins -----------------------------------------------------------------------


def test_numbers_are_written_for_people() -> None:
    assert [count(v) for v in (0, 3, 2.5, 99.94, 123.4, 12345)] == [
        "0",
        "3",
        "2.5",
        "99.9",
        "123",
        "12,345",
    ]


def test_pages_that_follow_leave_the_service_its_time() -> None:
    pace = Pace()
    pace.viewers = 1
    pace.took(0.001)
    assert pace.gap_s == GAP_S
    pace.viewers = 50
    for _ in range(100):
        pace.took(0.05)
    assert pace.viewers * 0.05 / pace.gap_s == pytest.approx(SHARE, rel=0.01)
    pace.viewers = 5000
    assert pace.gap_s == LONGEST_S


def test_logins_are_bounded_and_the_ones_in_use_stay() -> None:
    logins = Logins(most=2)
    first, second = logins.add("t1"), logins.add("t2")
    assert first != second
    assert logins.get(first) is not None
    third = logins.add("t3")
    assert logins.get(second) is None
    known = [logins.get(login) for login in (first, third)]
    assert [login and login.token for login in known] == ["t1", "t3"]
    assert len({login.xsrf for login in known if login}) == 2
    logins.remove(first)
    assert logins.get(first) is None
    assert logins.get(None) is None

"""Clusters and regions: what sessions may name, where new ones go, where they come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable
from singularity_scheduler.core.moves.relocation import LOOKED_AT
from singularity_scheduler.core.placement import routes
from singularity_scheduler.core.placement.choice import choose_node
from singularity_scheduler.core.placement.geography import Geography
from singularity_scheduler.core.state.invariants import check
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent, StepState
from singularity_scheduler.core.values.model import Abilities, SessionView
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.explain.why import explain
from singularity_scheduler.requests.spec import MAX_LOCATIONS, parse_spec
from singularity_scheduler.text.errors import in_words
from support.scheduler_core import World, facts, reads

RUN = BatchRun("/home/alice/a.ipynb", "/home/alice/out.ipynb")
REGIONS = {"west-1": "westus", "west-2": "westus", "east-1": "eastus", "westus": "us"}


def world(*nodes: tuple[str, str, int], regions: dict[str, str] = REGIONS) -> World:
    """(node, cluster, devices) each."""
    made = World.__new__(World)
    first, cluster, devices = nodes[0]
    World.__init__(made, devices, first, Abilities(cluster=cluster))
    made.state.geography = Geography("local", regions)
    for node, cluster, devices in nodes:
        made.join(node, devices, Abilities(cluster=cluster))
    return made


def three() -> World:
    return world(("w1", "west-1", 2), ("w2", "west-2", 2), ("e1", "east-1", 2))


def start(made: World, sid: str, *locations: str, **spec: Any) -> SessionView:
    asked = SessionSpec(
        Kind.INTERACTIVE, Tier.STANDARD, spec.pop("devices", 1), sid, locations=locations, **spec
    )
    made.do(ev.SessionCreated(sid, "alice", asked))
    made.answer()
    return made[sid]


def test_parts_of_devices_count_as_parts() -> None:
    made = world(("w1", "west-1", 2))
    cluster = made.state.geography.clusters["west-1"]
    for sid in ("a", "b", "c"):
        start(made, sid, share_milli=500)
    assert (cluster.promised_milli, cluster.summary().free) == (1500, 0), "one and a half of two"
    made.holding("whole", devices=2)
    for sid in ("a", "b", "c"):
        made.need(sid)
        made.answer()
    assert (cluster.waiting_milli[1], cluster.waiting) == (1500, (0, 2, 0))
    assert cluster.summary().waiting == (0, 2, 0)


def suspended(made: World, sid: str) -> None:
    made.do(ev.SuspendAsked(sid, "alice"))
    made.answer()
    assert made[sid].word == "suspended"


# -- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regions", "sentence"),
    [
        ({"a": "b", "b": "a"}, "the places go in a circle: a in b in a"),
        ({"a": "b", "b": "c", "c": "a"}, "go in a circle"),
        ({"a": ""}, "'' cannot be the name of a cluster or region"),
        ({"a b": "c"}, "'a b' cannot be the name"),
        ({"a": "x" * 64}, "at most 63 letters"),
    ],
)
def test_what_places_cannot_be_is_one_sentence(regions: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence), in_words():
        Geography("local", regions)


@pytest.mark.parametrize(
    ("locations", "sentence"),
    [
        ("westus", "locations must be a list of names of clusters or regions, not 'westus'"),
        ([1], "must be a list of names"),
        (["a", "b", "a"], "locations names 'a' twice"),
        (["a/b"], "'a/b' cannot be the name of a cluster or region"),
        ([f"c{n}" for n in range(MAX_LOCATIONS + 1)], "65 locations are too many"),
    ],
)
def test_locations_of_a_spec_are_checked(locations: object, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        parse_spec({"kind": "interactive", "locations": locations})


def test_no_locations_are_anywhere() -> None:
    for nothing in (None, []):
        assert parse_spec({"kind": "interactive", "locations": nothing}).locations == ()
    spec = parse_spec({"kind": "interactive", "locations": ["westus", "east-1"]})
    assert spec.locations == ("westus", "east-1")


def test_an_unknown_location_is_refused_with_those_that_there_are() -> None:
    made = three()
    with pytest.raises(BadRequest, match="there is no location 'mars'") as refused:
        start(made, "a", "westus", "mars")
    assert refused.value.message.endswith(
        "there are east-1, eastus, local, us, west-1, west-2, westus"
    )
    assert "a" not in made.state.sessions


def test_regions_and_wider_places() -> None:
    geography = three().state.geography
    assert [geography.region(c) for c in ("west-1", "east-1", "local", "new")] == [
        "westus",
        "eastus",
        "local",
        "new",
    ]
    assert set(geography.clusters) == {"west-1", "west-2", "east-1", "local"}
    assert geography.allows(("us",), "west-2")
    assert not geography.allows(("us",), "east-1")
    assert not geography.allows(("a place that is gone",), "west-1")


# -- where new ones go ----------------------------------------------------------------------


def test_a_new_session_goes_where_its_locations_allow() -> None:
    made = three()
    placed = [start(made, f"s{n}", "eastus") for n in range(5)]
    assert {(v.cluster, v.node) for v in placed} == {("east-1", "e1")}
    assert start(made, "w", "us").cluster in ("west-1", "west-2")
    assert start(made, "c", "west-2").node == "w2"
    assert start(made, "b", "west-2", "eastus").cluster in ("west-2", "east-1")


def test_sessions_fill_one_cluster_before_the_next_and_spread_when_all_are_full() -> None:
    made = three()
    placed = [start(made, f"s{n}").cluster for n in range(6)]
    assert [placed.count(c) for c in ("west-1", "west-2", "east-1")] == [2, 2, 2]
    more = [start(made, f"m{n}").cluster for n in range(6)]
    assert [more.count(c) for c in ("west-1", "west-2", "east-1")] == [2, 2, 2]


def test_a_session_goes_where_a_node_is_large_enough() -> None:
    made = world(("w1", "west-1", 1), ("w2", "west-1", 1), ("e1", "east-1", 4))
    assert start(made, "a", devices=2).node == "e1"
    with pytest.raises(BadRequest, match="2 devices asked, but westus has at most 1 for one"):
        start(made, "b", "westus", devices=2)
    with pytest.raises(BadRequest, match="9 devices asked, but this cluster has at most 4"):
        start(made, "c", devices=9)


def test_where_nothing_takes_sessions_the_place_is_named() -> None:
    made = three()
    with pytest.raises(Unavailable, match="no node agent in local is connected"):
        start(made, "a", "local")
    made.do(adm.DutyAsked("root", "e1", DutyEvent.CORDON, "new disks"))
    with pytest.raises(Unavailable, match=r"no node in eastus takes new sessions now \(node e1 is"):
        start(made, "a", "eastus")
    assert start(made, "b").cluster != "east-1"


def test_routing_looks_at_sums_only() -> None:
    large = world(*((f"n{c}-{n}", f"c{c}", 2) for c in range(6) for n in range(2)), regions={})
    for cluster in large.state.geography.clusters.values():
        cluster.nodes = None  # type: ignore[assignment]
    large.state.nodes = {}
    spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 2)
    assert routes.cluster_for(large.state, "s", spec, 0.0) == "c0"


# -- moves ----------------------------------------------------------------------------------


def test_a_session_moves_to_a_cluster_and_keeps_its_state() -> None:
    made = three()
    start(made, "a", "us")
    made.do(ev.Activity("a", True, made.now))
    made.need("a")
    made.answer()
    home = made["a"].cluster
    other = "west-2" if home == "west-1" else "west-1"
    made.do(ev.MigrateAsked("a", "alice", cluster=other))
    assert reads(made["a"]).startswith(f"moving to cluster {other} for alice")
    made.answer()
    moved = made["a"]
    assert (moved.cluster, moved.word, moved.saved) == (other, "running", True)
    assert (moved.target_cluster, moved.moving) == ("", False)
    assert made.reloaded().state.sessions["a"].cluster == other


def test_a_move_to_a_cluster_that_cannot_be_is_one_sentence_and_changes_nothing() -> None:
    made = three()
    start(made, "a", "us")
    before = made["a"]

    def refused(kind: type[Exception], sentence: str, **to: Any) -> None:
        with pytest.raises(kind, match=sentence):
            made.do(ev.MigrateAsked("a", "alice", **to))
        assert made["a"] == before

    refused(NotFound, "there is no cluster 'west': did you mean 'west-", cluster="west")
    refused(NotFound, "there is no cluster 'westus'", cluster="westus")
    refused(Conflict, f"alice/a is in cluster {before.cluster} already", cluster=before.cluster)
    refused(
        Conflict,
        "cannot go to cluster east-1 of region eastus, and nothing was changed: "
        "it may only be in us",
        cluster="east-1",
    )
    refused(
        Conflict,
        "cannot go to node e1, .* is in cluster east-1 of region eastus, and it may only be in us",
        node="e1",
    )
    refused(BadRequest, "not two of them", cluster="west-2", node="w2")
    other = {"west-1": "west-2", "west-2": "west-1"}[before.cluster]
    node = {"west-1": "w1", "west-2": "w2"}[other]
    made.do(ev.NodeAway(node))
    refused(Conflict, f"nothing was changed: node {node} does not answer", cluster=other)


def test_a_full_cluster_refuses_a_session_that_computes() -> None:
    made = world(("w1", "west-1", 1), ("e1", "east-1", 1))
    for sid in ("a", "b"):
        start(made, sid)
        made.do(ev.Activity(sid, True, made.now))
        made.need(sid)
        made.answer()
    other = made["b"].cluster
    assert other != made["a"].cluster
    with pytest.raises(Conflict, match="was not moved and goes on where it is: the devices of"):
        made.do(ev.MigrateAsked("a", "alice", cluster=other))
    suspended(made, "a")
    made.do(ev.MigrateAsked("a", "alice", cluster=other))
    assert made["a"].returning, "a suspended one waits for room there"
    suspended(made, "b")
    made.answer()
    assert (made["a"].cluster, made["a"].word) == (other, "running")


def test_a_suspended_session_prefers_its_cluster_then_its_region_then_others() -> None:
    made = three()
    start(made, "a")
    order = [made["a"].cluster]
    order += ["west-2" if order[0] == "west-1" else "west-1"] if order[0] != "east-1" else []
    assert routes.order(made.state, made["a"])[: len(order)] == order
    start(made, "b", "west-1")
    assert routes.order(made.state, made["b"]) == ["west-1"]
    start(made, "c", "eastus", "west-2")
    assert set(routes.order(made.state, made["c"])) == {"east-1", "west-2"}
    start(made, "d", "west-2")
    suspended(made, "d")
    for node in ("w2", "w1"):
        made.do(ev.NodeAway(node))
    made.do(ev.ResumeAsked("d", "alice"))
    assert made["d"].returning
    assert "node w2 does not answer" in reads(made["d"])
    told = explain(made.state, made["d"], made.now)
    assert told["facts"]["locations"] == ["west-2"]
    assert (told["facts"]["cluster"], told["facts"]["region"]) == ("west-2", "westus")
    made.join("w2", 2, Abilities(cluster="west-2"))
    made.answer()
    assert (made["d"].node, made["d"].word) == ("w2", "ready")


def test_a_drain_leaves_the_cluster_only_when_it_has_no_room() -> None:
    made = world(("w1", "west-1", 1), ("w2", "west-1", 1), ("w3", "west-2", 1), ("e1", "east-1", 1))
    made.do(adm.DutyAsked("root", "e1", DutyEvent.CORDON))
    start(made, "a", "west-1", "eastus")
    made.do(adm.DutyAsked("root", "e1", DutyEvent.UNCORDON))
    made.do(ev.Activity("a", True, made.now))
    made.need("a")
    made.answer()
    for expected in ({"w1", "w2"}, {"e1"}):
        node = made["a"].node
        made.do(adm.DutyAsked("root", node, DutyEvent.DRAIN, "new disks"))
        made.answer()
        assert made["a"].word == "running"
        assert made["a"].node in expected - {node}
    assert made["a"].cluster == "east-1"
    made.do(adm.DutyAsked("root", "e1", DutyEvent.DRAIN, "new disks", store=True))
    made.answer()
    view = made["a"]
    assert view.returning, "west-2 is not among its locations"
    assert "node w3" not in explain(made.state, view, made.now)["sentence"]


def test_queued_runs_of_a_drained_node_stay_where_they_may_be() -> None:
    made = world(("w1", "west-1", 1), ("e1", "east-1", 1), ("s1", "local", 1))
    for sid in ("x", "y"):
        spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 1, sid, RUN, locations=("westus",))
        made.do(ev.SessionCreated(sid, "alice", spec))
        made.answer()
    assert made["y"].pending
    made.do(adm.DutyAsked("root", "w1", DutyEvent.DRAIN, "new disks", store=True))
    assert (made["y"].node, made["y"].pending) == ("w1", True)
    made.join("w2", 1, Abilities(cluster="west-2"))
    made.do(ev.Tick("w1"))
    made.answer()
    assert made["y"].cluster == "west-2"


def queued(made: World, sid: str, *locations: str, tier: Tier = Tier.STANDARD) -> None:
    spec = SessionSpec(Kind.BATCH, tier, 1, sid, RUN, locations=locations)
    made.do(ev.SessionCreated(sid, "alice", spec))
    made.answer()


def test_queued_runs_go_where_they_can_start() -> None:
    made = world(("w1", "west-1", 1), ("w2", "west-1", 1), ("e1", "east-1", 1))
    for node in ("w2", "e1"):
        made.do(adm.DutyAsked("root", node, DutyEvent.CORDON))
    for sid in ("a", "b", "c", "d"):
        queued(made, sid, *(["westus"] if sid == "b" else []))
    assert [made[sid].node for sid in "abcd"] == ["w1"] * 4
    assert [made[sid].word for sid in "abcd"] == ["ready", "queued", "queued", "queued"]
    made.do(ev.Tick("w1"))
    assert {made[sid].node for sid in "bcd"} == {"w1"}, "nowhere is room"
    made.do(adm.DutyAsked("root", "e1", DutyEvent.UNCORDON))
    made.do(ev.Tick("w1"))
    made.answer()
    assert (made["b"].node, made["c"].node, made["d"].node) == ("w1", "e1", "w1")
    assert (made["c"].word, made["c"].cluster) == ("ready", "east-1")
    line = next(h for h in made.history if h.rule == "queue.balance")
    assert reads(line) == "waits on node e1 in cluster east-1 now, which has room for it"
    made.do(adm.DutyAsked("root", "w2", DutyEvent.UNCORDON))
    made.do(ev.Tick("w1"))
    made.answer()
    assert (made["b"].node, made["b"].word) == ("w2", "ready")
    assert made["d"].pending
    made.do(ev.ProcessExited("a", 0))
    made.answer()
    assert (made["d"].node, made["d"].word) == ("w1", "ready")


def test_a_queued_run_does_not_go_where_others_wait() -> None:
    made = world(("w1", "west-1", 1), ("e1", "east-1", 1))
    for sid in ("a", "b", "c", "d"):
        queued(made, sid)
    here = {sid: made[sid].node for sid in "abcd"}
    assert sorted(here.values()) == ["e1", "e1", "w1", "w1"]
    for node in ("w1", "e1"):
        made.do(ev.Tick(node))
    assert {sid: made[sid].node for sid in "abcd"} == here


def test_who_waits_for_devices_goes_to_a_free_node_where_it_may_be() -> None:
    others = [(f"e{n}", "east-1", 1) for n in range(LOOKED_AT + 1)]
    made = world(("w1", "west-1", 1), ("w2", "west-1", 1), ("w3", "west-2", 1), *others)
    for node in ("w2", "w3"):
        made.do(adm.DutyAsked("root", node, DutyEvent.CORDON))
    for sid in ("a", "b"):
        start(made, sid, "westus")
        made.do(ev.Activity(sid, True, made.now))
        made.need(sid)
        made.answer()
    assert (made["b"].node, made["b"].word) == ("w1", "waiting")
    made.now += made.state.parameters.relocate_after_s
    made.do(ev.Tick("w1"))
    assert made["b"].word == "waiting", "it may not be where devices are free"
    for node in ("w3", "w2"):
        made.do(adm.DutyAsked("root", node, DutyEvent.UNCORDON))
    made.do(ev.Tick("w1"))
    made.answer()
    assert (made["b"].node, made["b"].word) == ("w2", "running"), "its own cluster goes first"


def test_an_upgrade_moves_to_another_cluster_only_for_want_of_room() -> None:
    made = world(("w1", "west-1", 1), ("w2", "west-1", 1), ("e1", "east-1", 1))
    start(made, "a", "west-1")
    made.do(ev.Activity("a", True, made.now))
    made.need("a")
    made.answer()
    made.do(adm.UpgradeAsked("root", ("w1", "w2")))
    made.answer()
    assert made["a"].cluster == "west-1"
    upgrade = made.state.admin.upgrade
    assert upgrade is not None
    assert upgrade.steps[0].state is StepState.OUT
    made.do(adm.UpgradeChange("root", adm.UpgradeState.CANCELLED))
    made.do(adm.UpgradeAsked("root", ("w1", "w2"), at_once=2))
    made.answer()
    upgrade = made.state.admin.upgrade
    assert upgrade is not None
    states = [step.state for step in upgrade.steps]
    assert StepState.WAITING in states, "the second one has no room in its locations"


def test_a_node_that_changes_its_cluster_takes_its_sessions_along() -> None:
    made = three()
    view = start(made, "a", "west-1")
    made.join("w1", 2, Abilities(cluster="west-9"), facts(view))
    assert made["a"].cluster == "west-9"
    assert made.state.geography.region("west-9") == "west-9"
    assert made.state.geography.clusters["west-1"].nodes == {}
    assert made["a"].word == "ready", "it goes on where it is"
    suspended(made, "a")
    made.do(ev.ResumeAsked("a", "alice"))
    made.answer()
    assert made["a"].returning, "and comes back only where it may be"
    sentence = explain(made.state, made["a"], made.now)["sentence"]
    assert "it may only be in west-1" in sentence


def test_a_fork_is_where_its_source_may_be() -> None:
    made = three()
    start(made, "a", "eastus")
    suspended(made, "a")
    made.do(ev.ForkAsked("f", made["a"], None, "alice"))
    made.answer()
    assert (made["f"].locations, made["f"].cluster) == (("eastus",), "east-1")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=40))
def test_the_sums_are_those_of_the_nodes(steps: list[tuple[int, int]]) -> None:
    """`check` counts them anew after every decision."""
    made = world(("w1", "west-1", 2), ("w2", "west-2", 1), ("e1", "east-1", 3))
    names = ("west-1", "west-2", "east-1", "us", "westus")
    for number, (what, which) in enumerate(steps):
        sid, node = f"s{which}", ("w1", "w2", "e1")[which % 3]
        try:
            if what == 0:
                start(made, f"s{which}", *names[which : which + 1])
            elif what == 1:
                made.do(ev.DeviceNeeded(sid))
            elif what == 2:
                made.do(ev.SuspendAsked(sid, "alice"))
            elif what == 3:
                made.do(ev.MigrateAsked(sid, "alice", cluster=names[number % 3]))
            elif what == 4:
                made.do(ev.NodeAway(node))
                made.join(node, which % 3 + 1, Abilities(cluster=names[number % 3]))
            elif what == 5:
                made.do(adm.DutyAsked("root", node, DutyEvent.CORDON))
            elif what == 6:
                made.do(adm.DutyAsked("root", node, DutyEvent.UNCORDON))
            elif what == 7:
                queued(made, f"run{which}", tier=list(Tier)[number % 3])
            elif what == 8:
                made.do(ev.Tick(node))
            else:
                made.do(ev.EndAsked(f"run{which}" if number % 2 else sid, "alice"))
        except (BadRequest, Conflict, NotFound, Unavailable):
            pass
        made.answer()
        for cluster in made.state.geography.clusters.values():
            found = cluster.least_loaded(1)
            if found is not None:
                assert found == choose_node(made.state, 1, among=cluster.nodes)
    check(made.state)


def test_a_copy_of_the_state_learns_of_places_alone() -> None:
    """Shared between copies (compiled they cannot be copied), they are replaced, not changed."""
    made = world(("a", "west-1", 1))
    known = dict(made.state.geography.places.parents)
    before = made.state.copy()
    assert before.geography.places is made.state.geography.places
    made.join("b", 1, Abilities(cluster="elsewhere"))
    assert "elsewhere" in made.state.geography.places.parents
    assert before.geography.places.parents == known


# -- machines besides the service's ---------------------------------------------------------


def test_what_belongs_to_a_process_starts_on_the_services_machine() -> None:
    made = world(("near", "west-1", 1))
    made.join("far", 4, Abilities(cluster="west-1", far=True))
    owned = [start(made, f"o{n}", owned=True) for n in range(3)]
    assert {view.node for view in owned} == {"near"}
    assert start(made, "free").node == "far"  # what belongs to nobody goes where there is room
    assert start(made, "here", "westus", owned=True).node == "near"
    with pytest.raises(BadRequest, match="2 devices asked, but this cluster has at most 1"):
        start(made, "large", devices=2, owned=True)
    made.do(ev.NodeAway("near"))
    with pytest.raises(Unavailable, match="no node agent is connected"):
        start(made, "alone", owned=True)

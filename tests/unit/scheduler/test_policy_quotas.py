"""Virtual clusters and priorities: what is whose, who borrows, who gives back, who is first."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import VirtualCluster
from singularity_scheduler.core.values.requested import BatchRun, Kind, Priority, SessionSpec, Tier
from singularity_scheduler.explain.why import explain
from singularity_scheduler.requests.spec import parse_spec
from support.scheduler_core import World, reads


def quota(world: World, name: str, devices: int, may_borrow: bool = True) -> None:
    world.do(adm.QuotaAsked("root", VirtualCluster(name, devices, may_borrow)))
    world.answer()


def create(world: World, sid: str, cluster: str = "", tier: Tier = Tier.STANDARD, **more) -> None:
    spec = SessionSpec(Kind.INTERACTIVE, tier, 1, sid, virtual_cluster=cluster, **more)
    world.do(ev.SessionCreated(sid, "alice", spec))
    world.answer()
    world.do(ev.Activity(sid, True, world.now))


def need(world: World, sid: str, cluster: str = "", tier: Tier = Tier.STANDARD, **more) -> str:
    """The word for a new session that asks for its device."""
    create(world, sid, cluster, tier, **more)
    world.need(sid)
    world.answer()
    return world[sid].word


def test_one_that_may_not_borrow_waits_and_says_why():
    world = World(3)
    quota(world, "a", 1, may_borrow=False)
    assert need(world, "a1", "a") == "running"
    assert need(world, "a2", "a") == "waiting"
    assert need(world, "x") == "running", "nobody waits behind it"
    assert reads(world["a2"]) == (
        "waits for 1 device: virtual cluster 'a' uses 1 of its 1 device and may not borrow"
    )
    assert "and may not borrow" in explain(world.state, world["a2"], world.now)["sentence"]
    quota(world, "a", 2, may_borrow=False)
    assert world["a2"].word == "running", "it counts at once"


def test_it_gets_a_device_when_another_node_gives_one_back():
    world = World(1, "n1")
    world.join("n2", 1)
    quota(world, "a", 1, may_borrow=False)
    assert need(world, "a1", "a") == "running"
    assert need(world, "a2", "a") == "waiting"
    assert world["a1"].node != world["a2"].node
    world.do(ev.EndAsked("a1", "alice"))
    world.answer()
    assert world["a2"].word == "running"


def test_what_is_borrowed_is_given_back_to_whom_it_belongs():
    world = World(2)
    quota(world, "a", 1)
    quota(world, "b", 1)
    assert need(world, "a1", "a") == need(world, "a2", "a") == "running"
    assert need(world, "b1", "b") == "running"
    assert world["a2"].word in ("parked", "waiting")
    assert world["a1"].word == "running", "the one that came last gives back"
    [told] = [reads(c) for c in world.history if c.rule == "preempt.borrowed"]
    assert told.startswith(
        "paused for alice/b1: virtual cluster 'b' needs 1 device of its own and 'a' had borrowed"
    )
    assert need(world, "b2", "b") == "waiting", "beyond its quota it takes nothing from a1"
    assert world["a1"].word == "running"


def test_borrowers_of_a_higher_tier_keep_what_they_have():
    world = World(1)
    quota(world, "a", 0)
    quota(world, "b", 1)
    assert need(world, "a1", "a", Tier.PREMIUM) == "running"
    assert need(world, "b1", "b") == "waiting"
    assert world["a1"].word == "running"


def test_a_borrower_takes_no_device_that_belongs_to_another():
    world = World(1)
    quota(world, "a", 0)
    quota(world, "b", 1)
    assert need(world, "b1", "b", Tier.BASIC) == "running"
    assert need(world, "a1", "a", Tier.PREMIUM) == "waiting"
    assert need(world, "x", "", Tier.PREMIUM) == "running", "who borrows nothing goes before"
    assert world["b1"].word == "parked"


def test_inside_a_tier_borrowers_are_taken_first():
    world = World(2)
    quota(world, "a", 0)
    assert need(world, "borrows", "a", Tier.BASIC) == "running"
    assert need(world, "own", "", Tier.BASIC) == "running"
    assert need(world, "p", "", Tier.PREMIUM) == "running"
    assert (world["borrows"].word, world["own"].word) != ("running", "running")
    assert world["own"].word == "running"


def test_priority_orders_a_tier_and_its_victims():
    world = World(2)
    assert need(world, "low", tier=Tier.BASIC, priority=Priority.LOW) == "running"
    assert need(world, "high", tier=Tier.BASIC, priority=Priority.HIGH) == "running"
    for sid, priority in (("w1", Priority.LOW), ("w2", Priority.MEDIUM), ("w3", Priority.HIGH)):
        need(world, sid, tier=Tier.BASIC, priority=priority)
    assert [v.id for v in world.state.waiting("local")] == ["w3", "w2", "w1"]
    assert need(world, "p", tier=Tier.PREMIUM) == "running"
    assert (world["low"].word == "running", world["high"].word) == (False, "running")


def test_runs_beyond_a_quota_are_not_started_and_hold_nobody_up():
    world = World(2)
    quota(world, "a", 1, may_borrow=False)
    for sid, cluster in (("a1", "a"), ("a2", "a"), ("x", "")):
        run = BatchRun(f"/n/{sid}.ipynb", f"/n/{sid}-out.ipynb")
        spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 1, sid, run, virtual_cluster=cluster)
        world.do(ev.SessionCreated(sid, "alice", spec))
        world.answer()
    assert [world[s].pending for s in ("a1", "a2", "x")] == [False, True, False]
    assert "runs with 1 of its 1 device" in reads(world["a2"])
    assert "runs with 1 of its 1" in explain(world.state, world["a2"], world.now)["sentence"]
    world.do(ev.EndAsked("a1", "alice"))
    world.answer()
    assert not world["a2"].pending


def test_what_can_never_be_is_refused():
    world = World(2)
    quota(world, "team-a", 1, may_borrow=False)
    with pytest.raises(BadRequest, match="no virtual cluster 'teama': did you mean 'team-a'"):
        create(world, "s", "teama")
    spec = SessionSpec(Kind.INTERACTIVE, Tier.BASIC, 2, "s", virtual_cluster="team-a")
    with pytest.raises(BadRequest, match="2 devices asked, but virtual cluster 'team-a' has 1"):
        world.do(ev.SessionCreated("s", "alice", spec))
    with pytest.raises(BadRequest, match="quota_devices must be a whole number from 0"):
        quota(world, "team-a", -1)
    create(world, "s", "team-a")
    with pytest.raises(Conflict, match="'team-a' was kept: 1 session of it would be nobody's"):
        world.do(adm.QuotaGone("root", "team-a"))
    world.do(ev.EndAsked("s", "alice"))
    world.answer()
    world.do(adm.QuotaGone("root", "team-a"))
    with pytest.raises(NotFound, match="there is no virtual cluster 'team-a'"):
        world.do(adm.QuotaGone("root", "team-a"))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, ""),
        ("", ""),
        ("vision", "vision"),
        (
            "/subscriptions/1/resourceGroups/r/providers/Microsoft.MachineLearningServices/"
            "virtualclusters/vision-2",
            "vision-2",
        ),
    ],
)
def test_virtual_clusters_by_name_or_azure_id(given, name):
    spec = parse_spec({"virtual_cluster": given, "priority": None})
    assert (spec.virtual_cluster, spec.priority) == (name, Priority.MEDIUM)


@pytest.mark.parametrize("given", [5, "a b", "/subscriptions/", "ä"])
def test_wrong_names_of_virtual_clusters(given):
    with pytest.raises(BadRequest, match="virtual_cluster must be a name of letters"):
        parse_spec({"virtual_cluster": given})


def test_priorities_in_a_request():
    assert parse_spec({"priority": "High"}).priority is Priority.HIGH
    with pytest.raises(BadRequest, match="unknown priority 'urgent': pick low, medium or high"):
        parse_spec({"priority": "urgent"})

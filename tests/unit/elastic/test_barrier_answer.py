"""What a device proxy tells of its ranks, and what the coordinator reads from it."""

from __future__ import annotations

from typing import Any

from singularity_proxy.elastic.coordinator import View
from singularity_proxy.elastic.placement import Group


def ring(rank: int, **more: Any) -> dict[str, Any]:
    group = {
        "id": "ab", "name": "default_pg", "rank": rank, "size": 3, "contributed": 7, "consumed": 7,
        "sent": {}, "received": {}, "asked": {},
    }  # fmt: skip
    group |= {k: more.pop(k) for k in list(more) if k in group}
    base = {"virtual_device": rank + 4, "stands": True, "activity": "running", "pending": 0}
    return {**base, "groups": [group], **more}


def view(*proxies: list[dict[str, Any]]) -> View:
    from singularity_proxy.device.barrier import answer

    return View.read(answer(rings) for rings in proxies)


def test_all_stand_at_the_same_place() -> None:
    seen = view([ring(0), ring(1)], [ring(2)])
    assert seen.level
    assert seen.stand
    assert seen.targets() == {"ab": 7}
    assert seen.groups() == [Group("default_pg", (4, 5, 6))]


def test_rings_without_groups_do_not_count() -> None:
    alone = {"groups": [], "stands": False, "activity": "running", "pending": 0}
    assert view([ring(0), alone]).stand
    assert view([alone]).contributed == {}


def test_who_waits_for_others_counts_as_standing() -> None:
    waits = ring(1, stands=False, activity="blocked", pending=1, contributed=8)
    seen = view([ring(0)], [waits])
    assert seen.stand
    assert not seen.level
    assert seen.targets() == {"ab": 8}
    assert "rank 0 of group 'default_pg' has not come to its collective 8" in seen.behind()
    goes_on = ring(1, stands=False, activity="blocked", pending=0)
    assert not view([ring(0)], [goes_on]).stand


def test_messages_count_for_their_pair() -> None:
    sent = ring(0, sent={1: 3})
    assert not view([sent], [ring(1)]).level  # nothing of it is received
    assert view([sent], [ring(1)]).targets() == {"ab": 7, "ab:0>1": 3}
    waits = ring(1, asked={0: 4}, received={0: 3})
    seen = view([sent], [waits])
    assert seen.targets() == {"ab": 7, "ab:0>1": 4}
    assert seen.open == {"ab:0>1"}
    there = view([sent], [ring(1, asked={0: 3}, received={0: 3})])
    assert there.level


def test_how_far_ranks_went_on() -> None:
    before = view([ring(0, contributed=5)], [ring(1, contributed=6)])
    assert view([ring(0)], [ring(1)]).advanced_since(before) == {"ab": 2}


def test_a_part_knows_which_groups_have_ranks_elsewhere() -> None:
    from singularity_proxy.device.barrier import answer

    waits = ring(1, contributed=8, asked={0: 2, 2: 4}, received={0: 2, 2: 3}, sent={2: 1})
    answers = [answer([ring(0, contributed=8, consumed=8, sent={1: 2}), waits])]
    seen = View.read(answers, part=True)
    assert seen.elsewhere == {"ab": 1, "ab:0>1": 0, "ab:2>1": 1, "ab:1>2": 1}
    assert seen.waits_elsewhere
    assert seen.groups() == [Group("default_pg", (4, 5), elsewhere=1)]
    alone = View.read(answers)
    assert not alone.waits_elsewhere
    assert alone.groups() == [Group("default_pg", (4, 5))]

"""Which checkpoints stay: a pure decision."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from singularity_proxy.checkpoint.cleaning.retention import Policy, keep
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.errors import BadRequest


def summary(id: str, at: float, name: str = "") -> Summary:
    when = datetime.fromtimestamp(at, timezone.utc).isoformat()
    return Summary(id, name, "s", "u", when, "files", 1, 0, 0, 0, 0, {})


def test_by_count_age_and_name() -> None:
    hour = 3600.0
    saved = [
        summary("a", 0),
        summary("b", hour, "mine"),
        summary("c", 2 * hour),
        summary("d", 3 * hour, "mine"),
        summary("e", 4 * hour),
        summary("f", 5 * hour),
    ]
    now = 6 * hour

    def kept(policy: Policy, head: str | None = "f") -> str:
        return "".join(sorted(keep(saved, head, now, policy)))

    assert kept(Policy()) == "abcdef"
    assert kept(Policy(last=2)) == "bdef"
    assert kept(Policy(last=0)) == "bdf"
    assert kept(Policy(last=0), head="c") == "bcd"
    assert kept(Policy(max_age_s=2.5 * hour)) == "bdef"
    assert kept(Policy(last=1, max_age_s=5 * hour)) == "bdf"
    assert kept(Policy(last=0, named_last=1)) == "df"
    assert kept(Policy(last=0, named_last=0), head=None) == ""
    assert keep([], None, now, Policy(last=1)) == set()
    with pytest.raises(BadRequest, match="last"):
        Policy(last=-1)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["", "", "x", "y"])), max_size=20),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 10**6),
)
def test_the_head_and_the_named_always_stay(
    made: list[tuple[int, str]], last: int | None, age: int | None
) -> None:
    saved = [summary(f"c{n}", at, name) for n, (at, name) in enumerate(made)]
    head = saved[-1].id if saved else None
    kept = keep(saved, head, 10**6, Policy(last=last, max_age_s=age))
    assert kept <= {c.id for c in saved}
    assert {c.id for c in saved if c.name} <= kept
    assert head is None or head in kept
    unnamed = [c for c in saved if not c.name and c.id in kept and c.id != head]
    assert last is None or len(unnamed) <= last
    # What stays is newer than what goes.
    gone = [c for c in saved if c.id not in kept]
    assert all(k.time >= g.time for k in unnamed for g in gone)
    # Applied again, it changes nothing.
    left = [c for c in saved if c.id in kept]
    assert keep(left, head, 10**6, Policy(last=last, max_age_s=age)) == kept

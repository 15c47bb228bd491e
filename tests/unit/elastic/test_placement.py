"""Which virtual devices share a physical one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from singularity_proxy.elastic.placement import Group, moved, place, replicas
from singularity_proxy.errors import BadRequest, LayoutRefused

ALL = Group("default_pg", (0, 1, 2, 3))
TENSOR = [Group("mesh_tp", (0, 1)), Group("mesh_tp", (2, 3))]
DATA = [Group("mesh_dp", (0, 2)), Group("mesh_dp", (1, 3))]


def test_neighbours_share_and_all_devices_are_used() -> None:
    assert place(4, ["cpu:0"]) == ["cpu:0"] * 4
    assert place(4, ["cpu:0", "cpu:1"]) == ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]
    assert place(4, ["a", "b", "c"]) == ["a", "a", "b", "c"]
    assert place(4, ["a", "b", "c", "d"]) == ["a", "b", "c", "d"]


def test_what_need_not_move_stays() -> None:
    assert place(4, ["a", "b"], now=["b", "b", "b", "b"]) == ["b", "b", "a", "a"]
    four = ["a", "b", "c", "d"]
    two = place(4, ["c", "a"], now=four)
    assert two == ["a", "a", "c", "c"]
    assert moved(four, two) == [1, 3]
    assert moved(two, place(4, four, now=two)) == [1, 3]


@given(st.integers(1, 24), st.data())
def test_blocks_are_even_and_in_order(virtual: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, virtual))
    physical = [f"cpu:{i}" for i in data.draw(st.permutations(range(count)))]
    now = data.draw(st.lists(st.sampled_from(physical), min_size=virtual, max_size=virtual))
    where = place(virtual, physical, now=now)
    sizes = [where.count(device) for device in physical]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    changes = sum(a != b for a, b in itertools.pairwise(where))
    assert changes == count - 1  # contiguous
    assert place(virtual, physical, now=where) == where


def test_groups_of_everybody_are_replicas() -> None:
    assert replicas(4) == [[0, 1, 2, 3]]
    assert replicas(4, [ALL, Group("undefined", (2,))]) == [[0, 1, 2, 3]]
    assert replicas(4, [ALL, Group("second", (3, 2, 1, 0))]) == [[0, 1, 2, 3]]


def test_only_replicas_of_the_same_shard_share() -> None:
    sets = replicas(4, [ALL, *TENSOR, *DATA])
    assert sets == [[0, 2], [1, 3]]
    assert place(4, ["a", "b"], sets=sets) == ["a", "b", "a", "b"]
    assert place(4, ["a", "b", "c"], sets=sets) == ["a", "c", "b", "c"]
    with pytest.raises(LayoutRefused, match=r"hold 2 different shards.*at least 2 devices, not 1"):
        place(4, ["a"], sets=sets)


@pytest.mark.parametrize(
    "name",
    ["undefined", "mesh_tp", "PIPELINE_MODEL_PARALLEL_GROUP", "", "mesh_dp_shard", "data.sharded"],
)
def test_groups_that_do_not_say_replicas_are_shards(name: str) -> None:
    sets = replicas(4, [ALL, Group(name, (0, 1)), Group(name, (2, 3))])
    assert sets == [[0], [1], [2], [3]]


@pytest.mark.parametrize("name", ["mesh_dp", "DATA_PARALLEL_GROUP_WITH_CP", "mesh_replicate"])
def test_words_that_say_replicas(name: str) -> None:
    assert replicas(4, [ALL, Group(name, (0, 1)), Group(name, (2, 3))]) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("physical", [[], ["a", "a"], ["a", "b", "c"]])
def test_numbers_that_cannot_be(physical: list[str]) -> None:
    with pytest.raises(BadRequest, match="1 to 2 different physical ones"):
        place(2, physical)


def test_groups_with_ranks_on_other_nodes() -> None:
    """Of a gang on two nodes, as the first one sees it: virtual devices 0 and 1."""
    world = Group("default_pg", (0, 1), elsewhere=2)
    assert replicas(2, [world]) == [[0, 1]]
    across = [Group("mesh_pp", (0,), elsewhere=1), Group("mesh_pp", (1,), elsewhere=1)]
    assert replicas(2, [world, *across]) == [[0], [1]]
    here = Group("mesh_dp", (0, 1))
    assert replicas(2, [world, *across, here]) == [[0, 1]]
    assert replicas(2, [world, Group("mesh_tp", (0, 1))]) == [[0], [1]]

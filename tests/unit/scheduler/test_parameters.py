"""The parameters of the policy: bounds, one sentence for what cannot be, the nearest name."""

from __future__ import annotations

from dataclasses import fields

import pytest
from singularity_proxy.errors import BadRequest, NotFound
from singularity_scheduler.core.values.parameters import NAMES, Parameters, describe
from singularity_scheduler.text.errors import in_words


def test_defaults_are_within_their_bounds_and_explained():
    given = Parameters().as_dict()
    assert tuple(given) == NAMES
    for name in NAMES:
        said = describe(name)
        assert said["default"] == given[name]
        assert said["low"] < said["high"]
        assert said["help"]
        assert not said["help"].endswith(".")
    assert given["idle_soft_s"] == 900.0


def test_changed_keeps_the_rest_and_takes_whole_numbers_and_lists():
    changed = Parameters().changed(
        idle_soft_s=60, las_thresholds_device_s=[1, 2.5], backfill_depth=0
    )
    assert changed.idle_soft_s == 60.0
    assert isinstance(changed.idle_soft_s, float)
    assert changed.las_thresholds_device_s == (1.0, 2.5)
    assert changed.backfill_depth == 0
    assert changed.min_run_s == Parameters().min_run_s
    assert Parameters.from_dict(changed.as_dict()) == changed
    assert Parameters().changed(las_thresholds_device_s=[]).las_thresholds_device_s == ()
    assert Parameters().fraction("standard") == 0.70


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idle_soft_s", -1),
        ("idle_soft_s", "15 min"),
        ("idle_soft_s", None),
        ("idle_soft_s", True),
        ("idle_grace_s", float("nan")),
        ("min_run_s", float("inf")),
        ("quantum_s", 0),
        ("premium_fraction", 1.01),
        ("backfill_depth", 1.5),
        ("backfill_depth", -1),
        ("defrag_gain", 0.5),
        ("las_thresholds_device_s", [2, 1]),
        ("las_thresholds_device_s", [1, 1]),
        ("las_thresholds_device_s", 5),
        ("las_thresholds_device_s", ["a"]),
        ("las_thresholds_device_s", list(range(1, 20))),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(name, value):
    with pytest.raises(BadRequest) as refused, in_words():
        Parameters().changed(**{name: value})
    sentence = refused.value.message
    assert sentence.startswith(f"{name} must be ")
    assert ", not " in sentence
    assert "\n" not in sentence
    assert len(sentence) < 200
    assert refused.value.fields["low"] == describe(name)["low"]


def test_tiers_stay_in_order():
    with pytest.raises(BadRequest, match="must not rise from tier to tier"), in_words():
        Parameters().changed(standard_fraction=0.99)


def test_an_unknown_name_is_answered_with_the_nearest():
    with (
        pytest.raises(
            NotFound, match="there is no parameter 'idle_soft': did you mean 'idle_soft_s'"
        ),
        in_words(),
    ):
        Parameters().changed(idle_soft=5)
    with pytest.raises(NotFound, match="pick from idle_soft_s, "), in_words():
        Parameters().changed(zzz=5)


def test_every_field_says_what_it_is_in():
    units = ("_s", "_fraction", "_device_s", "_gain", "_depth")
    assert all(entry.name.endswith(units) for entry in fields(Parameters))

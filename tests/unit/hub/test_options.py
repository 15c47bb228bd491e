"""The choice of tier and devices: what is accepted, and the sentence for everything else."""

from __future__ import annotations

import pytest
from singularity_spawner.options import (
    OptionsError,
    ServerOptions,
    check_capacity,
    from_form,
    parse,
)

DEFAULT = ServerOptions("standard", 1)


def test_an_empty_choice_is_the_default():
    assert parse({}, default=DEFAULT) == DEFAULT


@pytest.mark.parametrize("tier", ["premium", "standard", "basic"])
def test_every_tier_and_number_is_kept(tier):
    assert parse({"tier": tier, "devices": 3}, default=DEFAULT) == ServerOptions(tier, 3)


@pytest.mark.parametrize(
    ("raw", "option", "says"),
    [
        ({"tier": "platinum"}, "tier", "choose premium, standard or basic"),
        ({"tier": ""}, "tier", "Unknown tier ''"),
        ({"tier": None}, "tier", "Unknown tier None"),
        ({"tier": ["premium"]}, "tier", "Unknown tier"),
        ({"tier": {"a": 1}}, "tier", "Unknown tier"),
        ({"devices": 0}, "devices", "at least 1 device, not 0"),
        ({"devices": -1}, "devices", "at least 1 device, not -1"),
        ({"devices": 10**6}, "devices", "1000000 devices are more than"),
        ({"devices": 10**5000}, "devices", "a huge number"),
        ({"devices": 1.5}, "devices", "whole number, not 1.5"),
        ({"devices": float("nan")}, "devices", "whole number, not nan"),
        ({"devices": "2"}, "devices", "whole number, not '2'"),
        ({"devices": True}, "devices", "whole number, not True"),
        ({"devices": None}, "devices", "whole number, not None"),
        ({"devices": [1]}, "devices", "whole number"),
        ({"gpu": 1}, "options", "Unknown server option 'gpu'"),
        ({"tier": "basic", "Devices": 1}, "options", "Unknown server option 'Devices'"),
        ([], "options", "must be an object"),
        ("premium", "options", "must be an object"),
        (None, "options", "must be an object"),
    ],
)
def test_bad_input_gets_one_sentence(raw, option, says):
    with pytest.raises(OptionsError) as caught:
        parse(raw, default=DEFAULT)
    sentence = str(caught.value)
    assert caught.value.option == option
    assert says in sentence
    assert "nothing was started" in sentence
    assert len(sentence) < 250
    assert "\n" not in sentence


def test_a_hostile_value_is_shown_short_and_printable():
    with pytest.raises(OptionsError) as caught:
        parse({"tier": "x\n\x1b[31m<script>" * 500}, default=DEFAULT)
    assert len(str(caught.value)) < 200
    assert "\x1b" not in str(caught.value)


def test_limits_of_the_deployment():
    with pytest.raises(OptionsError, match="choose basic;"):
        parse({"tier": "premium"}, default=DEFAULT, allowed_tiers=["basic"])
    with pytest.raises(OptionsError, match="more than the 4"):
        parse({"devices": 5}, default=DEFAULT, max_devices=4)
    assert parse({"image": "x"}, default=DEFAULT, extra_keys=["image"]) == DEFAULT


def test_capacity_of_the_cluster():
    check_capacity(ServerOptions("basic", 2), 2)
    with pytest.raises(OptionsError, match="3 devices were asked for, but this cluster has 2"):
        check_capacity(ServerOptions("basic", 3), 2)
    with pytest.raises(OptionsError, match="has 1 device in all"):
        check_capacity(ServerOptions("basic", 2), 1)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"tier": ["basic"], "devices": ["2"]}, {"tier": "basic", "devices": 2}),
        ({"tier": [" basic "], "devices": [" +2 "]}, {"tier": "basic", "devices": 2}),
        ({"devices": ["-1"]}, {"devices": -1}),
        ({"devices": ["1e3"]}, {"devices": "1e3"}),
        ({"devices": ["٣"]}, {"devices": "٣"}),
        ({"devices": [""]}, {"devices": ""}),
        ({"devices": ["1", "2"]}, {"devices": ["1", "2"]}),
        ({"other": ["x"]}, {"other": "x"}),
        ({}, {}),
    ],
)
def test_form_fields_become_options(fields, options):
    assert from_form(fields) == options

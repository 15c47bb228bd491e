"""How many devices a session asks for: virtual ones, physical ones, or a part of one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values.requested import ScalePolicy
from singularity_scheduler.model.arguments import MAX_DEVICES
from singularity_scheduler.text.errors import bad_request

from .fields import parse_number, refuse_unknown, shown

SCALE_SET = "auto_scale_instance_type_count_set"
SCALE_LEAST, SCALE_MOST = "min_instance_type_count", "max_instance_type_count"
SCALE_INTERVAL = "auto_scale_interval_in_sec"
SCALE_KEYS = (SCALE_SET, SCALE_LEAST, SCALE_MOST, SCALE_INTERVAL)
"""Azure ML's names of what a scale policy says."""


def parse_devices(value: object, largest: int | None = None) -> int:
    """A number of virtual devices from 1 to `largest`; None: only the service knows how many its
    cluster has, so it says what is too many."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(
            because("devices_not_whole", given=shown(value), largest=largest), devices=value
        )
    if largest == 0:
        raise bad_request(because("cluster_without_devices"), devices=value, largest=0)
    if value < 1:
        raise bad_request(because("too_few_asked", number=value, largest=largest), devices=value)
    if largest is not None and value > largest:
        raise bad_request(
            because("too_many_asked", number=value, largest=largest),
            devices=value,
            largest=largest,
        )
    return value


def parse_size(
    request: Mapping[str, Any], default_devices: int, largest: int | None
) -> tuple[int, ScalePolicy | None]:
    """The number of virtual devices, and on how many physical ones they may run (None: on as many).
    A policy that names the most devices also says how many virtual ones there are, if nothing else
    does; larger numbers mean all of them. An elastic session only needs room for its least."""
    asked, policy = request.get("devices"), _policy(request)
    if policy is None:
        return parse_devices(default_devices if asked is None else asked, largest), None
    least, most, counts, interval_s = policy
    if asked is None and most is not None:
        asked = most
    devices = parse_devices(default_devices if asked is None else asked, None)
    most = devices if most is None else min(most, devices)  # more would have nothing to do
    counts = tuple(sorted({min(count, devices) for count in counts}))
    if least > most:
        raise bad_request(
            because("policy_asks_for_more", least=least, most=most),
            scale_policy=least,
        )
    if request.get("device_share") not in (None, 1):
        raise bad_request(because("share_with_policy"))
    parse_devices(least, largest)
    if devices == 1:
        return devices, None
    return devices, ScalePolicy(least, most, counts, interval_s)


def _policy(
    request: Mapping[str, Any],
) -> tuple[int, int | None, tuple[int, ...], float | None] | None:
    """(least, most or None, counts, interval or None); None: it is not elastic."""
    elastic, value = request.get("elastic"), request.get("scale_policy")
    if elastic is not None and not isinstance(elastic, bool):
        raise bad_request(
            because("elastic_not_true_or_false", given=shown(elastic)), elastic=elastic
        )
    if value is None:
        return (1, None, (), None) if elastic else None
    if elastic is False:
        raise bad_request(because("inelastic_with_policy"))
    if not isinstance(value, dict):
        raise bad_request(because("policy_is_no_object", key=SCALE_SET, given=shown(value)))
    refuse_unknown(value, SCALE_KEYS, "scale_policy")
    counts = value.get(SCALE_SET)
    interval_s = parse_number(value, SCALE_INTERVAL)
    if counts is None:
        least = _number_of(value, SCALE_LEAST) or 1
        return least, _number_of(value, SCALE_MOST), (), interval_s
    if value.get(SCALE_LEAST) is not None or value.get(SCALE_MOST) is not None:
        raise bad_request(
            because("policy_says_both", key=SCALE_SET, least_key=SCALE_LEAST, most_key=SCALE_MOST)
        )
    whole = isinstance(counts, list) and all(_is_number(count) for count in counts)
    if not whole or not counts or counts != sorted(set(counts)):
        raise bad_request(because("counts_are_no_list", key=SCALE_SET, given=shown(counts)))
    return counts[0], counts[-1], tuple(counts), interval_s


def policy_document(scale: ScalePolicy) -> dict[str, Any]:
    """A scale policy as it is written in job files and requests."""
    found: dict[str, Any] = {SCALE_LEAST: scale.least, SCALE_MOST: scale.most}
    if scale.counts:
        found = {SCALE_SET: list(scale.counts)}
    if scale.interval_s is not None:
        found[SCALE_INTERVAL] = scale.interval_s
    return found


def _number_of(value: Mapping[str, Any], key: str) -> int | None:
    number = value.get(key)
    if number is not None and not _is_number(number):
        raise bad_request(because("not_a_policy_number", key=key, given=shown(number)))
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_DEVICES


def parse_share(request: Mapping[str, Any]) -> int:
    """Thousandths of one device that a session asks for; 1000: whole ones."""
    value = request.get("device_share")
    if value is None:
        return 1000
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0.001 <= value <= 1
    if not fits:
        raise bad_request(
            because("not_a_share", given=shown(value)),
            device_share=value,
        )
    if value < 1 and request.get("devices") not in (None, 1):
        raise bad_request(
            because("share_of_several", share=value, given=str(request["devices"])),
            device_share=value,
        )
    return max(1, round(1000 * float(value)))

"""Validation of what people ask for: each refusal is one sentence that says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from singularity_scheduler.core.placement.geography import require_name
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values.requested import MAX_NAME, Kind, Priority, SessionSpec, Tier
from singularity_scheduler.model.fields import WishField
from singularity_scheduler.model.session import MAX_LOCATIONS, WISHES
from singularity_scheduler.text.errors import bad_request, in_words

from .fields import parse_number, shown
from .gang_spec import of_one_node, parse_nodes
from .run_spec import KERNEL, parse_run, run_name
from .size_spec import parse_share, parse_size

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def parse_tier(value: object) -> Tier:
    """The tier called `value`, or `BadRequest`: "unknown tier 'gold': pick premium, ..."."""
    for tier in Tier:
        if value == tier.value:
            return tier
    raise bad_request(because("unknown_tier", given=shown(value)), tier=value)


def parse_kind(value: object) -> Kind:
    for kind in Kind:
        if value == kind.value:
            return kind
    raise bad_request(because("unknown_kind", given=shown(value)), kind=value)


def parse_name(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
        raise bad_request(because("not_a_session_name", most=MAX_NAME))
    return value.strip()


def parse_spec(
    request: Mapping[str, Any],
    *,
    default_tier: Tier = Tier.STANDARD,
    default_devices: int = 1,
    largest: int | None = None,
) -> SessionSpec:
    """The spec in a request ``{kind, tier?, devices?, name?}``. Called by the service for each
    new session; unknown keys are the caller's business. ``devices`` are those of all ``nodes``, and
    those of the spec are of one node."""
    run = None if request.get("run") is None else parse_run(request["run"])
    kind = parse_kind(request.get("kind", (Kind.BATCH if run else Kind.INTERACTIVE).value))
    if run and kind is not Kind.BATCH:
        raise bad_request(because("run_not_batch"), kind=kind)
    nodes = parse_nodes(request, run)
    if nodes > 1:
        asked = request.get("devices")
        asked = default_devices if asked is None else asked
        request = {**request, "devices": of_one_node(asked, nodes)}
    devices, scale = parse_size(request, default_devices, largest)
    return SessionSpec(
        kind=kind,
        tier=parse_tier(request["tier"]) if request.get("tier") is not None else default_tier,
        devices=devices,
        scale=scale,
        name=parse_name(request.get("name") or "") or (run_name(run) if run else ""),
        run=run,
        nodes=nodes,
        **parse_wishes(request),
    )


def parse_wishes(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Wishes` that are in a request."""
    return {
        each.name: _READERS[each.name](request) if each.name in _READERS else _text(each, request)
        for each in WISHES
    }


def _text(each: WishField, request: Mapping[str, Any]) -> str:
    """A wish that is a text with a greatest length; None: its default."""
    value, most = request.get(each.key), each.fact.asked["maxLength"]
    if value is None:
        return str(each.default)
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise bad_request(because("not_a_line_of_text", key=each.key, most=most))
    return value.strip()


def _parse_steps(request: Mapping[str, Any]) -> int | None:
    steps = parse_number(request, "checkpoint_every_steps")
    return None if steps is None else int(steps)


def parse_virtual_cluster(value: object) -> str:
    """The name of a virtual cluster; of an Azure resource id its last part. None: ""."""
    if value is None or value == "":
        return ""
    name = value.rpartition("/")[2] if isinstance(value, str) else ""
    if not _CLUSTER.fullmatch(name):
        raise bad_request(
            because("not_a_virtual_cluster", given=shown(value)),
            virtual_cluster=value,
        )
    return name


def parse_locations(value: object) -> tuple[str, ...]:
    """The clusters and regions that a session may be in; None: (), anywhere. Whether there are
    such is seen when it is placed."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise bad_request(
            because("locations_are_no_list", given=shown(value)),
            locations=value,
        )
    if len(value) > MAX_LOCATIONS:
        raise bad_request(because("too_many_locations", number=len(value), most=MAX_LOCATIONS))
    for number, name in enumerate(value):
        with in_words():
            require_name(name)
        if name in value[:number]:
            raise bad_request(because("location_twice", given=shown(name)), location=name)
    return tuple(value)


def parse_priority(value: object) -> Priority:
    """A priority; None: medium."""
    if value is None:
        return Priority.MEDIUM
    for priority in Priority:
        if value == priority.value or (isinstance(value, str) and value.lower() == priority.value):
            return priority
    raise bad_request(because("unknown_priority", given=shown(value)), priority=value)


def _kernel_id(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not KERNEL.fullmatch(value) or len(value) > 128:
        raise bad_request(because("not_a_kernel_id", given=shown(value)))
    return value


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "kernel_id": lambda request: _kernel_id(request.get("kernel_id")),
    "every_s": lambda request: parse_number(request, "checkpoint_every_s"),
    "every_steps": _parse_steps,
    "virtual_cluster": lambda request: parse_virtual_cluster(request.get("virtual_cluster")),
    "priority": lambda request: parse_priority(request.get("priority")),
    "locations": lambda request: parse_locations(request.get("locations")),
    "share_milli": parse_share,
}
"""Field of `Wishes` -> what reads it; the others are lines of text."""


def parse_launch(value: object) -> dict[str, Any]:
    """The launch description for the node agent, checked for its shape:
    ``{mode, argv, env, cwd, connection, owner_pid}``."""
    if not isinstance(value, dict):
        raise bad_request(because("launch_is_no_object"))
    mode = value.get("mode")
    if mode not in ("capsule", "joined"):
        raise bad_request(because("unknown_launch_mode", given=shown(mode)))
    argv, env = value.get("argv") or [], value.get("env") or {}
    if not isinstance(argv, list) or not all(isinstance(a, str) for a in argv):
        raise bad_request(because("argv_is_no_list"))
    if mode == "capsule" and not argv:
        raise bad_request(because("argv_is_empty"))
    if not isinstance(env, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in env.items()
    ):
        raise bad_request(because("env_is_no_texts"))
    cwd, connection, owner = value.get("cwd"), value.get("connection"), value.get("owner_pid")
    if cwd is not None and not isinstance(cwd, str):
        raise bad_request(because("cwd_is_no_path"))
    if connection is not None and not isinstance(connection, dict):
        raise bad_request(because("connection_is_no_object"))
    if owner is not None and (isinstance(owner, bool) or not isinstance(owner, int) or owner < 1):
        raise bad_request(because("owner_is_no_process"))
    if mode == "joined" and owner is None:
        raise bad_request(because("joined_without_owner"))
    return {
        "mode": mode,
        "argv": argv,
        "env": env,
        "cwd": cwd,
        "connection": connection,
        "owner_pid": owner,
    }


def parse_move(value: object, device_type_of: Mapping[str, str]) -> tuple[str, ...]:
    """The devices named in a migrate request: "cpu:1", 1, "1", a list of those, or None for any.

    `device_type_of` maps the ids of the node's devices to their types; a bare number means the
    device with that index.
    """
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    if not items:
        return ()
    return tuple(_device(item, device_type_of) for item in items)


def _device(item: object, device_type_of: Mapping[str, str]) -> str:
    if isinstance(item, int) and not isinstance(item, bool):
        item = str(item)
    if isinstance(item, str):
        if item in device_type_of:
            return item
        if item.isdecimal() and len(item) < 10:
            for device in device_type_of:
                if device.partition(":")[2] == str(int(item)):
                    return device
    raise bad_request(
        because("no_such_device_here", given=shown(item), there=tuple(device_type_of)),
        devices=list(device_type_of),
    )

"""Validation of what people ask for: each refusal is one sentence that says what to do."""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from singularity_proxy.errors import BadRequest

from .geography import require_name
from .requested import BatchRun, Kind, Priority, ScalePolicy, SessionSpec, Tier

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_KERNEL = re.compile(r"[A-Za-z0-9._-]{1,200}")

MAX_NAME = 200
"""Characters of a session's name."""
MAX_RUN_BYTES = 64 << 10
"""Parameters and variables of a run together, as JSON: they travel in its environment, where one
variable has at most 128 KiB. Its metadata has the same limit for itself."""
MAX_TIMEOUT_S = 365 * 86_400
MAX_RETRIES = 100
"""Longest time limit of a run."""
MAX_LOCATIONS = 64
"""Most clusters and regions that one session names."""
MAX_DEVICES = 4096
"""The most virtual devices that the schema of a new session allows; a cluster allows fewer."""


def parse_tier(value: object) -> Tier:
    """The tier called `value`, or `BadRequest`: "unknown tier 'gold': pick premium, ..."."""
    for tier in Tier:
        if value == tier.value:
            return tier
    raise BadRequest(f"unknown tier {_shown(value)}: pick premium, standard or basic", tier=value)


def parse_kind(value: object) -> Kind:
    for kind in Kind:
        if value == kind.value:
            return kind
    raise BadRequest(f"unknown kind {_shown(value)}: pick interactive or batch", kind=value)


def parse_devices(value: object, largest: int | None = None) -> int:
    """A number of virtual devices from 1 to `largest`; None: only the service knows how many its
    cluster has, so it says what is too many."""
    if largest is None:
        wanted = "ask for 1 or more"
    else:
        wanted = "ask for 1" if largest == 1 else f"ask for 1 to {largest}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(
            f"devices must be a whole number, not {_shown(value)}: {wanted}", devices=value
        )
    if largest == 0:
        raise BadRequest("this cluster has no device at all", devices=value, largest=0)
    if value < 1:
        raise BadRequest(
            f"{value} devices asked, but a session needs at least 1: {wanted}", devices=value
        )
    if largest is not None and value > largest:
        plural = "device" if value == 1 else "devices"
        raise BadRequest(
            f"{value} {plural} asked, but this cluster has at most {largest} for one session: "
            f"{wanted}",
            devices=value,
            largest=largest,
        )
    return value


def parse_name(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
        raise BadRequest(
            f"a session's name must be printable text of at most {MAX_NAME} characters"
        )
    return value.strip()


def parse_spec(
    request: Mapping[str, Any],
    *,
    default_tier: Tier = Tier.STANDARD,
    default_devices: int = 1,
    largest: int | None = None,
) -> SessionSpec:
    """The spec in a request ``{kind, tier?, devices?, name?}``. Called by the service for each
    new session; unknown keys are the caller's business."""
    run = None if request.get("run") is None else parse_run(request["run"])
    kind = parse_kind(request.get("kind", (Kind.BATCH if run else Kind.INTERACTIVE).value))
    if run and kind is not Kind.BATCH:
        raise BadRequest("a run of a notebook is a batch session: kind must be batch", kind=kind)
    devices, scale = parse_size(request, default_devices, largest)
    return SessionSpec(
        kind=kind,
        tier=parse_tier(request["tier"]) if request.get("tier") is not None else default_tier,
        devices=devices,
        scale=scale,
        name=parse_name(request.get("name") or "") or (_run_name(run) if run else ""),
        run=run,
        kernel_id=_kernel_id(request.get("kernel_id")),
        every_s=_every(request, "checkpoint_every_s"),
        every_steps=None
        if (steps := _every(request, "checkpoint_every_steps")) is None
        else int(steps),
        virtual_cluster=parse_virtual_cluster(request.get("virtual_cluster")),
        priority=parse_priority(request.get("priority")),
        locations=parse_locations(request.get("locations")),
        share_milli=_share_milli(request),
    )


SCALE_SET = "auto_scale_instance_type_count_set"
SCALE_LEAST, SCALE_MOST = "min_instance_type_count", "max_instance_type_count"
SCALE_INTERVAL = "auto_scale_interval_in_sec"
SCALE_KEYS = (SCALE_SET, SCALE_LEAST, SCALE_MOST, SCALE_INTERVAL)
"""Azure ML's names of what a scale policy says."""


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
        raise BadRequest(
            f"scale_policy asks for at least {least} devices, more than the {most} that the "
            "session has at most",
            scale_policy=least,
        )
    if request.get("device_share") not in (None, 1):
        raise BadRequest("a session that shares one device has no scale policy: say one of them")
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
        raise BadRequest(f"elastic must be true or false, not {_shown(elastic)}", elastic=elastic)
    if value is None:
        return (1, None, (), None) if elastic else None
    if elastic is False:
        raise BadRequest("elastic is false and there is a scale_policy: say one of them")
    if not isinstance(value, dict):
        raise BadRequest(
            f'scale_policy must be an object, for example {{"{SCALE_SET}": [1, 2, 4]}}, not '
            f"{_shown(value)}"
        )
    refuse_unknown(value, SCALE_KEYS, "scale_policy")
    counts = value.get(SCALE_SET)
    interval_s = _every(value, SCALE_INTERVAL)
    if counts is None:
        least = _number_of(value, SCALE_LEAST) or 1
        return least, _number_of(value, SCALE_MOST), (), interval_s
    if value.get(SCALE_LEAST) is not None or value.get(SCALE_MOST) is not None:
        raise BadRequest(
            f"scale_policy has {SCALE_SET} and {SCALE_LEAST} or {SCALE_MOST}: say one of them"
        )
    whole = isinstance(counts, list) and all(_is_number(count) for count in counts)
    if not whole or not counts or counts != sorted(set(counts)):
        raise BadRequest(
            f"scale_policy.{SCALE_SET} must be a list of numbers of devices that rise, for example "
            f"[1, 2, 4], not {_shown(counts)}"
        )
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
        raise BadRequest(
            f"scale_policy.{key} must be a number of devices, 1 or more, not {_shown(number)}"
        )
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_DEVICES


def _share_milli(request: Mapping[str, Any]) -> int:
    value = request.get("device_share")
    if value is None:
        return 1000
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0.001 <= value <= 1
    if not fits:
        raise BadRequest(
            f"device_share must be a number from 0.001 to 1, the part of one device, not "
            f"{_shown(value)}",
            device_share=value,
        )
    if value < 1 and request.get("devices") not in (None, 1):
        raise BadRequest(
            f"device_share {value:g} is a part of one device: it does not go with "
            f"{request['devices']} devices",
            device_share=value,
        )
    return max(1, round(1000 * float(value)))


def parse_virtual_cluster(value: object) -> str:
    """The name of a virtual cluster; of an Azure resource id its last part. None: ""."""
    if value is None or value == "":
        return ""
    name = value.rpartition("/")[2] if isinstance(value, str) else ""
    if not _CLUSTER.fullmatch(name):
        raise BadRequest(
            "virtual_cluster must be a name of letters, digits, '.', '_' and '-', or an Azure "
            f"resource id that ends in one, not {_shown(value)}",
            virtual_cluster=value,
        )
    return name


def parse_locations(value: object) -> tuple[str, ...]:
    """The clusters and regions that a session may be in; None: (), anywhere. Whether there are
    such is seen when it is placed."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadRequest(
            f"locations must be a list of names of clusters or regions, not {_shown(value)}",
            locations=value,
        )
    if len(value) > MAX_LOCATIONS:
        raise BadRequest(
            f"{len(value)} locations are too many: name at most {MAX_LOCATIONS}, or a region "
            "instead of its clusters"
        )
    for number, name in enumerate(value):
        if require_name(name) in value[:number]:
            raise BadRequest(f"locations names {_shown(name)} twice: once is enough", location=name)
    return tuple(value)


def parse_priority(value: object) -> Priority:
    """A priority; None: medium."""
    if value is None:
        return Priority.MEDIUM
    for priority in Priority:
        if value == priority.value or (isinstance(value, str) and value.lower() == priority.value):
            return priority
    raise BadRequest(f"unknown priority {_shown(value)}: pick low, medium or high", priority=value)


def _kernel_id(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not _KERNEL.fullmatch(value) or len(value) > 128:
        raise BadRequest(f"kernel_id must be the id of a kernel, not {_shown(value)}")
    return value


def _every(request: Mapping[str, Any], key: str) -> float | None:
    value = request.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise BadRequest(f"{key} must be a number, 0 or more, not {_shown(value)}")
    return value


RUN_KEYS = (
    "notebook",
    "output",
    "parameters",
    "kernel",
    "folder",
    "python",
    "variables",
    "timeout_s",
    "max_retries",
    "command",
    "ranked",
    "metadata",
)
_OF_A_NOTEBOOK = ("output", "parameters", "kernel")


def parse_run(value: object) -> BatchRun:
    """The notebook or command in a request's ``run``: ``{notebook, output?, parameters?, kernel?}``
    or ``{command, ranked?}``, each with ``{folder?, python?, variables?, timeout_s?,
    max_retries?, metadata?}``.
    Whether the files are there is seen by the run itself, as its user."""
    if not isinstance(value, dict):
        raise BadRequest("run must be an object that says which notebook or command is run")
    refuse_unknown(value, RUN_KEYS, "run")
    notebook, command = _path(value, "notebook"), _command(value)
    if notebook is None and not command:
        raise BadRequest("run.notebook is missing: the absolute path of the notebook to run")
    kernel = value.get("kernel")
    if kernel is not None and (not isinstance(kernel, str) or not _KERNEL.fullmatch(kernel)):
        raise BadRequest(f"run.kernel must be the name of a kernelspec, not {_shown(kernel)}")
    parameters, variables = value.get("parameters") or {}, value.get("variables") or {}
    if not isinstance(parameters, dict):
        raise BadRequest('run.parameters must be an object, for example {"lr": 0.1}')
    for name in parameters:
        if not name.isidentifier():
            raise BadRequest(f"{_shown(name)} cannot be the name of a parameter", parameter=name)
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise BadRequest('run.variables must map names to texts, for example {"LANG": "C.UTF-8"}')
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise BadRequest(f"{_shown(name)} cannot be a variable of the environment")
        if name.startswith(("SINGULARITY_", "JUPYTERHUB_")):
            raise BadRequest(f"{name} is set by the platform and cannot be given to a run")
    run = BatchRun(
        notebook=notebook or "",
        command=command,
        ranked=value.get("ranked") is True,
        output=_path(value, "output"),
        parameters=_finite(parameters, "parameters"),
        kernel=kernel,
        folder=_path(value, "folder"),
        python=_path(value, "python"),
        variables=json.dumps(variables),
        timeout_s=_timeout(value.get("timeout_s")),
        max_retries=_retries(value.get("max_retries")),
        metadata=_metadata(value.get("metadata")),
    )
    if run.notebook and run.output == run.notebook:
        raise BadRequest("run.output is the notebook itself: name another file")
    if len(run.parameters) + len(run.variables) + len(run.command.encode()) > MAX_RUN_BYTES:
        raise BadRequest(
            "the parameters and variables of a run have at most "
            f"{MAX_RUN_BYTES >> 10} KiB together: put larger ones in a file"
        )
    return run


def _command(value: Mapping[str, Any]) -> str:
    """The command of a run; "": it is a notebook's."""
    command, ranked = value.get("command"), value.get("ranked")
    if ranked is not None and not isinstance(ranked, bool):
        raise BadRequest(f"run.ranked must be true or false, not {_shown(ranked)}")
    if command is None:
        if value.get("ranked"):
            raise BadRequest("run.ranked is for commands: a notebook is run once")
        return ""
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise BadRequest(f"run.command must be the text of a command, not {_shown(command)}")
    for key in ("notebook", *_OF_A_NOTEBOOK):
        if value.get(key):
            raise BadRequest(f"run.{key} does not go with run.command: send one of them")
    if value.get("folder") is None:
        raise BadRequest("run.folder is missing: the absolute path of the folder to run in")
    return command


def _run_name(run: BatchRun) -> str:
    """The name of a session that was given none: the notebook's, or the command's first line."""
    name = posixpath.basename(run.notebook) or run.command.strip().partition("\n")[0]
    return "".join(c for c in name if c.isprintable())[:MAX_NAME]


def _timeout(value: object) -> int | None:
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise BadRequest(
            f"run.timeout_s must be a whole number of seconds from 1 to {MAX_TIMEOUT_S}, not "
            f"{_shown(value)}"
        )
    return value  # type: ignore[return-value]


def _retries(value: object) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not whole or not 0 <= value <= MAX_RETRIES):  # type: ignore[operator]
        raise BadRequest(
            f"run.max_retries must be a whole number from 0 to {MAX_RETRIES}, not {_shown(value)}"
        )
    return value or 0  # type: ignore[return-value]


def _metadata(value: object) -> str:
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise BadRequest('run.metadata must be an object, for example {"tags": {"team": "vision"}}')
    text = _finite(value, "metadata")
    if len(text) > MAX_RUN_BYTES:
        raise BadRequest(f"run.metadata has at most {MAX_RUN_BYTES >> 10} KiB")
    return text


def _finite(values: dict[str, Any], what: str) -> str:
    try:
        return json.dumps(values, allow_nan=False)
    except ValueError:
        raise BadRequest(
            f"run.{what} holds a number that JSON does not have (infinity or not a number): "
            "give it as text and convert it in the notebook"
        ) from None


def run_of(run: BatchRun, session: str) -> BatchRun:
    """`run` with every default filled in that needs no file: output and folder."""
    if run.command:
        return run
    folder, name = posixpath.split(run.notebook)
    stem = name.removesuffix(".ipynb")
    return replace(
        run,
        output=run.output or posixpath.join(folder, f"{stem}-{session}.ipynb"),
        folder=run.folder or folder,
    )


def refuse_unknown(value: Mapping[str, object], known: Iterable[str], where: str = "") -> None:
    """`BadRequest` for a key that is not among `known`, with the nearest one."""
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise BadRequest(
                f"{_shown(f'{where}.{key}' if where else key)} is not known; {hint}"
                f"known are {', '.join(known)}",
                key=key,
            )


def _path(value: Mapping[str, Any], key: str) -> str | None:
    """An absolute path, normalised; None when there is none."""
    path = value.get(key)
    if path is None:
        return None
    if not isinstance(path, str) or not path.startswith("/") or len(path) > 4096:
        raise BadRequest(f"run.{key} must be an absolute path, not {_shown(path)}")
    if not path.isprintable():
        raise BadRequest(f"run.{key} must be printable, not {_shown(path)}")
    return posixpath.normpath(path)


def parse_launch(value: object) -> dict[str, Any]:
    """The launch description for the node agent, checked for its shape:
    ``{mode, argv, env, cwd, connection, owner_pid}``."""
    if not isinstance(value, dict):
        raise BadRequest("launch must be an object that says how to start the process")
    mode = value.get("mode")
    if mode not in ("capsule", "joined"):
        raise BadRequest(f"unknown launch mode {_shown(mode)}: pick capsule or joined")
    argv, env = value.get("argv") or [], value.get("env") or {}
    if not isinstance(argv, list) or not all(isinstance(a, str) for a in argv):
        raise BadRequest("launch.argv must be a list of strings")
    if mode == "capsule" and not argv:
        raise BadRequest("launch.argv is empty: there is nothing to start")
    if not isinstance(env, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in env.items()
    ):
        raise BadRequest("launch.env must map names to strings")
    cwd, connection, owner = value.get("cwd"), value.get("connection"), value.get("owner_pid")
    if cwd is not None and not isinstance(cwd, str):
        raise BadRequest("launch.cwd must be a path")
    if connection is not None and not isinstance(connection, dict):
        raise BadRequest("launch.connection must be an object (Jupyter connection information)")
    if owner is not None and (isinstance(owner, bool) or not isinstance(owner, int) or owner < 1):
        raise BadRequest("launch.owner_pid must be the process id of the joining process")
    if mode == "joined" and owner is None:
        raise BadRequest("launch.owner_pid is missing: a joined session belongs to a process")
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
        if item.isdecimal():
            for device in device_type_of:
                if device.partition(":")[2] == str(int(item)):
                    return device
    raise BadRequest(
        f"there is no device {_shown(item)} here: pick from {', '.join(device_type_of) or 'none'}",
        devices=list(device_type_of),
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

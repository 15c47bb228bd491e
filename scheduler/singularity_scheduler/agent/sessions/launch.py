"""The parameters of `session.start`, checked before anything is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from singularity_proxy.errors import BadRequest

MAX_VIRTUAL_DEVICES = 1024

TIERS = ("premium", "standard", "basic")
KINDS = ("interactive", "batch")
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


MAX_PARTS = 1024


@dataclass(frozen=True)
class Gang:
    """That a session is part `number` of the `parts` that run one program together, each on a node
    of its own. `key` lets their bridges in at each other."""

    id: str
    number: int
    parts: int
    key: str = field(repr=False)


@dataclass(frozen=True)
class LaunchRequest:
    """A checked start command. `env` is the whole environment a capsule asks for; `connection` is
    Jupyter's client-facing connection as its server asks for it (see `client_places`), or None for
    a run without a kernel connection."""

    session: str
    user: str
    kind: str
    tier: str
    name: str
    virtual_devices: int
    mode: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    connection: dict[str, Any] | None = field(repr=False)
    owner_pid: int | None
    epoch: int = 0
    """Above that of what this node may still have of the session: an attempt of its run that was
    killed."""
    restartable: bool = False
    """It may be started elsewhere when this node is lost, though it has no checkpoint."""
    gang: Gang | None = None

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> LaunchRequest:
        """From the parameters of the call; raises `BadRequest` naming the first wrong one."""
        session = text(params, "session")
        if not re.fullmatch(r"[0-9a-f]{12}", session):
            raise BadRequest("a session id is 12 lowercase hexadecimal characters")
        launch = params.get("launch")
        if not isinstance(launch, Mapping):
            raise BadRequest("'launch' is missing: it says what the session starts")
        mode = text(launch, "mode")
        if mode not in ("capsule", "joined"):
            raise BadRequest(f"launch mode '{mode}' is unknown; it is 'capsule' or 'joined'")
        owner_pid = launch.get("owner_pid")
        if owner_pid is not None and (not isinstance(owner_pid, int) or owner_pid < 2):
            raise BadRequest(f"owner_pid must be a process id, not {owner_pid!r}")
        if mode == "joined" and owner_pid is None:
            raise BadRequest("a joined session needs owner_pid: its first process")
        return cls(
            session=session,
            user=text(params, "user"),
            kind=one_of(params, "kind", KINDS),
            tier=one_of(params, "tier", TIERS),
            name=str(params.get("name") or ""),
            virtual_devices=_virtual_devices(params),
            mode=mode,
            argv=_argv(launch) if mode == "capsule" else (),
            env=_env(launch),
            cwd=str(launch.get("cwd") or "/"),
            connection=_connection(launch) if mode == "capsule" else None,
            owner_pid=owner_pid,
            epoch=number(params, "epoch") if params.get("epoch") is not None else 0,
            restartable=launch.get("restartable") is True,
            gang=_gang_to_start(launch, mode),
        )

    def reached_at(self, connection: dict[str, Any] | None) -> LaunchRequest:
        """The same with the relay at another place."""
        return replace(self, connection=connection)


def text(params: Mapping[str, Any], name: str) -> str:
    """A text that must be there; raises `BadRequest`."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"'{name}' is missing or not a text", parameter=name)
    return value


def number(params: Mapping[str, Any], name: str) -> int:
    """A whole number >= 0 that must be there; raises `BadRequest`."""
    value = params.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadRequest(f"'{name}' is missing or not a whole number", parameter=name)
    return value


def one_of(params: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    """One of a few words; raises `BadRequest` that lists them."""
    value = text(params, name)
    if value not in allowed:
        raise BadRequest(f"{name} '{value}' is unknown; it is one of {', '.join(allowed)}")
    return value


def _virtual_devices(params: Mapping[str, Any]) -> int:
    count = number(params, "virtual_devices")
    if not 1 <= count <= MAX_VIRTUAL_DEVICES:
        raise BadRequest(
            f"a session has between 1 and {MAX_VIRTUAL_DEVICES} virtual devices, not {count}"
        )
    return count


def _argv(launch: Mapping[str, Any]) -> tuple[str, ...]:
    argv = launch.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
        raise BadRequest("'argv' must be a list of texts: the program and its arguments")
    return tuple(argv)


def _env(launch: Mapping[str, Any]) -> dict[str, str]:
    env = launch.get("env") or {}
    if not isinstance(env, Mapping) or not all(isinstance(v, str) for v in env.values()):
        raise BadRequest("'env' must map names to texts")
    bad = [k for k in env if not k or "=" in k or "\0" in k or "\0" in env[k]]
    if bad:
        raise BadRequest(f"'{bad[0]}' cannot be a variable of the environment")
    return dict(env)


def _gang_to_start(launch: Mapping[str, Any], mode: str) -> Gang | None:
    gang = gang_of(launch)
    if gang is not None and (mode != "capsule" or launch.get("connection") is not None):
        raise BadRequest("only a run without a kernel connection can be a part of a gang")
    return gang


def gang_of(params: Mapping[str, Any]) -> Gang | None:
    """Which part of which gang the session is to be, None: of none; raises `BadRequest`."""
    gang = params.get("gang")
    if gang is None:
        return None
    if not isinstance(gang, Mapping):
        raise BadRequest("'gang' must say which part of which gang the session is")
    id, key = text(gang, "id"), text(gang, "key")
    at, parts = number(gang, "number"), number(gang, "parts")
    if not re.fullmatch(r"[0-9a-f]{1,64}", id) or not re.fullmatch(r"[0-9a-f]{64}", key):
        raise BadRequest("id and key of a gang are hexadecimal, the key has 64 digits")
    if not 2 <= parts <= MAX_PARTS or at >= parts:
        raise BadRequest(
            f"a gang has between 2 and {MAX_PARTS} parts, numbered from 0, so there is no part "
            f"{at} of {parts}"
        )
    return Gang(id, at, parts, key)


def _connection(launch: Mapping[str, Any]) -> dict[str, Any] | None:
    connection = launch.get("connection")
    if connection is None:
        return None
    if not isinstance(connection, Mapping) or connection.get("transport") not in ("tcp", "ipc"):
        raise BadRequest(
            "the connection must be Jupyter's connection info with transport 'tcp' or 'ipc'"
        )
    for port in PORTS:
        value = connection.get(port)
        if not isinstance(value, int) or not 0 < value < 65536:
            raise BadRequest(f"the connection's {port} is {value!r}, it must be a port number")
    text(connection, "ip")
    return dict(connection)

"""Where Jupyter's clients reach a relay: at unix sockets that their user alone can open, or at
encrypted TCP ports.

Whatever listens on a TCP port of a machine can be reached by every user of it, and Jupyter's
protocol signs messages but hides nothing: outputs and code would go to whoever subscribes. So where
server and relay are on one machine their sockets lie in a folder of the session's user (0700).
Unix sockets come first because every client of Jupyter can use them; CurveZMQ needs one that knows
the keys of the connection file (jupyter_client 8.9, and `jupyter console --existing` ignores them).

Elsewhere the relay listens on TCP, always with CurveZMQ: only who has the keys gets as far as a
greeting.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Mapping
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity, uid_of

from singularity_scheduler.agent.folders import own_folder
from singularity_scheduler.agent.node import Settings
from singularity_scheduler.agent.sessions.launch import PORTS
from singularity_scheduler.agent.sessions.record import SessionRecord

Json = dict[str, Any]

CURVE = ("curve_publickey", "curve_secretkey")

PATH_BYTES = 107
"""The longest name of a unix socket."""

_NUMBERS = range(1024, 60_000)
"""Where the five numbers of unix sockets begin: another place has others, as with ports, by which
a Jupyter server notices that a kernel has moved."""


def place_clients(
    settings: Settings, record: SessionRecord, asked: Json, owner: ProcessIdentity | None
) -> Json:
    """`asked`, Jupyter's connection information as its server has it, with the place where the
    relay of `record` is to listen. `owner`: the server's process, if it is on this machine.

    What is there already stays: a kernel that is restarted is a new session, and its clients
    connect again to where they were. A server that asks for TCP with keys gets that, one on this
    machine that can enter the user's folder gets unix sockets, any other one TCP with new keys.
    """
    if asked["transport"] == "tcp" and all(isinstance(asked.get(key), str) for key in CURVE):
        return {**asked, "ip": settings.client_ip or asked["ip"]}
    base = _make_base(settings, record)
    seen = owner is not None and _may_enter(owner, record.uid, base)
    if asked["transport"] == "ipc":
        if _in_folder_of(asked, record.uid):
            return asked
        return _unix_place(asked, base) if seen else encrypted_place(settings, asked)
    if seen and is_local(str(asked["ip"])):
        return _unix_place(asked, base)
    return {**asked, "ip": settings.client_ip or asked["ip"], **_new_keys()}


def other_place(settings: Settings, record: SessionRecord, connection: Json, unix: bool) -> Json:
    """`connection` at a place that nobody has: for a relay that no server has asked for. `unix`:
    its clients are on this machine."""
    if unix:
        return _unix_place(connection, _make_base(settings, record))
    return encrypted_place(settings, connection)


def encrypted_place(settings: Settings, connection: Json) -> Json:
    """`connection` with TCP ports that nobody has at this moment, and new keys."""
    ip = settings.client_ip or settings.tunnel_ip
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        probes = [stack.enter_context(socket.socket(family)) for _ in PORTS]
        for probe in probes:
            probe.bind((ip, 0))
        ports = {name: probe.getsockname()[1] for name, probe in zip(PORTS, probes, strict=True)}
    return {**connection, "transport": "tcp", "ip": ip, **ports, **_new_keys()}


def former_place(noted: Mapping[str, Any], uid: int) -> Json | None:
    """Where clients were connected to unix sockets, as far as the user's notes can be believed;
    None: nowhere, or that folder is gone."""
    try:
        ports = {name: int(noted[name]) for name in PORTS}
        place = {"transport": noted["transport"], "ip": str(noted["ip"]), **ports}
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return place if place["transport"] == "ipc" and _in_folder_of(place, uid) else None


def is_local(ip: str) -> bool:
    """Whether what is sent to this address stays on the machine."""
    try:
        return ip == "localhost" or ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def _make_base(settings: Settings, record: SessionRecord) -> str:
    """The folder of the user's kernels here. Relays make and remove a folder for each in it."""
    base = settings.clients_dir(record.uid)
    own_folder(os.path.dirname(base), 0o711)
    with contextlib.suppress(FileExistsError):
        os.mkdir(base, 0o700)
        if os.geteuid() == 0:
            os.chown(base, record.uid, record.gid)
    return base


def _unix_place(connection: Json, base: str) -> Json:
    kept = {name: value for name, value in connection.items() if name not in CURVE}
    first = secrets.choice(_NUMBERS)
    ports = {name: first + number for number, name in enumerate(PORTS)}
    ip = os.path.join(base, secrets.token_hex(4), "k")
    return {**kept, "transport": "ipc", "ip": ip, **ports}


def _in_folder_of(place: Mapping[str, Any], uid: int) -> bool:
    """Whether the sockets are below a folder that is there, and that user `uid`'s alone. The relay
    runs as that user, so all that a wrong name could do is harm its own user."""
    ip = str(place["ip"])
    if not os.path.isabs(ip) or not ip.isprintable() or len(os.fsencode(ip)) + 6 > PATH_BYTES:
        return False
    try:
        info = os.lstat(os.path.dirname(os.path.dirname(ip)))
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o077


def _may_enter(owner: ProcessIdentity, uid: int, folder: str) -> bool:
    """Whether process `owner` sees the same folder under that name (it may be in a container), as
    the session's user or root."""
    try:
        there, here = os.stat(f"/proc/{owner.pid}/root{folder}"), os.stat(folder)
        return os.path.samestat(there, here) and uid_of(owner.pid) in (uid, 0)
    except OSError:
        return False


def _new_keys() -> Json:
    made = importlib.import_module("singularity_kernel.relay.port").new_client_keys()
    return {"curve_publickey": made["public"], "curve_secretkey": made["secret"]}

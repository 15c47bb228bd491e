"""What a second relay of a session needs: for a fork, and for a session whose relay was on a node
that is gone. All of it travels with the session's files.

Two files in the session's folder, its user's alone: kernel.json has the key that the kernel signs
with, clients.json the connection that Jupyter's clients had. On the machine where that was a new
relay takes the same ports, and the clients' sockets connect again by themselves; elsewhere, or
when somebody else has them, it takes others, and clients ask for the new ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import ipaddress
import os
import socket
import uuid
from typing import Any

from .launch import PORTS
from .node import Settings
from .relays import kernel_key_file, read_user_file, write_private
from .sessions import SessionRecord

CLIENTS, KERNEL = "clients.json", "kernel.json"

Json = dict[str, Any]


def machine() -> str:
    """The same for two agents that can listen at the same address."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"


def note_clients(settings: Settings, record: SessionRecord, connection: Json) -> None:
    """Write down how clients reach the session here, to travel with it."""
    noted = {name: connection[name] for name in _CLIENT_FIELDS if name in connection}
    noted |= {"encrypted": "curve_secretkey" in connection, "machine": machine()}
    path = os.path.join(settings.session_dir(record.session), CLIENTS)
    write_private(path, noted, (record.uid, record.gid))


_CLIENT_FIELDS = ("transport", "ip", *PORTS, "key", "signature_scheme", "kernel_name")


def clients_of_image(
    settings: Settings, record: SessionRecord, fork: bool
) -> tuple[Json, bool] | None:
    """(a connection for the clients of a session that was just restored, whether it is the one they
    had); None when its files do not say how its kernel signs. A fork has a key of its own."""
    folder = settings.session_dir(record.session)
    kernel = _signing(read_user_file(os.path.join(folder, KERNEL)))
    noted = read_user_file(os.path.join(folder, CLIENTS)) or {}
    if kernel is None:
        return None
    signing = {**kernel, "key": uuid.uuid4().hex} if fork else _signing(noted) or kernel
    name = str(noted.get("kernel_name") or "")
    same = not fork and noted.get("machine") == machine() and not noted.get("encrypted")
    before = _place(noted) if same else None
    if before is not None:
        return {**signing, **before, "kernel_name": name}, True
    ip = settings.client_ip or settings.tunnel_ip
    exposed = not _local(ip) and _local(str(noted.get("ip") or "127.0.0.1"))
    made = {**signing, "ip": ip, "transport": "tcp", "kernel_name": name}
    return other_ports(made, exposed or bool(noted.get("encrypted"))), False


def _local(ip: str) -> bool:
    """Whether what is sent to this address stays on the machine."""
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def other_ports(connection: Json, encrypted: bool = False) -> Json:
    """`connection` with ports that nobody has at this moment."""
    ip = str(connection["ip"])
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        probes = [stack.enter_context(socket.socket(family)) for _ in PORTS]
        for probe in probes:
            probe.bind((ip, 0))
        ports = {name: probe.getsockname()[1] for name, probe in zip(PORTS, probes, strict=True)}
    keys = {}
    if encrypted:
        made = importlib.import_module("singularity_kernel.relay_tunnel").new_client_keys()
        keys = {"curve_publickey": made["public"], "curve_secretkey": made["secret"]}
    return {**connection, **ports, **keys}


def give_kernel_key(settings: Settings, record: SessionRecord, connection: Json) -> None:
    """Tell the relay how its kernel signs, where that is not how its clients do."""
    found = read_user_file(os.path.join(settings.session_dir(record.session), KERNEL))
    kernel = _signing(found)
    if kernel is not None and kernel["key"] != connection.get("key"):
        path = kernel_key_file(settings, record.session)
        write_private(path, kernel, (record.uid, record.gid))


def _signing(found: Json | None) -> Json | None:
    """Key and scheme; the file is the user's, and may hold anything."""
    if found is None:
        return None
    key, scheme = found.get("key"), found.get("signature_scheme")
    if not isinstance(key, str) or not isinstance(scheme, str):
        return None
    known = scheme.removeprefix("hmac-") in hashlib.algorithms_available
    return {"key": key, "signature_scheme": scheme} if known else None


def _place(noted: Json) -> Json | None:
    """Where clients connected."""
    try:
        ports = {name: int(noted[name]) for name in PORTS}
        if noted["transport"] != "tcp":
            return None
        return {"ip": str(ipaddress.ip_address(noted["ip"])), "transport": "tcp", **ports}
    except (KeyError, TypeError, ValueError):
        return None

"""What a second relay of a session needs: for a fork, and for a session whose relay was on a node
that is gone. All of it travels with the session's files.

Two files in the session's folder, its user's alone: kernel.json has the key that the kernel signs
with, clients.json the connection that Jupyter's clients had. On the machine where that was a new
relay listens at the same unix sockets, and the clients' own connect again by themselves; elsewhere,
or when somebody else has them, it takes another place, and clients ask for the new one.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Any

from singularity_scheduler.agent.node import Settings
from singularity_scheduler.agent.sessions.launch import PORTS
from singularity_scheduler.agent.sessions.record import SessionRecord

from .client_places import former_place, is_local, other_place
from .relay import kernel_key_file, read_user_file, write_private

CLIENTS, KERNEL = "clients.json", "kernel.json"

Json = dict[str, Any]


def _boot() -> str:
    """The same for agents of one machine, until that is started again."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def note_clients(settings: Settings, record: SessionRecord, connection: Json) -> None:
    """Write down how clients reach the session here, to travel with it."""
    noted = {name: connection[name] for name in _CLIENT_FIELDS if name in connection}
    noted["boot"] = _boot()
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
    here = noted.get("boot") == _boot()
    made = {**signing, "kernel_name": str(noted.get("kernel_name") or "")}
    before = former_place(noted, record.uid) if here and not fork else None
    if before is not None:
        return {**made, **before}, True
    # Clients stay on their machine. Of those of another one nothing is known here, and none can be
    # there where everything of this node is for its own machine.
    local = is_local(settings.client_ip or settings.tunnel_ip)
    unix = noted.get("transport") == "ipc" if here else local
    return other_place(settings, record, made, unix), False


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

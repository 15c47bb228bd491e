"""Network namespaces for several nodes on one machine: every node has an address of its own, and a
bridge joins them with each other and with the machine.

Made by who starts a platform (root) and removed by whoever ends it, also after one that was killed:
all of it is named after the platform's `tag`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from singularity_proxy.capsule.rights import missing_right
from singularity_proxy.errors import BadRequest, Unavailable

NAMESPACES = "/run/netns"
"""Where `ip netns` keeps the network namespaces that have a name."""

NETWORKS = "10.231.0.0/16"
"""A network of 254 addresses in here that the machine has no route to is taken."""

LIMIT_S = 20.0
"""Longest time for one call of `ip`."""

_TAG = re.compile(r"[a-z0-9]{1,8}")


def why_not() -> str:
    """Why network namespaces cannot be made here, one sentence's end; "": they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if lacks := missing_right():
        return lacks
    if shutil.which("ip") is None:
        return "the program ip (package iproute2) is not installed"
    tag = f"t{os.getpid() % 1000000}"
    try:
        create(tag, ["node"])
    except Unavailable as error:
        return error.message
    finally:
        remove(tag)
    return ""


def create(tag: str, nodes: Sequence[str]) -> dict[str, str]:
    """Make a namespace for each of `nodes` and the bridge between them; node -> namespace. What
    carries the same tag is removed first. Raises `Unavailable` with what `ip` said, and then
    nothing is left."""
    if not _TAG.fullmatch(tag):
        raise BadRequest(f"{tag!r} cannot be part of a network's name")
    remove(tag)
    bridge, made = f"sg{tag}br", {}
    try:
        hosts = _free_network().hosts()
        prefix = 24
        # Without an address of its own a bridge takes the lowest of its ports' and changes it when
        # that port goes: what the other nodes then send the machine is lost for a minute or more.
        _ip("link", "add", bridge, "address", _random_mac_address(), "type", "bridge")
        _ip("address", "add", f"{next(hosts)}/{prefix}", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, node in enumerate(nodes, 1):
            name, cable = f"sg{tag}-{number}", f"sg{tag}v{number}"
            _ip("netns", "add", name)
            made[node] = name
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", name, "address", "add", f"{next(hosts)}/{prefix}", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
    except BaseException:
        remove(tag)
        raise
    return made


def remove(tag: str) -> None:
    """Remove what `create` made under this tag; idempotent. What still runs in a namespace keeps it
    until its end, without a network."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(NAMESPACES):
            if re.fullmatch(rf"sg{tag}-\d+", name):
                remove_one(name)
    with contextlib.suppress(FileNotFoundError):
        for link in os.listdir("/sys/class/net"):
            if re.fullmatch(rf"sg{tag}(br|v\d+)", link):
                with contextlib.suppress(Unavailable):  # the end of a namespace takes its own along
                    _ip("link", "delete", link)


def remove_one(name: str) -> None:
    """Remove one namespace, if it is there."""
    with contextlib.suppress(Unavailable):
        _ip("netns", "delete", name)


def destroy(name: str) -> None:
    """What the end of a machine is: the namespace is gone, and all that ran in it was killed."""
    inside = os.stat(os.path.join(NAMESPACES, name)).st_ino
    remove_one(name)  # first: nothing can be started in it any more
    while found := [pid for pid in _pids() if _network_of(pid) == inside]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _network_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended
        return None


def exists(name: str) -> bool:
    """Whether `ip netns` knows this namespace."""
    return os.path.exists(os.path.join(NAMESPACES, name))


def address_of(name: str) -> str:
    """The IPv4 address at which others reach what runs in the namespace; "" when it has none.
    Raises `Unavailable`."""
    links = json.loads(_ip("-4", "-json", "-n", name, "address", "show", "scope", "global") or "[]")
    found = [info["local"] for link in links for info in link.get("addr_info", ())]
    return str(found[0]) if found else ""


def _free_network() -> ipaddress.IPv4Network:
    routes: list[dict[str, Any]] = json.loads(_ip("-4", "-json", "route", "show") or "[]")
    taken = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in routes
        if route.get("dst", "default") != "default"
    ]
    for network in ipaddress.IPv4Network(NETWORKS).subnets(new_prefix=24):
        if not any(network.overlaps(other) for other in taken):
            return network
    raise Unavailable(f"the machine has routes to all of {NETWORKS} already")


def _random_mac_address() -> str:
    """Make a locally administered unicast address (IEEE 802, second lowest bit of octet one)."""
    return bytes([0x02, *os.urandom(5)]).hex(":")


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(
            ["ip", *words], check=True, capture_output=True, text=True, timeout=LIMIT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        raise Unavailable(f"'ip {' '.join(words)}' failed ({said})") from None
    return done.stdout

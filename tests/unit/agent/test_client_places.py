"""Where a relay listens for Jupyter's clients, by who asks and from where."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_scheduler.agent.relays import client_places
from singularity_scheduler.agent.relays.client_places import (
    CURVE,
    PATH_BYTES,
    former_place,
    other_place,
    place_clients,
)
from singularity_scheduler.agent.sessions.launch import PORTS

TCP = {"transport": "tcp", "ip": "127.0.0.1", "key": "k", **dict.fromkeys(PORTS, 5001)}
KEYS = dict(zip(CURVE, ("p" * 40, "s" * 40), strict=True))


@pytest.fixture
def settings(short_dir: Path) -> Any:
    return SimpleNamespace(
        clients_dir=lambda uid: str(short_dir / "c" / str(uid)),
        client_ip="",
        tunnel_ip="127.0.0.1",
    )


@pytest.fixture
def record() -> Any:
    return SimpleNamespace(uid=os.geteuid(), gid=os.getegid())


@pytest.fixture
def here() -> ProcessIdentity:
    return ProcessIdentity.of(os.getpid())


def test_a_server_of_this_machine_gets_sockets_of_its_users_alone(
    settings: Any, record: Any, here: ProcessIdentity
) -> None:
    one, two = (place_clients(settings, record, TCP, here) for _ in range(2))
    base = Path(settings.clients_dir(record.uid))
    for place in (one, two):
        assert (place["transport"], place["key"]) == ("ipc", "k")
        assert Path(place["ip"]).parent.parent == base
        assert len(f"{place['ip']}-{max(place[port] for port in PORTS)}") <= PATH_BYTES
        assert len({place[port] for port in PORTS}) == len(PORTS)
        assert not set(CURVE) & set(place)
    assert one["ip"] != two["ip"]
    assert base.stat().st_mode & 0o777 == 0o700
    # Its kernel is restarted: the same place, also for another agent of this machine.
    assert place_clients(settings, record, one, None) == one


@pytest.mark.parametrize(
    ("asked", "client_ip", "ip"),
    [
        (TCP, "", "127.0.0.1"),
        (TCP, "10.1.2.3", "10.1.2.3"),
        ({**TCP, "ip": "0.0.0.0"}, "", "0.0.0.0"),
    ],
)
def test_others_get_ports_with_new_keys(
    settings: Any, record: Any, asked: dict[str, Any], client_ip: str, ip: str
) -> None:
    settings.client_ip = client_ip
    one, two = (place_clients(settings, record, asked, None) for _ in range(2))
    assert (one["transport"], one["ip"], one["shell_port"]) == ("tcp", ip, 5001)
    assert all(len(one[key]) == 40 for key in CURVE)
    assert {one[key] for key in CURVE}.isdisjoint(two[key] for key in CURVE)


def test_keys_that_a_server_has_are_kept(settings: Any, record: Any, here: ProcessIdentity) -> None:
    assert place_clients(settings, record, {**TCP, **KEYS}, here) == {**TCP, **KEYS}


def test_a_server_of_another_user_or_in_another_root_gets_ports(
    settings: Any, record: Any, here: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(client_places, "uid_of", lambda _: record.uid + 1)
        assert place_clients(settings, record, TCP, here)["transport"] == "tcp"
    stat = os.stat

    def elsewhere(path: Any, **more: Any) -> Any:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", elsewhere)
    assert place_clients(settings, record, TCP, here)["transport"] == "tcp"


@pytest.fixture
def wrong_places(short_dir: Path) -> list[str]:
    """Names that a user may have written, of which none is a place for sockets."""
    open_, other = short_dir / "open", short_dir / "link"
    open_.mkdir(mode=0o755)
    other.symlink_to(short_dir / "c")
    return [
        "k",
        "/nowhere/at/all/k",
        f"{open_}/x/k",
        f"{other}/x/k",
        f"{short_dir}/{'x' * 200}/k",
        "\0",
    ]


def test_what_a_user_has_written_is_no_place_unless_it_is_private(
    settings: Any, record: Any, here: ProcessIdentity, wrong_places: list[str]
) -> None:
    good = place_clients(settings, record, TCP, here)
    assert former_place(good, record.uid) == {
        name: good[name] for name in ("transport", "ip", *PORTS)
    }
    assert former_place(good, record.uid + 1) is None
    assert former_place({**good, "transport": "tcp"}, record.uid) is None
    assert former_place({**good, "shell_port": None}, record.uid) is None
    for ip in wrong_places:
        assert former_place({**good, "ip": ip}, record.uid) is None
        again = place_clients(settings, record, {**good, "ip": ip}, here)
        assert (again["transport"], again["ip"] == ip) == ("ipc", False)
        assert place_clients(settings, record, {**good, "ip": ip}, None)["transport"] == "tcp"


def test_a_relay_that_no_server_asked_for(settings: Any, record: Any) -> None:
    unix = other_place(settings, record, {**TCP, **KEYS}, True)
    assert unix["transport"] == "ipc"
    assert not set(CURVE) & set(unix)
    tcp = other_place(settings, record, unix, False)
    assert (tcp["transport"], tcp["ip"]) == ("tcp", "127.0.0.1")
    assert len({tcp[port] for port in PORTS}) == len(PORTS)

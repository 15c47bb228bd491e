"""What joining is made of: the join string, shared folders, what is kept on both sides."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
    Unsupported,
)
from singularity_proxy.membership import folder_probe
from singularity_proxy.membership.certificates import make_key, make_request, serial_of
from singularity_proxy.membership.folder_probe import Probe
from singularity_proxy.membership.identity import Identity, Membership
from singularity_proxy.membership.join_string import JoinString
from singularity_proxy.membership.joining import require_same
from singularity_proxy.wire.tls import PROTOCOL
from singularity_scheduler.fleet.registry import Registry, describe_members
from singularity_scheduler.fleet.settings import FleetSettings

SETTINGS = FleetSettings("scheduler.example.org", 8766)
STRING = JoinString("scheduler.example.org", 8766, "gpu-1", "ab" * 32, "cd" * 32)


# -- the string -----------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["scheduler.example.org", "192.0.2.7", "2001:db8::7"])
def test_a_join_string_says_all_that_is_needed(address: str) -> None:
    string = replace(STRING, address=address)
    assert JoinString.parse(f"  {string}\n") == string
    assert not set(str(string)) & set(" '\"`$?*&;|<>(){}!\\#~")  # a shell leaves it as it is


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "http://scheduler.example.org:8766/gpu-1",
        str(STRING)[:-1],
        str(STRING)[10:],
        str(STRING).replace(":8766", ""),
        str(STRING).replace(":8766", ":99999"),
        str(STRING).replace("gpu-1", "-gpu"),
        str(STRING).replace("sha256:", "md5:"),
        str(STRING).replace("ab", "zz"),
    ],
)
def test_what_is_no_join_string_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadRequest, match="not a whole join string, so nothing was sent") as told:
        JoinString.parse(text)
    assert "abab" not in told.value.message


# -- shared folders -------------------------------------------------------------------------------


def test_a_shared_folder_is_found_from_both_sides(tmp_path: Path) -> None:
    probe = folder_probe.begin("the checkpoint store", str(tmp_path))
    told = Probe.from_json(probe.to_json())
    assert told.word == ""
    folder_probe.answer(told)
    folder_probe.require_answer(probe)
    folder_probe.end(probe)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_node_does_not_share_is_told_there(tmp_path: Path) -> None:
    probe = folder_probe.begin("the checkpoint store", str(tmp_path))
    elsewhere = replace(probe, folder=str(tmp_path / "other"))
    with pytest.raises(Conflict, match=r"is not shared with this machine.*No such file"):
        folder_probe.answer(elsewhere)


def test_an_answer_that_does_not_arrive_is_told_at_the_service(tmp_path: Path) -> None:
    probe = folder_probe.begin("the folder of homes", str(tmp_path))
    with pytest.raises(Conflict, match=r"wrote to the folder of homes .* does not arrive"):
        folder_probe.require_answer(probe)
    Path(probe.reply).write_text("guessed")
    with pytest.raises(Conflict, match="does not arrive"):
        folder_probe.require_answer(probe)


def test_folders_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the service cannot write to the checkpoint store"):
        folder_probe.begin("the checkpoint store", str(tmp_path / "missing"))
    probe = folder_probe.begin("the checkpoint store", str(tmp_path))
    os.mkdir(probe.reply)  # what is there cannot be written, for root too
    with pytest.raises(Unavailable, match="this machine cannot write to the checkpoint store"):
        folder_probe.answer(probe)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"what": "x", "folder": "relative", "name": ".singularity-probe-1"},
        {"what": "x", "folder": "/tmp", "name": "../.singularity-probe-1"},
        {"what": "x", "folder": "/etc", "name": "passwd"},
        {"what": "x", "folder": "/tmp", "name": 7},
    ],
)
def test_a_service_can_have_no_other_files_read_or_written(body: object) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        Probe.from_json(body)


# -- versions -------------------------------------------------------------------------------------


def test_another_version_or_protocol_is_refused() -> None:
    require_same({"protocol": PROTOCOL, "version": "1.2"}, "1.2")
    for told in (
        {"protocol": PROTOCOL, "version": "1.3"},
        {"protocol": PROTOCOL + 1, "version": "1.2"},
        {},
    ):
        with pytest.raises(Unsupported, match="install the same version on both"):
            require_same(told, "1.2")


# -- the service's folder -------------------------------------------------------------------------


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(str(tmp_path), Clock())
    made.create(SETTINGS)
    return made


def test_the_folder_is_for_its_owner_alone(registry: Registry) -> None:
    folder = Path(registry.folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert registry.settings() == SETTINGS


def test_a_fleet_is_made_once(registry: Registry) -> None:
    pin = registry.authority().pin
    with pytest.raises(Conflict, match="has a fleet already, and was left as it is"):
        registry.create(SETTINGS)
    assert registry.authority().pin == pin


def test_there_may_be_no_fleet(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path))
    assert not registry.exists
    with pytest.raises(NotFound, match="`jupyter singularity fleet init` makes one"):
        registry.make_join_string("a")


def test_a_node_joins_and_is_renewed_and_withdrawn(registry: Registry) -> None:
    string = registry.make_join_string("a")
    assert (string.address, string.port) == (SETTINGS.address, SETTINGS.port)
    assert string.pin == registry.authority().pin
    request = make_request(make_key())
    issued = registry.admit(string.token, "a", request)
    assert issued.serial == serial_of(issued.pem)
    registry.book().check("a", issued.serial, registry.clock())
    newer = registry.renew("a", issued.serial, request)
    assert newer.serial != issued.serial
    registry.withdraw("a")
    with pytest.raises(Forbidden, match="withdrawn"):
        registry.renew("a", newer.serial, request)
    [told] = describe_members(registry.book(), registry.clock())
    assert (told["node"], told["state"]) == ("a", "withdrawn")


def test_a_join_that_is_refused_leaves_its_token(registry: Registry) -> None:
    string = registry.make_join_string("a")
    with pytest.raises(BadRequest):
        registry.admit(string.token, "a", b"no request")
    registry.admit(string.token, "a", make_request(make_key()))
    with pytest.raises(Forbidden, match="was used"):
        registry.admit(string.token, "a", make_request(make_key()))


@pytest.mark.parametrize("name", ["book.json", "settings.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"more": 1}'])
def test_a_damaged_file_is_told_and_left(registry: Registry, name: str, text: str) -> None:
    path = Path(registry.folder, name)
    path.write_text(text)
    with pytest.raises(Unavailable, match=f"{name} is damaged, so no node is let in"):
        registry.make_join_string("a")
    assert path.read_text() == text


# -- the node's folder ----------------------------------------------------------------------------


def test_a_node_keeps_who_it_is(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with pytest.raises(NotFound, match="`jupyter singularity node join` joins one"):
        Identity.load(state)
    assert not Identity.kept(state)
    identity = Identity(Membership("a", "192.0.2.7", 8766, "/store"), b"CA", b"CERT", b"KEY")
    identity.save(state)
    assert Identity.kept(state)
    assert Identity.load(state) == identity
    folder = Path(state, "fleet")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    replace(identity, certificate=b"NEWER").save_certificate(state)
    assert Identity.load(state).pem == b"NEWERKEY"


@pytest.mark.parametrize("text", ["", "[]", '{"node": "a"}'])
def test_a_damaged_membership_is_told(tmp_path: Path, text: str) -> None:
    Identity(Membership("a", "192.0.2.7", 8766), b"CA", b"CERT", b"KEY").save(str(tmp_path))
    (tmp_path / "fleet" / "membership.json").write_text(text)
    with pytest.raises(BadRequest, match=r"is damaged, .* let this machine join again"):
        Identity.load(str(tmp_path))

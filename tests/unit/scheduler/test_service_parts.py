"""Small parts of the service: addresses, locks, ports, streams, translations, documents."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    NoSpace,
    NotFound,
    SingularityError,
    StaleEpoch,
    Unavailable,
)
from singularity_scheduler.client.problems import to_error
from singularity_scheduler.client.stream import parse_events
from singularity_scheduler.core.state.devices import DeviceHealth
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.states import InvalidTransition
from singularity_scheduler.service.api import translate
from singularity_scheduler.service.api.metrics import Metrics
from singularity_scheduler.service.api.problems import problem
from singularity_scheduler.service.app import (
    SchedulerApp,
    listen,
    lock_state_dir,
    make_state_dir,
    service_address,
)
from singularity_scheduler.service.ledger import database
from singularity_scheduler.service.operations.streams import same_length
from singularity_scheduler.service.schemas.documents import iso, parse_iso
from support.scheduler_core import World
from traitlets.config import Config


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("no", devices=3),
        Conflict("no", session="a"),
        NotFound("no"),
        NoSpace("full", ledger="x"),
        StaleEpoch("old"),
        Unavailable("away"),
        InvalidTransition("no step", session="a", start="none", event="park", story=["x"]),
        SingularityError("inside"),
    ],
)
def test_an_error_is_the_same_on_the_other_side(error: SingularityError) -> None:
    document = json.dumps(problem(error, error.http_status)).encode()
    again = to_error(error.http_status, "", document)
    assert type(again) is type(error)
    assert (again.message, again.fields) == (error.message, error.fields)


def test_an_error_of_another_version_is_known_by_its_status() -> None:
    body = json.dumps({"error": "TooClever", "detail": "no", "status": 409, "x": 1}).encode()
    error = to_error(409, "Conflict", body)
    assert (type(error), error.message, error.fields) == (Conflict, "no", {"x": 1})


def test_what_we_did_not_foresee_says_nothing_of_its_inside() -> None:
    shown = problem(KeyError("secret"), 500)
    assert "secret" not in json.dumps(shown)
    assert shown["detail"] == "the request failed: internal server error"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"message": "404"}'])
def test_an_answer_of_something_in_between(body: bytes) -> None:
    error = to_error(502, "Bad Gateway", body)
    assert isinstance(error, Unavailable)
    assert "502" in error.message


def test_events_are_cut_at_blank_lines_wherever_the_bytes_were_cut() -> None:
    text = (
        ': heartbeat\nid: x-1\n\nid: x-2\nevent: a\ndata: {"n": "ü"}\n\n'
        'data: {"n":\ndata: 2}\n\nevent: c\n\n'
    ).encode()
    for cut in range(len(text)):
        first, rest = parse_events(text[:cut])
        second, rest = parse_events(rest + text[cut:])
        assert first + second == [
            {"event": "", "data": None, "id": "x-1"},
            {"event": "a", "data": {"n": "ü"}, "id": "x-2"},
            {"event": "message", "data": {"n": 2}, "id": None},
        ]
        assert rest == b""


def test_where_to_serve() -> None:
    env = {
        "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:8765",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/singularity/",
    }
    assert service_address(env) == ("127.0.0.1", 8765, "/services/singularity/")
    for missing in env:
        with pytest.raises(Unavailable, match="and is not set"):
            service_address({k: v for k, v in env.items() if k != missing})


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=f"cannot listen at 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


@pytest.mark.asyncio
async def test_two_services_cannot_share_a_folder(tmp_path: Path) -> None:
    first = await lock_state_dir(str(tmp_path))
    with pytest.raises(Conflict, match="another scheduler service works in"):
        await lock_state_dir(str(tmp_path), wait_s=0)
    first.close()
    with await lock_state_dir(str(tmp_path), wait_s=0):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be made"):
        make_state_dir(str(tmp_path / "file" / "below"))


def test_started_by_hand_it_says_what_it_is() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTERHUB_")}
    done = subprocess.run(
        [sys.executable, "-m", "singularity_scheduler.service"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (line,) = map(json.loads, done.stderr.splitlines())
    assert "started by JupyterHub as a managed service" in line["message"]
    assert line["level"] == "critical"


def test_a_setting_that_cannot_be_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/services/singularity/")
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", url)
    circle = {"regions": {"a": "b", "b": "a"}}
    app = SchedulerApp(config=Config(Controller=circle), state_dir=str(tmp_path / "state"))
    app.log.propagate = True
    with pytest.raises(SystemExit) as ended:
        app.start()
    assert ended.value.code == 1
    assert caplog.messages[-1] == "Controller.regions: the places go in a circle: a in b in a"


def test_the_client_is_light() -> None:
    code = (
        "import sys, singularity_scheduler.client;"
        "heavy = ('sqlalchemy', 'alembic', 'jupyterhub', 'torch', 'tornado', 'jsonschema');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_service_that_starts_loads_nothing_that_can_wait() -> None:
    code = (
        "import gc, sys, singularity_scheduler.service.__main__;"
        "heavy = ('alembic', 'jupyterhub', 'aiohttp', 'pygments', 'lark', 'torch');"
        "print([m for m in heavy if m in sys.modules], gc.isenabled())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[] True"


def test_the_names_of_files_tell_the_newest_version_of_the_tables() -> None:
    folder = Path(database.__file__).with_name("migrations")
    assert database.newest_revision() == ScriptDirectory(folder).get_current_head()


@given(
    st.lists(
        st.sampled_from(
            [b"a", "ü".encode(), "\N{REPLACEMENT CHARACTER}".encode(), b"\xff", b"\xe2\x82"]
        )
    )
)
def test_a_log_keeps_its_length_whatever_was_printed(parts: list[bytes]) -> None:
    printed = b"".join(parts)
    sent = same_length(printed.decode("utf-8", "replace"), len(printed))
    assert len(sent) == len(printed)
    if b"\xff" not in printed and b"\xe2\x82" not in parts:
        assert sent == printed


def test_every_setting_is_explained() -> None:
    for cls in SchedulerApp.classes:
        for name, trait in cls.class_own_traits(config=True).items():
            assert len(trait.help) > 20, f"{cls.__name__}.{name}"


@pytest.mark.parametrize(
    ("type_", "data", "event"),
    [
        ("device.need", {}, ev.DeviceNeeded("s")),
        ("device.withdrawn", {}, ev.DeviceWithdrawn("s")),
        ("activity", {"busy": True, "at": 5}, ev.Activity("s", True, 5.0)),
        ("activity", {"busy": False}, ev.Activity("s", False, 9.0)),
        ("process.live", {"pid": 1}, ev.Started("s")),
        ("process.exited", {"exit_code": -9}, ev.ProcessExited("s", -9)),
        ("process.exited", {"exit_code": None, "reason": "x"}, ev.ProcessExited("s", None, "x")),
        ("proxy.recovered", {"records": 1, "ms": 2}, ev.ProxyRecovered("s", 1, 2.0)),
        (
            "proxy.recovered",
            {"records": 1, "ms": 2, "why": "was stopped"},
            ev.ProxyRecovered("s", 1, 2.0, "was stopped"),
        ),
        ("proxy.failed", {"sentence": "x"}, ev.ProxyFailed("s", "x")),
        ("proxy.failed", {"sentence": "x", "left": 2}, ev.ProxyFailed("s", "x", 2)),
        (
            "proxy.gave_up",
            {"operation": "aten::mm", "deaths": 3},
            ev.ProxyGaveUp("s", "aten::mm", 3),
        ),
        ("proxy.silent", {"limit_s": 10.0}, ev.ProxySilent("s", 10.0)),
        ("proxy.answers", {}, ev.ProxyAnswers("s")),
        (
            "device.working",
            {"operation": "aten::mm", "seconds": 61.5},
            ev.DeviceWorking("s", "aten::mm", 61.5),
        ),
        ("squashing.off", {"why": "they differ"}, ev.SquashingOff("s", "they differ")),
        ("lease.lapsed", {}, ev.LeaseLapsed("s")),
        ("lease.lapsed", {"reason": "x"}, ev.LeaseLapsed("s", "x")),
        ("news", {}, None),
    ],
)
def test_what_agents_say(type_: str, data: dict, event: ev.Event | None) -> None:
    assert translate.agent_event("s", type_, data, 9.0) == event


def test_checkpoint_names() -> None:
    assert translate.verb_event("s", "checkpoint", {}, "a", {}) == ev.CheckpointAsked("s", "a")
    for bad in (3, "x" * 201, "a\tb"):
        with pytest.raises(BadRequest, match="a checkpoint's name must be printable"):
            translate.verb_event("s", "checkpoint", {"name": bad}, "a", {})


def test_times() -> None:
    assert iso(0.0) == "1970-01-01T00:00:00.000+00:00"
    assert parse_iso("1970-01-01T00:00:01.500+00:00", 0) == 1.5
    assert parse_iso("1970-01-01T00:00:01Z", 0) == 1.0
    assert parse_iso("yesterday", 7.0) == 7.0
    assert parse_iso(True, 7.0) == 7.0


@pytest.mark.parametrize(
    ("changes", "up"),
    [
        ({}, 1.0),
        ({"trouble": "install nvidia-ml-py"}, 1.0),
        ({"silent_s": 9.9}, 1.0),
        ({"silent_s": 10.0}, 0.0),
        ({"present": False}, 0.0),
    ],
)
def test_a_device_is_up_while_its_driver_answers(changes: dict[str, object], up: float) -> None:
    world = World(1)
    world.look(DeviceHealth("cpu:0", **changes))  # type: ignore[arg-type]
    text = Metrics(world.state, None).text().decode()
    assert f'singularity_device_up{{device="cpu:0",node="local",uuid=""}} {up}' in text

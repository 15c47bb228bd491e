"""From what agents and people send (JSON) to the events of `core`; bad input is refused here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from singularity_proxy.capsule.images.machine import Machine
from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.state.devices import DeviceHealth, DeviceView
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Abilities, AgentFacts
from singularity_scheduler.core.values.requested import Priority
from singularity_scheduler.model.arguments import MAX_CHECKPOINT_NAME, Form
from singularity_scheduler.model.verbs import BY_NAME, Verb
from singularity_scheduler.requests.spec import (
    parse_move,
    parse_name,
    parse_priority,
    parse_tier,
)
from singularity_scheduler.service.ports import AgentSession, Hello
from singularity_scheduler.service.schemas.documents import parse_iso

Json = Mapping[str, Any]

MAX_HISTORY = 10_000

TOLD_TWICE = frozenset({"session.suspended", "session.restored"})
"""Events that say again what the answer to a command says."""

_HEALTH_FIELDS = {f.name for f in fields(DeviceHealth)} - {"hot_since"}


def agent_event(session: str, type_: str, data: Json, now: float) -> ev.Event | None:
    """The event behind an agent's notification; None for a type we do not know."""
    if type_ == "device.need":
        return ev.DeviceNeeded(session)
    if type_ == "device.withdrawn":
        return ev.DeviceWithdrawn(session)
    if type_ == "activity":
        return ev.Activity(session, bool(data["busy"]), parse_iso(data.get("at"), now))
    if type_ == "recorded":
        return ev.Recorded(session, dict(data["values"]))
    if type_ == "device.use":
        return ev.DeviceUse(session, _since(data.get("quiet_s"), now) or 0.0)
    if type_ == "process.live":
        return ev.Started(session)
    if type_ == "process.exited":
        code = data.get("exit_code")
        return ev.ProcessExited(
            session, None if code is None else int(code), str(data.get("reason") or "")
        )
    if type_ == "proxy.recovered":
        why = str(data.get("why") or "")
        return ev.ProxyRecovered(session, int(data["records"]), float(data["ms"]), why)
    if type_ == "proxy.failed":
        return ev.ProxyFailed(session, str(data["sentence"]), int(data.get("left", 0)))
    if type_ == "proxy.gave_up":
        return ev.ProxyGaveUp(session, str(data["operation"]), int(data["deaths"]))
    if type_ == "proxy.silent":
        return ev.ProxySilent(session, float(data["limit_s"]))
    if type_ == "proxy.answers":
        return ev.ProxyAnswers(session)
    if type_ == "device.working":
        return ev.DeviceWorking(session, str(data["operation"]), float(data["seconds"]))
    if type_ == "squashing.off":
        return ev.SquashingOff(session, str(data["why"]))
    if type_ == "lease.lapsed":
        return ev.LeaseLapsed(session, str(data.get("reason") or ""))
    if type_ == "session.wanted":
        return ev.Wanted(session)
    if type_ == "session.orphaned":
        return ev.Orphaned(session, str(data.get("reason") or ""))
    return None


def _since(quiet_s: Any, now: float) -> float | None:
    """UNIX seconds since when a session's devices are quiet; 0.0: they are called; None: nobody
    can tell."""
    if isinstance(quiet_s, bool) or not isinstance(quiet_s, int | float):
        return None
    return now - quiet_s if quiet_s > 0 else 0.0


def node_joined(
    hello: Hello, starting: frozenset[str], over: set[str], now: float
) -> ev.NodeJoined:
    """The event behind a `hello`, without the sessions in `over` (ended for good, see the
    ledger)."""
    return ev.NodeJoined(
        hello["node"],
        tuple(
            DeviceView(
                d["id"],
                hello["node"],
                d["type"],
                int(d["capacity_bytes"]),
                d.get("name", ""),
                d.get("uuid", ""),
            )
            for d in hello["devices"]
        ),
        tuple(_facts(s, now) for s in hello["sessions"] if s["session"] not in over),
        replace(
            abilities(hello["capabilities"]),
            instance=hello.get("instance", ""),
            version=str(hello.get("version") or ""),
            spot=hello.get("spot") is True,
            cluster=str(hello.get("cluster") or ""),
            far=hello.get("far") is True,
        ),
        starting,
    )


def abilities(told: Json) -> Abilities:
    """What an agent can do with whole sessions. One that says nothing of it is older than they."""
    image, store = told.get("process_image"), told.get("store")
    if not isinstance(image, dict):
        return Abilities("its node agent does not know how", stores=False)
    trouble = "" if image.get("available") else str(image.get("reason") or "it does not say why")
    place = store if isinstance(store, dict) else {}
    url = str(place.get("url") or "")
    missing = "" if url else str(place.get("reason") or "it has no checkpoint store")
    if place.get("available") is False:
        missing = str(place.get("reason") or "its checkpoint store cannot be used")
    machine = Machine.from_json(image.get("machine"))
    return Abilities(
        trouble,
        url,
        missing,
        stores=isinstance(store, dict),
        machine=machine,
        store_id=str(place.get("id") or ""),
    )


def device_health(reports: Any) -> list[DeviceHealth]:
    """The devices' reports; what is not a report of a device is left out."""
    found = []
    for report in reports if isinstance(reports, list) else ():
        known = {k: v for k, v in report.items() if k in _HEALTH_FIELDS}
        known["clock_limits"] = tuple(report.get("clock_limits") or ())
        known["xids"] = tuple((int(c), float(at)) for c, at in report.get("xids") or ())
        found.append(DeviceHealth(**known))
    return found


def _facts(session: AgentSession, now: float) -> AgentFacts:
    return AgentFacts(
        id=session["session"],
        alive=session["alive"],
        epoch=session["epoch"],
        devices=tuple(session["devices"]),
        saved=session["saved"],
        waiting=session["waiting"],
        busy=session["busy"],
        exit_code=session["exit_code"],
        reason=session.get("reason", ""),
        user=session["user"],
        kind=session["kind"],
        tier=session["tier"],
        virtual_devices=session["virtual_devices"],
        name=session.get("name", ""),
        recorded=json.dumps(session.get("recorded") or {}),
        suspended=bool(session.get("suspended", False)),
        incarnation=int(session.get("incarnation") or 1),
        quiet_since=_since(session.get("quiet_s"), now),
    )


def verb_event(
    session: str, verb: str, args: Json, by: str, device_types: Mapping[str, str]
) -> ev.Event:
    """The event of a verb on a session (REST body or magic arguments `args`)."""
    row = BY_NAME[verb]
    if (
        verb == "migrate"
        and sum(args.get(each.name) not in (None, "") for each in row.arguments) > 1
    ):
        raise BadRequest(
            "name either the device, the node or the cluster to move to, not two of them"
        )
    return ev.ASKED[verb](session, by, **read_arguments(row, args, device_types))


def read_arguments(verb: Verb, args: Json, device_types: Mapping[str, str]) -> dict[str, Any]:
    """What was said to a verb, by the names of its event; `device_types`: of the session's node."""
    said = {}
    for each in verb.arguments:
        told = args.get(each.name)
        if each.form is Form.PLACES:
            found: Any = parse_move(told, device_types)
        else:
            found = _READERS[each.form](told)
        if found is None and not each.optional:
            raise BadRequest(f"{each.name} is missing: give {each.form.value}")
        if found is not None:
            said[each.field or each.name] = found
    return said


def device_count(value: object) -> int:
    """A number of physical devices; whether the session may have so many is seen later."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 1:
            return value
        raise BadRequest(f"{value} devices asked, but a session runs on at least 1", devices=value)
    raise BadRequest("devices must be the number of physical devices to run on, from 1 on")


def priority_word(word: object) -> Priority:
    """The priority of that name; none is not medium here, but missing."""
    if word is None:
        raise BadRequest("priority is missing: pick low, medium or high")
    return parse_priority(word)


def seconds(value: object) -> float:
    """A length of time, 0 or more."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e9:
        return float(value)
    raise BadRequest("for_s must be a number of seconds, 0 or more: for how long from now on")


def checkpoint_name(name: object) -> str | None:
    """The name for a new checkpoint; None for none."""
    if name is not None and (
        not isinstance(name, str) or len(name) > MAX_CHECKPOINT_NAME or not name.isprintable()
    ):
        raise BadRequest(
            "a checkpoint's name must be printable text of at most "
            f"{MAX_CHECKPOINT_NAME} characters"
        )
    return (name or "").strip() or None


def checkpoint_word(word: object) -> str | None:
    """The id or name of a checkpoint that is there; None for none."""
    if word is None or word == "":
        return None
    if not isinstance(word, str) or len(word) > MAX_CHECKPOINT_NAME or not word.isprintable():
        raise BadRequest("a checkpoint is named by its id or its name, which are printable text")
    return word.strip()


def node_word(word: object, what: str = "node") -> str | None:
    """The name of a node or cluster; None for none."""
    if word is None or word == "":
        return None
    if not isinstance(word, str) or len(word) > 255 or not word.isprintable():
        raise BadRequest(f"a {what} is named by its name, see `jupyter singularity {what}s`")
    return word


def _required_name(name: object) -> str:
    if not (found := parse_name(name)):
        raise BadRequest("the name is empty; nothing was changed: give one")
    return found


def _level(level: object) -> str | None:
    if level is None or level in ("device", "process"):
        return level
    raise BadRequest("level must be device or process", level=level)


_READERS: dict[Form, Callable[[object], Any]] = {
    Form.NAME: _required_name,
    Form.LABEL: checkpoint_name,
    Form.STORED: checkpoint_word,
    Form.LEVEL: _level,
    Form.SECONDS: seconds,
    Form.COUNT: device_count,
    Form.TIER: parse_tier,
    Form.PRIORITY: priority_word,
    Form.NODE: node_word,
    Form.CLUSTER: lambda word: node_word(word, "cluster"),
    Form.FLAG: lambda value: value is True,
}


def limit(value: object, fallback: int) -> int:
    """A number of lines from 1 to `MAX_HISTORY`."""
    if value is None:
        return fallback
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_HISTORY:
        raise BadRequest(f"limit must be a whole number from 1 to {MAX_HISTORY}", limit=value)
    return number

"""From what agents and people send (JSON) to the events of `core`; bad input is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core import events as ev
from singularity_scheduler.core.model import AgentFacts, DeviceHealth, DeviceView
from singularity_scheduler.core.spec import parse_move

from .documents import parse_iso
from .ports import AgentSession, Hello

Json = Mapping[str, Any]

MAX_CHECKPOINT_NAME = 200
MAX_HISTORY = 10_000

_HEALTH_FIELDS = {f.name for f in fields(DeviceHealth)} - {"hot_since"}


def agent_event(session: str, type_: str, data: Json, now: float) -> ev.Event | None:
    """The event behind an agent's notification; None for a type we do not know."""
    if type_ == "device.need":
        return ev.DeviceNeeded(session)
    if type_ == "device.withdrawn":
        return ev.DeviceWithdrawn(session)
    if type_ == "activity":
        return ev.Activity(session, bool(data["busy"]), parse_iso(data.get("at"), now))
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
    if type_ == "lease.lapsed":
        return ev.LeaseLapsed(session)
    return None


def node_joined(hello: Hello, starting: frozenset[str], over: set[str]) -> ev.NodeJoined:
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
        tuple(_facts(s) for s in hello["sessions"] if s["session"] not in over),
        starting,
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


def _facts(session: AgentSession) -> AgentFacts:
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
    )


def verb_event(
    session: str, verb: str, args: Json, by: str, device_types: Mapping[str, str]
) -> ev.Event:
    """The event of a verb on a session (REST body or magic arguments `args`)."""
    if verb == "park":
        return ev.ParkAsked(session, by)
    if verb == "preempt":
        return ev.PreemptAsked(session, by)
    if verb == "resume":
        return ev.ResumeAsked(session, by)
    if verb == "migrate":
        return ev.MigrateAsked(session, by, parse_move(args.get("device"), device_types))
    name = args.get("name")
    if name is not None and (
        not isinstance(name, str) or len(name) > MAX_CHECKPOINT_NAME or not name.isprintable()
    ):
        raise BadRequest(
            "a checkpoint's name must be printable text of at most "
            f"{MAX_CHECKPOINT_NAME} characters"
        )
    return ev.CheckpointAsked(session, by, name or None)


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

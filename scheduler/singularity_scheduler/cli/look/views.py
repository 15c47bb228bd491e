"""What people see of the API's documents: tables and cards. Pure functions of the document and
the time; programs get the documents themselves (``--json``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.tables import Card, Column, Table
from singularity_scheduler.client.words import (
    checkpoint_cause,
    checkpoint_note,
    duration,
    kept,
    plan,
    squashing,
)
from singularity_scheduler.model.session import SHOWN

Json = Mapping[str, Any]

LABELLED = tuple(each for each in SHOWN if each.fact.label)
"""Fields that have a line of their own without more words."""

STYLES = {
    "running": "green",
    "waiting": "yellow",
    "queued": "yellow",
    "failed": "red",
    "completed": "dim",
    "cancelled": "dim",
}
"""Colours of rows by the session's state; the others have none."""


def session_table(sessions: Sequence[Json], now: datetime, empty: str = "") -> Table:
    """Newest first, as they come. Their users and clusters are only shown when there are
    several."""
    several = len({session.get("user") for session in sessions}) > 1
    spread = len({session.get("cluster") for session in sessions}) > 1
    columns = [
        Column("id", style="bold"),
        *([Column("user")] if several else []),
        Column("name", least=12),
        Column("kind", drop=1),
        Column("tier", drop=2),
        Column("state"),
        *([Column("cluster", drop=4)] if spread else []),
        Column("devices", drop=3),
        Column("age", right=True),
        Column("reason", least=20),
    ]
    rows = [
        [
            str(session["id"]),
            *([texts.clean(session.get("user"))] if several else []),
            named(session),
            str(session.get("kind") or ""),
            str(session.get("tier") or ""),
            state_word(session),
            *([texts.clean(session.get("cluster"))] if spread else []),
            texts.devices(session),
            texts.age(session.get("created_at"), now),
            progress_text(session) or texts.clean(session.get("reason")),
        ]
        for session in sessions
    ]
    styles = [STYLES.get(str(session.get("state")), "") for session in sessions]
    return Table(columns, rows, empty, styles)


def named(session: Json) -> str:
    """Its name, and which part of a run on several nodes it is."""
    name, part = texts.clean(session.get("name")), session.get("part")
    return f"{name} ({part['number'] + 1} of {part['parts']} nodes)" if part else name


def _gang(session: Json) -> str:
    part = session.get("part")
    if not part:
        return ""
    others = [texts.clean(other) for other in part["sessions"] if other != session["id"]]
    which = f"part {part['number']} of gang {texts.clean(part['gang'])}"
    return f"{which} on {part['parts']} nodes, with {', '.join(others)}"


def progress_text(session: Json) -> str:
    """How far the transfer to or from the store is: "45 % of 1.2 GiB, 120 MiB/s, 3 s left"."""
    told = session.get("progress")
    if not told:
        return ""
    total, done = int(told.get("bytes_total") or 0), int(told.get("bytes_done") or 0)
    share = f"{100 * done // total} % of {texts.size(total)}" if total else ""
    return ", ".join(part for part in (share, speed(told)) if part)


def speed(told: Json) -> str:
    """ "120 MiB/s, 3 s left": the rate and the time left as far as they are known."""
    rate, eta = float(told.get("rate") or 0.0), told.get("eta_s")
    parts = [f"{texts.size(rate)}/s"] if rate else []
    if eta is not None:
        parts.append(f"{float(eta):.0f} s left" if float(eta) < 120 else f"{eta / 60:.0f} min left")
    return ", ".join(parts)


def state_word(session: Json) -> str:
    """The state, and whether it is held back until somebody resumes it, or kept alive."""
    state = str(session.get("state") or session.get("process_state") or "unknown")
    if session.get("held_back"):
        return f"{state}, held back"
    return f"{state}, kept" if session.get("keep_until") else state


def session_card(session: Json, now: datetime) -> Card:
    """Everything about one session, a line for each thing that there is something to say on."""
    rows = [
        ("Id", str(session["id"])),
        ("Name", texts.clean(session.get("name"))),
        ("User", texts.clean(session.get("user"))),
        ("Kind", str(session.get("kind") or "")),
        ("Tier", str(session.get("tier") or "")),
        ("Priority", _unless(session.get("priority"), "medium")),
        *((each.fact.label, texts.clean(session.get(each.key))) for each in LABELLED),
        ("State", texts.outcome({**session, "state": state_word(session)})),
        ("Transfer", progress_text(session)),
        ("Activity", _activity(session, now)),
        ("Kept", kept(session, now) if session.get("keep_until") else ""),
        ("Planned", texts.clean(plan(session, now))),
        ("Devices", _devices(session)),
        ("Ranks", texts.clean("; ".join(squashing(session.get("figures") or ())))),
        ("Node", texts.clean(session.get("node"))),
        ("Gang", _gang(session)),
        ("Cluster", place(session)),
        ("May be in", ", ".join(map(texts.clean, session.get("locations") or ()))),
        ("Queue", _queue(session, now)),
        ("Others wait", _others(session)),
        ("Service", sla_text(session)),
        ("Checkpoint", checkpoint_text(session, now)),
        ("Checkpoints", _checkpoints(session)),
        ("Last return", _loss(session, now)),
        ("Created", _ago(session.get("created_at"), now)),
        ("Changed", _ago(session.get("updated_at"), now)),
        *_run(session),
    ]
    return Card([(label, text) for label, text in rows if text])


def place(document: Json) -> str:
    """The cluster of a session or node, with its region where that has a name of its own."""
    cluster, region = texts.clean(document.get("cluster")), texts.clean(document.get("region"))
    return f"{cluster} ({region})" if region not in ("", cluster) else cluster


def _unless(value: object, usual: str) -> str:
    return "" if value in (None, usual) else str(value)


def _ago(at: object, now: datetime) -> str:
    passed = texts.age(at, now)
    return f"{passed} ago" if passed else ""


def _activity(session: Json, now: datetime) -> str:
    if session.get("process_state") != "live":
        return ""
    idle = texts.age(session.get("idle_since"), now)
    unused = texts.age(session.get("unused_since"), now)
    parts = [
        f"idle for {idle}" if idle else ("busy" if session.get("busy") else ""),
        f"its devices unused for {unused}" if unused else "",
    ]
    return ", ".join(part for part in parts if part)


def _devices(session: Json) -> str:
    wanted, held = int(session.get("virtual_devices") or 0), session.get("devices") or ()
    share = float(session.get("device_share") or 1.0)
    part = f" ({100 * share:g} % of its time)" if share < 1 else ""
    if held:
        figures = {figure["virtual_device"]: figure for figure in session.get("figures") or ()}
        return (
            ", ".join(
                f"cuda:{i} -> {device}{_use(figures.get(i))}" for i, device in enumerate(held)
            )
            + part
        )
    return f"{texts.plural(wanted, 'virtual device')}{part}, holds none"


def _use(figure: Json | None) -> str:
    """ " (1.2 GiB of 4 GiB, 37 % busy)", as far as somebody has told."""
    if figure is None or figure.get("memory_used_bytes") is None:
        return ""
    total, busy = figure.get("memory_total_bytes"), figure.get("utilisation_percent")
    of = f" of {texts.size(total)}" if total else ""
    share = "" if busy is None else f", {busy:.0f} % busy"
    return f" ({texts.size(figure['memory_used_bytes'])}{of}{share})"


def sla_text(session: Json) -> str:
    """What it got of what its tier promises: "95 % kept in 11 of 12 windows of 1 h, 58 % in this
    one"."""
    told = session.get("sla") or {}
    promised = float(told.get("promised_fraction") or 0.0)
    windows, wanted_s = int(told.get("windows") or 0), float(told.get("wanted_s") or 0.0)
    parts = []
    if windows and promised:
        kept = int(told.get("windows_kept") or 0)
        hours = duration(float(told["window_s"]))
        parts.append(f"{100 * promised:.0f} % kept in {kept} of {windows} windows of {hours}")
    if wanted_s:
        parts.append(f"{100 * float(told['got_s']) / wanted_s:.0f} % in this one")
    if attained := float(told.get("attained_device_s") or 0.0):
        parts.append(f"{duration(attained)} of device time in all")
    return ", ".join(parts)


def _queue(session: Json, now: datetime) -> str:
    queue = session.get("queue")
    if not queue:
        return ""
    since = texts.age(session.get("waiting_since"), now)
    return f"place {queue.get('place')}, {queue.get('ahead')} ahead" + (
        f", waits for {since}" if since else ""
    )


def _checkpoints(session: Json) -> str:
    count = int(session.get("checkpoints") or 0)
    return texts.plural(count, "checkpoint") if count > 1 else ""


def _loss(session: Json, now: datetime) -> str:
    """What its last return from the store brought back, in a line."""
    loss = session.get("loss")
    if not loss:
        return ""
    lost = ", ".join(map(texts.clean, loss.get("lost") or ()))
    parts = [
        _ago(loss.get("at"), now),
        f"from {texts.clean(loss.get('checkpoint'))} ({loss.get('level')} state)",
        "what it did after that is undone" if loss.get("rolled_back") else "",
        f"not brought back: {lost}" if lost else "nothing lost",
    ]
    return ", ".join(part for part in parts if part)


def _others(session: Json) -> str:
    return ", ".join(
        f"{texts.clean(other.get('user'))}/{texts.clean(other.get('name'))} ({other.get('tier')}, "
        f"{texts.plural(int(other.get('devices') or 0), 'device')})"
        for other in session.get("others_waiting") or ()
    )


def checkpoint_text(session: Json, now: datetime) -> str:
    """The last checkpoint in words; empty when there is none."""
    last = session.get("last_checkpoint")
    if not last:
        return ""
    parts = [texts.clean(last.get("id")), _ago(last.get("at"), now)]
    if last.get("name"):
        parts.insert(0, f"'{texts.clean(last['name'])}'")
    parts.append(checkpoint_cause(last, now))
    if last.get("bytes") is not None:
        parts.append(texts.size(last["bytes"]))
    if last.get("level"):
        parts.append(f"{last['level']} state")
    parts.append(texts.clean(checkpoint_note({**last, "reason": ""}, now)))
    if last.get("reason"):
        parts.append(f"no more because {texts.clean(last['reason'])}")
    return ", ".join(part for part in parts if part)


def checkpoint_table(stored: Sequence[Json], now: datetime, one: bool, empty: str) -> Table:
    """Newest first, as they come; of `one` session, or with the session of each."""
    columns = [
        *([] if one else [Column("session", style="bold")]),
        Column("name", least=12),
        Column("id", drop=1),
        Column("level"),
        Column("size", right=True),
        Column("stored", right=True, drop=2),
        Column("age", right=True),
        Column("note", least=12, drop=3),
    ]
    rows = [
        [
            *([] if one else [str(c.get("session") or "")]),
            texts.clean(c.get("name") or _in_brackets(checkpoint_cause(c, now))),
            texts.clean(c.get("id")),
            str(c.get("level") or ""),
            texts.size(int(c.get("bytes") or 0)),
            texts.size(int(c.get("stored_bytes") or 0)),
            texts.age(c.get("at"), now),
            texts.clean(checkpoint_note(c, now)),
        ]
        for c in stored
    ]
    bad = [bool(c.get("damaged") or c.get("unproved")) for c in stored]
    return Table(columns, rows, empty, ["red" if one else "" for one in bad])


def _in_brackets(words: str) -> str:
    """So that nobody takes them for a name."""
    return f"({words})" if words else ""


def _attempt(session: Json, run: Json) -> str:
    """Which one it is of how many, and where it went on; empty when there is only one."""
    number, retries = session.get("attempt") or 1, run.get("max_retries")
    if not retries:
        return ""
    loss = session.get("loss") or {}
    start = f"checkpoint {texts.clean(loss.get('checkpoint'))}" if loss else "its beginning"
    return f"{number} of {retries + 1}{f', from {start}' if number > 1 else ''}"


def _run(session: Json) -> list[tuple[str, str]]:
    """The lines of a batch run."""
    run = session.get("run")
    if not run:
        return []
    parameters = [
        f"{texts.clean(name)}={json.dumps(value)}"
        for name, value in (run.get("parameters") or {}).items()
    ]
    metadata = run.get("metadata") or {}
    tags = metadata.get("tags") or {}
    return [
        ("Command", texts.clean(run.get("command"))),
        ("Ranks", "one for each device" if run.get("ranked") else ""),
        ("Notebook", texts.clean(run.get("notebook"))),
        ("Output", texts.clean(run.get("output"))),
        ("Kernel", texts.clean(run.get("kernel"))),
        ("Folder", texts.clean(run.get("folder"))),
        ("Parameters", ", ".join(parameters)),
        ("Variables", ", ".join(map(texts.clean, run.get("variables") or ()))),
        ("Time limit", f"{run['timeout_s']} s" if run.get("timeout_s") else ""),
        ("Attempt", _attempt(session, run)),
        ("Experiment", texts.clean(metadata.get("experiment_name"))),
        ("Tags", ", ".join(f"{texts.clean(k)}={texts.clean(v)}" for k, v in tags.items())),
    ]


def history_table(changes: Sequence[Json], now: datetime) -> Table:
    """What happened, oldest first."""
    columns = [
        Column("ago", right=True),
        Column("state"),
        Column("rule", drop=1),
        Column("reason", least=20),
    ]
    rows = [
        [
            texts.age(change.get("at"), now),
            str(change.get("state") or ""),
            str(change.get("rule") or ""),
            texts.clean(change.get("reason")),
        ]
        for change in changes
    ]
    return Table(columns, rows, "nothing happened yet")


def device_table(cluster: Json) -> Table:
    """Each device with its node, who has it and how it is. "(taken)": by a session that one may
    not see. Clusters are only shown when there are several."""
    places = {n["id"]: place(n) for n in cluster.get("nodes") or ()}
    spread = len({*places.values()} - {""}) > 1
    connected = {n["id"]: n.get("connected") for n in cluster.get("nodes") or ()}
    columns = [
        Column("node", style="bold"),
        *([Column("cluster", drop=3)] if spread else []),
        Column("connected"),
        Column("device"),
        Column("memory", right=True),
        Column("session"),
        Column("used", right=True, drop=2),
        Column("busy", right=True, drop=1),
        Column("temp", right=True, drop=1),
        Column("state", least=12),
        Column("name", least=8),
    ]
    rows, styles = [], []
    for device in cluster.get("devices") or ():
        node, capacity = device.get("node"), device.get("capacity_bytes")
        holder, health = device.get("session"), device.get("health") or {}
        used, busy = health.get("memory_used_bytes"), health.get("utilisation_percent")
        warm = health.get("temperature_c")
        rows.append(
            [
                str(node),
                *([places.get(str(node), "")] if spread else []),
                "yes" if connected.get(node) else "no",
                str(device.get("id")),
                texts.size(capacity) if capacity else "",
                "free" if holder is None else ("(taken)" if holder == "other" else str(holder)),
                "" if used is None else texts.size(used),
                "" if busy is None else f"{busy:.0f} %",
                "" if warm is None else f"{warm:.0f} °C",
                device_state(device),
                texts.clean(device.get("name")),
            ]
        )
        styles.append("red" if device.get("drained") else "")
    with_devices = {device.get("node") for device in cluster.get("devices") or ()}
    for node, alive in connected.items():
        if node not in with_devices:
            where = [places.get(str(node), "")] if spread else []
            rows.append([str(node), *where, "yes" if alive else "no", "none", *[""] * 7])
    return Table(columns, rows, "no node has ever connected", styles)


def cluster_table(found: Json) -> Table:
    """The clusters by region; with several regions or clusters in one, a line for each sum."""
    columns = [
        Column("region", style="bold"),
        Column("cluster"),
        *(Column(name, right=True) for name in ("nodes", "devices", "free", "sessions")),
        Column("waiting", least=12),
    ]
    clusters = {one["name"]: one for one in found.get("clusters") or ()}
    rows = []
    for region in found.get("regions") or ():
        inside = [clusters[name] for name in region["clusters"] if name in clusters]
        name = texts.clean(region["name"])
        within = texts.clean(region.get("within"))
        shown = f"{name} ({within})" if within else name
        rows += [[shown, texts.clean(one["name"]), *_cluster_sums(one)] for one in inside]
        if len(inside) > 1:
            rows.append([shown, f"all {len(inside)}", *_cluster_sums(region)])
    return Table(columns, rows, "there is no cluster")


def _cluster_sums(one: Json) -> list[str]:
    waiting = [f"{n} {tier}" for tier, n in (one.get("waiting") or {}).items() if n]
    return [
        f"{one.get('connected')} of {one.get('nodes')}",
        *(str(one.get(name)) for name in ("devices", "free", "sessions")),
        ", ".join(waiting) or "nobody",
    ]


def device_state(device: Json) -> str:
    """ "ok", or what is wrong with it: why it is drained, else why it tells nothing."""
    if drained := device.get("drained"):
        by = f" by {texts.clean(drained.get('by'))}" if drained.get("by") else ""
        return f"drained{by}: {texts.clean(drained.get('reason'))}"
    return texts.clean((device.get("health") or {}).get("trouble")) or "ok"


def device_sentence(device: Json) -> str:
    """What became of a device that was drained or returned."""
    where = f"{texts.clean(device.get('id'))} of node {texts.clean(device.get('node'))}"
    if not device.get("drained"):
        return f"{where} is given to sessions again"
    holder = device.get("session")
    rest = f"; session {holder} is leaving it" if holder else ""
    return f"{where} is {device_state(device)}{rest}"


def cannot_store(cluster: Json) -> list[str]:
    """A line for each node that cannot store whole sessions, and why."""
    return [
        f"node {texts.clean(node.get('id'))} cannot store whole sessions: "
        f"{texts.clean(images.get('reason'))}"
        for node in cluster.get("nodes") or ()
        if node.get("connected") and (images := node.get("images")) and not images.get("available")
    ]


def not_open(cluster: Json) -> list[str]:
    """A line for each node that gets no new sessions, and why."""
    return [
        f"node {texts.clean(node.get('id'))} is {node['duty']}"
        f"{f' ({reason})' if (reason := texts.clean(node.get('reason'))) else ''}"
        for node in cluster.get("nodes") or ()
        if node.get("duty", "open") != "open"
    ]


def summary(cluster: Json) -> str:
    """The cluster in one line."""
    nodes = cluster.get("nodes") or ()
    devices = cluster.get("devices") or ()
    taken = sum(device.get("session") is not None for device in devices)
    alive = sum(bool(node.get("connected")) for node in nodes)
    waiting = [f"{n} {tier}" for tier, n in (cluster.get("waiting") or {}).items() if n]
    return (
        f"{alive} of {texts.plural(len(nodes), 'node')} connected, "
        f"{taken} of {texts.plural(len(devices), 'device')} taken, "
        f"waiting: {', '.join(waiting) or 'nobody'}"
    )

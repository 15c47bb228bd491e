"""Prometheus metrics of the service: ``GET <prefix>metrics``.

Every label value is there from the start, so a rate can be taken before something happened; their
names come from the tables (words, kinds, tiers, rules, verbs, operations).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from singularity_scheduler.core import events as ev
from singularity_scheduler.core.cluster import ClusterState
from singularity_scheduler.core.model import Kind, Tier
from singularity_scheduler.core.rules import RULES
from singularity_scheduler.core.states import WORDS, DeviceState

from .operations import TABLE, Operation
from .problems import OUTCOMES

if TYPE_CHECKING:
    from .feed import Feed

PREFIX = "singularity"
DEVICE_TYPES = ("cpu", "cuda")
ACTIONS = {
    ev.Start: "start",
    ev.Attach: "attach",
    ev.Park: "park",
    ev.TakeCheckpoint: "checkpoint",
    ev.End: "end",
}
STATUS_CLASSES = ("2xx", "4xx", "5xx")

MOVE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
WRITE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 20, 60)

_MOVES = {
    DeviceState.ATTACHING: (DeviceState.HELD, "attach"),
    DeviceState.PARKING: (DeviceState.PARKED, "park"),
}


class Metrics:
    """One per service. Counters are told; gauges look at `state` and `feed` when they are read."""

    def __init__(self, state: ClusterState, feed: Feed | None) -> None:
        self.registry = registry = CollectorRegistry()
        self._state = state
        self._feed = feed
        self._since: dict[str, tuple[DeviceState, float]] = {}
        words, kinds, tiers = list(WORDS), [k.value for k in Kind], [t.value for t in Tier]

        self.sessions = Gauge(
            "sessions",
            "Sessions that have not ended, by the word people see, kind and tier.",
            ("state", "kind", "tier"),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.sessions, words, kinds, tiers)
        self.transitions = Counter(
            "session_transitions",
            "Lines written to histories of sessions, by the word people see then.",
            ("state",),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.transitions, words)
        self.decisions = Counter(
            "decisions",
            "Lines written to histories of sessions, by the rule that decided.",
            ("rule",),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.decisions, sorted(RULES))
        self.actions = Counter(
            "actions",
            "Commands decided for node agents, by what they do and the rule that decided.",
            ("action", "rule"),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.actions, list(ACTIONS.values()), sorted(RULES))
        self.requests = Counter(
            "session_requests",
            "What people asked of sessions, over the API or by %singularity, by verb and outcome: "
            "done, refused, or failed for an error that nobody foresaw.",
            ("verb", "outcome"),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.requests, verbs(), OUTCOMES)
        self.devices = Gauge(
            "devices",
            "Devices of all nodes, by type and whether a session holds them.",
            ("type", "use"),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.devices, DEVICE_TYPES, ("held", "free"))
        self.nodes = Gauge(
            "nodes_connected", "Nodes that answer.", namespace=PREFIX, registry=registry
        )
        self.waiting = Gauge(
            "queue_length",
            "Sessions that wait for devices or to be started, by tier.",
            ("tier",),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.waiting, tiers)
        self.moves = {
            name: Histogram(
                f"{name}_duration_seconds",
                text,
                namespace=PREFIX,
                registry=registry,
                buckets=MOVE_BUCKETS,
            )
            for name, text in (
                ("attach", "Seconds from the decision to give devices until the session has them."),
                ("park", "Seconds from the decision to park until the devices are free."),
            )
        }
        self.ledger = Histogram(
            "ledger_write_seconds",
            "Seconds until a decision is durable.",
            namespace=PREFIX,
            registry=registry,
            buckets=WRITE_BUCKETS,
        )
        self.http = Histogram(
            "http_request_seconds",
            "Seconds of a request, by operation and class of the answer's status; streams are "
            "not counted.",
            ("operation", "status"),
            namespace=PREFIX,
            registry=registry,
            buckets=REQUEST_BUCKETS,
        )
        _all(self.http, [o.name for o in TABLE if not o.stream], STATUS_CLASSES)
        self.streams = Gauge(
            "event_streams_open", "Listeners to events.", namespace=PREFIX, registry=registry
        )
        self.log_bytes = Counter(
            "log_bytes_served",
            "Bytes of sessions' logs that were sent.",
            namespace=PREFIX,
            registry=registry,
        )

    # -- told -------------------------------------------------------------------------------

    def decided(self, decision: ev.Decision) -> None:
        """Observes the controller."""
        for change in decision.history:
            self.transitions.labels(change.word).inc()
            if change.rule in RULES:
                self.decisions.labels(change.rule).inc()
            self._moved(change.session, change.device_state, change.at)
        for action in decision.actions:
            if action.rule in RULES:
                self.actions.labels(ACTIONS[type(action)], action.rule).inc()
        for view in decision.sessions:
            if view.ended:
                self._since.pop(view.id, None)

    def _moved(self, session: str, state: DeviceState, at: float) -> None:
        before = self._since.get(session)
        if before is not None and before[0] is state:
            return
        if before is not None and (move := _MOVES.get(before[0])) and move[0] is state:
            self.moves[move[1]].observe(max(0.0, at - before[1]))
        self._since[session] = state, at

    def ledger_write(self, seconds: float) -> None:
        self.ledger.observe(seconds)

    def request(self, operation: Operation, status: int, seconds: float) -> None:
        """A request was answered."""
        self.http.labels(operation.name, f"{max(2, min(status // 100, 5))}xx").observe(seconds)

    def asked(self, verb: str, outcome: str) -> None:
        """Somebody asked something of a session; `outcome`: one of `problems.OUTCOMES`."""
        self.requests.labels(verb, outcome).inc()

    # -- read -------------------------------------------------------------------------------

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        self._look()
        return generate_latest(self.registry)

    def _look(self) -> None:
        counts: dict[tuple[str, str, str], int] = {}
        for view in self._state.sessions.values():
            if not view.final:
                key = view.word, view.kind.value, view.tier.value
                counts[key] = counts.get(key, 0) + 1
        for word in WORDS:
            for kind in Kind:
                for tier in Tier:
                    key = word, kind.value, tier.value
                    self.sessions.labels(*key).set(counts.get(key, 0))
        waiting = dict.fromkeys(Tier, 0)
        devices = {(t, use): 0 for t in DEVICE_TYPES for use in ("held", "free")}
        for node in self._state.nodes.values():
            for *_, session in (*node.queue, *node.pending):
                waiting[self._state.sessions[session].tier] += 1
            for device in node.devices.values():
                key_of = device.type, "held" if device.id in node.leases else "free"
                devices[key_of] = devices.get(key_of, 0) + 1
        for tier, number in waiting.items():
            self.waiting.labels(tier.value).set(number)
        for key_of, number in devices.items():
            self.devices.labels(*key_of).set(number)
        self.nodes.set(sum(node.connected for node in self._state.nodes.values()))
        self.streams.set(self._feed.listeners if self._feed else 0)


def verbs() -> list[str]:
    """What can be asked of sessions over the API."""
    return sorted({operation.verb for operation in TABLE if operation.verb})


def _all(metric: Gauge | Counter | Histogram, *values: object) -> None:
    """Create the series of every combination of label values."""
    combinations: list[tuple[str, ...]] = [()]
    for some in values:
        combinations = [(*c, v) for c in combinations for v in some]  # type: ignore[attr-defined]
    for labels in combinations:
        metric.labels(*labels)

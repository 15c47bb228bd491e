"""Prometheus metrics of the service: ``GET <prefix>metrics``.

Every label value is there from the start, so a rate can be taken before something happened; their
names come from the tables (words, kinds, tiers, rules, verbs, operations).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.devices import DeviceHealth
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import Kind, Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import WORDS, DeviceState, ProcessState
from singularity_scheduler.service.nodes.proofs import OUTCOMES as PROOFS
from singularity_scheduler.service.operations.table import TABLE, Operation

from .problems import OUTCOMES

if TYPE_CHECKING:
    from singularity_scheduler.service.events.feed import Feed

PREFIX = "singularity"
DEVICE_TYPES = ("cpu", "cuda")
ACTIONS = {
    ev.Start: "start",
    ev.Attach: "attach",
    ev.Park: "park",
    ev.Resize: "resize",
    ev.TakeCheckpoint: "checkpoint",
    ev.PutBack: "put_back",
    ev.Suspend: "suspend",
    ev.Resume: "resume",
    ev.Fence: "fence",
    ev.End: "end",
}
STATUS_CLASSES = ("2xx", "4xx", "5xx")

UP_S = 10.0
"""A device whose driver has not answered for this many seconds is not up."""

DEVICE_GAUGES = {
    "up": "1 while the device is there and its driver answers.",
    "drained": "1 while no session is given the device.",
    "memory_used_bytes": "Memory in use on the device.",
    "memory_total_bytes": "Memory of the device.",
    "utilisation_ratio": "Share of the last seconds in which the device worked, 0 to 1.",
    "temperature_celsius": "Temperature of the device.",
    "power_watts": "Power that the device draws.",
    "ecc_corrected_errors": "Memory errors since the driver was loaded that were corrected.",
    "ecc_uncorrected_errors": "Memory errors since the driver was loaded that were not corrected.",
    "xid_newest_code": "Code of the newest driver error (Xid); 0: there was none.",
    "clocks_limited": "1 while heat, power or a fault keeps the device's clocks down.",
}
"""Series per device; what a device does not tell has none."""

MOVE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
WRITE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 20, 60)

_TRANSFERS = {
    ProcessState.SUSPENDING: (ProcessState.SUSPENDED, "suspend"),
    ProcessState.RESUMING: (ProcessState.LIVE, "resume"),
}
_MOVES = {
    DeviceState.ATTACHING: (DeviceState.HELD, "attach"),
    DeviceState.PARKING: (DeviceState.PARKED, "park"),
    DeviceState.RESIZING: (DeviceState.HELD, "resize"),
}


class Metrics:
    """One per service. Counters are told; gauges look at `state` and `feed` when they are read."""

    def __init__(self, state: ClusterState, feed: Feed | None) -> None:
        self.registry = registry = CollectorRegistry()
        self._state = state
        self._feed = feed
        self._since: dict[str, tuple[DeviceState, float]] = {}
        self._transfer_since: dict[str, tuple[ProcessState, float]] = {}
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
        self.proofs = Counter(
            "checkpoint_proofs",
            "Checkpoints that were tried, by outcome: proved (it comes back), failed (it does "
            "not), put off (that could not be found out then).",
            ("outcome",),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.proofs, PROOFS)
        self.devices = Gauge(
            "devices",
            "Devices of all nodes, by type and whether a session holds them.",
            ("type", "use"),
            namespace=PREFIX,
            registry=registry,
        )
        _all(self.devices, DEVICE_TYPES, ("held", "free"))
        self.device_gauges = {
            name: Gauge(
                f"device_{name}",
                text,
                ("node", "device", "uuid"),
                namespace=PREFIX,
                registry=registry,
            )
            for name, text in DEVICE_GAUGES.items()
        }
        self.clusters = Gauge(
            "cluster_devices",
            "Devices of the nodes of a cluster that answer (total), and those that nobody has and "
            "sessions may be placed on (free).",
            ("cluster", "region", "use"),
            namespace=PREFIX,
            registry=registry,
        )
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
                ("resize", "Seconds from the decision to resize until it runs on its new devices."),
                ("suspend", "Seconds from the decision to suspend until all is in the store."),
                ("resume", "Seconds from the decision to bring back until the process runs."),
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
            self._transferred(change.session, change.process_state, change.at)
        for action in decision.actions:
            if action.rule in RULES:
                self.actions.labels(ACTIONS[type(action)], action.rule).inc()
        for view in decision.sessions:
            if view.ended:
                self._since.pop(view.id, None)
                self._transfer_since.pop(view.id, None)

    def tried(self, outcome: str) -> None:
        """A proof of a checkpoint has ended."""
        self.proofs.labels(outcome).inc()

    def _moved(self, session: str, state: DeviceState, at: float) -> None:
        before = self._since.get(session)
        if before is not None and before[0] is state:
            return
        if before is not None and (move := _MOVES.get(before[0])) and move[0] is state:
            self.moves[move[1]].observe(max(0.0, at - before[1]))
        self._since[session] = state, at

    def _transferred(self, session: str, state: ProcessState, at: float) -> None:
        before = self._transfer_since.pop(session, None)
        if before is not None and before[0] is state:
            self._transfer_since[session] = before
            return
        if before is not None and _TRANSFERS[before[0]][0] is state:
            self.moves[_TRANSFERS[before[0]][1]].observe(max(0.0, at - before[1]))
        if state in _TRANSFERS:
            self._transfer_since[session] = state, at

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

    def _look_at_devices(self) -> None:
        for gauge in self.device_gauges.values():
            gauge.clear()
        for node in self._state.nodes.values():
            for device in node.devices:
                health = node.health.get(device)
                if health is None or not node.connected:
                    continue
                drained = node.mark(device).drained
                for name, value in _figures(health, drained).items():
                    if value is not None:
                        self.device_gauges[name].labels(node.id, device, health.uuid).set(value)

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
        self._look_at_devices()
        self.clusters.clear()
        geography = self._state.geography
        for name, cluster in geography.clusters.items():
            where = name, geography.region(name)
            self.clusters.labels(*where, "total").set(cluster.total[1])
            self.clusters.labels(*where, "free").set(cluster.total[3])
        self.nodes.set(sum(node.connected for node in self._state.nodes.values()))
        self.streams.set(self._feed.listeners if self._feed else 0)


def _figures(health: DeviceHealth, drained: bool) -> dict[str, float | None]:
    """A value for each of `DEVICE_GAUGES`; None: the device does not tell."""
    busy = health.utilisation_percent
    return {
        "up": float(health.present and health.silent_s < UP_S),
        "drained": float(drained),
        "memory_used_bytes": health.memory_used_bytes,
        "memory_total_bytes": health.memory_total_bytes,
        "utilisation_ratio": None if busy is None else busy / 100,
        "temperature_celsius": health.temperature_c,
        "power_watts": health.power_w,
        "ecc_corrected_errors": health.ecc_corrected,
        "ecc_uncorrected_errors": health.ecc_uncorrected,
        "xid_newest_code": float(health.xids[-1][0] if health.xids else 0),
        "clocks_limited": float(bool(health.clock_limits)),
    }


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

"""What the operations of the API work with; put together by `SchedulerApp`."""

from __future__ import annotations

from dataclasses import dataclass, field

from singularity_proxy.errors import SingularityError

from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.service.controller import Controller
from singularity_scheduler.service.events.announcer import Announcer
from singularity_scheduler.service.events.audit import Audit
from singularity_scheduler.service.events.feed import Feed
from singularity_scheduler.service.events.texts import Texts
from singularity_scheduler.service.ledger.accounts import Accounts

from .auth import Gate
from .callers import Callers
from .metrics import Metrics


@dataclass
class Services:
    """One per application. `start` before requests come, `close` before the controller stops."""

    controller: Controller
    gate: Gate
    audit: Audit
    authenticate_metrics: bool = True
    callers: Callers = field(default_factory=Callers)
    feed: Feed = field(default_factory=Feed)
    texts: Texts = field(init=False)
    metrics: Metrics = field(init=False)
    announcer: Announcer = field(init=False)
    accounts: Accounts = field(init=False)

    def __post_init__(self) -> None:
        state = self.controller.state
        self.texts = Texts(state)
        self.metrics = Metrics(state, self.feed)
        self.announcer = Announcer(state, self.feed, self.texts)
        self.accounts = Accounts(self.controller.ledger)

    def start(self) -> None:
        """Observe the controller from now on."""
        controller, board = self.controller, self.controller.device_board
        controller.observers += [self.announcer, board, self.metrics.decided, self.audit.decided]
        controller.on_magic = self._magic
        controller.progress.on_change = self.announcer.progress
        board.on_change = self.announcer.devices
        controller.ledger.on_write = self.metrics.ledger_write
        controller.proofs.told = self.metrics.tried

    def _magic(self, verb: str, view: SessionView, error: Exception | None) -> None:
        refused = error if isinstance(error, SingularityError) else None
        outcome = "refused" if refused else "failed" if error else "done"
        self.metrics.asked(verb, outcome)
        self.audit.asked(verb, view.user, view.id, None, outcome, refused)

    def close(self) -> None:
        """End the event streams."""
        self.announcer.close()
        self.feed.close()

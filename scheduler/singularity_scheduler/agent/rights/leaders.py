"""Which scheduler service a node agent obeys: the one that leads, never one that led before.

Each service says in its `hello` which ledger it works on, and how often the leadership of it had
changed hands when this service got it (its epoch). One that was stopped for a while, and does not
know yet that another one has taken over, is refused, on old connections too. Services of different
ledgers cannot be compared: there the last `hello` counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest, StaleEpoch

if TYPE_CHECKING:
    from singularity_proxy.wire.rpc import Peer

KEY = "leader"
"""Under this name a connection knows who is at its other end."""


class Leaders:
    """`known` is the leader of before a restart of the agent; `keep` is told a new one, before it
    is obeyed."""

    def __init__(
        self,
        known: tuple[str, int] | None = None,
        keep: Callable[[tuple[str, int]], None] = lambda leader: None,
    ) -> None:
        self._known = known
        self._keep = keep

    def hello(self, peer: Peer, told: dict[str, Any]) -> None:
        """A service becomes this agent's; `StaleEpoch` when another one leads since."""
        said = told.get("leader")
        if said is None:  # not a service on a ledger, or one that has said it before
            self.check(peer)
            return
        leader = read(said)
        if self._known is not None and self._known[0] == leader[0] and leader[1] < self._known[1]:
            raise self._refusal(leader[1])
        if leader != self._known:
            self._keep(leader)
            self._known = leader
        peer.data[KEY] = leader

    def check(self, peer: Peer) -> None:
        """A command came on this connection; `StaleEpoch` when another service leads since."""
        leader = peer.data.get(KEY)
        if leader is not None and self._known is not None and leader != self._known:
            raise self._refusal(leader[1])

    def _refusal(self, epoch: int) -> StaleEpoch:
        assert self._known is not None
        return StaleEpoch(
            f"this node obeys the scheduler service of epoch {self._known[1]} by now; nothing was "
            f"done for the one of epoch {epoch}: it leads no more",
            epoch=self._known[1],
        )


def read(told: Any) -> tuple[str, int]:
    """(ledger, epoch); raises `BadRequest`."""
    ledger, epoch = (told.get("ledger"), told.get("epoch")) if isinstance(told, dict) else (0, 0)
    if not isinstance(ledger, str) or not isinstance(epoch, int) or isinstance(epoch, bool):
        raise BadRequest("'leader' needs the name of a ledger and an epoch")
    return ledger, epoch

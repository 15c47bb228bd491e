"""A barrier over all parts of a gang, as one part knows it.

The scheduler service has all ranks of a gang stop at one place (`elastic.coordinator.Barrier`, over
the agents of its parts). What an agent keeps of that is one of these: to where its ranks may go, so
that a device proxy that replaces another one holds them as well, and since when nobody has spoken
of it. It is kept in `LiveSession.barrier`, made and removed under the session's lock by `barrier`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from singularity_proxy.elastic.coordinator import Stoppable


class Joint:
    """`on_quiet` is called on the loop when the caller was not heard of for `quiet_s` seconds and
    no command that needs the ranks to stand is under way."""

    def __init__(self, quiet_s: float, on_quiet: Callable[[], object]) -> None:
        self.targets: Mapping[str, int] = {}
        self.used = False
        """A command that needs the ranks to stand is being carried out; it lets go of them."""
        self._quiet_s = quiet_s
        self._on_quiet = on_quiet
        self._claims = 0
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """The caller is there."""
        self._stop()
        if not self._claims and not self.used:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_s, self._on_quiet)

    def claim(self) -> None:
        """A command that needs the ranks to stand has come, and waits for its turn."""
        self._claims += 1
        self._stop()

    def unclaim(self) -> None:
        """It has ended."""
        self._claims -= 1
        self.heard()

    @property
    def claimed(self) -> bool:
        return self._claims > 0

    def use(self) -> None:
        """It has its turn: it lets go of the ranks when it ends."""
        self.used = True
        self._stop()

    def over(self) -> None:
        """The ranks go on."""
        self.used = True
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- as `elastic.coordinator.Barrier`

    async def join(self, proxy: Stoppable) -> None:
        """Have a proxy that came later hold its ranks at the same place."""
        await proxy.barrier_hold(self.targets, 0.0, 0.0)

    def forget(self, proxy: Stoppable) -> None:
        """The proxy has ended. Nothing is kept of proxies: those that there are, are asked."""


def merged(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of all device proxies of a part, as if one proxy served all its ranks; the form
    is that of `elastic.coordinator.View.read`. Pure."""
    whole: dict[str, Any] = {"groups": {}, "names": {}, "sizes": {}, "devices": {}, "held": True}
    open_: set[str] = set()
    for answer in answers:
        for name in ("groups", "devices"):
            for key, ranks in answer.get(name, {}).items():
                whole[name].setdefault(key, {}).update(ranks)
        for name in ("names", "sizes"):
            whole[name].update(answer.get(name, {}))
        open_.update(answer.get("open", ()))
        whole["held"] = whole["held"] and bool(answer.get("held", False))
    return {**whole, "open": sorted(open_)}

"""`jupyter singularity tier`: give a session another tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from singularity_scheduler.cli.framework.completing_words import earlier_words

from .verbs import WHICH, VerbApp


class WordApp(VerbApp):
    """A verb whose second word is one of a few."""

    fewest = 2
    most: ClassVar[int | None] = 2
    words_of: ClassVar[tuple[str, ...]] = ()
    """Those that it may be; the service refuses others."""

    def details(self) -> tuple[Any, ...]:
        return (self.words[1],)

    def done(self, session: dict[str, Any]) -> str:
        about = f"tier {session.get('tier')}, priority {session.get('priority')}"
        return f"{super().done(session)} ({about})"

    def complete(self, prefix: str) -> dict[str, str]:
        if not earlier_words(prefix):
            return super().complete(prefix)
        return dict.fromkeys(self._fitting(prefix), "")

    def _fitting(self, prefix: str) -> Iterable[str]:
        return (word for word in self.words_of if word.startswith(prefix))


class TierApp(WordApp):
    name = "jupyter-singularity-tier"
    synopsis = "SESSION premium|standard|basic"
    words_of = ("premium", "standard", "basic")
    description = f"""Give a session another tier, one that is open to its user. From then on it is
    served and measured by that: with a lower one its devices may go to somebody who waits, with a
    higher one it may get some at once. The windows in which its share was measured so far do not
    count for the new promise; the device time that it was served in all stays. {WHICH}"""
    examples = """
        jupyter singularity tier train.ipynb basic
    """


main = TierApp.launch

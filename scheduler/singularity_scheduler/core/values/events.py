"""The words of `decide`: what people ask (`asks`), what administrators do (`administration`), what
nodes report (`reports`), and with what it answers (`actions`, `decision`). Everything else speaks
of them as ``ev.NAME``."""

from __future__ import annotations

from singularity_scheduler.core.state.decision import *  # noqa: F403

from .actions import *  # noqa: F403
from .administration import AdminEvent
from .asks import *  # noqa: F403
from .asks import Ask
from .reports import *  # noqa: F403
from .reports import Report
from .subjects import *  # noqa: F403

Event = Ask | Report | AdminEvent

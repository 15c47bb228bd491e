"""Which rights this process has: root is not always allowed what root may."""

from __future__ import annotations

import os
import re
from pathlib import Path

_STATUS = Path("/proc/self/status")
_SYS_ADMIN = 1 << 21
"""CAP_SYS_ADMIN among the capabilities of a process (capabilities(7))."""

_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


def missing_right() -> str:
    """Return what root lacks here for namespaces and process images, as a clause; "" when it has
    that, or this process is not root."""
    found = _EFFECTIVE.search(_STATUS.read_text())
    if os.geteuid() != 0 or found is None or int(found[1], 16) & _SYS_ADMIN:
        return ""
    return "root has no CAP_SYS_ADMIN here (a container has it with --cap-add SYS_ADMIN)"

"""docs/reference/kernel-objects.md: what becomes of the kinds of kernel objects that a session can
hold, as tests/integration/capsule/test_kinds.py has it."""

from __future__ import annotations

import json
from pathlib import Path

from generate_text import table

KINDS = Path(__file__).resolve().parent.parent / "tests" / "support" / "kernel_objects.json"

VERDICTS = {
    "back": "comes back",
    "refused": "refused by name before anything is taken down",
}


def kernel_objects_page() -> str:
    kinds = json.loads(KINDS.read_text())
    rows = [(one["what"], VERDICTS[one["verdict"]]) for one in kinds]
    return f"""# What a process image holds

What becomes of what the processes of a session hold when it is suspended and comes back. Each line
is a test: the object is made in a capsule, saved, and looked at after it came back. A session that
is refused goes on as it was. [Capsules](../explanation/capsules.md#process-images) has the reasons,
and what becomes of files outside of the session and of connections to the outside.

{table(("object", "what becomes of it"), rows)}
"""

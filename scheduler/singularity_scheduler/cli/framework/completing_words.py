"""Which words of an unfinished command line stand before the one that is completed."""

from __future__ import annotations

import os
import shlex


def earlier_words(prefix: str, environ: dict[str, str] | None = None) -> list[str]:
    """The words behind the command's name that are no options and complete already; [] outside of
    a completion. Options with a value are expected as ``--option=value`` or behind the words."""
    env = os.environ if environ is None else environ
    line = env.get("COMP_LINE", "")[: int(env.get("COMP_POINT") or 0) or None]
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote: it belongs to the word that is completed
        words = shlex.split(line.rpartition(line[max(line.rfind("'"), line.rfind('"'))])[0])
    else:
        if words and not line.endswith((" ", "\t")):
            words = words[:-1]
    start = 2 if words and words[0].rpartition("/")[2] == "jupyter-singularity" else 3
    return [word for word in words[start:] if not word.startswith("-")]

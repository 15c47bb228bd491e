"""``python -m singularity_spawner.platform.hub -f CONFIG``: JupyterHub as the platform runs it."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """JupyterHub with default signal handling.

    A non-interactive shell starts background jobs with SIGINT ignored and children inherit that:
    the Hub stops its service and servers with SIGINT and would wait 30 s for each in vain.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    # jsonschema would build the grammar of a format that nothing here uses, which takes a second or
    # two of each start: it does without where the package is missing.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    from jupyterhub.app import main as hub_main

    hub_main(sys.argv[1:])


if __name__ == "__main__":
    main()

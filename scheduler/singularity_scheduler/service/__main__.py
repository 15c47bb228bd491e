"""``python -m singularity_scheduler.service``: what JupyterHub runs as the managed service.

Until it has started it answers nobody, so what only takes time is left out of it.
"""

import gc
import sys

# jsonschema would build the grammar of a format that nothing here uses, which takes a second or two
# of each start, and alembic load all that colours code, for its own developers: they do without
# where these are missing.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
sys.modules.setdefault("mako.ext.pygmentplugin", None)  # type: ignore[arg-type]

# What modules make stays: to look for garbage in it again and again is a tenth of their loading.
gc.disable()
from singularity_scheduler.service.app import SchedulerApp  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    SchedulerApp.launch_instance()

"""``python -m singularity_scheduler.service``: what JupyterHub runs as the managed service."""

import sys

# jsonschema would build the grammar of a format that nothing here uses, which takes a second or two
# of each start: it does without where the package is missing.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from singularity_scheduler.service.app import SchedulerApp  # noqa: E402

if __name__ == "__main__":
    SchedulerApp.launch_instance()

"""Where jobs of the view can run: the Python of this server, in one of the tiers."""

from __future__ import annotations

import os
import sys

from jupyter_scheduler.environments import EnvironmentManager
from jupyter_scheduler.models import RuntimeEnvironment

from .sessions import FORMATS

TIERS = ("premium", "standard", "basic")


class SingularityEnvironmentManager(EnvironmentManager):  # type: ignore[misc,unused-ignore]
    """`SchedulerApp.environment_manager_class`: its compute types are the tiers."""

    def list_environments(self) -> list[RuntimeEnvironment]:
        name = os.path.basename(sys.prefix) or "python"
        chosen = os.environ.get("SINGULARITY_TIER", "")
        return [
            RuntimeEnvironment(
                name=name,
                label=name,
                description="The Python of this server, as a batch session of the platform",
                file_extensions=["ipynb"],
                output_formats=list(FORMATS),
                metadata={"path": sys.executable},
                compute_types=list(TIERS),
                default_compute_type=chosen if chosen in TIERS else "standard",
            )
        ]

    def manage_environments_command(self) -> str:
        return ""

    def output_formats_mapping(self) -> dict[str, str]:
        return dict(FORMATS)

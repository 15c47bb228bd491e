"""Ships `singularity_proxy.pth` with editable installs; the wheel gets it by `force-include`."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PthHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            build_data["force_include_editable"] = {
                f"{self.root}/proxy/singularity_proxy.pth": "singularity_proxy.pth"
            }

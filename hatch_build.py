"""Adds to a wheel what is not a package: the built JupyterLab extension, so that installing needs
no node (the script of the dashboard, which is built with it, lies in a package), and the native
modules that SINGULARITY_PREBUILT names, with `:` between them (`./dev wheel`). An editable install
gets `singularity_proxy.pth` by no other way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LABEXTENSION = "ui_labext/singularity_labext/labextension"
DASHBOARD_SCRIPT = "scheduler/singularity_scheduler/service/dashboard/static/dashboard.js"
PREBUILT = "SINGULARITY_PREBUILT"
PREBUILT_FOLDER = "singularity_proxy/native/prebuilt"
SHARED = "share/jupyter/labextensions/jupyter-singularity"


class FilesHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable":
            build_data["force_include_editable"] = {
                f"{root}/proxy/singularity_proxy.pth": "singularity_proxy.pth"
            }
            return  # `jupyter singularity install` copies the extension, then and after each build
        if not (root / LABEXTENSION / "package.json").exists():
            raise RuntimeError(
                "the JupyterLab extension is not built: run ./dev setup, then build again"
            )
        if not (root / DASHBOARD_SCRIPT).exists():
            raise RuntimeError(
                "the script of the dashboard is not built: run ./dev setup, then build again"
            )
        if self.target_name == "wheel":
            build_data["shared_data"][str(root / LABEXTENSION)] = SHARED
            build_data["shared_data"][str(root / "ui_labext/install.json")] = (
                f"{SHARED}/install.json"
            )
            prebuilt = [Path(name) for name in os.environ.get(PREBUILT, "").split(":") if name]
            for path in prebuilt:
                build_data["force_include"][str(path)] = f"{PREBUILT_FOLDER}/{path.name}"
            if prebuilt:  # for this Python and machine; the module of another one is compiled there
                build_data["pure_python"] = False
                build_data["infer_tag"] = True

"""Libraries that only results need: the extra `simulate`."""

from __future__ import annotations

import importlib
from typing import Any

from singularity_proxy.errors import Unsupported


def need(module: str, what: str) -> Any:
    """The module; `Unsupported` with one sentence when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise Unsupported(
            f"{what} needs {library}, which is not installed: install it with "
            "pip install 'jupyter-singularity[simulate]'",
            module=library,
        ) from None

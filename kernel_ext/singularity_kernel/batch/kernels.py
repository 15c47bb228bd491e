"""Which kernel runs a notebook, looked up where the run will look it up too."""

from __future__ import annotations

from typing import Any

from .running.fates import NoKernel


def kernel_of(notebook: Any, named: str | None) -> tuple[str, str]:
    """Name and language of the kernel that runs `notebook`; `named` goes before the notebook's own.
    Raises `NoKernel`."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    name = named or notebook.metadata.get("kernelspec", {}).get("name")
    if not name:
        raise NoKernel("the notebook names no kernel; nothing was started: name one with -k")
    specs = KernelSpecManager()
    try:
        return name, specs.get_kernel_spec(name).language or "python"
    except (NoSuchKernel, ValueError):  # ValueError: no kernel could have that name
        known = ", ".join(sorted(specs.find_kernel_specs()))
        raise NoKernel(
            f"there is no kernel '{name}' here; nothing was started: name one of {known} with -k"
        ) from None

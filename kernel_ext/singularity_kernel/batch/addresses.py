"""Notebooks that are no files here: papermill's addresses, such as ``abs://``, and what goes wrong
with them."""

from __future__ import annotations

import sys

from .files import why_not


def without_secret(path: str) -> str:
    """`path` without what may be a secret in it: the signature of an ``abs://`` address."""
    return path.partition("?")[0] if path.startswith("abs://") else path


def is_address(path: str) -> bool:
    """Whether papermill reads and writes `path` elsewhere than in a file here."""
    return "://" in path


def write_errors() -> tuple[type[Exception], ...]:
    """What papermill raises when an output cannot be written now."""
    azure = sys.modules.get("azure.core.exceptions")
    return (OSError, azure.AzureError) if azure is not None else (OSError,)


def why(error: Exception) -> str:
    """What a person calls an error of `write_errors`."""
    if isinstance(error, OSError):
        return why_not(error)
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__

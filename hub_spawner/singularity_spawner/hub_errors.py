"""`SpawnException` on every Hub we support.

JupyterHub 6 has it; on 5.x the same `tornado.web.HTTPError` with the same attributes is shown to
the user in the same places, only the metrics label is missing.
"""

from __future__ import annotations

from typing import Any

from tornado import web


def spawn_refused(sentence: str, *, reason: str, status: int = 400) -> Exception:
    """The exception to raise when a policy, not a failure, stops a spawn.

    `sentence` is shown to the user (form, progress page, REST); `reason` is a short stable label
    for metrics; `status` the HTTP status.
    """
    try:
        from jupyterhub.spawner import SpawnException
    except ImportError:
        return _refusal(sentence, reason, status)
    error: Any = SpawnException(sentence, reason=reason, status_code=status)
    # The form shows this instead of the exception's text, which begins with its class.
    error.jupyterhub_message = sentence
    return error  # type: ignore[no-any-return]


def _refusal(sentence: str, reason: str, status: int) -> Exception:
    error: Any = web.HTTPError(status, "%s", sentence, reason=reason)
    error.jupyterhub_message = sentence
    return error  # type: ignore[no-any-return]

"""What a server that starts makes of the sessions of the one before."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from singularity_kernel.server.found import newest


def item(session: str, kernel: str, created_at: str) -> dict[str, Any]:
    return {"session": {"id": session, "created_at": created_at}, "kernel_id": kernel}


def test_of_two_sessions_of_a_kernel_the_one_that_was_given_up_is_not_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = item("old", "k", "2026-11-22T10:00:00+00:00")
    new = item("new", "k", "2026-11-22T10:00:01+00:00")
    other = item("other", "l", "2026-11-22T10:00:02+00:00")
    with caplog.at_level(logging.WARNING, "singularity.server"):
        assert newest([other, new, old]) == [new, other]
    assert "session old was given up for session new and still runs" in caplog.text

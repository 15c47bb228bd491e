"""The running service is what its OpenAPI document says: schemathesis asks it everything."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from singularity_scheduler.service.operations.table import TABLE
from singularity_scheduler.service.schemas.openapi import document
from support import matrix
from support.scheduler_service import Platform, platform

FREE = [
    *("create_session", "create_group", "migrate_session", "list_sessions", "list_groups"),
    *("list_history", "change_parameters", "list_admin_log", "begin_upgrade", "notice_node"),
    *("get_usage", "keep_session", "resize_session"),
]
"""Operations that may refuse what fits the schema."""

HOOKS = "support.openapi_formats"
TESTS = Path(__file__).resolve().parents[2]

CONFIG = """
base-url = "{url}"
headers = {{ Authorization = "token {who}-token" }}
request-timeout = 30.0

[generation]
deterministic = true
database = "none"

[checks]
# 501 and 503 are answers of the description: no process images yet, no node.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501", "503"]

[[operations]]
# How many devices are too many and which there are depends on session and cluster, not on the
# description, a cursor must be one that the list gave, times have an order, and administrators set
# how long sessions may be kept: what fits the schema may be refused with 400 here.
include-operation-id = {free}
checks.positive_data_acceptance.expected-statuses = {statuses}

[[operations]]
# It takes texts that are printable for ones that violate the format of that name.
include-operation-id = {printable}
checks.negative_data_rejection.expected-statuses = ["2xx", "4xx", "5xx"]

[[operations]]
# The event stream does not end; test_events.py reads it.
include-operation-id = "stream_events"
enabled = false

[[operations]]
# The log of a session that the stateful phase made and follows does not end either; test_log.py
# follows some.
include-operation-id = "stream_log"
phases.stateful.enabled = false
{more}
"""


def operations_with_format(name: str) -> list[str]:
    """Return the operations whose bodies have texts of this format, as the description says."""
    description = document()

    def has_it(part: Any, above: tuple[str, ...] = ()) -> bool:
        if isinstance(part, list):
            return any(has_it(item, above) for item in part)
        if not isinstance(part, dict):
            return False
        if "$ref" in part:
            named = part["$ref"].rpartition("/")[2]
            schema = description["components"]["schemas"][named]
            return named not in above and has_it(schema, (*above, named))
        return part.get("format") == name or any(has_it(item, above) for item in part.values())

    found = [o for path in description["paths"].values() for o in path.values()]
    return [o["operationId"] for o in found if has_it(o.get("requestBody"))]


async def ask(
    p: Platform, tmp_path: Path, who: str, examples: int, more: str = "", only: Iterable[str] = ()
) -> str:
    """Run schemathesis against the service, for all operations or `only` these; what it said when
    something did not hold, else ""."""
    config = tmp_path / "schemathesis.toml"
    statuses = ["2xx", "400", "401", "403", "404", "409", "501", "503"]
    printable = [name for name in operations_with_format("printable") if name not in FREE]
    assert "drain_node" in printable
    config.write_text(
        CONFIG.format(
            url=p.url, who=who, statuses=statuses, more=more, free=FREE, printable=printable
        )
    )
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    command += [f"{p.url}api/v1/openapi.json", "--checks", "all", "--no-color"]
    # DELETE ends a session; it stays readable with its history, as the operation's summary says.
    command += ["--exclude-checks", "use_after_free"]
    command += ["--max-examples", str(examples), "--seed", str(matrix.seed())]
    command += [f"--include-operation-id={name}" for name in only]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(TESTS)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode()
    print(text)
    return "" if process.returncode == 0 else text


NOT_FOR_USERS = """
[[operations]]
# All that a user can learn there is 403; the run of an administrator below asks them.
include-path-regex = "^/api/v1/admin/"
enabled = false
"""


@pytest.mark.asyncio
@pytest.mark.timeout(1800 if matrix.is_full() else 120)
async def test_the_service_is_what_its_description_says(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"settle_s": 0.05}) as p:
        await p.kernel("alice", name="a")
        more = "" if matrix.is_full() else NOT_FOR_USERS
        said = await ask(p, tmp_path, "alice", 100 if matrix.is_full() else 5, more)
        assert not said, said


LIVE_SESSION = """
# Its parameters are those of a live session, so that what is behind the 404 is asked as well.
[parameters]
"path.session" = "{session}"
"path.user" = "alice"
# A log of a live session that is followed does not end; test_log.py follows one.
"query.follow" = "false"

[[operations]]
# It would end the session that the others are about; the run above ends sessions.
include-operation-id = "end_session"
enabled = false

[phases.stateful]
enabled = false
"""


@pytest.mark.asyncio
@pytest.mark.timeout(1800 if matrix.is_full() else 120)
async def test_a_live_session_is_what_the_description_says(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"settle_s": 0.05}) as p:
        session = await p.holder("alice", name="a")
        p.agent.logs[session] = b"one line\n" * 10
        more = LIVE_SESSION.format(session=session)
        # Half a second each: by default a third of them.
        names = matrix.some_of(sorted(operation.name for operation in TABLE), 22)
        said = await ask(p, tmp_path, "admin", 50 if matrix.is_full() else 3, more, names)
        assert not said, said
        assert (await p.client().get_session(session))["id"] == session

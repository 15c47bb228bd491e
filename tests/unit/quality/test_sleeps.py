"""Tests wait for what they are about, with a deadline, and not for a while by hope.

Found are calls of `sleep` with a number that stand in no loop, where they would be the interval of
a poll: each is in `PART_OF_THE_TEST`, because for so long nothing may happen, or something is met
in the middle. Whoever wants an event waits for it: `until` and `wait_until` of tests/support."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIVES_S = 600.0
"""Who sleeps for so long is a program that a test ends."""

PART_OF_THE_TEST: Mapping[str, int] = {
    "tests/checks/cuda_api.py": 1,
    "tests/faults/test_agent_driver_park.py": 1,
    "tests/faults/test_leadership.py": 1,
    "tests/faults/test_node_lease.py": 8,
    "tests/faults/test_service_killed.py": 1,
    "tests/integration/agent/test_devices.py": 2,
    "tests/integration/agent/test_sessions.py": 1,
    "tests/integration/agent/test_suspend.py": 3,
    "tests/integration/capsule/test_lease.py": 7,
    "tests/integration/cli/test_cli_moves.py": 1,
    "tests/integration/elastic/test_agent_ranks.py": 2,
    "tests/integration/elastic/test_bridge.py": 1,
    "tests/integration/elastic/test_gangs.py": 2,
    "tests/integration/elastic/test_gangs_stored.py": 1,
    "tests/integration/elastic/test_launchers.py": 1,
    "tests/integration/elastic/test_rank_faults.py": 2,
    "tests/integration/kernel/test_kernel_elastic.py": 1,
    "tests/integration/kernel/test_kernel_moves.py": 1,
    "tests/integration/kernel/test_kernel_relay.py": 3,
    "tests/integration/proxy_device/test_collectives.py": 3,
    "tests/integration/proxy_device/test_driver.py": 1,
    "tests/integration/proxy_device/test_park.py": 1,
    "tests/integration/proxy_device/test_untrusted.py": 2,
    "tests/integration/proxy_worker/test_worker_behaviour.py": 1,
    "tests/integration/proxy_worker/test_worker_interrupts.py": 2,
    "tests/integration/scheduler/test_bounds.py": 1,
    "tests/integration/scheduler/test_log.py": 3,
    "tests/integration/scheduler/test_moves.py": 4,
    "tests/integration/scheduler/test_node_duties.py": 1,
    "tests/integration/scheduler/test_resize.py": 2,
    "tests/integration/scheduler/test_service.py": 1,
    "tests/integration/scheduler/test_trust.py": 1,
    "tests/support/agent_proxy_double.py": 1,
    "tests/support/kernel_relay.py": 1,
    "tests/support/proxy_fuzz.py": 1,
    "tests/unit/agent/test_rounds.py": 1,
    "tests/unit/elastic/test_bridge_links.py": 1,
    "tests/unit/elastic/test_bridge_parts.py": 1,
    "tests/unit/elastic/test_coordinator.py": 12,
    "tests/unit/kernel/test_batch_pieces.py": 1,
    "tests/unit/proxy_wire/test_rpc_limits.py": 3,
    "tests/unit/scheduler/test_commander.py": 1,
    "tests/unit/scheduler/test_committer.py": 1,
    "tests/unit/scheduler/test_gang_barrier.py": 3,
    "tests/unit/scheduler/test_gang_cuts.py": 1,
}
"""File -> how many it has. It only becomes shorter."""


def is_sleep(call: ast.Call) -> bool:
    """Whether it sleeps for a number of seconds that stands there."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "sleep" or not call.args or not isinstance(call.args[0], ast.Constant):
        return False
    return 0 < call.args[0].value < LIVES_S


def sleeps(node: ast.AST, looping: bool = False) -> Iterator[int]:
    """The lines of such calls in `node`, but for those in a loop."""
    if isinstance(node, ast.Call) and not looping and is_sleep(node):
        yield node.lineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        looping = False
    elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
        looping = True
    for inside in ast.iter_child_nodes(node):
        yield from sleeps(inside, looping)


def test_tests_sleep_for_what_they_say_alone() -> None:
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("*.py"):
        if re.search(r"sleep\([\d.]", text := path.read_text()):
            lines = list(sleeps(ast.parse(text)))
            found.update({str(path.relative_to(ROOT)): len(lines)} if lines else {})
    more = {file: count for file, count in found.items() if count > PART_OF_THE_TEST.get(file, 0)}
    assert more == {}, "wait for what is to happen instead (see the first lines of this file)"
    assert dict(found) == dict(PART_OF_THE_TEST), "take those that are gone out of the table"


def test_a_poll_and_a_program_are_none() -> None:
    text = """
async def test():
    while not true():
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.3)
    for n in range(3):
        def nested():
            time.sleep(1)
    time.sleep(600)
    time.sleep(n)
    await asyncio.sleep(0)
"""
    assert list(sleeps(ast.parse(text))) == [5, 8]

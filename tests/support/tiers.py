"""What each test needs, and which cases `./dev test` runs: both are declared here, once.

A tier says what its tests need, not where their files lie:

    unit       nothing: no process, no socket, no compiler (held to it while they run)
    service    the scheduler service and its ledger, commands that ask it, agents of paper
    node       the node agent, kernels, capsules, checkpoints, device proxies and their workers
    system     the whole platform: Hub, browser, several nodes, runs on it
    faults     any of those, while parts of it are killed, full or gone
    libraries  libraries that others wrote, and our own on other builds
    tools      lint, documentation, builds, sanitizers (see also `./dev lint`, `./dev docs`)
    gpu        an NVIDIA GPU

`./dev test` runs what `DEFAULT` says, in 20 minutes on two cores; `./dev test --full` everything,
part by part.
What was asked for by path or by `--tier` runs whole.
"""

from __future__ import annotations

import enum
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class Tier(enum.StrEnum):
    """What the tests of a file need."""

    UNIT = "unit"
    SERVICE = "service"
    NODE = "node"
    SYSTEM = "system"
    FAULTS = "faults"
    LIBRARIES = "libraries"
    TOOLS = "tools"
    GPU = "gpu"


class Take(enum.Enum):
    """Which cases of a place the default run takes."""

    ALL = enum.auto()
    ONE_OF_EACH_TEST = enum.auto()
    """Of every test function one case, by the seed."""
    ONE_OF_EACH_FILE = enum.auto()
    """Of every file one case, by the seed."""
    NONE = enum.auto()


TIERS: Mapping[str, Tier] = {
    "tests/unit": Tier.UNIT,
    "tests/unit/agent/test_agent_state.py": Tier.NODE,
    "tests/unit/agent/test_client_places.py": Tier.NODE,
    "tests/unit/agent/test_cut_short.py": Tier.NODE,
    "tests/unit/agent/test_estimates.py": Tier.NODE,
    "tests/unit/agent/test_memory.py": Tier.NODE,
    "tests/unit/agent/test_process.py": Tier.NODE,
    "tests/unit/agent/test_ring.py": Tier.NODE,
    "tests/unit/capsule/test_connections.py": Tier.NODE,
    "tests/unit/capsule/test_histories.py": Tier.NODE,
    "tests/unit/checkpoint/test_device_state.py": Tier.NODE,
    "tests/unit/checkpoint/test_keys.py": Tier.NODE,
    "tests/unit/checkpoint/test_pieces.py": Tier.NODE,
    "tests/unit/elastic/test_bridge_links.py": Tier.NODE,
    "tests/unit/elastic/test_bridge_parts.py": Tier.NODE,
    "tests/unit/elastic/test_ranks.py": Tier.NODE,
    "tests/unit/elastic/test_rendezvous.py": Tier.NODE,
    "tests/unit/elastic/test_standalone_workers.py": Tier.NODE,
    "tests/unit/hub/test_culling.py": Tier.SERVICE,
    "tests/unit/hub/test_mixin.py": Tier.SERVICE,
    "tests/unit/hub/test_platform_parts.py": Tier.SERVICE,
    "tests/unit/hub/test_spawner.py": Tier.SERVICE,
    "tests/unit/kernel/test_batch_commands.py": Tier.NODE,
    "tests/unit/kernel/test_batch_pieces.py": Tier.NODE,
    "tests/unit/kernel/test_batch_retries.py": Tier.NODE,
    "tests/unit/kernel/test_kernel_activity.py": Tier.NODE,
    "tests/unit/kernel/test_recording.py": Tier.NODE,
    "tests/unit/kernel/test_running.py": Tier.NODE,
    "tests/unit/kernel/test_server_restore.py": Tier.NODE,
    "tests/unit/labext/test_labext_build.py": Tier.TOOLS,
    "tests/unit/proxy_wire/test_build.py": Tier.TOOLS,
    "tests/unit/proxy_wire/test_graphs.py": Tier.TOOLS,
    "tests/unit/proxy_wire/test_pythons.py": Tier.TOOLS,
    "tests/unit/proxy_wire/test_ring.py": Tier.TOOLS,
    "tests/unit/proxy_wire/test_rpc_limits.py": Tier.NODE,
    "tests/unit/proxy_wire/test_systemd.py": Tier.NODE,
    "tests/unit/quality": Tier.TOOLS,
    "tests/unit/scheduler/test_client_http.py": Tier.SERVICE,
    "tests/unit/scheduler/test_job_shell.py": Tier.NODE,
    "tests/unit/scheduler/test_service_parts.py": Tier.SERVICE,
    "tests/unit/sim/test_compiled.py": Tier.TOOLS,
    "tests/unit/sim/test_summary.py": Tier.TOOLS,
    "tests/unit/sim/test_tiers.py": Tier.TOOLS,
    "tests/unit/tools": Tier.TOOLS,
    "tests/integration/scheduler": Tier.SERVICE,
    "tests/integration/scheduler/test_steps.py": Tier.NODE,
    "tests/integration/scheduler/test_real_nodes.py": Tier.NODE,
    "tests/integration/scheduler/test_device_health.py": Tier.NODE,
    "tests/integration/cli": Tier.SERVICE,
    "tests/integration/cli/test_why_everywhere.py": Tier.NODE,
    "tests/integration/cli/test_cli_runs.py": Tier.NODE,
    "tests/integration/agent": Tier.NODE,
    "tests/integration/capsule": Tier.NODE,
    "tests/integration/checkpoint": Tier.NODE,
    "tests/integration/elastic": Tier.NODE,
    "tests/integration/elastic/test_libraries_of_torch.py": Tier.LIBRARIES,
    "tests/integration/fleet": Tier.NODE,
    "tests/integration/kernel": Tier.NODE,
    "tests/integration/proxy_device": Tier.NODE,
    "tests/integration/proxy_device/test_sanitized.py": Tier.TOOLS,
    "tests/integration/proxy_gpu": Tier.NODE,
    "tests/integration/proxy_sweep": Tier.LIBRARIES,
    "tests/integration/proxy_worker": Tier.NODE,
    "tests/integration/batch": Tier.SYSTEM,
    "tests/integration/hub": Tier.SYSTEM,
    "tests/integration/nodes": Tier.SYSTEM,
    "tests/integration/setup": Tier.TOOLS,
    "tests/attacks": Tier.FAULTS,
    "tests/e2e": Tier.SYSTEM,
    "tests/faults": Tier.FAULTS,
    "tests/gpu": Tier.GPU,
    "tests/libraries": Tier.LIBRARIES,
}
"""Folder or file -> tier. The longest entry that fits a file counts."""

DEFAULT: Mapping[str, Take] = {
    "unit": Take.ALL,
    "service": Take.ALL,
    "node": Take.ONE_OF_EACH_TEST,
    "system": Take.NONE,
    "faults": Take.ONE_OF_EACH_FILE,
    "libraries": Take.NONE,
    "tools": Take.ALL,
    "gpu": Take.NONE,
    # Cheap, whatever they need.
    "tests/unit": Take.ALL,
    # Files of tier node that take half a minute or more: one test shows what each is about.
    "tests/integration/agent/test_bridges.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_migrations.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_relays.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_resizes.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_squashing.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_suspend.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_suspend_many.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/agent/test_whole_sessions.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/capsule/test_criu_routes.py": Take.NONE,
    "tests/integration/capsule/test_joint.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/fleet/test_joined_agents.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/elastic": Take.NONE,
    "tests/integration/elastic/test_agent_ranks.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/elastic/test_gangs.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/kernel/test_kernel_next_server.py": Take.NONE,
    "tests/integration/kernel/test_kernel_next_server.py"
    "::test_a_page_that_comes_late_gets_the_answer_to_the_cell_it_ran_on_the_server_before": (
        Take.ALL
    ),
    "tests/integration/kernel/test_kernel_agent.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/kernel/test_kernel_elastic.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/kernel/test_kernel_files.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/kernel/test_kernel_histories.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/kernel/test_kernel_moves.py": Take.NONE,
    "tests/integration/kernel/test_kernel_moves.py"
    "::test_three_moves_at_500_messages_a_second_lose_and_double_nothing": Take.ALL,
    "tests/integration/kernel/test_kernel_moves.py"
    "::test_a_page_is_told_that_its_cell_was_undone": Take.ALL,
    "tests/integration/kernel/test_kernel_moves.py"
    "::test_a_dead_node_costs_what_came_after_its_image_and_nothing_else": Take.ALL,
    "tests/integration/kernel/test_kernel_provisioner.py"
    "::test_a_plain_jupyter_execute_is_a_session": Take.NONE,
    "tests/integration/kernel/test_kernel_platform.py": Take.NONE,
    "tests/integration/kernel/test_kernel_platform.py"
    "::test_run_in_a_terminal_is_a_session_with_devices": Take.ALL,
    "tests/integration/proxy_gpu": Take.NONE,
    "tests/integration/proxy_device/test_driver.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/proxy_worker/test_collectives.py": Take.NONE,
    "tests/integration/proxy_worker/test_collectives.py"
    "::test_groups_that_are_bound_to_a_device_are_split": Take.ALL,
    "tests/integration/proxy_worker/test_compile.py": Take.NONE,
    "tests/integration/proxy_worker/test_worker_behaviour.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/proxy_worker/test_worker_training.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/proxy_worker/test_standalone_ranks.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/proxy_worker/test_worker_checks.py": Take.NONE,
    "tests/integration/proxy_worker/test_worker_devices.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/proxy_worker/test_foreign_programs.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/proxy_worker/test_worker_steps.py": Take.ONE_OF_EACH_FILE,
    # Every route with every kind of call: half a minute for each of its two tests.
    "tests/integration/scheduler/test_openapi_conformance.py": Take.ONE_OF_EACH_FILE,
    # That a training moves and loses nothing is shown by one whose node is drained (test_drain) and
    # by one that is asked to move while the service is killed (test_service_killed).
    "tests/integration/scheduler/test_real_nodes.py::test_a_training_migrates_and_loses_nothing": (
        Take.NONE
    ),
    # A story of each face of the platform, in a real browser where people use one.
    "tests/e2e/test_hub_browser.py": Take.ALL,
    "tests/e2e/test_labext_browser.py": Take.ALL,
    "tests/e2e/test_notebook_browser.py"
    "::test_a_notebook_says_that_it_was_taken_and_is_back[notebook]": Take.ALL,
    "tests/e2e/test_dashboard_browser.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/hub/test_hibernate.py"
    "::test_a_server_that_is_stopped_in_the_middle_of_a_cell": Take.ONE_OF_EACH_TEST,
    "tests/integration/hub/test_spawn.py::test_login_form_and_start": Take.ONE_OF_EACH_TEST,
    "tests/integration/hub/test_spawn.py::test_the_server_is_the_users_own": Take.ONE_OF_EACH_TEST,
    "tests/integration/hub/test_supervised.py"
    "::test_a_notebook_goes_on_when_parts_of_the_platform_are_killed": Take.ONE_OF_EACH_TEST,
    "tests/integration/hub/test_up.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/batch/test_batch_runs.py::test_submit_to_the_end": Take.ALL,
    "tests/integration/batch/test_batch_runs.py"
    "::test_preempted_in_the_middle_of_a_cell_it_equals_an_uninterrupted_run": Take.ALL,
    "tests/integration/batch/test_batch_runs.py::test_a_command_of_two_ranks": Take.ALL,
    "tests/integration/batch/test_batch_sweeps.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/batch/test_notebook_jobs.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/nodes/test_drain.py": Take.ONE_OF_EACH_FILE,
    "tests/integration/nodes/test_two_nodes.py": Take.ONE_OF_EACH_FILE,
    # Faults that need the whole platform, or go on for a minute.
    "tests/faults/test_batch_killed.py": Take.NONE,
    "tests/faults/test_repair_killed.py": Take.NONE,
    "tests/faults/test_repair_killed.py::test_a_replacement_is_killed_while_it_starts": (
        Take.ONE_OF_EACH_TEST
    ),
    "tests/faults/test_resize.py": Take.NONE,
    "tests/faults/test_resize.py"
    "::test_a_resize_that_does_not_fit_leaves_everything_as_it_was": Take.ALL,
    "tests/faults/test_resize_killed.py": Take.NONE,
    "tests/faults/test_resize_live.py": Take.NONE,
    "tests/faults/test_schedules.py": Take.NONE,
    # Builds with the sanitizers, which take minutes; whole builds and installations.
    "tests/unit/proxy_wire/test_ring.py": Take.NONE,
    "tests/integration/proxy_device/test_sanitized.py": Take.NONE,
    "tests/integration/proxy_device/test_collectives_killed.py"
    "::test_no_memory_is_touched_that_should_not_be": Take.NONE,
    "tests/integration/proxy_device/test_fuzz.py"
    "::test_lies_touch_no_memory_they_should_not": Take.NONE,
    "tests/integration/proxy_device/test_squashing.py"
    "::test_squashing_in_a_sanitized_process": Take.NONE,
    "tests/integration/setup": Take.NONE,
    "tests/unit/labext/test_labext_build.py::test_the_wheel_brings_it": Take.NONE,
    "tests/unit/sim/test_compiled.py": Take.NONE,
    "tests/unit/sim/test_compiled.py"
    "::test_compiled_and_interpreted_replays_are_the_same_bit_for_bit": Take.ALL,
}
"""Tier, folder, file or test -> what the default run takes of it. The most exact entry counts."""


class Part(enum.StrEnum):
    """What of a full run goes together."""

    MAIN = "main"
    """Side by side, with the whole machine."""
    CAMPAIGN = "campaign"
    """By itself, as its bounds are in seconds; it leaves nearly half of two cores idle."""
    PATIENT = "patient"
    """Beside the campaign, on what it leaves: nothing in it depends on how long anything takes."""


PARTS: Mapping[str, Part] = {
    "tests/faults/test_chaos.py": Part.CAMPAIGN,
    "tests/libraries": Part.PATIENT,
    "tests/integration/checkpoint": Part.PATIENT,
    "tests/integration/proxy_device/test_collectives_killed.py": Part.PATIENT,
    "tests/integration/proxy_device/test_fuzz.py": Part.PATIENT,
    "tests/integration/proxy_device/test_sanitized.py": Part.PATIENT,
    "tests/integration/proxy_gpu": Part.PATIENT,
    "tests/integration/proxy_sweep": Part.PATIENT,
    "tests/integration/proxy_worker/test_compile.py": Part.PATIENT,
    "tests/integration/scheduler/test_openapi_conformance.py": Part.PATIENT,
    "tests/integration/setup": Part.PATIENT,
    "tests/unit": Part.PATIENT,
}
"""Folder or file -> part of a full run; all others are of the main one."""


def fits(entry: str, nodeid: str) -> bool:
    """Whether `nodeid` is at or below that folder, file or test function."""
    return nodeid == entry or nodeid.startswith((f"{entry}/", f"{entry}::", f"{entry}["))


def find_tiers(nodeid: str) -> list[Tier]:
    """The tiers that the table gives a file or test, the most exact one first."""
    return [TIERS[e] for e in sorted(TIERS, key=len, reverse=True) if fits(e, nodeid)]


def find_tier(nodeid: str) -> Tier:
    """The tier of a file or test, named from the root of the checkout.

    Raises LookupError where the table names none."""
    found = find_tiers(nodeid)
    if not found:
        raise LookupError(f"{nodeid} has no tier; give it one in tests/support/tiers.py")
    return found[0]


def find_part(nodeid: str) -> Part:
    """Find the part of a full run that a test goes with."""
    return next((part for entry, part in PARTS.items() if fits(entry, nodeid)), Part.MAIN)


def find_take(nodeid: str) -> Take:
    """What the default run takes where that test is."""
    entries = [e for e in DEFAULT if fits(e, nodeid)]
    return DEFAULT[max(entries, key=len) if entries else find_tier(nodeid).value]


def choose_default(nodeids: Iterable[str], seed: int) -> set[str]:
    """Those that the default run takes. The choice in one file does not depend on other files."""
    chosen = set()
    groups: dict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        match find_take(nodeid):
            case Take.ALL:
                chosen.add(nodeid)
            case Take.ONE_OF_EACH_TEST:
                groups[nodeid.partition("[")[0]].append(nodeid)
            case Take.ONE_OF_EACH_FILE:
                groups[nodeid.partition("::")[0]].append(nodeid)
    for name, cases in groups.items():
        chosen.add(random.Random(f"{seed}/{name}").choice(sorted(cases)))
    return chosen

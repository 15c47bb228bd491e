"""`./dev test --changed`: what a change can touch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import changes, matrix, tiers

ROOT = Path(__file__).resolve().parents[3]

SMALL = {
    "proxy/singularity_proxy/__init__.py": "def load(): from .errors import Conflict",
    "proxy/singularity_proxy/errors.py": "",
    "proxy/singularity_proxy/wire/__init__.py": "",
    "proxy/singularity_proxy/wire/ring.py": "from ..errors import Conflict",
    "scheduler/singularity_scheduler/__init__.py": "",
    "scheduler/singularity_scheduler/agent/__init__.py": "",
    "scheduler/singularity_scheduler/agent/__main__.py": "from .app import main",
    "scheduler/singularity_scheduler/agent/app.py": "from .node import Node as N",
    "scheduler/singularity_scheduler/agent/node.py": "",
    "tests/conftest.py": "",
    "tests/e2e/conftest.py": "",
    "tests/e2e/test_page.py": "",
    "tests/unit/test_ring.py": "import singularity_proxy.wire.ring",
    "tests/unit/test_wire.py": "from singularity_proxy import wire",
    "tests/unit/test_agent.py": 'argv = ["-m", "singularity_scheduler.agent"]',
    "scheduler/singularity_scheduler/__main__.py": "",
    "tests/unit/test_types.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import singularity_proxy.errors"
    ),
}


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("proxy/singularity_proxy/wire/ring.py", ["ring"]),
        ("proxy/singularity_proxy/errors.py", ["ring"]),
        ("proxy/singularity_proxy/__init__.py", ["ring", "wire"]),
        ("proxy/singularity_proxy/wire/records.h", ["ring", "wire"]),
        ("scheduler/singularity_scheduler/agent/node.py", ["agent"]),
        ("tests/unit/test_types.py", ["types"]),
        ("tests/conftest.py", ["page", "agent", "ring", "types", "wire"]),
        ("tests/e2e/conftest.py", ["page"]),
        ("ui_labext/src/index.ts", ["page"]),
        ("tests/e2e/browser/page.cjs", ["page"]),
        ("docs/index.md", []),
    ],
)
def test_what_reaches_a_changed_file_is_touched(changed: str, touched: list[str]) -> None:
    found = changes.Graph(SMALL, {}).find_touched([changed])
    assert found is not None
    assert [Path(path).stem.removeprefix("test_") for path in found] == touched


@pytest.mark.parametrize(
    "path",
    [
        *("dev", "requirements/test.txt", "pyproject.toml", ".ci/run"),
        "proxy/singularity_proxy/wire/gone.py",  # who imported it does so in vain
        "scheduler/singularity_scheduler/__main__.py",  # nobody names it
    ],
)
def test_what_has_no_place_reaches_everything(path: str) -> None:
    assert changes.Graph(SMALL, {}).find_touched(["docs/index.md", path]) is None


@pytest.fixture(scope="module")
def graph() -> changes.Graph:
    """Of this checkout."""
    return changes.read_graph(ROOT)


def test_processes_that_tests_start_are_followed_in_this_checkout(graph: changes.Graph) -> None:
    def touched(path: str) -> set[str]:
        return set(graph.find_touched([path]) or ())

    agent = "scheduler/singularity_scheduler/agent"
    assert (ROOT / agent / "memory.py").exists()
    assert "tests/integration/agent/test_sessions.py" in touched(f"{agent}/memory.py")
    assert "tests/e2e/test_hub_browser.py" in touched(f"{agent}/memory.py")
    kernel = "kernel_ext/singularity_kernel"
    assert "tests/integration/kernel/test_kernel_relay.py" in touched(f"{kernel}/relay/app.py")
    assert "tests/integration/hub/test_hibernate.py" in touched(f"{kernel}/server/kernels.py")
    native = touched("proxy/singularity_proxy/worker/src/ranks/bindings.cpp")
    assert "tests/integration/proxy_worker/test_compile.py" in native
    assert "tests/unit/scheduler/test_core_faults.py" not in native
    assert touched("scheduler/singularity_scheduler/sim/packing.py") < set(graph.tests)
    system = {t for t in graph.tests if tiers.find_tier(t) is tiers.Tier.SYSTEM}
    assert system <= touched("scheduler/singularity_scheduler/service/operations/handlers.py")


def test_each_file_of_this_checkout_touches_a_test_or_everything(graph: changes.Graph) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [name for name in listed.stdout.split("\0") if name]
    looked_at = matrix.some_of(files, 150)
    assert [name for name in looked_at if graph.find_touched([name]) == []] == []
    migration = "scheduler/singularity_scheduler/service/ledger/migrations/env.py"
    assert migration in files
    assert graph.find_touched([migration]) is None, "it is loaded by its path"
    quality = "tests/unit/quality/test_quality.py"
    for package in changes.PRODUCT:
        product = next(name for name in files if name.startswith(f"{package}/"))
        found = graph.find_touched([product])
        assert found is None or quality in found


def test_files_are_counted_from_a_revision_and_new_ones_too(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("same", "old", "gone"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "old").write_text("other")
    (tmp_path / "gone").unlink()
    (tmp_path / "new ä").write_text("")
    assert changes.list_changed(tmp_path, "HEAD") == ["gone", "new ä", "old"]
    with pytest.raises(changes.UnknownRevision, match="git does not know 'never'"):
        changes.list_changed(tmp_path, "never")

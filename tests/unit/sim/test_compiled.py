"""The compiled engine: the same results as the sources, and never those of older sources."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from singularity_proxy.errors import Unsupported
from singularity_scheduler import compiled
from singularity_scheduler.cli.local import doctor
from singularity_scheduler.core.placement import routing

REPLAYS = """
import sys
from singularity_scheduler import compiled
print(compiled.use())
from hashlib import sha256
from singularity_scheduler.core.allocation import engine, events as ev
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.sim import compare
from singularity_scheduler.sim.fleet import Fleet, Shape
from singularity_scheduler.sim.record import Record
from singularity_scheduler.sim.replay import Replay
from singularity_scheduler.sim.summary import summarise
from singularity_scheduler.sim.traces.synthetic import Workload, generate

def told(run, record, account):
    digest = sha256()
    for name in ("id", "end_s", "attained_device_s"):
        digest.update(getattr(record, "job_" + name).tobytes())
    for series in (record.job_wait_s, record.cell_wait_s, record.series_held):
        digest.update(series.tobytes())
    figures = sorted(summarise(record, account).items())
    print(run.events, record.finished, sorted(record.rules.items()), digest.hexdigest(), figures)

# Many clusters, elastic batch jobs, more than they have: some wait and go to another cluster.
fleet = Fleet(Shape(256, clusters=4, regions=2), Parameters())
record = Record()
run = fleet.replay(compare.MEASURED, record)
names = ("region0", "region1")
run.run(generate(Workload(256, 2.0, jobs=1500, regions=names, elastic_share=0.3)))
assert record.relocations > 0
told(run, record, [policy.state.account for policy in fleet.policies])

# One cluster with notebooks, quotas and a node that is lost; then a baseline, which is interpreted.
for name in (compare.OURS, "tiresias"):
    policy, record = compare.make(name, Parameters()), Record(sample_s=3600.0)
    run = Replay([policy], compare.MEASURED, record)
    run.nodes(0, compare.cluster_for(64).up())
    if name == compare.OURS:
        for number in range(5):
            run.tell(0, ev.Quota(f"vc-{number}", 8))
    jobs = list(generate(Workload(64, 1.2, jobs=500, notebook_share=0.2)))
    run.run(jobs[:250], until_s=jobs[250].submit_s)
    if name == compare.OURS:
        run.tell(0, ev.Drain("node-1"))
        run.tell(0, ev.NodeLost("node-2"))
    run.run(jobs[250:])
    told(run, record, [policy.state.account])
print(engine.__file__, file=sys.stderr)
"""


def program(text: str, *words: str, interpreted: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != compiled.INTERPRETED}
    if interpreted:
        environment[compiled.INTERPRETED] = "1"
    return subprocess.run(
        [sys.executable, "-c", text, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_compiled_and_interpreted_replays_are_the_same_bit_for_bit() -> None:
    if compiled.find() is None:
        pytest.skip(f"the engine is not compiled: {compiled.BUILD} does it")
    fast, slow = program(REPLAYS), program(REPLAYS, interpreted=True)
    assert fast.returncode == slow.returncode == 0, fast.stderr + slow.stderr
    assert fast.stderr.strip().startswith(str(compiled.FOLDER / compiled.key()))
    assert slow.stderr.strip() == str(compiled.source(compiled.MODULES[4]))
    first, *results = fast.stdout.splitlines()
    assert first == compiled.COMPILED
    why, *others = slow.stdout.splitlines()
    assert why.endswith(f"{compiled.INTERPRETED} is set.")
    assert results == others
    assert len(results) == 3
    assert "preempt" in results[0]


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the sources, which a test may change, and no builds."""
    for module in (*compiled.MODULES, *compiled.SEEN):
        shutil.copy(compiled.source(module), tmp_path / module)
    monkeypatch.setattr(compiled, "source", lambda module: tmp_path / module)
    monkeypatch.setattr(compiled, "FOLDER", tmp_path / "build")
    monkeypatch.delenv(compiled.INTERPRETED)
    return tmp_path


@pytest.mark.parametrize("module", [compiled.MODULES[0], compiled.SEEN[1]])
def test_a_build_of_other_sources_is_not_used(copies: Path, module: str) -> None:
    assert compiled.state() == (
        False,
        "The scheduling engine runs interpreted in simulations, several times slower: no build "
        "fits these sources and this Python (python -m singularity_scheduler.compiled makes one).",
    )
    assert doctor.check_engine().state == "degraded"
    (copies / "build" / compiled.key()).mkdir(parents=True)
    assert compiled.state() == (True, compiled.COMPILED)
    engine = doctor.check_engine()  # which tries it
    assert engine.state == "degraded"
    assert "cannot be loaded" in engine.sentence
    with (copies / module).open("a") as file:
        file.write("\n")
    assert not compiled.state()[0]


def test_nothing_is_mixed_with_modules_that_were_imported_before(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import singularity_scheduler.core.allocation.claims  # noqa: F401

    monkeypatch.setattr(compiled, "_said", "")
    (copies / "build" / compiled.key()).mkdir(parents=True)
    assert "imported before" in compiled.use()


LOADS_NONE = """
import importlib, pathlib, sys
from singularity_scheduler import compiled
compiled.FOLDER = pathlib.Path(sys.argv[1])
print(compiled.use())
print(compiled.check()[1])
from singularity_scheduler.core.placement import routing
for name in compiled.MODULES:
    assert importlib.import_module(name).__file__ == str(compiled.source(name)), name
assert routing is sys.modules[routing.__name__]
"""


def test_a_build_that_cannot_be_loaded_leaves_all_interpreted_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / compiled.key()
    folder.mkdir()
    (folder / "x__mypyc.so").write_text("no library")
    done = program(LOADS_NONE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    used, checked = done.stdout.splitlines()
    assert used == checked
    assert "runs interpreted in simulations" in used
    assert f"the build in {folder} cannot be loaded (" in used
    assert "singularity_scheduler.compiled --force makes another" in used


def test_of_a_build_that_lacks_a_module_none_is_used(tmp_path: Path) -> None:
    build = compiled.find()
    if build is None:
        pytest.skip(f"the engine is not compiled: {compiled.BUILD} does it")
    folder = tmp_path / compiled.key()
    shutil.copytree(build, folder)
    lacking = routing.__name__  # others are loaded before it
    [file] = (folder / Path(*lacking.split(".")).parent).glob("routing.*")
    file.unlink()
    done = program(LOADS_NONE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert all(f"(it lacks {lacking})" in line for line in done.stdout.splitlines())


def test_the_doctor_loads_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled.find() is None:
        pytest.skip(f"the engine is not compiled: {compiled.BUILD} does it")
    monkeypatch.delenv(compiled.INTERPRETED)
    assert doctor.check_engine() == doctor.Check("engine", "ok", compiled.COMPILED)


def test_without_a_compiler_nothing_is_left_behind(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mypyc.build", None)
    with pytest.raises(Unsupported, match="pip install mypy setuptools"):
        compiled.build()
    assert list((copies / "build").iterdir()) == []
    monkeypatch.setattr(compiled, "FOLDER", copies / compiled.MODULES[0] / "build")
    with pytest.raises(Unsupported, match="cannot be written"):
        compiled.build()


def test_of_two_who_build_at_once_the_first_one_stays(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, here = copies / "build" / compiled.key(), Path.cwd()

    def compile_slowly(work: Path) -> None:
        os.chdir(work)
        (work / "out").mkdir()
        (work / "out" / "mine").touch()
        if not target.exists():
            target.mkdir()
            (target / "theirs").touch()
        assert (target / "theirs").exists()  # for all the time that it takes, by force too

    monkeypatch.setattr(compiled, "_compile", compile_slowly)
    assert compiled.build() == compiled.build() == target
    assert [path.name for path in target.iterdir()] == ["theirs"]
    compiled.build(force=True)
    assert [path.name for path in target.iterdir()] == ["mine"]
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode == target.parent.stat().st_mode  # others load it too
    assert Path.cwd() == here


def test_a_few_builds_stay_for_each_python_and_nothing_of_killed_builders(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_compile", lambda work: (work / "out").mkdir())
    monkeypatch.chdir(copies)
    builds = copies / "build"
    with monkeypatch.context() as other:
        other.setattr(compiled, "ABI", "cpython-310-other")
        theirs = compiled.build()
    killed, busy = builds / "new-killed", builds / "new-busy"
    for folder, age_s in ((theirs, 1e6), (killed, 7200.0), (busy, 60.0)):
        folder.mkdir(exist_ok=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    latest = []
    for number in range(5):
        with (copies / compiled.MODULES[0]).open("a") as file:
            file.write(f"# {number}\n")
        latest.append(compiled.build())
        os.utime(latest[-1], (time.time() - 100 + number,) * 2)
    assert set(builds.iterdir()) == {theirs, busy, *latest[-compiled.KEPT :]}


def test_the_build_is_named_by_all_that_it_is_compiled_from() -> None:
    """Whatever the compiled modules import of ours is compiled with them, or the compiler goes by
    its types."""
    ours = ("singularity_scheduler", "singularity_proxy")
    known = {*compiled.MODULES, *compiled.SEEN}
    imported = set()
    for module in compiled.MODULES:
        for node in ast.walk(ast.parse(compiled.source(module).read_text())):
            if isinstance(node, ast.ImportFrom):
                parts = module.split(".")[: -node.level] if node.level else []
                base = ".".join([*parts, *([node.module] if node.module else [])])
                if base.startswith(ours):
                    inner = {f"{base}.{name.name}" for name in node.names} & known
                    imported |= inner or {base}
    assert imported <= known
    assert set(compiled.SEEN) <= imported

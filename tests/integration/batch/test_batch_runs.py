"""Runs of notebooks on the real scheduler, node agent and device proxies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.batch_runs import (
    STEPS,
    Runs,
    processes_of,
    read,
    statuses,
    text_of,
    without_times,
    write_notebook,
)
from support.kernel_relay import wait_until

LONG = "import time\nfor i in range(1000):\n    print('step', i, flush=True)\n    time.sleep(0.05)"


def test_submit_to_the_end(runs: Runs, short_dir: Path) -> None:
    write_notebook(
        short_dir / "train.ipynb",
        "import os\nprint('lr', lr * 2, name, os.getcwd())",
        "print('RUN_DESCRIPTION' in os.environ, os.environ['DATA'], 'SECRET' in os.environ)",
        "%singularity",
        parameters="lr = 0.1\nname = 'x'",
    )
    words = ["submit", "train.ipynb", "-o", "{out}.ipynb", "-p", "lr", "0.5", "-r", "name", "7"]
    done = runs.command(
        *words, "--env", "DATA=here", "--tier", "basic", "--wait", "--json", SECRET="1"
    )
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)
    assert (session["state"], session["name"], session["kind"]) == (
        "completed",
        "train.ipynb",
        "batch",
    )
    out = read(short_dir / "{out}.ipynb")
    text = text_of(out)
    assert f"lr 1.0 7 {short_dir}\n" in text
    assert "False here False\n" in text
    assert statuses(out) == ["completed"] * 5
    shown = out["cells"][-1]["outputs"][0]["data"]["text/plain"]
    assert "train.ipynb" in shown
    assert "basic" in shown
    assert out["metadata"]["singularity"] == {
        "session": session["id"],
        "tier": "basic",
        "devices": 1,
        "preemptions": 0,
        "attempt": 1,
    }
    log = runs.log(session["id"])
    assert log.startswith("cell 1 of 5\n")
    assert "lr 1.0 7" in log
    assert [path.name for path in short_dir.glob(".*.part")] == []


def test_preempted_in_the_middle_of_a_cell_it_equals_an_uninterrupted_run(
    runs: Runs, short_dir: Path
) -> None:
    notebook = write_notebook(
        short_dir / "n.ipynb",
        "import torch\ngenerator = torch.manual_seed(seed)",
        STEPS.format(steps=200, pause=0.3),
        "print('sum', x.sum().item().hex())\nimport sys\nprint('end', file=sys.stderr)\nx.cpu()",
        parameters="seed = 1",
    )
    other = write_notebook(short_dir / "other.ipynb", STEPS.format(steps=6, pause=0.05))
    given = {"seed": 7}
    sid = runs.submit(notebook, tier="basic", devices=2, parameters=given)
    runs.printed(sid, "\n5 ")
    premium = runs.submit(other, tier="premium", devices=2)
    paused = runs.wait(sid, lambda found: found["device_state"] == "waiting")
    assert runs.end(premium)["state"] == "completed"
    runs.wait(sid, lambda found: found["device_state"] == "held")
    for _ in range(2):
        assert runs.verb(sid, "preempt")["held_back"] is True
        assert read(paused["run"]["output"])["cells"][2]["metadata"]["papermill"]["status"]
        assert runs.session(sid)["devices"] == []
        runs.verb(sid, "resume")
        runs.wait(sid, lambda found: found["device_state"] == "held")
    (short_dir / "hurry").touch()
    ended = runs.end(sid)
    assert ended["state"] == "completed", runs.log(sid)

    alone = runs.end(runs.submit(notebook, tier="basic", devices=2, parameters=given))
    interrupted, native = read(ended["run"]["output"]), read(alone["run"]["output"])
    assert text_of(interrupted).splitlines() == text_of(native).splitlines()
    assert without_times(interrupted) == without_times(native)
    assert len(text_of(native).splitlines()) == 202
    history = runs.ask(lambda service: service.history(sid))
    assert [c["reason"].partition(":")[0] for c in history if "preempt" in c["rule"]] == [
        "paused for ada/other.ipynb",
        "preempted by ada",
        "preempted by ada",
    ]
    about = [found["metadata"]["singularity"]["preemptions"] for found in (interrupted, native)]
    assert about == [3, 0]


def test_a_failing_cell_followed(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print('before')", "1 / 0", "print('never')")
    done = runs.command("submit", "n.ipynb", "-o", "out.ipynb", "--name", "bad", "--follow")
    assert done.returncode == 1
    assert "before\n" in done.stdout
    assert "ZeroDivisionError" in done.stdout
    assert "cell 2 failed (ZeroDivisionError: division by zero)" in done.stderr.splitlines()[-1]
    out = read(short_dir / "out.ipynb")
    code = [cell for cell in out["cells"] if cell["cell_type"] == "code"]
    assert [c["metadata"]["papermill"]["status"] for c in code] == [
        "completed",
        "failed",
        "pending",
    ]
    assert "never" not in text_of(out)


def test_cancelled_in_the_middle_of_a_cell_it_keeps_the_outputs(
    runs: Runs, short_dir: Path
) -> None:
    notebook = write_notebook(short_dir / "n.ipynb", LONG, "print('never')")
    sid = runs.submit(notebook, output=str(short_dir / "out.ipynb"))
    runs.printed(sid, "step 9\n")
    done = runs.command("cancel", sid)
    assert done.returncode == 0, done.stderr
    ended = runs.session(sid)
    assert (ended["state"], ended["exit_code"]) == ("cancelled", 143)
    out = read(short_dir / "out.ipynb")
    assert "step 9\n" in text_of(out)
    assert statuses(out) == ["failed", "pending"]
    assert out["cells"][0]["outputs"][-1]["ename"] == "KeyboardInterrupt"
    assert "the run was cancelled" in runs.log(sid)


def test_a_job_file_with_a_time_limit(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", f"lr = 1\n{LONG}", "print('never')")
    (short_dir / "job.yml").write_text(
        "type: notebook\ndisplay_name: digits\nnotebook: n.ipynb\n"
        "output: ${{outputs.made}}/o.ipynb\noutputs: {made: {path: .}}\n"
        "queue_settings: {job_tier: Spot}\ntags: {team: vision}\n"
        "limits: {timeout: 12}\n"
    )
    done = runs.command("submit", "job.yml", "--wait", "--json")
    assert done.returncode == 1, done.stderr
    assert "note: job.yml, line 6: the tier Spot is 'basic' here" in done.stderr
    session = json.loads(done.stdout)
    assert (session["name"], session["tier"]) == ("digits", "basic")
    assert (session["state"], session["exit_code"]) == ("failed", 124)
    assert "the run's time limit of 12 s is over; the outputs so far are in" in session["reason"]
    assert session["run"]["metadata"]["tags"] == {"team": "vision"}
    out = read(short_dir / "o.ipynb")
    assert "step 9\n" in text_of(out)
    assert statuses(out) == ["failed", "pending"]
    exported = runs.command("export", session["id"], "-o", "again.yml")
    assert exported.returncode == 0, exported.stderr
    first, again = (
        json.loads(runs.command("submit", name, "--dry-run", "--json").stdout)
        for name in ("job.yml", "again.yml")
    )
    assert again == first


RANKS = """
import os, sys, torch
import torch.distributed as dist

dist.init_process_group("gloo")
device = f"cuda:{os.environ['LOCAL_RANK']}"
x = torch.full((4,), float(dist.get_rank() + 1), device=device) * 2
total = x.sum().cpu()
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", torch.cuda.device_count(), "total", total.item(), flush=True)
dist.destroy_process_group()
sys.exit(int(sys.argv[1]) if device == "cuda:1" else 0)
"""


def test_a_command_of_two_ranks(runs: Runs, short_dir: Path) -> None:
    (short_dir / "src").mkdir()
    (short_dir / "src" / "train.py").write_text(RANKS)
    (short_dir / "job.yml").write_text(
        "command: echo $VERSION; python train.py ${{inputs.code}}\ncode: src\ninputs: {code: 0}\n"
        "environment_variables: {VERSION: 1.10}\n"
        "distribution: {type: pytorch, process_count_per_instance: 2}\n"
    )
    done = runs.command("submit", "job.yml", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)
    assert (session["state"], session["exit_code"]) == ("completed", 0)
    assert (session["virtual_devices"], session["run"]["ranked"]) == (2, True)
    log = runs.log(session["id"])
    assert log.count("1.10\n") == 2
    for rank in range(2):
        assert f"rank {rank} of 2 total 24.0\n" in log


def test_torchrun_in_a_command(runs: Runs, short_dir: Path) -> None:
    (short_dir / "train.py").write_text(RANKS)
    (short_dir / "job.yml").write_text(
        "command: torchrun --nproc-per-node 2 train.py 0\nresources: {instance_count: 2}\n"
    )
    done = runs.command("submit", "job.yml", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    log = runs.log(json.loads(done.stdout)["id"])
    for rank in range(2):
        assert f"rank {rank} of 2 total 24.0\n" in log


def test_a_preempted_command_goes_on_where_it_was(runs: Runs, short_dir: Path) -> None:
    script = "import torch\ntorch.manual_seed(3)\n" + STEPS.format(steps=60, pause=0.3)
    (short_dir / "train.py").write_text(script)
    run = {
        "command": "python train.py",
        "folder": str(short_dir),
        "variables": runs.variables(),
    }
    sid = runs.ask(lambda service: service.submit(run=run))["id"]
    runs.printed(sid, "\n5 ")
    assert runs.verb(sid, "preempt")["held_back"] is True
    assert runs.session(sid)["devices"] == []
    runs.verb(sid, "resume")
    runs.wait(sid, lambda found: found["device_state"] == "held")
    (short_dir / "hurry").touch()
    assert runs.end(sid)["state"] == "completed", runs.log(sid)
    alone = runs.ask(lambda service: service.submit(run=run))["id"]
    assert runs.end(alone)["state"] == "completed"
    assert runs.log(sid).splitlines() == runs.log(alone).splitlines()
    assert len(runs.log(sid).splitlines()) == 60


def test_a_command_that_fails(runs: Runs, short_dir: Path) -> None:
    (short_dir / "job.yml").write_text("command: echo before; echo after >&2; exit 3\n")
    done = runs.command("submit", "job.yml", "--follow")
    assert done.returncode == 1
    assert "before\n" in done.stdout
    assert "after\n" in done.stdout
    assert done.stderr.splitlines()[-1].endswith("(the command ended with exit code 3)")


MAGICS = """
import os, time, torch
x = torch.ones(3, device="cuda")
magic = get_ipython().run_line_magic
x.sum().item()
while not os.path.exists("known"):  # the scheduler hears a moment later that the device is there
    time.sleep(0.02)
for line in ("preempt", "preemt", "preempt now", "migrate --device 99", "why"):
    try:
        magic("singularity", line)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_magics_preempt_the_run_and_waiting_it_can_be_cancelled(
    runs: Runs, short_dir: Path
) -> None:
    notebook = write_notebook(short_dir / "n.ipynb", MAGICS, "print('next'); print(x.sum().item())")
    sid = runs.submit(notebook)
    runs.wait(sid, lambda found: found["device_state"] == "held")
    (short_dir / "known").touch()
    waiting = runs.wait(
        sid, lambda found: found["held_back"] and found["device_state"] == "waiting"
    )
    ended = runs.ask(lambda service: service.end_session(sid, "enough"))
    assert (ended["state"], ended["exit_code"]) == ("cancelled", 143), runs.log(sid)
    out = read(waiting["run"]["output"])
    shown = [
        o.get("text") or o["data"]["text/plain"]
        for o in out["cells"][0]["outputs"]
        if "ename" not in o
    ]
    text = "".join(shown)
    assert "Preempted by ada: nothing is lost" in text
    assert "UsageError %singularity has no verb 'preemt'; did you mean 'preempt'?" in text
    assert "UsageError 'preempt' takes no name" in text
    assert "UsageError there is no device '99' here: pick from cpu:0, cpu:1" in text
    assert text_of({"cells": out["cells"][1:]}) == "next\n"
    assert statuses(out) == ["completed", "failed"]
    assert out["metadata"]["singularity"]["preemptions"] == 1


def test_a_killed_runner_leaves_a_whole_notebook_and_no_kernel(runs: Runs, short_dir: Path) -> None:
    notebook = write_notebook(short_dir / "n.ipynb", "print('first')", LONG)
    sid = runs.submit(notebook, output=str(short_dir / "out.ipynb"))
    runs.printed(sid, "step 9\n")
    (runner,) = (
        pid for pid, line in processes_of(sid).items() if "singularity_kernel.batch" in line
    )
    os.kill(runner, signal.SIGKILL)
    ended = runs.end(sid)
    assert ended["state"] == "failed"
    assert "signal 9" in ended["reason"]
    out = read(short_dir / "out.ipynb")
    assert "first\n" in text_of(out)
    assert statuses(out)[0] == "completed"
    wait_until(lambda: processes_of(sid) == {}, 10, "the kernel outlived its runner")


@pytest.mark.parametrize(
    ("run", "code", "sentence"),
    [
        ({"notebook": "/nowhere/n.ipynb"}, 66, "there is no notebook /nowhere/n.ipynb"),
        ({"notebook": "{folder}/text.txt"}, 66, "is not a notebook"),
        ({"parameters": {"lrr": 1}}, 64, "no parameter 'lrr'; did you mean 'lr'?"),
        ({"parameters": {"lr": "fast"}}, 64, "takes a number (its default is 0.1), not 'fast'"),
        ({"kernel": "fortran"}, 69, "there is no kernel 'fortran' here"),
        ({"output": "/nowhere/out.ipynb"}, 73, "there is no folder /nowhere for the output"),
    ],
)
def test_what_the_runner_refuses_is_the_sessions_reason(
    runs: Runs, short_dir: Path, run: dict[str, object], code: int, sentence: str
) -> None:
    """Submitted over the API, where nobody has looked at the files."""
    (short_dir / "text.txt").write_text("hello")
    notebook = write_notebook(short_dir / "n.ipynb", "print(lr)", parameters="lr = 0.1")
    path = Path(str(run.pop("notebook", notebook)).format(folder=short_dir))
    ended = runs.end(runs.submit(path, folder=str(short_dir), **run))
    assert (ended["state"], ended["exit_code"]) == ("failed", code), runs.log(ended["id"])
    assert sentence in ended["reason"]
    assert runs.log(ended["id"]).rstrip().splitlines()[-1] in ended["reason"]


@pytest.mark.root
def test_a_full_disk_keeps_the_last_good_version(runs: Runs, short_dir: Path) -> None:
    folder = short_dir / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k,mode=777", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("this root may not mount")
    try:
        big = "print('x' * 200_000)"
        notebook = write_notebook(short_dir / "n.ipynb", "print('kept')", big, "print('on')")
        sid = runs.submit(notebook, output=str(folder / "out.ipynb"))
        ended = runs.end(sid)
        assert (ended["state"], ended["exit_code"]) == ("failed", 73), runs.log(sid)
        assert "the disk is full" in ended["reason"]
        assert "is kept" in ended["reason"]
        assert text_of(read(folder / "out.ipynb")) == "kept\n"
        assert "on\n" in runs.log(sid)  # the run itself went on
        assert [path.name for path in folder.iterdir()] == ["out.ipynb"]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_cell_starts_a_run_through_its_own_session(runs: Runs, short_dir: Path) -> None:
    """All the way: kernel, agent's socket, service and a second capsule, with no token."""
    write_notebook(
        short_dir / "outer.ipynb", "%%singularity submit -p lr 0.5 --name inner\nprint('lr', lr)"
    )
    done = runs.command("submit", "outer.ipynb", "-o", "outer-out.ipynb", "--wait")
    assert done.returncode == 0, done.stderr
    shown = read(short_dir / "outer-out.ipynb")["cells"][0]["outputs"][0]["data"]
    assert "inner" in shown["text/plain"]
    found = json.loads(runs.command("ls", "--all", "--json").stdout)
    [inner] = [session for session in found if session["name"] == "inner"]
    runs.command("logs", "-f", inner["id"])
    output = Path(inner["run"]["output"])
    wait_until(output.exists, why=f"{output} was not written")
    wait_until(lambda: text_of(read(output)) == "lr 0.5\n", why="the cell did not run")

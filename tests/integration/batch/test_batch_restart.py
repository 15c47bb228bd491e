"""The service goes away while runs are queued and running: nothing is lost, each runs once."""

from __future__ import annotations

from pathlib import Path

from support.batch_runs import Runs, read, text_of, write_notebook
from support.kernel_platform import Platform

ONCE = "with open('ran.txt', 'a') as file:\n    file.write('{name}\\n')\n"
LOOP = "import time\nfor i in range(40):\n    print('step', i, flush=True)\n    time.sleep(0.05)"


def test_the_service_is_restarted(running: Platform, runs: Runs, short_dir: Path) -> None:
    notebooks = {
        name: write_notebook(short_dir / f"{name}.ipynb", ONCE.format(name=name), LOOP)
        for name in ("first", "second")
    }
    first = runs.submit(notebooks["first"], devices=2)
    second = runs.submit(notebooks["second"], devices=2)
    runs.printed(first, "step 3\n")
    assert runs.session(second)["state"] == "queued"
    running.stop()
    running.start()
    for sid in (first, second):
        ended = runs.end(sid)
        assert ended["state"] == "completed", runs.log(sid)
        assert text_of(read(ended["run"]["output"])).count("step") == 40
        assert "step 39\n" in runs.log(sid)
    assert (short_dir / "ran.txt").read_text() == "first\nsecond\n"

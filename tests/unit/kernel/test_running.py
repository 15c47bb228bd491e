"""`%%singularity run`: its line, and what it says when there is nothing to run on."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from singularity_kernel.kernel.running import Shown, run_cell

FOUR = {**os.environ, "SINGULARITY_DEVICES": "4"}
CELL = """
import os, sys, beside
print(os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], beside.word, __name__)
"""


@pytest.fixture(autouse=True)
def module_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("word = 'found'\n")
    monkeypatch.chdir(tmp_path)


def test_a_rank_for_each_device(capsys: pytest.CaptureFixture[str]) -> None:
    run_cell("", CELL, FOUR)
    printed = sorted(capsys.readouterr().out.splitlines())
    assert printed == [f"[rank {r}] {r} 4 [] found __main__" for r in range(4)]


def test_arguments_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    run_cell("--ranks 2 --lr 0.1 'two words'", CELL, FOUR)
    assert "[rank 1] 1 2 ['--lr', '0.1', 'two words'] found" in capsys.readouterr().out


def test_a_rank_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="rank 1 ended with exit code 1; the other ranks"):
        run_cell(
            "--ranks 2",
            "import os, time\nif os.environ['RANK'] == '1': 1 / 0\ntime.sleep(60)",
            FOUR,
        )
    shown = capsys.readouterr().out
    assert "[rank 1] ZeroDivisionError: division by zero" in shown
    assert "cell.py" in shown


def test_progress_bars_stand_behind_their_ranks() -> None:
    out = io.StringIO()
    shown = Shown(out)
    for rank, piece in [
        (0, "a"),
        (0, "b\r1%"),
        (1, "x\n"),
        (0, "\r2%"),
        (0, " done\r\n"),
        (1, "y"),
    ]:
        shown(rank, piece)
    assert out.getvalue() == (
        "[rank 0] ab\r[rank 0] 1%\n[rank 1] x\n[rank 0] \r[rank 0] 2% done\r\n[rank 1] y"
    )


@pytest.mark.parametrize(
    ("line", "cell", "sentence"),
    [
        ("--ranks 5", CELL, "this session has 4 virtual devices .* not 5; nothing was started"),
        ("--ranks 0", CELL, "runs 1 to 4 ranks, not 0"),
        ("--ranks two", CELL, "invalid int value: 'two'; nothing was started"),
        ("'open", CELL, "No closing quotation; nothing was started"),
        ("--ranks 2", None, "run is for a cell: %%singularity run --ranks 4"),
    ],
)
def test_lines_that_cannot_be(line: str, cell: str | None, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run_cell(line, cell, FOUR)

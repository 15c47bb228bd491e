"""Files in home that notebooks of one user write to, when one of them comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.capsules import needs_criu
from support.kernel_homes import notebooks

pytestmark = [needs_criu, pytest.mark.asyncio]


def copies(home: Path) -> list[str]:
    return [path.name for path in home.glob("rows*")]


WRITE = "rows.write({text!r}); rows.flush(); print('written')"


@pytest.mark.parametrize("mode", ["a", "w"])
async def test_after_a_suspend_the_others_rows_stay(home: Path, tmp_path: Path, mode: str) -> None:
    async with notebooks(home, tmp_path, 2) as both:
        await both.run(0, f"rows = open('rows.csv', {mode!r})")
        await both.run(0, WRITE.format(text="a\n"))
        await both.suspend(0)
        await both.run(1, "with open('rows.csv', 'a') as file: file.write('b\\n' * 1000)")
        back = await both.service.resume(both.opened[0].session)
        assert await both.run(0, WRITE.format(text="c\n")) == "written"
        assert (home / "rows.csv").read_text() == "a\n" + "b\n" * 1000 + "c\n"
        told = back["loss"]["lost"]
        assert told == [] if mode == "a" else len(told) == 1
        assert copies(home) == ["rows.csv"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is told who writes")
@pytest.mark.parametrize("others", [False, True])
async def test_a_way_back_cuts_only_what_the_session_wrote(
    home: Path, tmp_path: Path, others: bool
) -> None:
    """The other notebook has opened, written and closed: no descriptor tells of it any more."""
    async with notebooks(home, tmp_path, 2) as both:
        await both.run(0, "rows = open('rows.csv', 'a')")
        await both.run(0, WRITE.format(text="1\n"))
        await both.service.checkpoint(both.opened[0].session, name="first")
        await both.run(0, WRITE.format(text="2\n"))
        if others:
            await both.run(1, "with open('rows.csv', 'a') as file: file.write('b\\n')")
        grown = (home / "rows.csv").read_text()
        for turn in range(2):  # what the agent did the first time is nobody's writing
            back = await both.service.restore(both.opened[0].session, "first")
            told = [one for one in back["loss"]["lost"] if "rows.csv" in one]
            assert await both.run(0, WRITE.format(text="2\n")) == "written"
            rows = (home / "rows.csv").read_text()
            if others:
                assert rows == grown + "2\n" * (turn + 1)
                assert "because others write to it" in told[0]
            else:
                assert rows == "1\n2\n"
                assert "was set back; the longer version is kept" in told[0]

"""The notebooks of one user in one home: whoever leaves and comes back, in whatever order, the
history of IPython is whole and has every line once."""

from __future__ import annotations

import itertools
import random
import sqlite3
from pathlib import Path

import pytest
from support.capsules import needs_criu
from support.kernel_homes import notebooks

pytestmark = [needs_criu, pytest.mark.asyncio]


async def test_a_notebook_that_comes_back_leaves_the_history_of_another_alone(
    home: Path, tmp_path: Path
) -> None:
    """Suspend A; work in B; suspend B; resume A; resume B."""
    async with notebooks(home, tmp_path, 2) as both:
        for number in (0, 1):
            await both.run(number, f"x = {number}")
        await both.suspend(0)
        for n in range(12):
            await both.run(1, f"y{n} = {n}; {'pass; ' * 300}")
        await both.suspend(1)
        await both.resume(0)
        assert await both.run(0, "print('a', x)") == "a 0"
        await both.resume(1)
        assert await both.run(1, "print('b', x, y11)") == "b 1 11"
    both.check()


async def test_two_and_three_notebooks_in_every_order(home: Path, tmp_path: Path) -> None:
    """Each order of leaving and each order of coming back; those that are here go on working."""
    async with notebooks(home, tmp_path, 3) as three:
        pairs = list(itertools.permutations((0, 1)))
        orders = list(itertools.product(pairs, pairs))
        triples = list(itertools.permutations((0, 1, 2)))
        orders += list(zip(triples, random.Random(20).sample(triples, 6), strict=True))
        for leaving, coming in orders:
            for number in leaving:
                await three.work(number)
                await three.suspend(number)
                for other in {0, 1, 2} - three.away:
                    await three.work(other)
            for number in coming:
                await three.resume(number)
                await three.work(number)
    three.check()


@pytest.mark.parametrize("seed", [1])
async def test_ten_notebooks_in_a_random_order(home: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with notebooks(home, tmp_path, 10) as ten:
        for _ in range(60):
            number = dice.randrange(10)
            if number in ten.away:
                await ten.resume(number)
            elif dice.random() < 0.5:
                await ten.suspend(number)
                continue
            await ten.work(number)
        for number in sorted(ten.away):
            await ten.resume(number)
            await ten.work(number)
    ten.check()


async def test_a_session_that_went_back_or_was_forked_has_a_history_of_its_own(
    home: Path, tmp_path: Path
) -> None:
    async with notebooks(home, tmp_path, 1) as one:
        [notebook] = one.opened
        await one.run(0, "x = 1")
        await one.service.checkpoint(notebook.session, name="first")
        await one.run(0, "x = 2")
        await one.service.restore(notebook.session, "first")
        said = await one.run(0, "print('after', x)")
        assert said == "after 1"
        await one.run(0, "%history -g after")
    one.check()
    db = sqlite3.connect(one.shared)
    rows = db.execute("select session, line, source_raw from history order by session, line")
    found = rows.fetchall()
    db.close()
    first = found[0][0]
    assert found == [
        (first, 1, "x = 1"),
        (first, 2, "x = 2"),
        (first + 1, 2, "print('after', x)"),
        (first + 1, 3, "%history -g after"),
    ]


async def test_earlier_sessions_are_found_and_settings_respected(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with notebooks(home, tmp_path / "a", 1) as first:
        await first.run(0, "earlier = 'line'")
    first.check()
    async with notebooks(home, tmp_path / "b", 1) as second:
        await second.run(0, "z = 3")
        said = await second.opened[0].run("%history -g earlier")
        assert "earlier = 'line'" in said
        tail = await second.opened[0].run(
            "print([raw for *_, raw in get_ipython().history_manager.get_tail(5)])"
        )
        assert "earlier = 'line'" in tail
        where = await second.opened[0].run("print(get_ipython().history_manager.hist_file)")
        assert Path(where).name == "history.sqlite"
        assert Path(where).parent != second.shared.parent
    config = home / "profile_default/ipython_config.py"
    for setting, expected in (
        (f"hist_file = {str(home / 'mine.sqlite')!r}", str(home / "mine.sqlite")),
        ("enabled = False", str(second.shared)),
    ):
        config.write_text(f"c = get_config()\nc.HistoryManager.{setting}\n")
        async with notebooks(home, tmp_path / expected.rpartition("/")[2], 1) as own:
            where = await own.opened[0].run("print(get_ipython().history_manager.hist_file)")
            assert where == expected

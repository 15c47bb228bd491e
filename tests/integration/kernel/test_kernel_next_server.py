"""A server that stops and the one after it: a real kernel behind a real relay, no Hub."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from singularity_spawner.hibernation import server_arguments
from support.hub_notebooks import Page
from support.kernel_relay import wait_until
from support.kernel_server import TOKEN, Server, server
from support.kernel_service import Scheduler, scheduler

WAITS = """\
import os, time
print("on", flush=True)
while not os.path.exists({path!r}):
    time.sleep(0.01)
print("off")
"""

COUNTS = """\
import itertools, os, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.01)
    if os.path.exists({path!r}):
        break
"""
GENERATIONS = 3


@pytest.fixture
def platform(short_dir: Path) -> Iterator[Scheduler]:
    with scheduler(short_dir) as running:
        yield running


def start(folder: Path, platform: Scheduler) -> AbstractContextManager[Server]:
    """A server of ada's, as the Spawner starts it."""
    return server(
        folder,
        *server_arguments([]),
        **platform.environment,
        JUPYTER_DATA_DIR=str(folder / "data"),
        JUPYTER_DEFAULT_PROVISIONER_NAME="singularity",
        JUPYTERHUB_USER="ada",
    )


def test_a_page_that_comes_late_gets_the_answer_to_the_cell_it_ran_on_the_server_before(
    platform: Scheduler, tmp_path: Path
) -> None:
    """However late: the relay keeps an answer for seconds, the server until the page is there."""
    go = tmp_path / "go"

    async def story() -> None:
        page = Page()
        with start(tmp_path, platform) as first:
            await page.open(first.url, TOKEN)
            cell = await page.execute(WAITS.format(path=str(go)))
            await page.until(lambda: "on" in page.text(cell))
        page.close()
        with start(tmp_path, platform) as second:
            kernels = second.ask("api/kernels").body
            assert [kernel["id"] for kernel in kernels] == [page.kernel]
            go.touch()
            waiting = tmp_path / f"data/singularity/server/{page.kernel}.outputs"
            answered = b'"msg_type": "execute_reply"'
            wait_until(
                lambda: waiting.exists() and answered in waiting.read_bytes(),
                why="the server has not got the answer of the page that is away",
            )
            kernel = page.kernel
            await page.open(second.url, TOKEN)
            assert page.kernel == kernel
            await page.until(lambda: page.replies(cell) and "off" in page.text(cell))
            assert page.replies(cell) == ["ok"]
            assert page.text(cell) == "on\noff\n"
            await page.leave()
            assert second.ask(f"api/kernels/{kernel}", "DELETE").status == 204

    asyncio.run(story())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("leaves", [False, True], ids=["an open page", "a page that has left"])
def test_no_output_is_lost_or_doubled_between_one_server_and_the_next(
    leaves: bool, platform: Scheduler, tmp_path: Path
) -> None:
    """So many outputs a second that one is often on its way when a server stops."""
    go = tmp_path / "go"

    async def more(page: Page, cell: str) -> None:
        shown = len(page.text(cell))
        await page.until(lambda: len(page.text(cell)) > shown + 200)

    async def story() -> None:
        page, cell = Page(), ""
        for _ in range(GENERATIONS):
            with ExitStack() as stack:
                running = stack.enter_context(start(tmp_path, platform))
                await page.open(running.url, TOKEN)
                cell = cell or await page.execute(COUNTS.format(path=str(go)))
                await more(page, cell)
                if leaves:
                    await page.leave()
                await asyncio.to_thread(stack.close)  # the page hears its last words meanwhile
                assert "may be missing" not in running.log
                page.close()
        with start(tmp_path, platform) as last:
            go.touch()
            await page.open(last.url, TOKEN)
            await page.until(lambda: page.replies(cell) and page.idle(cell))
            numbers = [int(line) for line in page.text(cell).split()]
            assert numbers == list(range(len(numbers)))
            assert page.replies(cell) == ["ok"]
            await page.leave()
            assert last.ask(f"api/kernels/{page.kernel}", "DELETE").status == 204

    asyncio.run(story())


def test_a_session_that_somebody_closes_elsewhere_is_not_started_again(
    platform: Scheduler, tmp_path: Path
) -> None:
    """Its kernel is gone from the server, as one is that Jupyter's culler ends."""
    with start(tmp_path, platform) as running:
        assert running.ask("api/kernels", "POST", {"name": "singularity"}).status == 201
        [session] = platform.sessions
        closed = {"code": "closed", "args": {"by": "operator", "why": ""}}
        session.json |= {"reason_code": "ended_not_kept", "reason_args": {"after": closed}}
        session.end()
        wait_until(
            lambda: running.ask("api/kernels").body == [],
            why="the kernel of a closed session is still listed",
        )
        assert platform.sessions == [session]


def test_a_kernel_that_dies_is_started_again(platform: Scheduler, tmp_path: Path) -> None:
    with start(tmp_path, platform) as running:
        assert running.ask("api/kernels", "POST", {"name": "singularity"}).status == 201
        [session] = platform.sessions
        session.end()
        wait_until(lambda: len(platform.sessions) == 2, why="the kernel was not started again")
        assert len(running.ask("api/kernels").body) == 1

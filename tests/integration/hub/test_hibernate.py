"""A real Hub, real servers, CRIU: notebooks outlive their server and the next one finds them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from unittest import mock

import pytest
import pytest_asyncio
from singularity_spawner.platform import config
from singularity_spawner.platform.hubapi import HubError
from support.capsules import needs_criu
from support.hub_notebooks import Page, leave_all, session_of
from support.hub_platform import running_platform
from tornado.websocket import WebSocketClosedError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_criu, pytest.mark.timeout(300)]

COUNT = """\
import time
for number in range({n}):
    print(number, flush=True)
    time.sleep(0.1)
"""

COUNT_UNTIL_TOLD = """\
import itertools, pathlib, time
for number in itertools.count():
    print(number, flush=True)
    if pathlib.Path("told").exists():
        break
    time.sleep(0.1)
"""

QUICK = ["--LocalFleet.agent_args=--NodeAgent.orphan_grace_s=1.0"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hub():
    # As most Hubs are: when the Hub stops, so do the servers. Its scheduler service stops first.
    text = config.CONFIG_TEXT + "get_config().JupyterHub.cleanup_servers = True  # noqa: F821\n"
    with mock.patch("singularity_spawner.platform.platform.CONFIG_TEXT", text):
        async with running_platform(devices=1, service_args=QUICK) as running:
            yield running


@pytest_asyncio.fixture(loop_scope="module")
async def platform(hub):
    """The platform; what a test leaves of alice is removed."""
    yield hub
    await leave_all()
    for session in await hub.service().sessions("active"):
        await hub.service().end_session(session["id"], grace_s=0.0)
    if await hub.hub.server("alice") is not None:
        await hub.stop_server("alice")


async def opened(platform, page, user="alice", **more):
    """`page` on the user's server, which is started if need be."""
    url = await platform.start_server(user, {}, **more)
    return await page.open(url, await platform.user_token(user))


def numbers(page, cell):
    return [int(line) for line in page.text(cell).split()]


async def test_a_server_that_is_stopped_in_the_middle_of_a_cell(platform):
    page = await opened(platform, Page())
    kernel, first = page.kernel, await session_of(platform.service(), "alice")
    cell = await page.execute(COUNT_UNTIL_TOLD)
    await page.until(lambda: len(numbers(page, cell)) > 5)
    await platform.stop_server("alice")
    away = await session_of(platform.service(), "alice")
    assert (away["id"], away["state"]) == (first["id"], "suspended"), away["reason"]
    page.close()
    before = len(numbers(page, cell))
    await opened(platform, page)
    assert page.kernel == kernel
    kernels = await page.server.rest("GET", "api/kernels", None)
    assert [k["id"] for k in kernels] == [kernel]
    await page.until(lambda: len(numbers(page, cell)) > before + 5)
    await page.server.put_file("told", "")
    await page.until(lambda: page.replies(cell))
    counted = numbers(page, cell)
    assert counted == list(range(len(counted)))
    assert page.replies(cell) == ["ok"]
    assert await page.run("print(number)") == str(counted[-1])
    await ended(platform, page)


async def ended(platform, page):
    """Shut the kernel down and stop the server."""
    await page.server.rest("DELETE", f"api/kernels/{page.kernel}", None)
    page.close()
    assert await platform.service().sessions("active") == []
    await platform.stop_server("alice")


async def test_a_page_that_works_on_while_its_server_stops(platform):
    page = await opened(platform, Page())
    await page.run("n = 0")

    async def work():
        with contextlib.suppress(WebSocketClosedError):
            while True:
                await page.execute("n += 1")
                await asyncio.sleep(0.05)

    working = asyncio.create_task(work())
    await platform.stop_server("alice")
    working.cancel()
    away = await session_of(platform.service(), "alice")
    assert (away["state"], away["called_back"]) == ("suspended", False), away["reason"]
    page.close()
    await opened(platform, page)
    assert int(await page.run("print(n)")) > 0
    await ended(platform, page)


async def running_cell(platform, n=600):
    """A page whose cell counts, and the cell."""
    page = await opened(platform, Page())
    cell = await page.execute(COUNT.format(n=n))
    await page.until(lambda: len(numbers(page, cell)) > 5)
    return page, cell


async def still_counts(page, cell, on_the_way=0):
    """There comes more, and nothing is doubled or missing in what the page shows, but for
    `on_the_way` messages that were just passing through a server that was killed."""
    shown = len(numbers(page, cell))
    await page.until(lambda: len(numbers(page, cell)) > shown + 5)
    seen = numbers(page, cell)
    assert seen == sorted(set(seen))
    missing = set(range(seen[-1])) - set(seen)
    assert len(missing) <= on_the_way, missing


async def interrupted(platform, page, cell, now=False):
    """Once it is back (or `now`), the stop button ends the cell, and the next one runs."""
    if not now:
        await session_of(platform.service(), "alice", "live")
    await page.server.rest("POST", f"api/kernels/{page.kernel}/interrupt", {})
    await page.until(lambda: page.replies(cell) == ["error"])
    assert await page.run("print(number > 5)") == "True"


async def stopped_by_the_hub(platform, seconds=120):
    async with asyncio.timeout(seconds):
        while await platform.hub.server("alice") is not None:
            await asyncio.sleep(0.1)


async def test_a_server_that_is_killed(platform):
    page, cell = await running_cell(platform)
    first, kernel = await session_of(platform.service(), "alice"), page.kernel
    os.kill((await platform.hub.server("alice"))["state"]["pid"], signal.SIGKILL)
    away = await session_of(platform.service(), "alice", "suspended")
    assert away["id"] == first["id"]
    page.close()
    with contextlib.suppress(HubError):  # when the Hub has noticed by itself
        await platform.stop_server("alice")
    await opened(platform, page)
    assert page.kernel == kernel
    await still_counts(page, cell, on_the_way=3)
    await interrupted(platform, page, cell)
    await ended(platform, page)


async def test_a_hub_that_stops_with_its_servers_and_starts(platform):
    page, cell = await running_cell(platform)
    first, kernel = await session_of(platform.service(), "alice"), page.kernel
    await platform.restart_hub()
    page.close()
    await opened(platform, page)
    assert page.kernel == kernel
    assert (await session_of(platform.service(), "alice"))["id"] == first["id"]
    await still_counts(page, cell)
    await interrupted(platform, page, cell)
    await ended(platform, page)


async def test_the_stop_button_of_a_notebook_that_is_suspended(platform):
    page, cell = await running_cell(platform)
    service, first = platform.service(), await session_of(platform.service(), "alice")
    await service.suspend(first["id"])
    assert (await session_of(service, "alice"))["process_state"] == "suspended"
    await interrupted(platform, page, cell, now=True)
    # Where no cell runs there is nothing to interrupt, and nothing comes back for it.
    await service.suspend(first["id"])
    await page.server.rest("POST", f"api/kernels/{page.kernel}/interrupt", {})
    assert (await session_of(service, "alice"))["called_back"] is False
    await ended(platform, page)


async def culler(platform, *options, hook=True):
    """The culler's own command with tiny limits, as a process."""
    settings = platform.folder.path / "idle_culler_config.py"
    lines = ["from singularity_spawner.culling import arbiter"]
    lines += ["c.IdleCuller.cull_arbiter_hook = arbiter"] if hook else []
    settings.write_text("\n".join(lines))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jupyterhub_idle_culler", f"--config={settings}"),
        *(f"--url={platform.url}hub/api", "--cull-every=1", *options),
        env={
            **os.environ,
            "JUPYTERHUB_API_TOKEN": platform.admin_token,
            "SINGULARITY_API_URL": platform.service_url,
        },
        stderr=asyncio.subprocess.PIPE,
    )


async def end_culler(process):
    """Stop it; what it said."""
    process.terminate()
    return (await process.communicate())[1].decode()


async def test_the_idle_culler(platform):
    page = await opened(platform, Page())
    cell = await page.execute("import os, time\nwhile not os.path.exists('go'): time.sleep(0.1)")
    service = platform.service()
    first = await session_of(service, "alice")
    process = await culler(platform, "--timeout=1")
    said = b""
    async with asyncio.timeout(60):  # looked at again and again, and always in its cell
        while said.count(b"busy or kept alive") < 3:
            said += await process.stderr.readline()
    page.close()
    assert (await platform.hub.server("alice"))["ready"]
    await page.server.put_file("go", "")
    await stopped_by_the_hub(platform)
    assert "Culling server alice" in await end_culler(process)
    away = await session_of(service, "alice")
    assert (away["id"], away["state"]) == (first["id"], "suspended")
    await opened(platform, page)
    await page.until(lambda: page.replies(cell))

    # By age, which asks nobody, in the middle of a cell.
    cell = await page.execute(COUNT.format(n=600))
    await page.until(lambda: len(numbers(page, cell)) > 5)
    process = await culler(platform, "--timeout=100000", "--max-age=1")
    await stopped_by_the_hub(platform)
    await end_culler(process)
    assert (await session_of(service, "alice"))["state"] == "suspended"
    page.close()
    await opened(platform, page)
    await still_counts(page, cell)
    await interrupted(platform, page, cell)
    await ended(platform, page)


async def test_a_node_without_process_images():
    plain = ["--LocalFleet.agent_args=--NodeAgent.capsule=process"]
    async with running_platform(devices=1, service_args=plain) as platform:
        page = await opened(platform, Page())
        session = await session_of(platform.service(), "alice")
        await platform.stop_server("alice")
        page.close()
        assert await platform.service().sessions("active") == []
        why = (await platform.service().get_session(session["id"]))["reason"]
        assert "the notebook server of alice was stopped" in why
        assert "cannot store the image of a process" in why
        log = platform.folder.hub_log.read_text()
        assert "A notebook of alice ends with its server: node local cannot store" in log
        url = await platform.start_server("alice", {})
        await page.open(url, await platform.user_token("alice"))
        assert (await session_of(platform.service(), "alice"))["id"] != session["id"]
        page.close()


async def reopened(page, session):
    """Take the end of a session back, as its card in JupyterLab does; what its server answers."""
    path = f"singularity/api/v1/sessions/{session}/reopen"
    return (await page.server.rest("POST", path, {}))["kernel"]


async def command(platform, *words, user="alice"):
    """What the command line prints on a terminal of that user."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from singularity_scheduler.cli import main; exit(main())"),
        *words,
        env={
            **os.environ,
            "JUPYTERHUB_API_TOKEN": await platform.user_token(user),
            "SINGULARITY_API_URL": platform.service_url,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


MEMORY = "import hashlib; print(hashlib.sha256(t.cpu().numpy().tobytes()).hexdigest())"


async def test_a_kernel_that_was_shut_down_by_mistake_comes_back(platform):
    """In the middle of a cell, with all it had on its device; by the command line this time."""
    page = await opened(platform, Page())
    kernel = page.kernel
    await page.run("import torch; x = 41; t = torch.randn(100_000, device='cuda').exp_()")
    memory = await page.run(MEMORY)
    cell = await page.execute(COUNT.format(n=200))
    await page.until(lambda: len(numbers(page, cell)) > 5)
    session = (await session_of(platform.service(), "alice"))["id"]
    await platform.service().checkpoint(session)
    low = len(numbers(page, cell))
    await page.until(lambda: len(numbers(page, cell)) > low + 5)
    await page.server.rest("DELETE", f"api/kernels/{kernel}", None)
    page.close()
    over = await platform.service().get_session(session)
    assert over["state"] == "completed"
    assert "is kept for 24.0 h: reopen brings it back from there" in over["reason"]
    said = await command(platform, "reopen", session[:8])
    assert said.startswith("the end of "), said
    assert (await session_of(platform.service(), "alice", "suspended"))["id"] == session
    # Opening the notebook, as ever: the server finds out by itself that its old kernel is back.
    await page.open(page.server.url, await platform.user_token("alice"))
    assert page.kernel == kernel
    await page.until(lambda: "ok" in page.replies(cell), 120)
    assert set(range(200)) <= set(numbers(page, cell))
    assert await page.run("print(x, number)") == "41 199"
    assert await page.run(MEMORY) == memory
    assert (await session_of(platform.service(), "alice", "live"))["id"] == session
    await ended(platform, page)


async def test_what_was_there_before_a_restart_comes_back_beside_it(platform):
    page = await opened(platform, Page())
    await page.run("x = 41")
    before = (await session_of(platform.service(), "alice"))["id"]
    await platform.service().checkpoint(before)
    await page.server.rest("POST", f"api/kernels/{page.kernel}/restart", {})
    assert await page.run("print('x' in globals())") == "False"
    back = await reopened(page, before)
    assert back["id"] not in ("", page.kernel)
    kernels = await page.server.rest("GET", "api/kernels", None)
    assert {k["id"] for k in kernels} == {back["id"], page.kernel}
    other = Page("before.ipynb")
    body = {
        "path": other.path,
        "name": other.path,
        "type": "notebook",
        "kernel": {"id": back["id"]},
    }
    await page.server.rest("POST", "api/sessions", body)
    await other.open(page.server.url, await platform.user_token("alice"))
    assert await other.run("print(x)") == "41"
    assert await page.run("print('x' in globals())") == "False", "and this one goes on"
    for each in (other, page):
        await each.server.rest("DELETE", f"api/kernels/{each.kernel}", None)
        each.close()
    await platform.stop_server("alice")


async def notebook_of(platform, page, path):
    """A page of a notebook that appears beside another one, which is on a kernel already."""
    async with asyncio.timeout(60):
        while path not in [s["path"] for s in await page.server.rest("GET", "api/sessions", None)]:
            await asyncio.sleep(0.1)
    return await Page(path).open(page.server.url, await platform.user_token("alice"))


async def test_forks_are_notebooks_whoever_asked_for_them(platform):
    """On the command line, in a cell and in JupyterLab; they are there after a stop as well."""
    page = await opened(platform, Page("train.ipynb"))
    await page.server.put_notebook("train.ipynb", "x = 41")
    await page.run("x = 41")
    session = (await session_of(platform.service(), "alice"))["id"]
    await platform.service().checkpoint(session)
    await page.run("x += 1")
    await command(platform, "fork", session[:8], "--called", "variant")
    first = await notebook_of(platform, page, "variant.ipynb")
    assert await first.run("print(x); x = 'first'") == "41"
    copy = await page.server.rest("GET", "api/contents/variant.ipynb", None)
    assert [cell["source"] for cell in copy["content"]["cells"]] == ["x = 41"]
    await page.run("%singularity fork")
    second = await notebook_of(platform, page, "train-fork.ipynb")
    assert await second.run("print(x)") == "41"
    asked = {"name": "variant"}
    body = await page.server.rest("POST", f"singularity/api/v1/sessions/{session}/fork", asked)
    assert body["kernel"]["path"] == "variant-1.ipynb"
    third = await notebook_of(platform, page, "variant-1.ipynb")
    assert third.kernel == body["kernel"]["id"]
    assert await page.run("print(x)") == "42"
    pages = (page, first, second, third)
    assert len({each.kernel for each in pages}) == 4
    for each in pages:
        each.close()
    await platform.stop_server("alice")
    await opened(platform, first)
    assert await first.run("print(x)") == "first"
    for kernel in await first.server.rest("GET", "api/kernels", None):
        await first.server.rest("DELETE", f"api/kernels/{kernel['id']}", None)
    first.close()
    await platform.stop_server("alice")


async def test_a_user_who_is_removed_takes_nothing_along_that_cannot_be_taken_back(platform):
    page = await opened(platform, Page())
    await page.run("import torch; x = 41; t = torch.randn(1000, device='cuda')")
    memory = await page.run(MEMORY)
    await platform.stop_server("alice")
    page.close()
    session = (await session_of(platform.service(), "alice", "suspended"))["id"]
    await platform.hub.call("DELETE", "users/alice")
    over = await platform.service().get_session(session)
    while over["process_state"] == "suspended":
        await asyncio.sleep(0.1)
        over = await platform.service().get_session(session)
    assert "the notebook server of alice was removed; its newest checkpoint, " in over["reason"]
    assert len(await platform.service().checkpoints(session)) == 1
    # An administrator takes that back, and the user who is made again finds all of it.
    assert (await platform.service().reopen(session))["state"] == "suspended"
    await opened(platform, page)
    assert await page.run("print(x)") == "41"
    assert await page.run(MEMORY) == memory
    assert (await session_of(platform.service(), "alice", "live"))["id"] == session
    await ended(platform, page)

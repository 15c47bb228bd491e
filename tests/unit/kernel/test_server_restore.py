"""What a server does with kernels that it has not started: those of the server before, those that
are back, and forks."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from nbformat.v4 import new_code_cell, new_notebook
from singularity_kernel.server import kernels as kernels_module
from singularity_kernel.server.forks import name_of_copy
from singularity_kernel.server.kernels import SingularityKernelManager
from singularity_kernel.server.notebooks import SingularitySessionManager
from singularity_kernel.server.notes import SESSIONS, Notes
from singularity_kernel.server.status import StatusHandler, answer_status
from singularity_proxy.errors import Unavailable
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import Application, HTTPError


@pytest.mark.asyncio
async def test_lists_wait_for_the_scheduler_once(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTERHUB_USER", "alice")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("SINGULARITY_API_URL", "http://127.0.0.1:1/services/singularity/")
    kernels = SingularityKernelManager(restore_wait_s=0.2)
    notebooks = SingularitySessionManager(kernel_manager=kernels)
    try:
        for name in ("a.ipynb", "b.ipynb"):
            notebooks.cursor.execute(
                "INSERT INTO session (session_id, path, name, type, kernel_id) "
                "VALUES (?, ?, ?, 'notebook', '0c1d')",
                (name, name, name),
            )
        assert not await kernels.restored()
        kernels.restore_wait_s = 3600.0  # as long as a list must not take now
        async with asyncio.timeout(20):
            assert await kernels.list_kernels() == [], "this server had none before"
            with pytest.raises(HTTPError, match="notebooks have kernels is not known yet") as told:
                await notebooks.list_sessions()
            assert told.value.status_code == 504, "the page keeps what it has, and asks again"
            kernels._notes.note("0c1d", notebook="a.ipynb")
            with pytest.raises(HTTPError, match="which kernels there are is not known yet"):
                await kernels.list_kernels()
            page = SimpleNamespace(settings={"kernel_manager": kernels})
            counted = StatusHandler.kernel_manager.fget(page)
            assert counted.list_kernels() == [], "how the server is, is answered all the same"
            with pytest.raises(HTTPError, match=r"a\.ipynb is not known yet") as refused:
                await notebooks.create_session(path="a.ipynb", name="a.ipynb", type="notebook")
            assert refused.value.status_code == 503
            kernels._notes.mark_gone("0c1d")
            assert await kernels.list_kernels() == [], "it was ended before"
            assert await notebooks.list_sessions() == []
        rows = notebooks.cursor.execute("SELECT session_id FROM session").fetchall()
        assert [row[0] for row in rows] == ["a.ipynb", "b.ipynb"], "their kernels may be there"
    finally:
        await kernels.shutdown_all()
        notebooks.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("second", ["first", "second", "", "gone"])
async def test_a_notebook_that_a_page_opened_twice_keeps_its_kernel(tmp_path, monkeypatch, second):
    """JupyterLab does that when a cell is run before the page knows the notebook's kernel."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    ended = []

    class Kernels(AsyncMappingKernelManager):
        def __contains__(self, kernel_id):
            return kernel_id in {"first", "second"} - {*ended}

        async def shutdown_kernel(self, kernel_id, **_):
            ended.append(kernel_id)

        def kernel_model(self, kernel_id):
            return {"id": kernel_id}

    notebooks = SingularitySessionManager(kernel_manager=Kernels())
    try:
        rows = [("a", "n.ipynb", "first"), ("other", "m.ipynb", "first")]
        for name, path, kernel in [*rows, *([("b", "n.ipynb", second)] if second else [])]:
            notebooks.cursor.execute(
                "INSERT INTO session (session_id, path, name, type, kernel_id) "
                "VALUES (?, ?, ?, 'notebook', ?)",
                (name, path, path, kernel),
            )
        await notebooks.delete_session("a")
        assert ended == ([] if second in ("first", "second") else ["first"])
        if second in ("first", "second"):
            await notebooks.delete_session("b")
            assert ended == [second], "the last one is closed as ever"
        left = notebooks.cursor.execute("SELECT session_id FROM session").fetchall()
        assert {row[0] for row in left} == {"other"} | ({"b"} if second == "gone" else set())
    finally:
        notebooks.close()


def test_the_status_of_a_server_is_answered_by_ours():
    address = "/user/alice/api/status"
    server = SimpleNamespace(base_url="/user/alice/", web_app=Application([(address, APIHandler)]))
    answer_status(server)
    request = HTTPServerRequest(
        start_line=RequestStartLine("GET", address, "HTTP/1.1"),
        headers=HTTPHeaders({"Host": "localhost"}),
        connection=SimpleNamespace(context=None),
    )
    assert server.web_app.find_handler(request).handler_class is StatusHandler


class Scheduler:
    """Knows one session, whose end was just taken back."""

    def __init__(self, kernel_id: str) -> None:
        self.sessions: list[Any] = []
        self._back = {
            "session": {
                "id": "0123456789ab",
                "name": "a.ipynb",
                "busy": False,
                "process_state": "suspended",
                "created_at": "2026-11-25T10:00:00+00:00",
            },
            "kernel_id": kernel_id,
            "connection": None,
        }

    async def suspended(self, user: str, server: str, live: bool) -> list[Any]:
        assert (user, server, live) == ("alice", "", True)
        return self.sessions

    def take_back(self) -> None:
        self.sessions = [self._back]

    async def own(self, session: str, pid: int) -> None:
        pass


@pytest.mark.asyncio
async def test_a_session_that_is_back_is_listed_by_the_server_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTERHUB_USER", "alice")
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "singularity")
    monkeypatch.setenv("SINGULARITY_API_URL", "http://127.0.0.1:1/services/singularity/")
    KernelProvisionerFactory.clear_instance()  # it reads the default's name once
    kernel_id = "0c1d0000-0000-4000-8000-000000000000"
    scheduler = Scheduler(kernel_id)
    client = type("Client", (), {"from_environment": staticmethod(lambda: scheduler)})
    monkeypatch.setattr(kernels_module, "ServiceClient", client)
    kernels = SingularityKernelManager()
    kernels._notes.note(kernel_id, notebook="course/a.ipynb", kernel_name="python3")
    kernels._notes.mark_gone(kernel_id)
    try:
        assert await kernels.find_again("0123456789ab") is None, "not while it has ended"
        scheduler.take_back()
        found = {"kernel_id": kernel_id, "notebook": "course/a.ipynb"}
        assert await kernels.find_again("another one") is None
        assert await kernels.find_again("0123456789ab") == found
        assert await kernels.find_again("0123456789ab") == found, "and once is enough"
        assert kernel_id in kernels
        assert "gone_at" not in kernels._notes.of(kernel_id)
        assert kernel_id in kernels._asleep, "it comes back when its notebook is opened"
    finally:
        await kernels.shutdown_all()
        KernelProvisionerFactory.clear_instance()


FORK = "f00d0000-0000-4000-8000-000000000000"


class Forking(Scheduler):
    """Has forked the session of `notes.ipynb`, whose kernel it names `FORK`."""

    def fork(self, name: str) -> None:
        session = {**self._back["session"], "id": "f" * 12, "name": name}
        session["forked_from"] = "0123456789ab"
        self.sessions = [{"session": session, "kernel_id": FORK, "connection": None}]


@contextlib.asynccontextmanager
async def forking_server(tmp_path, monkeypatch):
    """A server's managers of kernels, notebooks and files, and its scheduler."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTERHUB_USER", "alice")
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "singularity")
    monkeypatch.setenv("SINGULARITY_API_URL", "http://127.0.0.1:1/services/singularity/")
    KernelProvisionerFactory.clear_instance()  # it reads the default's name once
    scheduler = Forking("0c1d")
    client = type("Client", (), {"from_environment": staticmethod(lambda: scheduler)})
    monkeypatch.setattr(kernels_module, "ServiceClient", client)
    kernels = SingularityKernelManager()
    server = SimpleNamespace(contents_manager=AsyncLargeFileManager(root_dir=str(tmp_path)))
    server.session_manager = SingularitySessionManager(kernel_manager=kernels)
    kernels._forks._server = server
    try:
        yield kernels, server, scheduler
    finally:
        await kernels.shutdown_all()
        server.session_manager.close()
        KernelProvisionerFactory.clear_instance()


@pytest.mark.asyncio
async def test_a_fork_is_listed_with_a_copy_of_the_notebook_once(tmp_path, monkeypatch):
    (tmp_path / "course").mkdir()
    notebook = new_notebook(cells=[new_code_cell("x = 1")])
    for name in ("notes.ipynb", "variant.ipynb"):
        nbformat.write(notebook, tmp_path / "course" / name)
    async with forking_server(tmp_path, monkeypatch) as (kernels, server, scheduler):
        first = f"{tmp_path}/course/notes.ipynb"
        kernels._notes.note("0c1d", notebook=first, kernel_name="python3", cwd=str(tmp_path))
        kernels._notes.note_session("0c1d", "0123456789ab")
        assert await kernels.find_fork("f" * 12) is None, "it is of another server"
        scheduler.fork("variant")
        both = await asyncio.gather(*(kernels.find_fork("f" * 12) for _ in range(2)))
        copy = f"{tmp_path}/course/variant-1.ipynb"
        assert both == [{"kernel_id": FORK, "notebook": copy}] * 2
        assert nbformat.read(copy, as_version=4).cells[0].source == "x = 1"
        [row] = server.session_manager.cursor.execute("SELECT path, kernel_id FROM session")
        assert tuple(row) == ("course/variant-1.ipynb", FORK)
        assert sorted(path.name for path in (tmp_path / "course").glob("*.ipynb")) == [
            *("notes.ipynb", "variant-1.ipynb", "variant.ipynb")
        ]
        noted = kernels._notes.of(FORK)
        assert (noted["cwd"], noted["sessions"]) == (str(tmp_path), ["f" * 12])
        started = kernels.get_kernel(FORK)._launch_args["env"]
        assert started["JPY_SESSION_NAME"] == copy, "as a restart would have it"


@pytest.mark.asyncio
async def test_a_fork_whose_notebook_cannot_be_copied_is_listed_all_the_same(
    tmp_path, monkeypatch, caplog
):
    async with forking_server(tmp_path, monkeypatch) as (kernels, _, scheduler):
        kernels._notes.note("0c1d", notebook=f"{tmp_path}/gone.ipynb", sessions=["0123456789ab"])
        scheduler.fork("notes.ipynb")
        for _ in range(2):
            found = await kernels.find_fork("f" * 12)
            assert found == {"kernel_id": FORK, "notebook": ""}
        assert FORK in kernels
    assert caplog.text.count("gone.ipynb could not be copied") == 1
    assert list(tmp_path.glob("*.ipynb")) == []


@pytest.mark.asyncio
async def test_a_fork_whose_copy_cannot_be_opened_says_where_it_is(tmp_path, monkeypatch, caplog):
    nbformat.write(new_notebook(), tmp_path / "notes.ipynb")

    def full(**_):
        raise sqlite3.OperationalError("database or disk is full")

    async with forking_server(tmp_path, monkeypatch) as (kernels, server, scheduler):
        first = f"{tmp_path}/notes.ipynb"
        kernels._notes.note("0c1d", notebook=first, sessions=["0123456789ab"])
        scheduler.fork("variant")
        monkeypatch.setattr(server.session_manager, "create_session", full)
        assert await kernels.find_fork("f" * 12) == {"kernel_id": FORK, "notebook": ""}
        assert FORK in kernels
    copy = f"{tmp_path}/variant.ipynb"
    assert f"could not be opened from its copy {copy} (database or disk is full)" in caplog.text


@pytest.mark.asyncio
async def test_a_fork_that_is_heard_of_while_the_server_stops_is_whole_or_left_to_the_next(
    tmp_path, monkeypatch
):
    nbformat.write(new_notebook(), tmp_path / "notes.ipynb")
    reads, goes_on = asyncio.Event(), asyncio.Event()
    async with forking_server(tmp_path, monkeypatch) as (kernels, server, scheduler):
        first = f"{tmp_path}/notes.ipynb"
        kernels._notes.note("0c1d", notebook=first, sessions=["0123456789ab"])
        scheduler.fork("variant")
        get = server.contents_manager.get

        async def slow(*args, **kwargs):
            reads.set()
            await goes_on.wait()
            return await get(*args, **kwargs)

        monkeypatch.setattr(server.contents_manager, "get", slow)
        asked = asyncio.create_task(kernels.find_fork("f" * 12))
        await reads.wait()
        asked.cancel()  # who asked leaves first, as the server extension does
        late = asyncio.create_task(kernels.find_fork("f" * 12))
        stopping = asyncio.create_task(kernels.shutdown_all())
        await asyncio.sleep(0)
        assert not stopping.done()
        goes_on.set()
        await stopping
        copy = f"{tmp_path}/variant.ipynb"
        assert Notes(kernels._notes.folder).of(FORK)["notebook"] == copy
        assert (await late) is None
        assert await kernels.find_fork("f" * 12) is None
        assert await kernels.find_again("f" * 12) is None
        assert len(kernels) == 0, "what was listed is left to the platform"
    assert sorted(path.name for path in tmp_path.glob("*.ipynb")) == [
        *("notes.ipynb", "variant.ipynb")
    ]


@pytest.mark.asyncio
async def test_a_fork_is_not_another_server_s_while_this_one_does_not_know_its_own(
    tmp_path, monkeypatch
):
    async with forking_server(tmp_path, monkeypatch) as (kernels, _, scheduler):
        back = asyncio.Event()
        told = scheduler.suspended

        async def away(*args, **kwargs):
            await back.wait()
            return await told(*args, **kwargs)

        monkeypatch.setattr(scheduler, "suspended", away)
        kernels.restore_wait_s = 0.0
        scheduler.fork("variant")
        with pytest.raises(Unavailable, match="which sessions this server has is not known yet"):
            await kernels.find_fork("f" * 12)
        back.set()
        kernels._restored_by = asyncio.get_running_loop().time() + 3600
        assert (await kernels.find_fork("f" * 12))["kernel_id"] == FORK


@pytest.mark.asyncio
async def test_many_forks_at_once_are_few_questions(tmp_path, monkeypatch):
    nbformat.write(new_notebook(), tmp_path / "notes.ipynb")
    async with forking_server(tmp_path, monkeypatch) as (kernels, _, scheduler):
        first = f"{tmp_path}/notes.ipynb"
        kernels._notes.note("0c1d", notebook=first, sessions=["0123456789ab"])
        await kernels.restored()
        scheduler.fork("variant")
        [one] = scheduler.sessions
        scheduler.sessions = [
            {
                **one,
                "session": {**one["session"], "id": f"{number:012}"},
                "kernel_id": f"{FORK[:-2]}{number:02}",
            }
            for number in range(20)
        ]
        asked, told = [], scheduler.suspended

        async def counted(*args, **kwargs):
            asked.append(args)
            await asyncio.sleep(0)
            return await told(*args, **kwargs)

        monkeypatch.setattr(scheduler, "suspended", counted)
        for _ in range(2):
            found = await asyncio.gather(*(kernels.find_fork(f"{n:012}") for n in range(20)))
            assert len({one["notebook"] for one in found}) == 20
            # The first one asks, and the next one for all that came meanwhile; then all are listed.
            assert len(asked) <= 2


@pytest.mark.parametrize(
    ("fork", "file"),
    [
        ("train-b", "train-b.ipynb"),
        ("train-b.ipynb", "train-b.ipynb"),
        ("train.ipynb", "train-fork.ipynb"),
        ("train", "train-fork.ipynb"),
        ("", "train-fork.ipynb"),
        ("a/../b\n", "a-..-b-.ipynb"),
        ("..", "fork.ipynb"),
        ("ü" * 200, "ü" * 100 + ".ipynb"),
    ],
)
def test_the_file_of_a_fork(fork, file):
    assert name_of_copy(fork, "train.ipynb") == file


def test_a_kernel_is_known_by_its_last_sessions(tmp_path):
    notes = Notes(tmp_path)
    notes.note("k", cwd="/here", kernel_name="python3", notebook="/here/a.ipynb")
    for number in range(SESSIONS + 2):
        notes.note_session("k", f"s{number}")
        notes.note_session("k", f"s{number}")
    notes.note_session("k", None)
    assert notes.kernel_of("s0") is None
    assert Notes(tmp_path).kernel_of(f"s{SESSIONS + 1}") == "k"
    notes.inherit("fork", "s5")
    notes.inherit("fork", "unknown")
    assert notes.of("fork") == {"cwd": "/here", "kernel_name": "python3"}

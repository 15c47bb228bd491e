"""What a server that has just started does while the scheduler does not name its kernels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from singularity_kernel.server import kernels as kernels_module
from singularity_kernel.server.kernels import SingularityKernelManager
from singularity_kernel.server.notebooks import SingularitySessionManager
from tornado.web import HTTPError


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
    kernels._notes.note(kernel_id, notebook="work/a.ipynb", kernel_name="python3")
    kernels._notes.mark_gone(kernel_id)
    try:
        assert await kernels.find_again("0123456789ab") is None, "not while it has ended"
        scheduler.take_back()
        found = {"kernel_id": kernel_id, "notebook": "work/a.ipynb"}
        assert await kernels.find_again("another one") is None
        assert await kernels.find_again("0123456789ab") == found
        assert await kernels.find_again("0123456789ab") == found, "and once is enough"
        assert kernel_id in kernels
        assert "gone_at" not in kernels._notes.of(kernel_id)
        assert kernel_id in kernels._asleep, "it comes back when its notebook is opened"
    finally:
        await kernels.shutdown_all()
        KernelProvisionerFactory.clear_instance()

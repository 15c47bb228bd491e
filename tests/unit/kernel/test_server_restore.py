"""What a server that has just started does while the scheduler does not name its kernels."""

from __future__ import annotations

import asyncio

import pytest
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
            assert await kernels.list_kernels() == []
            assert await notebooks.list_sessions() == []
        rows = notebooks.cursor.execute("SELECT session_id FROM session").fetchall()
        assert [row[0] for row in rows] == ["a.ipynb", "b.ipynb"], "their kernels may be there"
        with pytest.raises(HTTPError, match=r"a\.ipynb is not known yet") as refused:
            await notebooks.create_session(path="a.ipynb", name="a.ipynb", type="notebook")
        assert refused.value.status_code == 503
    finally:
        await kernels.shutdown_all()
        notebooks.close()

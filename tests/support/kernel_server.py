"""A real `jupyter server` process, as the spawner starts it: what the browser sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from support.kernel_relay import free_ports, wait_until

TOKEN = "the-servers-own-token"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    """A running server; `log` is what it has written."""

    url: str
    log_path: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def open(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
    ) -> IO[bytes]:
        """The open answer; raises HTTPError. `token` None: as a stranger."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={**({"Authorization": f"token {token}"} if token else {}), **(headers or {})},
        )
        answer: IO[bytes] = urllib.request.urlopen(request, timeout=60)
        return answer

    def ask(
        self, path: str, method: str = "GET", body: Any = None, token: str | None = TOKEN
    ) -> Answer:
        """One request and its JSON answer, whatever its status."""
        try:
            with self.open(path, method, body, token) as answer:
                status, headers, text = answer.status, answer.headers, answer.read()  # type: ignore[attr-defined]
        except urllib.error.HTTPError as error:
            with error:
                status, headers, text = error.code, error.headers, error.read()
        return Answer(status, dict(headers), json.loads(text) if text else None)


@contextmanager
def server(folder: Path, *more: str, **env: str) -> Iterator[Server]:
    """A server with our kernelspec and extension installed below `folder`; `more` options."""
    install = [sys.executable, "-m", "singularity_kernel.install", "--prefix", str(folder)]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, timeout=60)
    (port,) = free_ports(1)
    log_path = folder / "server.log"
    options = ["--allow-root", "--no-browser", f"--port={port}", "--ServerApp.port_retries=0"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", "--ip=127.0.0.1", *options, *more],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "JUPYTER_TOKEN": TOKEN,
                "JUPYTER_PATH": str(folder / "share/jupyter"),
                "JUPYTER_CONFIG_PATH": str(folder / "etc/jupyter"),
                **env,
            },
        )
    found = Server(f"http://127.0.0.1:{port}/", log_path, process)

    def answers() -> bool:
        assert process.poll() is None, found.log
        try:
            return found.ask("api/status").status == 200
        except OSError:
            return False

    try:
        wait_until(answers, 60, "the server did not answer")
        yield found
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()

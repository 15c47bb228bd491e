"""A real PostgreSQL server for tests: its own cluster in a temporary folder, run by an unprivileged
user, reached by a unix socket or a loopback port, and killed like anything else."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tornado.testing import bind_unused_port

PASSWORD = "s3cret-of-the-tests"


def find() -> Path | None:
    """The folder with `initdb` and `postgres`, or None."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    return found[-1].parent if found else None


def _version(initdb: Path) -> float:
    return float(initdb.parent.parent.name)


needs_postgres = pytest.mark.skipif(
    find() is None, reason="needs a PostgreSQL server: sudo apt-get install postgresql"
)


class PostgresServer:
    """`start`, `kill` (SIGKILL, as often as wanted), `pause` and `go_on`; `remove` at the end."""

    def __init__(self) -> None:
        folder = find()
        assert folder is not None
        self._programs = folder
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._folder.chmod(0o755)
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to be root
            who = pwd.getpwnam("nobody")
            os.chown(self._folder, who.pw_uid, who.pw_gid)
            self._as = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
        sock, self.port = bind_unused_port()
        sock.close()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._run("initdb", "-D", "data", "-U", "scheduler", "-E", "UTF8", "-A", "trust", "-N")
        (self._folder / "data" / "pg_hba.conf").write_text(
            "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(self._folder)},
            check=True,
            stdout=subprocess.DEVNULL,
            **self._as,
        )

    def start(self) -> None:
        """Returns when it takes connections."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                # After a SIGKILL the first try may come before the last child has ended.
                self._launch()
            try:
                psycopg.connect(self._conninfo("postgres")).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise AssertionError((self._folder / "server.log").read_text()[-2000:])

    def _launch(self) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._programs / "postgres"), "-D", "data", "-k", str(self._folder)),
                    *("-p", str(self.port), "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "max_connections=40", "-c", "shared_buffers=16MB"),
                ],
                cwd=self._folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                stdout=log,
                stderr=log,
                **self._as,
            )

    def kill(self) -> None:
        """SIGKILL of the server; its children end with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        """Its connections hang, and new ones too."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        assert self._process is not None
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [main, *map(int, children)]

    def remove(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # without a last checkpoint
            self._process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- databases --------------------------------------------------------------------------

    def _conninfo(self, database: str) -> str:
        return f"host={self._folder} port={self.port} user=scheduler dbname={database}"

    def sql(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement; its rows, if it has any."""
        with psycopg.connect(self._conninfo(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """A new empty database; its name."""
        name = f"ledger_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def url(self, database: str | None = None) -> str:
        """The URL of a database (None: of a new one) by the unix socket."""
        name = database or self.database()
        return f"postgresql://scheduler@/{name}?host={self._folder}&port={self.port}"

    def tcp_url(self, database: str, user: str = "scheduler", password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

"""Attacks: what is tried, what must hold, and what was measured. Each is a test: in tests/attacks,
or beside other tests of the same part (`ELSEWHERE`).

    @attack("unfinished-lines", "40 connections with 12 MB of an unfinished line each",
            "the node agent grows by at most 64 MiB")
    async def test_...(measured): ...

`./dev attack` runs them, prints one line for each and writes a report; `./dev test` runs the same.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.agent import AgentBox

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Attack:
    """One of the list."""

    name: str
    tries: str
    """What somebody does who should not."""
    holds: str
    """What must be so all the same."""
    slow: bool
    """It takes more than some seconds: not with --quick."""


LIST: dict[str, Attack] = {}
"""All of them, once their tests were imported."""

ELSEWHERE = (
    "tests/e2e/test_hostile_names.py",
    "tests/integration/scheduler/test_dashboard.py",
    "tests/integration/proxy_device/test_untrusted.py",
    "tests/integration/kernel/test_kernel_relay.py",
    "tests/integration/proxy_worker/test_store_guard.py",
    "tests/unit/elastic/test_bridge_parts.py",
)
"""Files with attacks among their tests."""


def attack(
    name: str, tries: str, holds: str, *, root: bool = True, slow: bool = False
) -> Callable[[F], F]:
    """Declares the test below it. `root`: it needs users with uids of their own."""
    assert name not in LIST, f"two attacks have the name {name}"
    LIST[name] = Attack(name, tries, holds, slow)

    def declare(test: F) -> F:
        marks = [pytest.mark.attack(name)]
        if inspect.iscoroutinefunction(test):
            marks.append(pytest.mark.asyncio)
        if root:
            marks.append(pytest.mark.root)
        for mark in marks:
            mark(test)
        return test

    return declare


def rss_mib(pid: int) -> float:
    """What a process has in memory, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


class Peak:
    """The most memory that a process had since `start`, in MiB above what it had then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before = rss_mib(pid)
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the kernel begins VmHWM anew

    def grown(self) -> float:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024 - self.before
        raise ProcessLookupError(self._pid)


async def uid_of_user(box: AgentBox, user: str) -> int:
    identity = await box.call("identity", user=user)
    assert identity["mapped"], "attacks need users with uids of their own"
    return int(identity["uid"])


def as_uid(uid: int, code: str, *words: str, timeout: float = 120.0) -> str:
    """What a program of another user prints: `code` run under `uid`, outside of any session."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(code), *words],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def no_traceback(box: AgentBox) -> None:
    """The agent met nothing that it did not expect."""
    said = box.agent_log(1 << 20)
    for word in ("Traceback", "never retrieved", "rpc method"):
        place = said.find(word)
        assert place < 0, said[max(0, place - 500) : place + 1500]


def opened(uid: int, roots: list[str]) -> list[str]:
    """Everything below `roots` that a user of that uid can read, write or list."""
    found = as_uid(
        uid,
        """
        import os, stat, sys

        def look(path):
            try:
                info = os.lstat(path)
            except OSError:
                return
            if stat.S_ISLNK(info.st_mode):
                return
            if stat.S_ISDIR(info.st_mode):
                try:
                    names = os.listdir(path)
                    print("list", path)
                except OSError:
                    names = []
                if os.access(path, os.W_OK):
                    print("make", path)
                for name in names:
                    look(os.path.join(path, name))
                return
            for word, flag in (("read", os.R_OK), ("write", os.W_OK)):
                if os.access(path, flag):
                    print(word, path)

        for path in sys.argv[1:]:
            look(path)
        """,
        *roots,
    )
    return found.splitlines()


@contextlib.contextmanager
def in_background(uid: int | None, code: str, *words: str) -> Any:
    """A program that runs meanwhile, as `uid`; it is killed at the end."""
    options: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", textwrap.dedent(code), *words],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()

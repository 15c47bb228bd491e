"""The device proxy as a program: its start, its socket, who may use it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.errors import Forbidden
from singularity_proxy.wire.rpc import SyncPeer

COMMAND = [sys.executable, "-m", "singularity_proxy.device"]


@pytest.fixture
def program(short_dir: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A real process, started as the agent does it."""
    path = short_dir / "proxy.sock"
    process = subprocess.Popen(
        [*COMMAND, "--socket", str(path), "--warm"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 100
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process, path
    process.kill()
    process.communicate()


def test_it_serves_and_ends_without_a_word(
    program: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, path = program
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with SyncPeer(path) as peer:
        stats = peer.call("stats")
        assert (stats["pid"], stats["session"], stats["rings"]) == (process.pid, None, {})
        peer.call("exit")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not path.exists()


@pytest.mark.root
def test_another_user_is_refused(program: tuple[subprocess.Popen[bytes], Path]) -> None:
    _, path = program
    path.chmod(0o666)  # the mode alone is not what protects it
    os.seteuid(61005)
    try:
        stranger = SyncPeer(path)
    finally:
        os.seteuid(0)
    with stranger, pytest.raises(Forbidden, match="uid 61005 may not use this socket"):
        stranger.call("exit")


def test_a_place_it_cannot_listen_at_is_one_sentence(short_dir: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--socket", str(short_dir / "missing" / "proxy.sock")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith("proxy.sock: No such file or directory")

"""Network namespaces for tests of several nodes on one machine: each with an address of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def why_not() -> str:
    """Why network namespaces with a name cannot be made here; "": they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the program ip (iproute2) is not installed"
    name = f"sgp{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "exec", name, "ip", "link", "set", "lo", "up")
        _ip("netns", "del", name)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        return f"ip netns does not work here ({said.decode(errors='replace').strip()})"
    return ""


@contextlib.contextmanager
def two_namespaces() -> Iterator[dict[str, str]]:
    """Two namespaces joined by a cable: name -> address. Skips the test where that cannot be."""
    if reason := why_not():
        pytest.skip(reason)
    names = [f"sg{os.getpid()}-{i}" for i in (1, 2)]
    ends = [f"sgv{os.getpid() % 100000}-{i}" for i in (1, 2)]
    found = {name: f"10.231.7.{i}" for i, name in enumerate(names, 1)}
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        try:
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        except subprocess.SubprocessError:
            pytest.skip("this kernel has no veth devices to join network namespaces with")
        for name, end in zip(names, ends, strict=True):
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "address", "add", f"{found[name]}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
        yield found
    finally:
        for name in names:
            with contextlib.suppress(subprocess.SubprocessError):
                _ip("netns", "del", name)

"""The kernel's output waits while nobody takes it, and says nothing of that in a cell."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import zmq
from ipykernel.iostream import IOPubThread, OutStream
from jupyter_client.session import Session
from singularity_kernel.kernel.backpressure import wait_for_subscribers


@pytest.fixture
def output() -> Iterator[IOPubThread]:
    """The output thread of a kernel."""
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.bind("inproc://output")
    thread = IOPubThread(socket)
    thread.start()
    yield thread
    thread.stop()
    thread.close()
    context.term()


def test_a_flush_waits_for_an_output_thread_that_waits(
    output: IOPubThread, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OutStream, "flush_timeout", 0.05)
    stream = OutStream(Session(key=b"key"), output, "stdout", watchfd=False)
    monkeypatch.setattr(sys, "stdout", stream)
    wait_for_subscribers(SimpleNamespace(iopub_thread=output))
    held, flushed = threading.Event(), threading.Event()
    output.schedule(held.wait)

    def flush() -> None:
        stream.flush()
        flushed.set()

    waiting = threading.Thread(target=flush)
    waiting.start()
    assert not flushed.wait(0.5)
    held.set()
    waiting.join(10)
    assert flushed.is_set()
    assert "timed out" not in capfd.readouterr().err

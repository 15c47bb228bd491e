"""The relay between a real jupyter_client and a real ipykernel, and its behaviour byte by byte."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernel_relay import (
    Channels,
    client,
    ipykernel,
    relay,
    relay_command,
    run,
    wait_until,
)


@pytest.fixture
def channels(short_dir: Path) -> Channels:
    return Channels(short_dir)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Channels, int]]:
    """One kernel behind one relay for all tests of the protocol; (channels, kernel's pid)."""
    folder = Path(os.environ["TMPDIR"]) / "relay"
    folder.mkdir()
    shared = Channels(folder)
    with relay(shared), ipykernel(shared) as process:
        yield shared, process.pid


def test_cells_run_and_keep_their_state(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as found:
        assert run(found, "x = 20; print('hello')")[1] == "hello\n"
        assert run(found, "print(x + 1)")[1] == "21\n"
        reply, _ = run(found, "1 / 0")
        assert reply["ename"] == "ZeroDivisionError"


def test_input_is_asked_for_and_answered(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as found:
        asked = []

        def answer(message: dict[str, dict[str, str]]) -> None:
            asked.append(message["content"]["prompt"])
            found.input("Ada")

        _, text = run(found, "print('hello', input('name? '))", allow_stdin=True, stdin_hook=answer)
        assert asked == ["name? "]
        assert text == "hello Ada\n"


def test_a_megabyte_arrives_whole_both_ways(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as found:
        _, text = run(found, "print('z' * (1 << 20))")
        assert text == "z" * (1 << 20) + "\n"
        sent = "".join(f"{i:08x}" for i in range(1 << 17))
        _, text = run(
            found, f"import hashlib; print(hashlib.sha256({sent!r}.encode()).hexdigest())"
        )
        assert text.strip() == hashlib.sha256(sent.encode()).hexdigest()


def test_interrupt_reaches_a_running_cell(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as found:
        found.execute("print('on', flush=True)\nimport time\nfor _ in range(600): time.sleep(0.1)")
        while found.get_iopub_msg(timeout=30)["msg_type"] != "stream":
            pass
        message = found.session.msg("interrupt_request", {})
        found.control_channel.send(message)
        assert found.get_control_msg(timeout=30)["msg_type"] == "interrupt_reply"
        assert found.get_shell_msg(timeout=30)["content"]["ename"] == "KeyboardInterrupt"


def test_the_heartbeat_beats(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as found:
        found.hb_channel.start()
        found.hb_channel.unpause()
        wait_until(found.hb_channel.is_beating, why="the heartbeat did not answer")


def test_a_second_client_and_one_that_comes_back(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as first:
        run(first, "kept = 'variables'")
        with client(kernel[0]) as second:
            assert run(second, "print(kept)")[1] == "variables\n"
    with client(kernel[0]) as again:
        assert run(again, "print(kept)")[1] == "variables\n"


def test_clients_that_wait_for_the_kernel_are_connected_when_it_binds(channels: Channels) -> None:
    with relay(channels) as running:
        before = running.descriptors()
        early = channels.connect("shell")
        wait_until(lambda: running.descriptors() == before + 1, why="it was not accepted")
        with ipykernel(channels), client(channels) as found:
            assert run(found, "print(6 * 7)")[1] == "42\n"
            assert early.recv(10)[:1] == b"\xff"  # ZMTP's greeting
        early.close()


def test_a_new_kernel_behind_the_same_ports_is_found(channels: Channels) -> None:
    with relay(channels), ipykernel(channels) as old, client(channels) as found:
        run(found, "x = 1")
        old.kill()
        old.wait()
        with ipykernel(channels):
            found.wait_for_ready(timeout=60)
            assert run(found, "print('x' in globals())")[1] == "False\n"


# ---- byte by byte --------------------------------------------------------------------------------


def _listen(channels: Channels, channel: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(channels.ipc(channel))
    server.listen()
    server.settimeout(20)
    return server


def _pair(channels: Channels, channel: str = "shell") -> tuple[socket.socket, socket.socket]:
    """A client's socket and the kernel's end of it."""
    with _listen(channels, channel) as server:
        near = channels.connect(channel)
        far, _ = server.accept()
        far.settimeout(20)
    os.unlink(channels.ipc(channel))
    return near, far


def _read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("channel", ["shell", "iopub", "stdin", "control", "hb"])
def test_each_channel_goes_to_its_own_socket(channels: Channels, channel: str) -> None:
    with relay(channels):
        near, far = _pair(channels, channel)
        with near, far:
            near.sendall(b"question")
            assert far.recv(100) == b"question"
            far.sendall(b"answer")
            assert near.recv(100) == b"answer"


def test_a_slow_client_slows_the_kernel_down_and_loses_nothing(channels: Channels) -> None:
    data = os.urandom(1 << 20) * 48
    with relay(channels) as running:
        near, far = _pair(channels, "iopub")
        before = running.memory_kib()
        sender = threading.Thread(target=lambda: (far.sendall(data), far.close()), daemon=True)
        with near:
            sender.start()
            near.settimeout(20)
            first = near.recv(1)
            ticks = running.cpu_ticks()
            time.sleep(0.5)
            assert sender.is_alive(), "the relay or the system took all of it"
            assert running.memory_kib() - before < 4096
            assert running.cpu_ticks() - ticks <= 10, "it spins while it waits"
            rest = _read_all(near)
        sender.join(20)
        assert hashlib.sha256(first + rest).digest() == hashlib.sha256(data).digest()


def test_bytes_sent_before_a_client_leaves_still_arrive(channels: Channels) -> None:
    data = os.urandom(1 << 20)
    with relay(channels) as running:
        descriptors = running.descriptors()
        near, far = _pair(channels)
        with far:
            sender = threading.Thread(target=lambda: (near.sendall(data), near.close()))
            sender.start()
            time.sleep(0.2)  # the kernel is slow; the client does not wait for it
            assert _read_all(far) == data
            sender.join()
        wait_until(lambda: running.descriptors() == descriptors, why="the link stayed")


def test_the_last_words_of_a_kernel_reach_the_client_after_sigterm(channels: Channels) -> None:
    with relay(channels) as running:
        near, far = _pair(channels, "control")
        with near:
            far.sendall(b"shutdown_reply")
            far.close()
            running.process.send_signal(signal.SIGTERM)
            assert _read_all(near) == b"shutdown_reply"


def test_sigterm_ends_it_although_the_kernel_is_frozen(channels: Channels) -> None:
    with relay(channels) as running:
        near, far = _pair(channels)
        with near, far:
            near.sendall(b"nobody reads this")
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(20) == 0


def test_a_frozen_kernel_and_leaving_clients_cost_no_processor_time(channels: Channels) -> None:
    with relay(channels) as running:
        descriptors = running.descriptors()
        pairs = [_pair(channels) for _ in range(3)]
        for near, _ in pairs:
            near.sendall(b"hello")
            near.close()
        time.sleep(0.1)
        ticks = running.cpu_ticks()
        time.sleep(0.5)
        assert running.cpu_ticks() - ticks <= 10, "it spins on a hang-up"
        for _, far in pairs:
            assert _read_all(far) == b"hello"
            far.close()
        wait_until(lambda: running.descriptors() == descriptors, why="links stayed")


def test_a_client_that_leaves_before_the_kernel_came_is_forgotten(channels: Channels) -> None:
    with relay(channels) as running:
        descriptors = running.descriptors()
        near = channels.connect("shell")
        wait_until(lambda: running.descriptors() == descriptors + 1, why="it was not accepted")
        near.close()
        wait_until(lambda: running.descriptors() == descriptors, why="it was not forgotten")


def test_a_kernel_that_never_comes_lets_the_client_go(channels: Channels) -> None:
    with relay(channels, "--connect-s", "0.3"), channels.connect("shell") as near:
        near.settimeout(20)
        assert near.recv(1) == b""


def test_a_reset_by_the_client_ends_the_link(channels: Channels) -> None:
    with relay(channels) as running:
        descriptors = running.descriptors()
        near, far = _pair(channels)
        with far:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            near.close()
            assert _read_all(far) == b""
        wait_until(lambda: running.descriptors() == descriptors, why="the link stayed")


def test_out_of_descriptors_it_waits_and_goes_on(channels: Channels) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14));"
        "from singularity_kernel.relay import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *relay_command(channels)[3:]]
    running = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: _answers(channels), why="it did not listen")
        crowd = [channels.connect("shell") for _ in range(8)]
        assert running.stderr is not None
        assert b"no client can be accepted now" in running.stderr.readline()
        for sock in crowd:
            sock.close()
        near, far = _pair(channels, "control")
        near.sendall(b"still there")
        assert far.recv(100) == b"still there"
        near.close()
        far.close()
    finally:
        running.terminate()
        running.communicate(timeout=20)


def _answers(channels: Channels) -> bool:
    try:
        channels.connect("hb").close()
    except ConnectionRefusedError:
        return False
    return True


# ---- bad input -----------------------------------------------------------------------------------


def _fails(channels: Channels, *options: str) -> tuple[int, str]:
    command = relay_command(channels, *options)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_taken_port_is_said_in_one_sentence(channels: Channels) -> None:
    with socket.create_server(("127.0.0.1", channels.ports["iopub"])):
        code, said = _fails(channels, "--bind-s", "0.1")
    assert code == 3
    assert said.count("\n") == 1
    assert f"127.0.0.1:{channels.ports['iopub']} is taken" in said


def test_a_port_that_becomes_free_in_time_is_used(channels: Channels) -> None:
    with relay(channels) as old:
        new = subprocess.Popen(relay_command(channels, "--bind-s", "20"), stderr=subprocess.PIPE)
        try:
            time.sleep(0.2)
            assert new.poll() is None
            old.stop()
            near, far = None, None
            wait_until(lambda: _answers(channels), why="the new one did not listen")
            near, far = _pair(channels)
            near.sendall(b"moved")
            assert far.recv(10) == b"moved"
            near.close()
            far.close()
        finally:
            new.terminate()
            _, said = new.communicate(timeout=20)
        assert (new.returncode, said) == (0, b"")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read"),
        ("", "is not one of Jupyter's"),
        ("[]", "is not one of Jupyter's"),
        ('{"ip": "127.0.0.1", "transport": "tcp"}', "is not one of Jupyter's"),
        ('{"ip": "x", "transport": "pigeon", "shell_port": 1}', "'pigeon'"),
        ('{"ip": "x", "transport": "tcp", "shell_port": 70000}', "shell_port is 70000"),
    ],
)
def test_a_wrong_connection_file_is_said_in_one_sentence(
    channels: Channels, content: str | None, what: str
) -> None:
    channels.client.unlink()
    if content is not None:
        channels.client.write_text(content)
    code, said = _fails(channels)
    assert code == 2
    assert said.count("\n") == 1
    assert what in said


def test_it_needs_the_standard_library_only() -> None:
    code = (
        "import sys, singularity_kernel.relay;"
        "print({'asyncio', 'zmq', 'tornado', 'traitlets', 'IPython'} & {*sys.modules} or 'none')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "none", done.stderr

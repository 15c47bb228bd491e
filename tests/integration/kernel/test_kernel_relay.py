"""Relay and shim between a real jupyter_client and a real ipykernel, while they are killed, frozen
and cut off."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import pytest
import zmq
from jupyter_client.blocking import BlockingKernelClient
from singularity_kernel.relay.clients import LEAVE
from singularity_proxy.capsule.sockets import tcp_sockets
from singularity_proxy.errors import NoSpace
from singularity_proxy.wire.rpc import SyncPeer
from support.attacks import attack
from support.kernel_relay import (
    COUNT,
    Channels,
    RelayProcess,
    alive,
    children,
    client,
    iopub,
    ipykernel,
    next_iopub,
    numbers,
    raw_client,
    relay,
    relay_command,
    replace,
    rests,
    run,
    shim,
    wait_until,
)
from support.processes import stop_process


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


def test_an_interrupt_overtakes_more_requests_than_the_kernel_takes(channels: Channels) -> None:
    with relay(channels), ipykernel(channels), client(channels) as found:
        cell = found.execute("print('on', flush=True)\nimport time\nwhile True: time.sleep(0.01)")
        iopub(found, "stream")
        for _ in range(2500):
            found.is_complete("1")
        found.control_channel.send(found.session.msg("interrupt_request", {}))
        assert found.get_control_msg(timeout=30)["msg_type"] == "interrupt_reply"
        while (reply := found.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != cell:
            pass
        assert reply["content"]["ename"] == "KeyboardInterrupt"


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


def test_a_request_that_waits_for_the_kernel_is_answered_when_it_is_there(
    channels: Channels,
) -> None:
    with relay(channels) as running, raw_client(channels) as found:
        asked = found.kernel_info()
        wait_until(lambda: running.ask("status")["waiting"] == 1, why="it was not taken in")
        with ipykernel(channels):
            reply = found.get_shell_msg(timeout=60)
            assert reply["parent_header"]["msg_id"] == asked


def test_comms_pass_both_ways(kernel: tuple[Channels, int]) -> None:
    code = (
        "from ipykernel.comm import Comm\n"
        "def opened(comm, message):\n"
        "    comm.on_msg(lambda m: comm.send({'twice': 2 * m['content']['data']['n']}))\n"
        "get_ipython().kernel.comm_manager.register_target('double', opened)"
    )
    with client(kernel[0]) as found:
        run(found, code)
        comm = {"comm_id": "c1"}
        for kind, content in (
            ("comm_open", {**comm, "target_name": "double", "data": {}}),
            ("comm_msg", {**comm, "data": {"n": 21}}),
        ):
            found.shell_channel.send(found.session.msg(kind, content))
        assert iopub(found, "comm_msg")["content"]["data"] == {"twice": 42}


def test_a_subshell_answers_while_a_cell_runs(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]) as found:
        found.control_channel.send(found.session.msg("create_subshell_request", {}))
        subshell = found.get_control_msg(timeout=30)["content"]["subshell_id"]
        run(found, "import time; go = False")
        busy = found.execute("while not go: time.sleep(0.01)")
        message = found.session.msg(
            "execute_request", {"code": "go = True", "silent": False, "store_history": False}
        )
        message["header"]["subshell_id"] = subshell
        found.shell_channel.send(message)
        replies = {found.get_shell_msg(timeout=30)["parent_header"]["msg_id"] for _ in range(2)}
        assert replies == {message["header"]["msg_id"], busy}
        found.control_channel.send(
            found.session.msg("delete_subshell_request", {"subshell_id": subshell})
        )
        assert found.get_control_msg(timeout=30)["content"]["status"] == "ok"


def test_a_kernel_behind_a_shim_listens_on_no_port_and_hears_what_it_forked(
    channels: Channels,
) -> None:
    options = ("--ext", "singularity_kernel")
    with relay(channels), ipykernel(channels, *options) as shim_, client(channels) as found:
        code = "import os\nif (pid := os.fork()) == 0: print('forked', flush=True); os._exit(0)"
        assert run(found, f"{code}\nos.waitpid(pid, 0); print('done')")[1] == "forked\ndone\n"
        assert [s for s in tcp_sockets(children(shim_.pid)) if not s.remote] == []


def test_the_first_subscriber_is_welcomed(kernel: tuple[Channels, int]) -> None:
    with client(kernel[0]):
        pass
    with SyncPeer(kernel[0].control) as peer:
        wait_until(lambda: not peer.call("status")["subscribed"])
    with raw_client(kernel[0]) as found:
        assert iopub(found, "iopub_welcome")["content"] == {"subscription": ""}


# ---- what dies, and what is frozen ---------------------------------------------------------------


@contextlib.contextmanager
def client_of_two(
    channels: Channels,
) -> Iterator[tuple[BlockingKernelClient, Callable[[], None]]]:
    """A client, and what replaces the relay by another one in good order."""
    running = [RelayProcess(channels)]

    def restart() -> None:
        assert running[0].stop() == ""
        running.append(RelayProcess(channels))
        running.pop(0)

    try:
        running[0].point_shim_here()
        with client(channels) as found:
            yield found, restart
    finally:
        running[0].stop()


def test_a_killed_relay_loses_no_output_and_no_request(channels: Channels) -> None:
    with ipykernel(channels):
        first = RelayProcess(channels)
        first.point_shim_here()
        with client(channels) as found:
            found.execute(COUNT.format(n=400, pause=0.005))
            later = found.execute("print('later')")
            wait_until(lambda: first.ask("status")["positions"]["outputs"]["iopub"] > 50)
            first.kill()
            with relay(channels):
                seen = numbers(found, 400)
                assert seen == list(range(400))
                while found.get_shell_msg(timeout=30)["parent_header"]["msg_id"] != later:
                    pass


def _said(running: RelayProcess) -> int:
    """How much of the kernel's output the relay has."""
    return int(running.ask("positions")["outputs"]["iopub"])


def test_a_relay_that_is_killed_again_and_again_at_500_messages_a_second(
    channels: Channels,
) -> None:
    code = (
        "import time\nstart = time.monotonic()\n"
        "for i in range(1500):\n"
        "    print(i, flush=True)\n"
        "    time.sleep(max(0, start + i / 500 - time.monotonic()))"
    )
    with ipykernel(channels):
        running = RelayProcess(channels)
        running.point_shim_here()
        with client(channels) as found:
            run(found, "seen = []")
            found.execute(code)
            for generation in range(3):
                for n in range(3):
                    found.execute(f"seen.append({3 * generation + n})")
                here = _said(running)
                wait_until(lambda here=here, running=running: _said(running) > here + 150)
                running.kill()
                running = RelayProcess(channels)
                running.point_shim_here()
            assert numbers(found, 1500) == list(range(1500))
            while found.shell_channel.socket.poll(500):
                found.get_shell_msg(timeout=1)
            assert run(found, "print(seen)")[1] == f"{list(range(9))}\n"
        assert running.stop() == ""


def test_a_relay_that_is_stopped_and_started_loses_and_doubles_nothing(channels: Channels) -> None:
    with ipykernel(channels), client_of_two(channels) as (found, restart):
        found.execute(COUNT.format(n=300, pause=0.005))
        while found.get_iopub_msg(timeout=30)["msg_type"] != "stream":
            pass
        restart()
        assert numbers(found, 300) == list(range(1, 300))


def test_requests_sent_while_the_kernel_is_frozen_run_afterwards_once_and_in_order(
    channels: Channels,
) -> None:
    with relay(channels) as running, ipykernel(channels) as process, client(channels) as found:
        run(found, "seen = []")
        pids = [process.pid, *children(process.pid)]
        for pid in pids:
            stop_process(pid)
        found.hb_channel.start()
        found.hb_channel.unpause()
        wait_until(found.hb_channel.is_beating, why="the heartbeat stopped")
        for n in range(50):
            found.execute(f"seen.append({n})")
        wait_until(lambda: running.ask("status")["waiting"] == 50, why="they did not arrive")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for _ in range(50):
            found.get_shell_msg(timeout=30)
        assert run(found, "print(seen == list(range(50)))")[1] == "True\n"


def test_a_relay_that_is_gone_makes_the_kernel_wait_and_lose_nothing(channels: Channels) -> None:
    """More output than all queues between hold, while nobody reads it."""
    go = channels.folder / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    code += "for i in range(3000): print(str(i) + ' ' + 'x' * 20_000, flush=True)"
    with ipykernel(channels, "--ext", "singularity_kernel"):
        first = RelayProcess(channels)
        first.point_shim_here()
        with client(channels) as found:
            asked = found.execute(code)
            while iopub(found, "execute_input")["parent_header"]["msg_id"] != asked:
                pass
            first.kill()
            go.touch()
            time.sleep(1)
            with relay(channels):
                text = ""
                while "2999 " not in text[-10:]:
                    message = next_iopub(found)
                    if message is not None and message["msg_type"] == "stream":
                        text += message["content"]["text"].replace("x", "")
                assert text.split() == [str(i) for i in range(3000)]


def test_a_full_disk_makes_messages_wait_and_loses_nothing(channels: Channels) -> None:
    running = RelayProcess(channels)
    with ipykernel(channels):
        running.point_shim_here()
        try:
            with client(channels) as found:
                found.execute(COUNT.format(n=200, pause=0.01))
                wait_until(lambda: running.ask("positions")["outputs"]["iopub"] > 40)
                limits = resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (0, -1))
                wait_until(lambda: running.ask("status")["stuck"], why="it still writes")
                with pytest.raises(NoSpace):
                    running.ask("positions", keep=True)
                found.hb_channel.start()
                found.hb_channel.unpause()
                wait_until(found.hb_channel.is_beating, why="the heartbeat stopped")
                found.kernel_info()
                resource.prlimit(running.pid, resource.RLIMIT_FSIZE, limits)
                assert numbers(found, 200) == list(range(200))
                for _ in range(2):
                    found.get_shell_msg(timeout=30)
        finally:
            said = running.stop()
    assert "its state cannot be written" in said
    assert said.count("\n") == 1


def test_the_shim_ends_as_its_kernel_ends(channels: Channels) -> None:
    with shim(channels, "sh", "-c", "exit 7") as process:
        assert process.wait(20) == 7
    with shim(channels, "sh", "-c", "kill -9 $$") as process:
        assert process.wait(20) == -signal.SIGKILL
    with shim(channels, "sh", "-c", "kill -15 $$") as process:
        assert process.wait(20) == -signal.SIGTERM
    with shim(channels, str(channels.folder / "nothing")) as process:
        assert process.wait(20) == 127


def test_the_shim_passes_signals_on_and_takes_the_kernel_along(channels: Channels) -> None:
    told = channels.folder / "told"
    script = f"trap 'echo usr1 >> {told}' USR1; trap 'echo int >> {told}' INT; echo up > {told};"
    with shim(channels, "sh", "-c", script + " while :; do sleep 0.02; done") as process:
        wait_until(told.exists)
        for signum, word in ((signal.SIGUSR1, "usr1"), (signal.SIGINT, "int")):
            process.send_signal(signum)
            wait_until(lambda word=word: word in told.read_text())
        [kernel] = children(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not alive(kernel), why="the kernel stayed")


def test_the_last_words_of_a_kernel_reach_the_client(channels: Channels) -> None:
    with relay(channels), ipykernel(channels) as process, client(channels) as found:
        found.control_channel.send(found.session.msg("shutdown_request", {"restart": False}))
        assert found.get_control_msg(timeout=30)["msg_type"] == "shutdown_reply"
        assert process.wait(30) == 0


@attack(
    "tunnel-of-another-session",
    "a shim with another key, or of another session, joins a relay",
    "it stays outside; the kernel's own tunnel goes on",
    root=False,
)
def test_a_wrong_key_and_a_wrong_session_stay_outside(channels: Channels) -> None:
    with relay(channels) as running:
        good = json.loads(channels.tunnel.read_text())
        public, secret = (key.decode() for key in zmq.curve_keypair())
        with ipykernel(channels), raw_client(channels) as found:
            for wrong in (
                {**good, "public": public, "secret": secret},
                {**good, "session": "0" * 12},
                {**good, "incarnation": 2},
            ):
                replace(channels.tunnel, wrong)
                time.sleep(0.3)
                assert running.ask("status")["joined"] is False
            running.point_shim_here()
            found.kernel_info()
            found.get_shell_msg(timeout=60)


@attack(
    "kernel-ports-without-keys",
    "a client of a relay's TCP ports without keys, with others, with the public one alone",
    "it gets no answer",
    root=False,
)
def test_ports_are_encrypted(short_dir: Path) -> None:
    channels = Channels(short_dir, tcp=True)
    info = json.loads(channels.client.read_text())
    public, secret = (key.decode() for key in zmq.curve_keypair())
    without = {name: value for name, value in info.items() if not name.startswith("curve")}
    with relay(channels), ipykernel(channels):
        with client(channels) as found:
            assert run(found, "print(1)")[1] == "1\n"
        # Neither without keys, nor with others, nor with the server's public one alone.
        others = {"curve_publickey": public, "curve_secretkey": secret}
        for wrong in ({}, others, {**others, "curve_publickey": info["curve_publickey"]}):
            replace(channels.client, {**without, **wrong})
            with raw_client(channels) as found:
                found.kernel_info()
                with pytest.raises(queue.Empty):
                    found.get_shell_msg(timeout=0.5)


def test_a_console_uses_the_connection_file(kernel: tuple[Channels, int]) -> None:
    """What `jupyter console --existing` is made of, which knows sockets and no keys."""
    existing = ["--existing", str(kernel[0].client)]
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_client.runapp", *existing],
        input="print(6 * 7)",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


@attack(
    "frames-without-end",
    "frames that say that they are 1 GiB, without any key, at a relay's sockets, ports and tunnel",
    "the relay grows by less than 16 MiB",
    root=False,
)
@pytest.mark.parametrize("where", ["sockets", "ports", "tunnel"])
def test_a_frame_that_says_it_is_huge_takes_no_memory(short_dir: Path, where: str) -> None:
    """Nobody has to show a key before: it is what comes first on a connection."""
    channels = Channels(short_dir, tcp=where == "ports")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with relay(channels) as running:
        before = running.memory_kib()
        address = running.ask("status")["tunnel"]["address"].removeprefix("tcp://")
        host, _, port = address.rpartition(":")
        for channel in ("shell", "stdin", "control", "hb", "iopub"):
            if where == "tunnel":
                connection = socket.create_connection((host, int(port)), 20)
            else:
                connection = channels.connect(channel)
            with connection:
                connection.sendall(greeting + b"\x02" + (1 << 30).to_bytes(8, "big"))
                with contextlib.suppress(ConnectionError):
                    for _ in range(64):
                        connection.sendall(bytes(1 << 20))
                with contextlib.suppress(ConnectionResetError):
                    while connection.recv(1 << 16):
                        pass  # until it is closed
        assert running.memory_kib() - before < 16 << 10


@attack(
    "requests-without-the-key",
    "clients that do not sign send requests to a kernel's ports",
    "nothing of them reaches the kernel or takes space",
    root=False,
)
def test_requests_without_the_key_leave_no_trace(channels: Channels) -> None:
    with relay(channels) as running, raw_client(channels) as found:
        deep = b"[" * 100_000
        for parts in (
            [b"<IDS|MSG>", b"no signature", deep, b"{}", b"{}", b"{}"],
            [b"something", b"else"],
            [b""],
        ):
            found.shell_channel.socket.send_multipart(parts)
        found.session.key = b"another key"
        found.execute("1")
        found.session.key = channels.key.encode()
        found.kernel_info()
        wait_until(lambda: running.ask("status")["waiting"] == 1, why="the good one is not there")
        with ipykernel(channels):
            assert found.get_shell_msg(timeout=60)["msg_type"] == "kernel_info_reply"


def test_nothing_spins_while_nothing_happens(channels: Channels) -> None:
    with relay(channels) as running, ipykernel(channels) as process, client(channels) as found:
        run(found, "1")
        for pid in (running.pid, process.pid):
            wait_until(partial(rests, pid), why=f"{pid} spins")


def test_while_away_pages_open_and_a_request_wants_the_kernel_back(channels: Channels) -> None:
    with relay(channels) as running, SyncPeer(channels.control) as agent:
        with ipykernel(channels), client(channels) as found:
            run(found, "1")
        agent.call("away", away=True)
        with client(channels) as found:  # wait_for_ready: answered by the relay
            assert running.ask("status")["waiting"] == 0
            found.execute("2")
            message = json.loads(agent._file.readline())
            assert message == {"method": "wanted", "params": {"request": "execute_request"}}
            assert running.ask("status")["waiting"] == 1
            # It is away again at once, and the request is still there.
            for away in (False, True):
                agent._sock.sendall(
                    b'{"method":"away","params":{"away":%s}}\n' % str(away).lower().encode()
                )
            assert json.loads(agent._file.readline()) == message


# ---- nobody is connected -------------------------------------------------------------------------


def _subscribed(running: RelayProcess, wanted: bool) -> None:
    wait_until(lambda: running.ask("status")["subscribed"] is wanted)


@contextlib.contextmanager
def _unheard(channels: Channels, running: RelayProcess, count: int) -> Iterator[str]:
    """A cell that prints so many numbers, and who asked for it is gone before the first; the id of
    the request."""
    go = channels.folder / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    with ipykernel(channels):
        running.point_shim_here()
        with client(channels) as found:
            asked = found.execute(wait + COUNT.format(n=count, pause=0))
            _subscribed(running, True)
        _subscribed(running, False)
        go.touch()
        wait_until(lambda: running.ask("status")["held"] > count)
        yield asked


def test_output_while_nobody_is_connected_is_given_once_to_who_comes_back(
    channels: Channels,
) -> None:
    first = RelayProcess(channels)
    with _unheard(channels, first, 100) as asked:
        first.kill()  # what it had for them is on disk
        # A server makes several connections at once; each of them hears everything.
        with relay(channels) as running, raw_client(channels) as one, raw_client(channels) as two:
            for each in (one, two):
                each.execute("print('live')", silent=False)
            for each in (one, two):
                heard = []
                while heard.count("live") < 2:
                    message = iopub(each, "stream")
                    heard += message["content"]["text"].split()
                    # What one print writes can come in two messages.
                    if message["content"]["text"].strip() not in ("live", ""):
                        assert message["parent_header"]["msg_id"] == asked
                assert heard == [*map(str, range(100)), "live", "live"]
            assert running.ask("status")["held"] == 0
            with raw_client(channels) as late:  # there is nothing for the next one
                run_there = late.execute("print('late')")
                message = iopub(late, "stream")
                assert message["parent_header"]["msg_id"] == run_there
                said = ""
                while not said:  # the end of the line before can come in a message of its own
                    said = iopub(one, "stream")["content"]["text"].strip()
                assert said == "late"


def test_an_answer_that_nobody_was_there_for_outlives_the_relay(channels: Channels) -> None:
    first = RelayProcess(channels)
    with _unheard(channels, first, 10) as asked:

        def answered() -> bool:
            """All that was asked, also by the client that waited for the kernel: once a second."""
            found = first.ask("status")["positions"]
            return bool(found["outputs"]["shell"] == found["requests"]["shell"] >= 2)

        wait_until(answered)
        held = first.ask("status")["held"]
        first.kill()
        with relay(channels) as running:
            assert running.ask("status")["held"] >= held
            back = BlockingKernelClient()
            back.load_connection_file(str(channels.client))
            back.session.session = asked.partition("_")[0]  # the same page
            back.start_channels(hb=False)
            try:
                reply = back.get_shell_msg(timeout=30)
                assert reply["parent_header"]["msg_id"] == asked
                with pytest.raises(queue.Empty):
                    back.get_shell_msg(timeout=1)
            finally:
                back.stop_channels()
                back.context.destroy(linger=0)
            wait_until(lambda: running.ask("status")["held"] == 0)


def test_nothing_is_kept_for_who_leaves_while_somebody_stays(channels: Channels) -> None:
    with relay(channels) as running, ipykernel(channels), client(channels) as stays:
        with raw_client(channels) as leaves:
            _leave(leaves)
            assert run(stays, "print('still')")[1] == "still\n"
            assert running.ask("status")["held"] == 0
        _leave(stays)
        while stays.iopub_channel.socket.recv_multipart()[0] != LEAVE:
            pass
        stays.execute("print('later')")
        wait_until(lambda: running.ask("status")["held"] >= 4)
        with pytest.raises(queue.Empty):
            stays.get_iopub_msg(timeout=0.5)


def _leave(found: BlockingKernelClient) -> None:
    found.iopub_channel.socket.subscribe(LEAVE)


def test_a_full_disk_while_output_is_to_be_given_makes_nothing_spin(channels: Channels) -> None:
    running = RelayProcess(channels)
    try:
        with _unheard(channels, running, 200) as asked:
            limits = resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (0, -1))
            with raw_client(channels) as late:
                wait_until(lambda: running.ask("status")["stuck"], why="it still writes")
                time.sleep(0.6)  # by now it would give
                wait_until(partial(rests, running.pid), why="it spins")
                resource.prlimit(running.pid, resource.RLIMIT_FSIZE, limits)
                heard: list[str] = []
                while "199" not in heard:
                    message = iopub(late, "stream")
                    assert message["parent_header"]["msg_id"] == asked
                    heard += message["content"]["text"].split()
                assert heard == [*map(str, range(200))]
    finally:
        said = running.stop()
    assert "its state cannot be written" in said


def test_who_stays_connected_hears_nothing_twice(channels: Channels) -> None:
    with relay(channels) as running, ipykernel(channels), client(channels) as stays:
        with client(channels) as leaves:
            leaves.execute(COUNT.format(n=50, pause=0.01))
        assert numbers(stays, 50) == list(range(50))
        with client(channels) as back:
            assert run(back, "print('back')")[1] == "back\n"
            assert iopub(stays, "stream")["content"]["text"] == "back\n"
        assert running.ask("status")["held"] == 0


def test_too_much_output_for_nobody_loses_the_oldest_and_says_how_much(
    channels: Channels,
) -> None:
    with relay(channels, "--held-bytes", "100000") as running, ipykernel(channels):
        with client(channels) as found:
            go = channels.folder / "go"
            cell = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
            cell += "for n in range(1000): print(str(n) + ' ' + 'x' * 1000, flush=True)"
            asked = found.execute(cell)
            while iopub(found, "execute_input")["parent_header"]["msg_id"] != asked:
                pass
        _subscribed(running, False)
        reached = running.ask("positions")["outputs"]["iopub"]
        go.touch()
        wait_until(lambda: running.ask("positions")["outputs"]["iopub"] > reached + 1000)
        assert running.ask("status")["held"] < 100
        with raw_client(channels) as found:
            first = iopub(found, "stream")
            assert first["parent_header"]["msg_id"] == asked
            assert first["content"]["name"] == "stderr"
            dropped = int(first["content"]["text"].split()[0].strip("["))
            kept: list[int] = []
            while not kept or kept[-1] != 999:
                # The end of a line may come as a message of its own.
                kept += map(int, iopub(found, "stream")["content"]["text"].split()[:1])
            assert kept == list(range(kept[0], 1000))
            assert dropped >= kept[0]
            assert 50 < len(kept) < 100


# ---- bad input -----------------------------------------------------------------------------------


def _fails(channels: Channels, *options: str) -> tuple[int, str]:
    command = relay_command(channels, *options)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_taken_port_is_said_in_one_sentence(short_dir: Path) -> None:
    channels = Channels(short_dir, tcp=True)
    with socket.create_server(("127.0.0.1", channels.ports["iopub"])):
        code, said = _fails(channels, "--bind-s", "0.1")
    assert code == 3
    assert said.count("\n") == 1
    assert f"127.0.0.1:{channels.ports['iopub']} is taken" in said


def _waiting(channels: Channels) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A relay that waits for taken addresses, and the pipe that says when it has them."""
    read, write = os.pipe()
    command = relay_command(channels, "--bind-s", "60", "--ready-fd", str(write))
    process = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.PIPE)
    os.close(write)
    return process, os.fdopen(read, "rb")


def test_two_relays_never_have_one_place(channels: Channels) -> None:
    """Closing the sockets of the first must not take away those of the second."""
    first = RelayProcess(channels)
    code, said = _fails(channels, "--bind-s", "0.1")
    assert code == 3
    assert said.count("\n") == 1
    assert f"the sockets in {channels.folder}/c are taken" in said
    later, ready = _waiting(channels)
    try:
        first.stop()
        with ready:
            assert ready.read() == b"ready\n"
        channels.connect("shell").close()
    finally:
        later.terminate()
        _, said_later = later.communicate(timeout=20)
    assert (later.returncode, said_later) == (0, b"")
    assert not (channels.folder / "c").exists()


@pytest.mark.parametrize("mode", [0o711, 0o770])
def test_a_folder_that_others_can_enter_is_refused(channels: Channels, mode: int) -> None:
    (channels.folder / "c").mkdir()
    (channels.folder / "c").chmod(mode)
    code, said = _fails(channels)
    assert code == 2
    assert said.count("\n") == 1
    assert "other users can enter it" in said


def test_a_port_that_becomes_free_in_time_is_used(short_dir: Path) -> None:
    channels = Channels(short_dir, tcp=True)
    holder = socket.create_server(("127.0.0.1", channels.ports["shell"]))
    new, ready = _waiting(channels)
    try:
        time.sleep(0.3)
        assert new.poll() is None
        holder.close()
        with ready:
            assert ready.read() == b"ready\n"
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
        ('{"ip": "x", "transport": "tcp", "shell_port": 5001}', "without the keys"),
        (
            '{"ip": "x", "transport": "tcp", "shell_port": 70000, "curve_publickey": "a", '
            '"curve_secretkey": "b"}',
            "shell_port is 70000",
        ),
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


def test_relay_and_shim_load_nothing_heavy() -> None:
    code = (
        "import sys, singularity_kernel.{0};"
        "print({{'asyncio', 'tornado', 'traitlets', 'IPython', 'torch', 'jupyter_client'}} "
        "& {{*sys.modules}} or 'none')"
    )
    for module in ("relay.app", "kernel.shim"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.strip() == "none", done.stderr

"""A kernel that is dumped in the middle, killed, and restored in new namespaces, with a real client
at its relay; and nodes that die, where only an older image comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from singularity_proxy.capsule import image
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.wire.rpc import SyncPeer
from support.capsules import Place, needs_criu
from support.kernel_relay import (
    COUNT,
    Channels,
    RelayProcess,
    client,
    iopub,
    numbers,
    run,
    shim_command,
    wait_until,
)

pytestmark = needs_criu


class Moving:
    """A kernel in a capsule, its relay, a client, and what moves it. Capsules are watched by an
    event loop in a thread of its own: the blocking client has the test's thread."""

    def __init__(self, place: Place, images: Path) -> None:
        self.place, self.images = place, images
        self.channels = Channels(place.folder)
        self.relay = RelayProcess(self.channels)
        self.capsule: NamespaceCapsule
        self.client: BlockingKernelClient
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def wait(self, job: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(60)

    def close(self) -> None:
        self.wait(self.place.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.relay.stop()

    def start(self) -> None:
        self.hand_over(self.channels.kernel)
        self.point()
        kernel = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher"]
        kernel += ["-f", str(self.channels.kernel)]
        self.capsule = self.wait(self.place.start(*shim_command(self.channels, *kernel)))

    def hand_over(self, path: Path) -> None:
        if self.place.uid != os.geteuid():
            os.chown(path, self.place.uid, self.place.uid)

    def point(self) -> None:
        """Write the tunnel file, for the capsule's user."""
        self.relay.point_shim_here()
        self.hand_over(self.channels.tunnel)

    def positions(self, side: str, lane: str) -> int:
        return int(self.relay.ask("positions")[side][lane])

    def suspend(self, name: str) -> None:
        """Freeze, dump, and leave nothing of the kernel."""
        self.capsule.freeze()
        self.relay.ask("away", away=True)
        image.dump(self.capsule, str(self.images / name))
        self.wait(self.capsule.end(0))

    def resume(self, name: str) -> None:
        """Bring the image back in namespaces of its own."""
        self.capsule = self.wait(self.place.prepare())
        image.restore(self.capsule, str(self.images / name))
        self.relay.ask("away", away=False)
        self.capsule.thaw()

    def connected(self) -> dict[str, Any]:
        """The relay's status once the capsule has joined."""
        wait_until(lambda: self.relay.ask("status")["connected"], why="it did not join")
        status: dict[str, Any] = self.relay.ask("status")
        return status


@contextlib.contextmanager
def moving(images: Path) -> Iterator[Moving]:
    with Place() as place:
        kernel = Moving(place, images)
        try:
            kernel.start()
            with client(kernel.channels) as found:
                kernel.client = found
                yield kernel
        finally:
            kernel.close()


def test_three_moves_at_500_messages_a_second_lose_and_double_nothing(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        found, count = kernel.client, 3000
        run(found, "import time; seen = []")
        found.execute(
            "start = time.monotonic()\n"
            f"for i in range({count}):\n"
            "    print(i, flush=True)\n"
            "    time.sleep(max(0, start + i / 500 - time.monotonic()))"
        )
        for generation in range(3):
            here = kernel.positions("outputs", "iopub")
            wait_until(lambda here=here: kernel.positions("outputs", "iopub") > here + 300)
            name = f"g{generation}"
            kernel.suspend(name)
            with SyncPeer(kernel.channels.control) as agent:
                for n in range(5):
                    found.execute(f"seen.append({5 * generation + n})")
                assert json.loads(agent._file.readline())["method"] == "wanted"
            kernel.resume(name)
        assert numbers(found, count) == list(range(count))
        for _ in range(16):
            found.get_shell_msg(timeout=60)
        assert run(found, "print(seen == list(range(15)))")[1] == "True\n"


def test_interrupt_stdin_comms_and_subshells_after_every_move(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        found = kernel.client
        run(
            found,
            "import time\n"
            "def opened(comm, message):\n"
            "    comm.on_msg(lambda m: comm.send({'twice': 2 * m['content']['data']['n']}))\n"
            "get_ipython().kernel.comm_manager.register_target('double', opened)",
        )
        comm = {"comm_id": "c1"}
        opening = {**comm, "target_name": "double", "data": {}}
        found.shell_channel.send(found.session.msg("comm_open", opening))
        found.control_channel.send(found.session.msg("create_subshell_request", {}))
        subshell = found.get_control_msg(timeout=30)["content"]["subshell_id"]
        for generation in range(2):
            kernel.suspend(f"g{generation}")
            kernel.resume(f"g{generation}")
            _all_works(found, comm, subshell)


def _all_works(found: BlockingKernelClient, comm: dict[str, str], subshell: str) -> None:
    found.shell_channel.send(found.session.msg("comm_msg", {**comm, "data": {"n": 21}}))
    assert iopub(found, "comm_msg")["content"]["data"] == {"twice": 42}
    reply, text = run(
        found,
        "print('hello', input('name? '))",
        allow_stdin=True,
        stdin_hook=lambda _: found.input("Ada"),
    )
    assert (reply["status"], text) == ("ok", "hello Ada\n")
    while found.shell_channel.socket.poll(100) != 0:
        found.get_shell_msg(timeout=1)
    run(found, "go = False")
    busy = found.execute("while not go: time.sleep(0.01)")
    content = {"code": "go = True", "silent": False, "store_history": False}
    message = found.session.msg("execute_request", content)
    message["header"]["subshell_id"] = subshell
    found.shell_channel.send(message)
    replies = {found.get_shell_msg(timeout=30)["parent_header"]["msg_id"] for _ in range(2)}
    assert replies == {message["header"]["msg_id"], busy}
    found.execute("print('on', flush=True)\nfor _ in range(600): time.sleep(0.1)")
    while "on" not in iopub(found, "stream")["content"]["text"]:
        pass
    found.control_channel.send(found.session.msg("interrupt_request", {}))
    assert found.get_control_msg(timeout=30)["msg_type"] == "interrupt_reply"
    assert found.get_shell_msg(timeout=30)["content"]["ename"] == "KeyboardInterrupt"


def test_a_dead_node_costs_what_came_after_its_image_and_nothing_else(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        found, relay = kernel.client, kernel.relay
        run(found, "seen = []")
        found.execute(COUNT.format(n=300, pause=0.01))
        for n in range(3):
            found.execute(f"seen.append({n})")
        seen = [_next_number(found) for _ in range(20)]
        # The checkpoint, in the middle of the output; the session goes on.
        kernel.capsule.freeze()
        positions = relay.ask("positions", keep=True)
        image.dump(kernel.capsule, str(tmp_path / "old"))
        kernel.capsule.thaw()
        for n in range(3, 6):
            found.execute(f"seen.append({n})")
        three_more = positions["requests"]["shell"] + 3
        wait_until(lambda: kernel.positions("requests", "shell") == three_more)
        while seen[-1] < 60:
            seen.append(_next_number(found))
        # The node dies in the middle of output, with requests that nobody has received.
        kernel.capsule.freeze()
        for n in range(6, 9):
            found.execute(f"seen.append({n})")
        wait_until(lambda: relay.ask("status")["waiting"] == 3)
        assert positions["incarnation"] == 1
        old = kernel.capsule
        assert relay.ask("begin_incarnation", number=2)["joined"] is False
        old_file = kernel.channels.tunnel.read_text()
        kernel.point()
        kernel.wait(old.end(0))
        kernel.capsule = kernel.wait(kernel.place.prepare())
        image.restore(kernel.capsule, str(tmp_path / "old"))
        kernel.capsule.thaw()
        status = kernel.connected()
        assert status["incarnation"] == 2
        assert status["requests_again"] == 3
        while seen[-1] != 299:
            seen.append(_next_number(found))
        # Where it went back: to one behind the image, and nothing is missing before or after.
        back = next(i for i in range(1, len(seen)) if seen[i] <= seen[i - 1])
        assert seen[:back] == list(range(back))
        assert seen[back:] == list(range(seen[back], 300))
        rows = relay.ask("rolled_back", incarnation=2)
        assert len([r for r in rows if r["type"] == "stream"]) == back - seen[back]
        assert status["outputs_rolled_back"] == len(rows)
        assert run(found, "print(seen == list(range(9)))")[1] == "True\n"
        # The key of the lost node's capsule opens nothing any more.
        assert json.loads(old_file)["public"] != json.loads(kernel.channels.tunnel.read_text())
        relay.ask("forget", before=None)


def test_what_is_undone_is_not_done_again(tmp_path: Path) -> None:
    """As `restore` does it: the request that asks for it came since the checkpoint as well."""
    with moving(tmp_path) as kernel:
        found, relay = kernel.client, kernel.relay
        run(found, "x = ['before']")
        kernel.capsule.freeze()
        relay.ask("positions", keep=True)
        image.dump(kernel.capsule, str(tmp_path / "old"))
        kernel.capsule.thaw()
        run(found, "x.append('since')")
        kernel.capsule.freeze()
        found.execute("x.append('waited')")
        wait_until(lambda: relay.ask("status")["waiting"] == 1)
        relay.ask("begin_incarnation", number=2, undo=True)
        kernel.wait(kernel.capsule.end(0))
        kernel.point()
        kernel.resume("old")
        assert kernel.connected()["requests_again"] == 0
        assert run(found, "print(x)")[1] == "['before', 'waited']\n"
        relay.ask("forget", before=None)


def _next_number(found: BlockingKernelClient) -> int:
    return int(iopub(found, "stream")["content"]["text"])


def test_a_capsule_that_was_given_up_is_shut_out(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        found, relay = kernel.client, kernel.relay
        run(found, "x = 'old'")
        given_up = kernel.capsule
        image.dump(given_up, str(tmp_path / "old"))
        given_up.freeze()
        relay.ask("begin_incarnation", number=2)
        # Its node does not know: the file there is as it was.
        given_up.thaw()
        time.sleep(0.5)
        assert relay.ask("status")["joined"] is False
        kernel.wait(given_up.end(0))
        kernel.point()
        kernel.resume("old")
        kernel.connected()
        assert run(found, "print(x)")[1] == "old\n"


def test_a_kernel_started_anew_takes_the_requests_that_nobody_received(
    tmp_path: Path,
) -> None:
    with moving(tmp_path) as kernel:
        found, relay = kernel.client, kernel.relay
        run(found, "x = 1")
        kernel.capsule.freeze()
        found.execute("print('x' in globals())")
        wait_until(lambda: relay.ask("status")["waiting"] == 1)
        kernel.wait(kernel.capsule.end(0))
        relay.ask("begin_incarnation", number=2, fresh=True)
        kernel.start()
        assert iopub(found, "stream")["content"]["text"] == "False\n"

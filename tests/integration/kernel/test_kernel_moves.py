"""A kernel that is dumped in the middle, killed, and restored in new namespaces, with a real client
at its relay; and nodes that die, where only an older image comes back."""

from __future__ import annotations

import json
import time
from pathlib import Path

from jupyter_client.blocking import BlockingKernelClient
from singularity_proxy.capsule.images import image
from support.capsules import needs_criu
from support.kernel_moving import Moving, moving, stream_across
from support.kernel_relay import COUNT, Everything, iopub, run, wait_until

pytestmark = needs_criu


def test_three_moves_at_500_messages_a_second_lose_and_double_nothing(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        streamed = stream_across(kernel, count=3000, a_second=500, generations=3)
    assert (streamed.missing, streamed.doubled) == (0, 0)
    assert streamed.in_order
    assert streamed.requests_in_order


def test_interrupt_stdin_comms_and_subshells_after_every_move(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        found = kernel.client
        everything = Everything(found)
        for generation in range(2):
            kernel.suspend(f"g{generation}")
            kernel.resume(f"g{generation}")
            everything.works()


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
        relay.ask("forget", kept=[])


def take_image(kernel: Moving, folder: Path) -> None:
    """A checkpoint of the kernel, which goes on."""
    kernel.capsule.freeze()
    kernel.relay.ask("positions", keep=True)
    image.dump(kernel.capsule, str(folder))
    kernel.capsule.thaw()


def go_back(kernel: Moving, name: str) -> None:
    """To that image, as `restore` does it: because somebody wants it."""
    kernel.relay.ask("begin_incarnation", number=2, undo=True)
    kernel.wait(kernel.capsule.end(0))
    kernel.point()
    kernel.resume(name)


def test_what_is_undone_is_not_done_again(tmp_path: Path) -> None:
    """As `restore` does it: the request that asks for it came since the checkpoint as well."""
    with moving(tmp_path) as kernel:
        found, relay = kernel.client, kernel.relay
        run(found, "x = ['before']")
        take_image(kernel, tmp_path / "old")
        run(found, "x.append('since')")
        kernel.capsule.freeze()
        found.execute("x.append('waited')")
        wait_until(lambda: relay.ask("status")["waiting"] == 1)
        go_back(kernel, "old")
        assert kernel.connected()["requests_again"] == 0
        assert run(found, "print(x)")[1] == "['before', 'waited']\n"
        relay.ask("forget", kept=[])


def test_a_page_is_told_that_its_cell_was_undone(tmp_path: Path) -> None:
    with moving(tmp_path) as kernel:
        found, relay = kernel.client, kernel.relay
        run(found, "import time; done = []")
        take_image(kernel, tmp_path / "old")
        run(found, "done.append('answered')")
        wait_until(lambda: relay.ask("status")["waiting"] == 0)
        received = kernel.positions("requests", "shell")
        running = found.execute("print('begun', flush=True); time.sleep(600)")
        assert iopub(found, "stream")["content"]["text"] == "begun\n"
        waiting = found.execute("done.append('waited')")  # behind it, in the kernel already
        wait_until(lambda: kernel.positions("requests", "shell") == received + 2)
        go_back(kernel, "old")
        kernel.connected()
        for cell in (running, waiting):
            shown = iopub(found, "error")
            assert shown["parent_header"]["msg_id"] == cell
            assert "run the cell again if its work is wanted" in shown["content"]["traceback"][0]
            assert iopub(found, "status")["content"]["execution_state"] == "idle"
            reply = found.get_shell_msg(timeout=20)
            assert reply["parent_header"]["msg_id"] == cell
            assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "Undone")
        assert run(found, "print(done)")[1] == "[]\n"
        relay.ask("forget", kept=[])


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

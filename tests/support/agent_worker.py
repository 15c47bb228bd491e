"""A worker in tests of the agent: opens rings and waits for devices, without torch.

Words on its command line, done in order:
  open[:N]    a ring for virtual device N           need[:N]  ring the doorbell until attached
  wait:T      like need, but give up after T s       sleep     for ever
  fork        a child that ignores everything and leaves the process group
  busy|idle   report activity                       exit:C    end with code C
  status, park  ask over the session socket and print the answer
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.ring import RingFile, RingState
from singularity_proxy.wire.rpc import SyncPeer
from singularity_scheduler.agent.devices.probe import torch_version

rings: dict[int, tuple[str, RingFile]] = {}


def say(*words: object) -> None:
    print(*words, flush=True)


def call(method: str, **params: object) -> object:
    with SyncPeer(os.environ["SINGULARITY_SOCKET"]) as agent:
        return agent.call(method, **params)


def open_ring(number: int) -> None:
    torch = torch_version()
    assert torch is not None
    answer = call(
        "ring.open",
        virtual_device=number,
        torch_version=torch.version,
        git_version=torch.git_version,
        python=sys.executable,
        pid=os.getpid(),
    )
    assert isinstance(answer, dict)
    rings[number] = (answer["ring_id"], RingFile.open(answer["path"]))
    say("opened", answer["ring_id"], answer["device_type"], answer["memory_capacity"])


def need(number: int, seconds: float = 60.0) -> None:
    ring_id, ring = rings[number]
    give_up = time.monotonic() + seconds
    rung = 0.0
    while ring.state is not RingState.ATTACHED:
        if ring.state in (RingState.FAILED, RingState.CLOSED):
            say("ring", ring.state.name.lower(), ring.failure())
            return
        ring._put32("worker_waiting", 1)
        if time.monotonic() - rung > 0.5:
            rung = time.monotonic()
            try:
                bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                bell.sendto(f"need {ring_id}".encode(), os.environ["SINGULARITY_DOORBELL"])
                bell.close()
            except OSError:
                pass  # the agent is being restarted
        if time.monotonic() > give_up:
            ring._put32("worker_waiting", 0)
            say("gave up")
            return
        time.sleep(0.01)
    head = ring.read()
    say("attached", ring_id, "generation", head.generation, "epoch", head.epoch)


def main() -> None:
    for word in sys.argv[1:]:
        verb, _, arg = word.partition(":")
        try:
            if verb == "open":
                open_ring(int(arg or 0))
            elif verb == "need":
                need(int(arg or 0))
            elif verb == "wait":
                need(0, float(arg))
            elif verb == "next":
                # Wait until the test makes the file, so that steps can be ordered from outside.
                while not os.path.exists(arg):
                    time.sleep(0.02)
            elif verb == "fork":
                child = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                        "print('child ready', flush=True); time.sleep(14400)",
                    ],
                    start_new_session=True,
                )
                say("child", child.pid)
            elif verb in ("busy", "idle"):
                call("activity", busy=verb == "busy")
            elif verb == "record":
                ring = rings[0][1]
                ring._put64("done_seq", ring.read().done_seq + 1)
                say("record", ring.read().done_seq)
            elif verb == "pending":
                rings[0][1]._put64("request_head", rings[0][1]._get64("request_head") + 8)
            elif verb == "exit":
                sys.exit(int(arg))
            elif verb == "sleep":
                say("sleeping")
                while True:
                    signal.pause()
            else:
                say(json.dumps(call(verb)))
        except SingularityError as error:
            say(type(error).__name__, error.message)


main()

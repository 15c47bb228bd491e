"""A question to a relay elsewhere, which is its user's process and may answer anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
from singularity_kernel.relay import line as relay_line
from singularity_kernel.relay.tunnel import Frame, Kind
from singularity_proxy.errors import Unavailable


@contextmanager
def relay(answer: bytes) -> Iterator[dict[str, Any]]:
    """Gives this answer to each question; the tunnel file that leads to it."""
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.curve_server = True
        socket.curve_secretkey = secret
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                if socket.poll(20):
                    name, *_ = socket.recv_multipart()
                    told = Frame(Kind.TOLD, 1, number=1, parts=(answer,))
                    socket.send_multipart([name, *told.encode()])

        thread = threading.Thread(target=serve)
        thread.start()
        own, private = zmq.curve_keypair()
        keys = {"server": public, "public": own, "secret": private}
        try:
            yield {
                **{name: key.decode() for name, key in keys.items()},
                "address": f"tcp://127.0.0.1:{port}",
                "session": "s",
                "incarnation": 1,
            }
        finally:
            ended.set()
            thread.join()


def test_an_answer() -> None:
    with relay(json.dumps({"result": {"at": 3}}).encode()) as tunnel:
        assert relay_line.ask(tunnel, "standing", {}, 30) == {"at": 3}


@pytest.mark.parametrize(
    ("answer", "why", "limit_s"),
    [
        (lambda: json.dumps({"result": "x" * (2 << 20)}), "did not answer", 1.0),
        (lambda: "[" * 100_000 + "]" * 100_000, "cannot be read", 30.0),
        *((lambda words=words: words, "cannot be read", 30.0) for words in ("[1]", "{}", "x", "{")),
    ],
)
def test_an_answer_that_nobody_should_read(
    answer: Callable[[], str], why: str, limit_s: float
) -> None:
    with relay(answer().encode()) as tunnel, pytest.raises(Unavailable, match=why):
        relay_line.ask(tunnel, "standing", {}, limit_s)


KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
GOOD: dict[str, Any] = {
    "session": "s",
    "incarnation": 1,
    "address": "tcp://127.0.0.1:9",
    "public": KEY,
    "secret": KEY,
    "server": KEY,
}


@pytest.mark.parametrize(
    "changed",
    [
        *({"incarnation": n} for n in (-1, 1 << 32, float("inf"), float("nan"), "1", None, True)),
        *({"session": w} for w in (None, 7, [], "\ud800", "a\0b")),
        *({"address": w} for w in (None, "nonsense", "tcp://\0", "tcp://127.0.0.1:99999999")),
        *({name: w} for name in ("public", "secret", "server") for w in (None, "", "x", "\ud800")),
    ],
    ids=str,
)
def test_a_changed_tunnel_file_is_no_line_to_a_relay(changed: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        relay_line.ask({**GOOD, **changed}, "standing", {}, 0.05)


def test_neither_is_an_empty_one() -> None:
    with pytest.raises(Unavailable, match="'session'"):
        relay_line.ask({}, "standing", {}, 0.05)
    with pytest.raises(Unavailable, match="did not answer"):
        relay_line.ask(GOOD, "standing", {}, 0.05)

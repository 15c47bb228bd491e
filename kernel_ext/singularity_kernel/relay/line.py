"""A question to a relay on another node, over the tunnel's port: how the agent of a capsule's node
asks where the connection stands, and says that the session is away.

Called in a thread by the node agent (`agent.far_relays`). A connection per question: they are few,
and the relay may have moved to another port in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import zmq
from singularity_proxy.errors import SingularityError, Unavailable, from_wire

from .tunnel import Frame, Kind, TunnelError, refusal

MAX_PART_BYTES = 1 << 20
"""Of an answer: who answers at the address of a tunnel file is the user's, the asker is not."""

WORDS = ("session", "address", "public", "secret", "server")
"""What a tunnel file says in words; the incarnation is a number."""


def ask(tunnel: Mapping[str, Any], method: str, params: Mapping[str, Any], limit_s: float) -> Any:
    """The relay's answer. `tunnel` is the content of a tunnel file, which is the user's: anything
    may be in it. Raises `Unavailable` when that cannot be used, when no answer came within
    `limit_s` seconds (also when another incarnation has begun, whose key this is not), or none that
    can be read; and what the relay raised."""
    question = json.dumps({"method": method, "params": dict(params)}).encode()
    words, incarnation = _checked(tunnel)
    session = words["session"]
    frame = Frame(Kind.ASK, incarnation, number=1, parts=(session.encode(), question))
    context: zmq.Context[Any] = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.maxmsgsize = MAX_PART_BYTES  # the connection that brings more is closed
        socket.ipv6 = "[" in words["address"]
        socket.curve_publickey = words["public"].encode()
        socket.curve_secretkey = words["secret"].encode()
        socket.curve_serverkey = words["server"].encode()
        socket.connect(words["address"])
        socket.send_multipart(frame.encode())
        return _answer(socket, session, limit_s)
    except (zmq.ZMQError, TunnelError) as error:
        raise Unavailable(f"the relay of session {session} cannot be asked ({error})") from None
    finally:
        socket.close()
        context.term()


def _checked(tunnel: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """The words of a tunnel file, and its incarnation."""
    words = {name: tunnel.get(name) for name in WORDS}
    incarnation = tunnel.get("incarnation")
    wrong = [n for n, w in words.items() if not isinstance(w, str) or not w.isprintable()]
    if type(incarnation) is not int or not 0 <= incarnation < 1 << 32:
        wrong.append("incarnation")
    if wrong:
        raise Unavailable(
            f"the tunnel file of the session cannot be used, because '{wrong[0]}' in it is not "
            "what was written there; its relay was not asked"
        )
    return {name: str(word) for name, word in words.items()}, int(incarnation or 0)


def _answer(socket: zmq.Socket[bytes], session: str, limit_s: float) -> Any:
    deadline = time.monotonic() + limit_s
    while (left := deadline - time.monotonic()) > 0 and socket.poll(max(1, round(left * 1000))):
        frame = Frame.decode(socket.recv_multipart())
        if frame.kind is Kind.REFUSE:
            raise TunnelError(refusal(frame))
        if frame.kind is not Kind.TOLD:
            continue
        try:
            told = json.loads(b"".join(frame.parts))
            if "error" not in told:
                return told["result"]
            error: SingularityError = from_wire(told["error"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise TunnelError("its answer cannot be read") from None
        raise error
    raise Unavailable(f"the relay of session {session} did not answer within {limit_s:g} s")

"""How a machine joins a fleet: `jupyter singularity node join STRING`.

First it asks whoever answers which authority there is, and compares its hash with the one in the
string. Only then, over a second connection that this authority vouches for, it says its token,
tries the shared folders, and sends a request for a certificate of the key that it has made.
"""

from __future__ import annotations

import hmac
import ssl
from typing import Any

from singularity_proxy.errors import Forbidden, SingularityError, Unavailable, Unsupported
from singularity_proxy.wire.rpc import Peer
from singularity_proxy.wire.tls import (
    PROTOCOL,
    dial,
    format_place,
    make_node_context,
    make_unproven_context,
)

from . import folder_probe
from .certificates import make_key, make_request, pin_of, write_key
from .identity import Identity, Membership
from .join_string import JoinString

ANSWER_S = 20.0
"""How long the service may take for one answer."""


async def join(string: JoinString, version: str) -> Identity:
    """Join, and return what this machine is from now on; nothing is kept yet. `version`: of this
    software. Raises the service's refusal, or `Forbidden`, `Unsupported`, `Conflict`,
    `Unavailable` with what this side found."""
    authority = await _fetch_authority(string, version)
    key = make_key()
    peer = await _dial(string, make_node_context(authority))
    try:
        asked = {"token": string.token, "node": string.node}
        terms = await peer.call("fleet.probe", ANSWER_S, **asked)
        for told in terms["folders"]:
            folder_probe.answer(folder_probe.Probe.from_json(told))
        request = make_request(key).decode()
        answer = await peer.call("fleet.join", ANSWER_S, **asked, request=request)
    finally:
        await peer.close()
    where = Membership(string.node, string.address, string.port, str(terms.get("store") or ""))
    return Identity(where, authority, str(answer["certificate"]).encode(), write_key(key))


async def _fetch_authority(string: JoinString, version: str) -> bytes:
    """The authority that the string names; nothing secret was said before that is certain."""
    peer = await _dial(string, make_unproven_context())
    try:
        told = await peer.call("fleet.authority", ANSWER_S)
    except SingularityError as error:
        place = format_place(string.address, string.port)
        raise type(error)(
            f"what answers at {place} is no fleet's service ({error.message})"
        ) from None
    finally:
        await peer.close()
    authority = str(told.get("authority")).encode()
    if not hmac.compare_digest(pin_of(authority), string.pin):
        raise Forbidden(
            f"another authority than that of the join string answers at "
            f"{format_place(string.address, string.port)}; the token was not said: compare the "
            "address, or make another string if the fleet was made anew"
        )
    require_same(told, version)
    return authority


def require_same(told: dict[str, Any], version: str) -> None:
    """Raise `Unsupported` unless the service speaks as we do, and is of our version."""
    other = str(told.get("version") or "")
    if told.get("protocol") != PROTOCOL or other != version:
        raise Unsupported(
            f"the service is of version {other or 'unknown'} and this machine has "
            f"{version or 'unknown'}, so it did not join and the token is as good as before: "
            "install the same version on both"
        )


async def _dial(string: JoinString, context: ssl.SSLContext) -> Peer:
    try:
        return await dial(string.address, string.port, context)
    except Unavailable as error:
        raise Unavailable(
            f"{error.message}, so nothing was joined and the token is as good as before: start the "
            "scheduler service, or compare the address",
            **error.fields,
        ) from None

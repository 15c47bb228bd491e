"""Who belongs to the fleet: tokens that let a node join, and the certificates that count. Pure.

A certificate counts while the book names its serial number for its node: that of the last join or
renewal, and the one before a renewal, because the node may not have got the new one.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, Forbidden, NotFound
from singularity_proxy.membership.join_string import NODE_NAME

from singularity_scheduler.client.words import duration

TOKEN_LIFE_S = 900.0

FORGET_S = 86_400.0
"""So long it is known of a token that it was used or ran out; then it is one like any wrong one."""


@dataclass(frozen=True)
class Token:
    """One that was given out; of the secret itself only its hash is kept."""

    node: str
    ends: float
    used_at: float | None = None


@dataclass(frozen=True)
class Member:
    """A node that has joined."""

    serials: tuple[str, ...]
    """Of its certificates that count, the newest one first."""
    joined_at: float
    ends: float
    """When the newest certificate runs out."""
    withdrawn_at: float | None = None


@dataclass
class Book:
    """All of it. Methods that change it raise before they have changed anything."""

    tokens: dict[str, Token] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)

    # -- tokens -----------------------------------------------------------------------------------

    def make_token(self, node: str, now: float, life_s: float = TOKEN_LIFE_S) -> str:
        """Return a new token for `node`; an older one that was not used counts no more. Raises
        `BadRequest` for what cannot be a node's name."""
        check_name(node)
        self._forget(now)
        for key, known in list(self.tokens.items()):
            if known.node == node and known.used_at is None:
                del self.tokens[key]
        secret = secrets.token_hex(32)
        self.tokens[_hash(secret)] = Token(node, now + life_s)
        return secret

    def check_token(self, secret: str, node: str, now: float) -> None:
        """Raise `Forbidden` with the reason unless the token lets `node` join now."""
        token = self.tokens.get(_hash(secret))
        if token is None:
            raise Forbidden(f"this fleet does not know the join token; {_AGAIN}")
        if token.node != node:
            raise Forbidden(
                f"the join token is for the node '{token.node}', not for '{node}', so nothing was "
                f"done: join as '{token.node}', or make a token for '{node}'"
            )
        if token.used_at is not None:
            ago = duration(now - token.used_at)
            raise Forbidden(f"the join token was used {ago} ago, and lets only one join; {_AGAIN}")
        if token.ends <= now:
            raise Forbidden(f"the join token ran out {duration(now - token.ends)} ago; {_AGAIN}")

    def use_token(self, secret: str, node: str, now: float) -> None:
        """Use the token up; raises `Forbidden` as `check_token` does."""
        self.check_token(secret, node, now)
        key = _hash(secret)
        self.tokens[key] = replace(self.tokens[key], used_at=now)

    def _forget(self, now: float) -> None:
        for key, token in list(self.tokens.items()):
            if token.ends + FORGET_S < now:
                del self.tokens[key]

    # -- members ----------------------------------------------------------------------------------

    def admit(self, node: str, serial: str, ends: float, now: float) -> None:
        """A node has joined with this certificate; what it had before counts no more."""
        self.members[node] = Member((serial,), now, ends)

    def renew(self, node: str, serial: str, new: str, ends: float, now: float) -> None:
        """A node shows `serial` and gets `new`; raises `Forbidden` as `check` does."""
        self.check(node, serial, now)
        member = self.members[node]
        self.members[node] = replace(member, serials=(new, serial), ends=ends)

    def withdraw(self, node: str, now: float) -> None:
        """Let no certificate and no token of the node count; raises `NotFound`, `Conflict`."""
        tokens = [k for k, t in self.tokens.items() if t.node == node and t.used_at is None]
        member = self.members.get(node)
        if member is None and not tokens:
            raise NotFound(
                f"no node '{node}' has joined, so there is nothing to withdraw: `jupyter "
                "singularity fleet` lists those that have",
                node=node,
            )
        if member is not None and member.withdrawn_at is not None and not tokens:
            ago = duration(now - member.withdrawn_at)
            raise Conflict(f"the node '{node}' was withdrawn {ago} ago already", node=node)
        for key in tokens:
            del self.tokens[key]
        if member is not None:
            self.members[node] = replace(member, withdrawn_at=now)

    def check(self, node: str, serial: str, now: float) -> None:
        """Raise `Forbidden` with the reason unless this certificate of the node counts now."""
        member = self.members.get(node)
        if member is None:
            raise Forbidden(f"this fleet has no node '{node}'; {_JOIN}", node=node)
        if member.withdrawn_at is not None:
            ago = duration(now - member.withdrawn_at)
            raise Forbidden(f"the node '{node}' was withdrawn {ago} ago; {_JOIN}", node=node)
        if serial not in member.serials:
            raise Forbidden(
                f"a newer certificate was given to the node '{node}', and this one counts no "
                f"more; {_JOIN}",
                node=node,
            )
        if member.ends <= now:
            ago = duration(now - member.ends)
            raise Forbidden(
                f"the certificate of the node '{node}' ran out {ago} ago; {_JOIN}", node=node
            )

    # -- its file ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": {key: asdict(token) for key, token in self.tokens.items()},
            "members": {node: asdict(member) for node, member in self.members.items()},
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Book:
        return cls(
            {key: Token(**token) for key, token in body["tokens"].items()},
            {
                node: Member(**{**member, "serials": tuple(member["serials"])})
                for node, member in body["members"].items()
            },
        )


_AGAIN = (
    "nothing was done: make another one where the service runs, with "
    "`jupyter singularity fleet token NODE`"
)

_JOIN = (
    "its sessions go on until their leases run out: let it join again, with "
    "`jupyter singularity fleet token NODE`"
)


def check_name(node: str) -> None:
    """Raise `BadRequest` for what cannot be a node's name."""
    if not NODE_NAME.fullmatch(node):
        raise BadRequest(
            f"'{node}' cannot be the name of a node: up to 63 letters, digits, dots, dashes and "
            "underscores can, a letter or digit first"
        )


def _hash(secret: str) -> str:
    """What is kept of a token: who reads the file cannot join, and comparing takes no time that
    tells anything of it."""
    return hashlib.sha256(secret.encode()).hexdigest()

"""Who has logged in to the pages: a browser has a random id and nothing else.

The Hub's token, with which its user could do anything that the user may, stays in this process;
the Hub's own client would put it into the cookie. A restart forgets all logins, and the Hub, where
people are still logged in, gives new ones without asking them.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

MAX_LOGINS = 10_000
"""The oldest are forgotten beyond this."""

COOKIE = "singularity-dashboard"


@dataclass(frozen=True)
class Login:
    """One browser's."""

    token: str
    """The Hub's."""
    xsrf: str
    """What a form or a script of our pages sends along, and no other page knows."""


class Logins:
    """One per service."""

    def __init__(self, most: int = MAX_LOGINS) -> None:
        self._most = most
        self._found: OrderedDict[str, Login] = OrderedDict()

    def add(self, token: str) -> str:
        """Somebody has logged in; the id for the cookie."""
        login = secrets.token_urlsafe(32)
        self._found[login] = Login(token, secrets.token_urlsafe(32))
        while len(self._found) > self._most:
            self._found.popitem(last=False)
        return login

    def get(self, login: str | None) -> Login | None:
        """What belongs to the id in a cookie; None: it is none of ours, or forgotten."""
        found = self._found.get(login or "")
        if found is not None:
            self._found.move_to_end(login or "")
        return found

    def remove(self, login: str | None) -> None:
        """The Hub does not take its token any more."""
        self._found.pop(login or "", None)

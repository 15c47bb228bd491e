"""Which uid each Hub user has here: in the agent's ledger, or in a file that all agents of one
machine share, where one number must mean one user for all of them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from singularity_proxy.errors import SingularityError

from singularity_scheduler.agent.ledger import Ledger

Choose = Callable[[dict[str, int]], int | None]
"""The uid of a new user, given those that others have; None: none is given."""


class Uids(Protocol):
    """What `identity.Identities` needs."""

    def all(self) -> dict[str, int]:
        """User -> uid."""
        ...

    def give(self, user: str, choose: Choose) -> int | None:
        """The uid of `user`; a new user gets what `choose` says, for ever. What it raises is
        passed on."""
        ...


class LedgerUids:
    """Of an agent that has the machine for itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def all(self) -> dict[str, int]:
        return {name: int(uid) for name, uid in self._ledger.all("uid")}

    def give(self, user: str, choose: Choose) -> int | None:
        known = self.all()
        if user not in known:
            uid = choose(known)
            if uid is None:
                return None
            self._ledger.put("uid", user, uid)
            return uid
        return known[user]


class FileUids:
    """A JSON file, changed by one agent at a time. Users that the ledger of this agent knows from
    before it had the file keep their uid, as far as nobody else has it."""

    def __init__(self, path: str, ledger: Ledger) -> None:
        self._path = path
        with self._opened() as (found, write):
            taken = set(found.values())
            for name, uid in LedgerUids(ledger).all().items():
                if name not in found and uid not in taken:
                    found[name] = uid
            write(found)

    def all(self) -> dict[str, int]:
        with self._opened() as (found, _):
            return found

    def give(self, user: str, choose: Choose) -> int | None:
        with self._opened() as (found, write):
            if user not in found:
                uid = choose(dict(found))
                if uid is None:
                    return None
                write({**found, user: uid})
                return uid
            return found[user]

    @contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, int], Callable[[dict[str, int]], None]]]:
        fd = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield self._read(), self._write
        except OSError as error:
            raise SingularityError(
                f"the file of the users' uids {self._path} cannot be used "
                f"({error.strerror or error}); nothing was changed"
            ) from None
        finally:
            os.close(fd)

    def _read(self) -> dict[str, int]:
        try:
            with open(self._path, encoding="utf-8") as file:
                found: Any = json.load(file)
        except FileNotFoundError:
            return {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SingularityError(
                f"the file of the users' uids {self._path} is damaged; nobody's uid was changed: "
                "put it right, it maps names of users to uids"
            )
        return {str(name): int(uid) for name, uid in found.items()}

    def _write(self, content: dict[str, int]) -> None:
        temporary = f"{self._path}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, sort_keys=True)
        os.replace(temporary, self._path)

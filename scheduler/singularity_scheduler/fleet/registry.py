"""The folder of the fleet in the service's state folder: its authority, its address, its book.

`jupyter singularity fleet` and the running service change the book, one at a time (a lock); a file
is replaced as a whole, so a killed process leaves the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from singularity_proxy.errors import Conflict, NotFound, Unavailable
from singularity_proxy.membership.identity import write_private
from singularity_proxy.membership.join_string import JoinString

from .authority import Authority, Issued
from .book import Book
from .settings import FOLDER, SETTINGS, FleetSettings, has_fleet

CERTIFICATE, KEY = "authority.pem", "authority.key"
BOOK, LOCK = "book.json", "lock"


class Registry:
    """What is in the folder. `clock` is in seconds since 1970."""

    def __init__(self, state_dir: str, clock: Callable[[], float] = time.time) -> None:
        self._state_dir = state_dir
        self.folder = os.path.join(state_dir, FOLDER)
        self.clock = clock

    @property
    def exists(self) -> bool:
        """Whether `fleet init` was done here."""
        return has_fleet(self._state_dir)

    def create(self, settings: FleetSettings) -> None:
        """Make the folder with a new authority; raises `Conflict` when there is one."""
        if self.exists:
            raise Conflict(
                f"{self.folder} has a fleet already, and was left as it is: nodes that joined it "
                "would have to join again",
                folder=self.folder,
            )
        with _told(self.folder, "written"):
            os.makedirs(self.folder, 0o700, exist_ok=True)
            authority = Authority.create(self.clock())
            self._write(KEY, authority.key_pem)
            self._write(CERTIFICATE, authority.pem)
            self._write(BOOK, json.dumps(Book().to_json()).encode())
            self._write(SETTINGS, json.dumps(asdict(settings)).encode())  # last: now it exists

    def settings(self) -> FleetSettings:
        """Return what `fleet init` was told; raises `NotFound` when it never was."""
        if not self.exists:
            raise NotFound(
                f"there is no fleet in {self.folder}: `jupyter singularity fleet init` makes one",
                folder=self.folder,
            )
        with self._readable(SETTINGS):
            return FleetSettings(**json.loads(self._read(SETTINGS)))

    def authority(self) -> Authority:
        """Return the fleet's authority."""
        return Authority.read(self._read(KEY), self._read(CERTIFICATE))

    def book(self) -> Book:
        """Return the book as it is now."""
        with self._readable(BOOK):
            return Book.from_json(json.loads(self._read(BOOK)))

    # -- changes ----------------------------------------------------------------------------------

    def make_join_string(self, node: str) -> JoinString:
        """Return a new join string for `node`."""
        settings, pin = self.settings(), self.authority().pin
        with self._changing() as book:
            token = book.make_token(node, self.clock())
        return JoinString(settings.address, settings.port, node, token, pin)

    def admit(self, secret: str, node: str, request: bytes) -> Issued:
        """Use the token up and return the node's certificate; raises `Forbidden`, `BadRequest`."""
        with self._changing() as book:
            book.use_token(secret, node, self.clock())
            issued = self._certify(node, request)
            book.admit(node, issued.serial, issued.ends, self.clock())
        return issued

    def renew(self, node: str, serial: str, request: bytes) -> Issued:
        """Return a new certificate for a node that shows `serial`; raises `Forbidden`."""
        with self._changing() as book:
            book.check(node, serial, self.clock())
            issued = self._certify(node, request)
            book.renew(node, serial, issued.serial, issued.ends, self.clock())
        return issued

    def withdraw(self, node: str) -> None:
        """Let nothing of the node count any more; raises `NotFound`, `Conflict`."""
        with self._changing() as book:
            book.withdraw(node, self.clock())

    def _certify(self, node: str, request: bytes) -> Issued:
        life_s = self.settings().certificate_s
        return self.authority().certify_node(node, request, self.clock(), life_s)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Book]:
        """The book, written when the block ends without an error."""
        self.settings()
        with _told(self.folder, "changed"):
            lock = os.open(self._path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            book = self.book()
            yield book
            with _told(self.folder, "changed"):
                self._write(BOOK, json.dumps(book.to_json()).encode())
        finally:
            os.close(lock)

    # -- files ------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _read(self, name: str) -> bytes:
        with _told(self.folder, "read"), open(self._path(name), "rb") as file:
            return file.read()

    @contextlib.contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError):
            raise Unavailable(
                f"the fleet's file {self._path(name)} is damaged, so no node is let in; nothing of "
                "it was changed: put it right, or bring back a copy",
                folder=self.folder,
            ) from None

    def _write(self, name: str, data: bytes) -> None:
        write_private(self._path(name), data)


@contextlib.contextmanager
def _told(folder: str, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the fleet's folder {folder} cannot be {verb} ({error.strerror}); nothing else was "
            "done: run this as the user of the scheduler service",
            folder=folder,
        ) from None


def describe_members(book: Book, now: float) -> list[dict[str, Any]]:
    """Return the nodes that have joined, for people and programs."""
    found = []
    for node, member in sorted(book.members.items()):
        state = "withdrawn" if member.withdrawn_at is not None else "member"
        if state == "member" and member.ends <= now:
            state = "expired"
        found.append(
            {"node": node, "state": state, "joined_at": member.joined_at, "ends": member.ends}
        )
    return found

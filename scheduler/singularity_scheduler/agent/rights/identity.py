"""Which operating system user a Hub user's sessions run as.

A root agent gives every Hub user a uid of their own from `uid_range`, for ever (see `uids`).
That needs a Python environment that other uids can read; where it is not, all sessions run as the
agent and the answer says so. An agent that is not root serves one Hub user.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, Forbidden, NoSpace, Unavailable
from singularity_proxy.probes import CutShort

from singularity_scheduler.agent.ledger import Ledger
from singularity_scheduler.agent.processes import ask_process

from .uids import LedgerUids, Uids

_PROBE = """
import importlib.util, os, singularity_proxy.errors
torch = importlib.util.find_spec("torch")
if torch and torch.submodule_search_locations:
    open(os.path.join(torch.submodule_search_locations[0], "version.py")).close()
"""


@dataclass(frozen=True)
class Identity:
    """Answer of `identity`; `sentence` says how well users are kept apart."""

    uid: int
    gid: int
    mapped: bool
    sentence: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_uid_range(text: str) -> range:
    """ "FIRST-LAST" as a range of uids; raises `BadRequest` for anything else."""
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text.strip())
    if match:
        first, last = int(match[1]), int(match[2])
        if 0 < first <= last < 2**32 - 2:
            return range(first, last + 1)
    raise BadRequest(f"uid_range must look like '1900000000-1900009999', not '{text}'")


class Identities:
    """Maps Hub users to uids. `folder` takes the output of the one probe process."""

    def __init__(
        self,
        ledger: Ledger,
        uids: range,
        folder: str,
        *,
        euid: int | None = None,
        table: Uids | None = None,
    ) -> None:
        """`table`: where the uids of users stand; None: in the ledger."""
        self._ledger = ledger
        self._table = table or LedgerUids(ledger)
        self._uids = uids
        self._folder = folder
        self._euid = os.geteuid() if euid is None else euid
        self._readable: bool | None = None

    async def of(self, user: str) -> Identity:
        """The identity of Hub user `user`, made on first sight. Raises `Forbidden` for a second
        user of an agent without root, `NoSpace` when the range is used up."""
        if not user or len(user) > 255 or "\0" in user:
            raise BadRequest("the name of the user is empty or too long")
        if self._euid != 0:
            return self._only_user(user)
        if not await self._environment_is_readable():
            return Identity(
                0,
                0,
                False,
                f"All users share uid 0 on this node: the Python environment {sys.prefix} cannot "
                "be read by other users; install it where everybody may read it.",
            )
        uid = self._table.give(user, self._free_uid)
        assert uid is not None
        return Identity(uid, uid, True, f"Sessions of {user} run as uid {uid} of their own.")

    async def claim(self, user: str, uid: int, gid: int) -> None:
        """Sessions of `user` that come from another node run as `uid` in their process image, so
        it becomes theirs here too. Raises `Conflict` when it is somebody else's here, or `user` has
        another one."""
        known = user in self._table.all()
        if not known and self._euid == 0 and uid in self._uids:
            readable = await self._environment_is_readable()
            if readable and self._table.give(user, lambda all_: _unless(uid, all_)) == uid:
                return
        identity = await self.of(user)
        if (identity.uid, identity.gid) != (uid, gid):
            raise Conflict(
                f"the session's processes run as uid {uid}, but sessions of {user} run as uid "
                f"{identity.uid} on this node; the checkpoint was kept: give all nodes the same "
                "uids, or resume it on the node it was saved on",
                uid=uid,
                here=identity.uid,
            )

    def _only_user(self, user: str) -> Identity:
        first = self._ledger.get("node", "only_user")
        if first is None:
            self._ledger.put("node", "only_user", user)
        elif first != user:
            raise Forbidden(
                f"this node runs without root and serves one user, '{first}'; start the platform "
                "as root to serve more users",
                user=user,
            )
        return Identity(
            self._euid,
            os.getegid(),
            False,
            f"This node runs without root: it serves {user} alone, as uid {self._euid}.",
        )

    def _free_uid(self, known: dict[str, int]) -> int:
        taken = set(known.values())
        taken.update(entry.pw_uid for entry in pwd.getpwall())
        for uid in self._uids:
            if uid not in taken:
                return uid
        raise NoSpace(
            f"all {len(self._uids)} uids of this node's uid_range are given out; widen uid_range"
        )

    async def _environment_is_readable(self) -> bool:
        if self._readable is None:
            uid = self._uids[0]
            try:
                code, _ = await ask_process(
                    [sys.executable, "-c", _PROBE], self._folder, uid=uid, gid=uid, timeout=60
                )
            except BadRequest:  # not even the interpreter
                code = 1
            except CutShort as error:
                raise Unavailable(
                    "whether other users can read the Python environment could not be found out: "
                    f"{error}; nothing was changed, try again"
                ) from None
            self._readable = code == 0
        return self._readable


def _unless(uid: int, others: dict[str, int]) -> int | None:
    """`uid`, unless it is somebody's."""
    return None if uid in others.values() else uid

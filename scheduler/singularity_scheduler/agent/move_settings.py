"""The settings of the node agent that are about moving sessions: capsules, checkpoints, and
what nodes must agree on."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
from urllib.parse import urlsplit

from singularity_proxy.capsule.launcher import looks_secret
from singularity_proxy.checkpoint.cleaning.retention import Policy
from singularity_proxy.errors import SingularityError
from traitlets import Bool, Enum, Float, HasTraits, Integer, List, Unicode

from .ledger import Ledger
from .rights.uids import FileUids, LedgerUids, Uids
from .sessions.capsules import WAYS
from .store.stores import Stores

log = logging.getLogger("singularity.agent")


class MoveSettings(HasTraits):  # type: ignore[misc]
    """Part of `app.NodeAgent`."""

    capsule = Enum(
        WAYS,
        default_value="auto",
        config=True,
        help="""How sessions are started: "namespace" gives each a pid and mount namespace of its
        own, with its own /tmp and /dev/shm, which a process image (suspend, resume, migrate) needs;
        "process" starts ordinary processes; "auto" takes namespaces where this machine permits
        them.""",
    )
    capsule_shared = List(
        Unicode(),
        config=True,
        help="""Folders below /tmp or /dev/shm that sessions share with the machine, besides those
        that their command names. What lies there does not travel with a session.""",
    )
    checkpoint_store = Unicode(
        config=True,
        help="""Where checkpoints are kept: a folder, the same for all nodes, Azure Blob as
        abs://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX, S3 as s3://BUCKET/PREFIX, or Google
        Cloud Storage as gs://BUCKET/PREFIX. Empty: the folder `store` in the state folder.""",
    )
    checkpoint_store_new = Bool(
        False,
        config=True,
        help="""Take the store that is found at `checkpoint_store`, also when it is another one than
        this agent has used there before. Otherwise nothing is done with such a store: it may be a
        folder that is not mounted.""",
    )
    checkpoint_reserve_percent = Float(
        5.0,
        min=0.0,
        max=90.0,
        config=True,
        help="""Percent of the file system of a checkpoint folder that stay free for suspends which
        keep a session from loss: of a platform, server or node that stops. Other suspends are
        refused when they would need that room, and checkpoints leave as much again for suspends. A
        store in a cloud has no bound.""",
    )
    checkpoint_keys = Unicode(
        config=True,
        help="""Where the keys are that checkpoints are encrypted with: file:PATH, env:VARIABLE
        (with KEY in its name) or the address of a key in Azure Key Vault. Empty: they are not
        encrypted.""",
    )
    checkpoints_at_once = Integer(
        0,
        min=0,
        config=True,
        help="""How many sessions are frozen at the same time to be written to files or the store;
        the others run on until it is their turn. 0: as many as this machine has cores, and at
        least 2.""",
    )
    checkpoint_keep_count = Integer(
        0,
        min=0,
        config=True,
        help="""How many checkpoints without a name are kept of a session; the newest always is. 0:
        all.""",
    )
    checkpoint_keep_hours = Float(
        0.0,
        min=0.0,
        config=True,
        help="Hours after which a checkpoint without a name is removed. 0: never.",
    )
    held_output_bytes = Integer(
        32 << 20,
        min=0,
        config=True,
        help="""Bytes of a kernel's output (and at most 9000 messages) that its relay keeps while no
        client is connected, for the next one; the oldest go first, and how many went is said in
        their place. 0: none.""",
    )
    client_ip = Unicode(
        config=True,
        help="""Address of this node at which its relays listen (encrypted) for Jupyter's clients
        that cannot use unix sockets of this machine; the notebook server learns it when a kernel
        starts. Empty: the address that the server asks for, 127.0.0.1 as a rule.""",
    )
    uids_file = Unicode(
        config=True,
        help="""File with the uids of Hub users, shared by all agents of one machine (`LocalFleet`
        names it), so that a uid means the same user on all of them. Empty: the agent's ledger.""",
    )

    def uids(self, ledger: Ledger) -> Uids:
        """Where the uids of users stand."""
        return FileUids(self.uids_file, ledger) if self.uids_file else LedgerUids(ledger)


def is_loopback(address: str) -> bool:
    """Whether an address, or name, is one that no other machine can reach."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def open_stores(settings: MoveSettings, state_dir: str, ledger: Ledger) -> Stores:
    """The store of the agent whose state folder is `state_dir`; it is opened when it is used, and
    is the one then that `ledger` knows."""
    policy = Policy(
        settings.checkpoint_keep_count or None,
        settings.checkpoint_keep_hours * 3600 if settings.checkpoint_keep_hours else None,
    )
    source, _, variable = settings.checkpoint_keys.partition(":")
    if source == "env" and variable and not looks_secret(variable):
        raise SingularityError(
            f"checkpoint_keys names the variable {variable}, which sessions' users could read from "
            "their relays and device proxies: give it a name with KEY in it, or use a file"
        )
    url = settings.checkpoint_store or os.path.join(state_dir, "store")
    at_once = settings.checkpoints_at_once or max(2, os.cpu_count() or 1)
    place = urlsplit(url)._replace(query="").geturl()  # no credential in the ledger
    known: dict[str, str] = ledger.get("node", "stores") or {}

    def remember(identity: str) -> None:
        known[place] = identity
        try:
            ledger.put("node", "stores", known)
        except SingularityError as error:  # written with the next start
            log.error("%s", error.message)

    return Stores(
        url,
        settings.checkpoint_keys,
        policy,
        at_once,
        identity="" if settings.checkpoint_store_new else known.get(place, ""),
        remember=remember,
        keep_percent=settings.checkpoint_reserve_percent,
    )

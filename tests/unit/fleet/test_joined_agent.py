"""What an agent takes over from the fleet that its machine has joined."""

from __future__ import annotations

import logging
import os

import pytest
from singularity_proxy.errors import SingularityError
from singularity_proxy.membership.identity import Identity, Membership
from singularity_scheduler.agent.app import NodeAgent
from singularity_scheduler.agent.move_settings import is_loopback

IDENTITY = Identity(Membership("gpu-1", "192.0.2.1", 8766, "/shared/store"), b"CA", b"CERT", b"KEY")


def test_it_is_the_node_of_its_certificate_and_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    agent = NodeAgent(node="another")
    agent.join(IDENTITY)
    assert (agent.node, agent.checkpoint_store, agent.idle_exit_s) == ("gpu-1", "/shared/store", 0)
    agent = NodeAgent(checkpoint_store="s3://bucket/checkpoints")
    agent.join(IDENTITY)
    assert agent.checkpoint_store == "s3://bucket/checkpoints"


def test_as_root_it_gives_no_uids_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SingularityError, match="name a file that the agents of all machines share"):
        NodeAgent().join(IDENTITY)
    NodeAgent(uids_file="/shared/uids.json").join(IDENTITY)


@pytest.mark.parametrize(
    ("tunnel_ip", "service", "warned"),
    [
        ("127.0.0.1", "192.0.2.1", True),
        ("192.0.2.7", "192.0.2.1", False),
        ("127.0.0.1", "localhost", False),
    ],
)
def test_relays_that_others_do_not_reach_are_warned_of(
    tunnel_ip: str, service: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    identity = Identity(Membership("gpu-1", service, 8766), b"", b"", b"")
    with caplog.at_level(logging.WARNING, "singularity.agent"):
        NodeAgent(uids_file="/shared/uids.json", tunnel_ip=tunnel_ip).join(identity)
    assert ("notebooks cannot move to this node" in caplog.text) is warned


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("192.0.2.7", False),
        ("scheduler.example.org", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback

"""Machines that join over TLS and keep connected, with agents of paper: who is let in, who is not
and what it is told, and what becomes of a line that breaks."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from singularity_proxy.errors import (
    Conflict,
    Forbidden,
    NotFound,
    SingularityError,
    Unavailable,
    Unsupported,
)
from singularity_proxy.membership.certificates import life_of, make_key, make_request, write_key
from singularity_proxy.membership.identity import Identity
from singularity_proxy.membership.joining import join
from singularity_proxy.wire.rpc import READ_BYTES, Certified, Credentials
from singularity_proxy.wire.tls import dial, make_node_context, make_unproven_context
from singularity_scheduler.fleet.authority import Authority
from support.fleet import LOCAL, VERSION, FleetBox, fleet_box, until

pytestmark = pytest.mark.asyncio


async def raw_call(box: FleetBox, identity: Identity, method: str, **params: object) -> object:
    """One call of somebody who shows this identity; raises what the service answers."""
    context = make_node_context(identity.authority, identity.pem)
    peer = await dial("127.0.0.1", box.settings.port, context)
    try:
        return await peer.call(method, 10.0, **params)
    except SingularityError:
        if isinstance(peer.error, SingularityError):
            raise peer.error from None
        raise
    finally:
        await peer.close()


# -- who joins ------------------------------------------------------------------------------------


async def test_a_machine_joins_and_its_agent_is_commanded() -> None:
    async with fleet_box() as box:
        identity = await box.join("a")
        node = box.node("a").dial()
        await box.up("a")
        assert [hello["node"] for hello in await box.joined.hello()] == ["a"]
        assert await box.joined.call("a", "echo", 10.0, {"x": 1}) == {"x": 1}
        with pytest.raises(NotFound, match="no method 'shout'"):
            await box.joined.call("a", "shout", 10.0, {})
        assert node.peer is not None
        node.peer.notify("event", session="s", type="device.need", data={"n": 1})
        await until(lambda: box.events)
        assert box.events == [("a", "s", "device.need", {"n": 1})]
        assert box.joined.has("a")
        assert not box.joined.has("b")
        assert identity.membership.node == "a"


async def test_a_token_is_used_once() -> None:
    async with fleet_box() as box:
        string = box.string("a")
        await box.join("a", string)
        with pytest.raises(Forbidden, match=r"was used .* and lets only one join"):
            await box.join("a", string)


async def test_a_token_that_is_wrong_ran_out_or_is_for_another_name() -> None:
    async with fleet_box() as box:
        string = box.string("a")
        with pytest.raises(Forbidden, match="does not know the join token"):
            await join(replace(string, token="0" * 64), VERSION)
        with pytest.raises(Forbidden, match="is for the node 'a', not for 'b'"):
            await join(replace(string, node="b"), VERSION)
        box.registry.clock = lambda: time.time() + 1000
        with pytest.raises(Forbidden, match="the join token ran out"):
            await join(string, VERSION)
        box.registry.clock = time.time
        await join(string, VERSION)  # nothing of that used it up


async def test_another_authority_is_told_no_token() -> None:
    async with fleet_box() as box:
        string = box.string("a")
        other = Authority.create(time.time())
        with pytest.raises(Forbidden, match=r"another authority .* the token was not said"):
            await join(replace(string, pin=other.pin), VERSION)
        await join(string, VERSION)


async def test_another_version_does_not_join_and_keeps_its_token() -> None:
    async with fleet_box() as box:
        string = box.string("a")
        with pytest.raises(Unsupported, match=r"version 1\.0 and this machine has 0\.9"):
            await join(string, "0.9")
        await join(string, VERSION)


async def test_a_name_of_the_services_own_machine_is_taken() -> None:
    async with fleet_box() as box:
        with pytest.raises(Conflict, match=f"'{LOCAL}' is a node of the service's own machine"):
            await box.join(LOCAL)


async def test_nobody_answers() -> None:
    async with fleet_box() as box:
        string = box.string("a")
        await box.joined.stop()
        with pytest.raises(Unavailable):
            await join(string, VERSION)
        with pytest.raises(
            Unavailable, match=r"nobody answers at 127.* the token is as good as before"
        ):
            await join(replace(string, port=box.settings.port), VERSION)


async def test_folders_are_tried_both_ways_and_left_clean(tmp_path: object) -> None:
    store, homes = os.path.join(str(tmp_path), "store"), os.path.join(str(tmp_path), "homes")
    os.mkdir(store)
    async with fleet_box(store=store, homes=homes) as box:
        string = box.string("a")
        with pytest.raises(Unavailable, match="the service cannot write to the folder of homes"):
            await join(string, VERSION)
        os.mkdir(homes)
        identity = await join(string, VERSION)
        assert identity.membership.store == store
        await until(lambda: os.listdir(store) == os.listdir(homes) == [])


async def test_without_an_answer_in_the_folder_nobody_joins(tmp_path: object) -> None:
    async with fleet_box(store=str(tmp_path)) as box:
        string = box.string("a")
        authority = box.registry.authority().pem
        peer = await dial("127.0.0.1", box.settings.port, make_node_context(authority))
        asked = {"token": string.token, "node": "a", "request": make_request(make_key()).decode()}
        with pytest.raises(SingularityError, match="joins after it was asked for its folders"):
            await peer.call("fleet.join", 10.0, **asked)
        await peer.call("fleet.probe", 10.0, **asked)
        with pytest.raises(Conflict, match="does not arrive at the service"):
            await peer.call("fleet.join", 10.0, **asked)
        await peer.close()
        await until(lambda: os.listdir(str(tmp_path)) == [])
        assert box.registry.book().members == {}


# -- who is let in --------------------------------------------------------------------------------


async def test_who_shows_no_certificate_may_only_join() -> None:
    async with fleet_box() as box:
        authority = box.registry.authority().pem
        peer = await dial("127.0.0.1", box.settings.port, make_node_context(authority))
        for method in ("fleet.arrive", "fleet.renew", "event", "session.command", "hello"):
            with pytest.raises(NotFound, match="no method"):
                await peer.call(method, 10.0)
        await peer.close()


async def test_a_tcp_peer_is_its_certificate_and_never_a_user_of_this_machine() -> None:
    async with fleet_box() as box:
        await box.join("a")
        node = box.node("a").dial()
        await box.up("a")
        [link] = box.joined._links.values()
        assert isinstance(link.who, Certified)
        assert link.who.name == "a"
        assert node.peer is not None
        for peer in (node.peer, link._peer):
            assert peer is not None
            assert not isinstance(peer.who, Credentials)
            with pytest.raises(Forbidden, match="only a process of this machine"):
                assert peer.credentials.uid == 0


async def test_certificates_of_another_authority_get_no_connection() -> None:
    async with fleet_box() as box:
        identity = await box.join("a")
        other, key = Authority.create(time.time()), make_key()
        forged = other.certify_node("a", make_request(key), time.time())
        with pytest.raises(Unavailable):
            await raw_call(
                box, replace(identity, certificate=forged.pem, key=write_key(key)), "fleet.arrive"
            )
        with pytest.raises(Forbidden, match="is not the service of this fleet"):
            await raw_call(box, replace(identity, authority=other.pem), "fleet.arrive")


async def test_the_services_own_certificate_makes_nobody_a_node() -> None:
    async with fleet_box() as box:
        identity = await box.join("a")
        own = box.registry.authority().certify_service(time.time())
        with pytest.raises(Unavailable):
            await raw_call(box, replace(identity, certificate=own, key=b""), "fleet.arrive")


async def test_a_node_cannot_pass_itself_off_as_the_service() -> None:
    async with fleet_box() as box:
        identity = await box.join("a")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pem = box.folder / "node.pem"
        pem.write_bytes(identity.pem)
        context.load_cert_chain(pem)
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Forbidden, match="is not the service of this fleet"):
            await dial("127.0.0.1", port, make_node_context(identity.authority, identity.pem))
        server.close()


async def test_older_tls_is_refused() -> None:
    async with fleet_box() as box:
        context = make_unproven_context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(Unavailable):
            await dial("127.0.0.1", box.settings.port, context)


async def test_an_expired_certificate_is_refused_by_both_sides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet_box(certificate_s=1.0) as box:
        identity = await box.join("a")
        ends = life_of(identity.certificate).ends
        await until(lambda: time.time() > ends + 0.1)
        with pytest.raises(Unavailable):  # TLS itself
            await raw_call(box, identity, "fleet.arrive")
        caplog.set_level(logging.INFO, "singularity.agent")
        box.node("a").dial()
        await until(lambda: "the certificate of this node ran out at" in caplog.text)
        assert box.connections == []


async def test_a_withdrawn_node_is_hung_up_on_and_refused() -> None:
    async with fleet_box() as box:
        identity = await box.join("a")
        node = box.node("a").dial()
        await box.up("a")
        box.registry.withdraw("a")
        await box.down("a")
        with pytest.raises(Unavailable, match="node 'a' is not connected now"):
            await box.joined.call("a", "echo", 10.0, {})
        with pytest.raises(Forbidden, match="the node 'a' was withdrawn"):
            await raw_call(box, identity, "fleet.arrive")
        await node.hang_up()
        await box.join("a")  # with another token
        box.node("a").dial()
        await box.up("a")


async def test_a_certificate_from_before_another_join_counts_no_more() -> None:
    async with fleet_box() as box:
        old = await box.join("a")
        await box.join("a")
        with pytest.raises(Forbidden, match="a newer certificate was given to the node 'a'"):
            await raw_call(box, old, "fleet.arrive")


async def test_an_agent_that_names_another_node_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet_box() as box:
        await box.join("a")
        await box.join("b")
        caplog.set_level(logging.INFO, "singularity")
        box.node("b").dial()
        await box.up("b")
        liar = box.node("a", said="x")
        liar.node = "b"
        liar.dial()
        sentence = "the agent calls itself 'b', but its certificate says 'a'"
        await until(lambda: caplog.text.count(sentence) >= 2)  # here, and at the agent
        assert box.connections == [("b", True)]
        assert not box.joined.has("a")


async def test_an_agent_of_another_protocol_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet_box() as box:
        await box.join("a")
        caplog.set_level(logging.INFO, "singularity.agent")
        old = box.node("a")
        old.protocol = 0
        old.dial()
        await until(lambda: "speaks another protocol than this service" in caplog.text)
        assert box.connections == []


async def test_of_two_copies_of_a_disk_the_first_one_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fleet_box() as box:
        await box.join("a")
        first = box.node("a", instance="one").dial()
        await box.up("a")
        caplog.set_level(logging.INFO, "singularity.agent")
        box.node("a", instance="two").dial()
        await until(lambda: "another agent is connected as the node 'a' and answers" in caplog.text)
        assert box.connections == [("a", True)]
        assert await box.joined.call("a", "echo", 10.0, {"x": 1}) == {"x": 1}
        assert first.closed == 0


async def test_an_agent_that_was_started_again_takes_its_place() -> None:
    async with fleet_box() as box:
        await box.join("a")
        first = box.node("a", instance="one").dial()
        await box.up("a")
        await first.hang_up()
        box.node("a", instance="two").dial()
        await until(lambda: box.connections == [("a", True), ("a", False), ("a", True)])
        [hello] = await box.joined.hello()
        assert hello["instance"] == "two"


# -- lines that break -----------------------------------------------------------------------------


async def test_a_cut_line_is_dialled_again() -> None:
    async with fleet_box() as box:
        await box.join("a")
        box.node("a").dial()
        await box.up("a")
        asked = asyncio.ensure_future(box.joined.call("a", "echo", 10.0, {"x": 1}))
        assert await asked == {"x": 1}
        for times in range(1, 4):
            box.door.cut()
            await until(lambda times=times: box.connections.count(("a", False)) == times)
            await box.up("a")
            assert await box.joined.call("a", "echo", 10.0, {"x": 1}) == {"x": 1}


async def test_a_line_that_goes_dead_is_noticed_by_both_ends() -> None:
    async with fleet_box() as box:
        await box.join("a")
        node = box.node("a").dial()
        await box.up("a")
        box.door.passing.clear()  # nothing is closed: both kernels still answer
        await box.down("a")
        await until(lambda: node.closed)
        box.door.passing.set()
        await box.up("a")


async def test_a_service_that_comes_back_is_dialled_again() -> None:
    async with fleet_box() as box:
        await box.join("a")
        box.node("a").dial()
        await box.up("a")
        await box.joined.stop()
        await box.down("a")
        before = box.door.came
        await until(lambda: box.door.came >= before + 3)  # it goes on trying
        box.joined = box.make()
        await box.joined.start()
        await box.up("a")


async def test_a_certificate_is_renewed_at_half_of_its_life() -> None:
    async with fleet_box(certificate_s=3.0) as box:
        identity = await box.join("a")
        box.node("a").dial()
        await box.up("a")
        state = str(box.folder / "a")
        first = life_of(identity.certificate)
        await until(lambda: life_of(Identity.load(state).certificate).ends > first.ends)
        assert time.time() >= first.half
        renewed = Identity.load(state)
        assert renewed.key == identity.key
        await until(lambda: time.time() > first.ends)
        box.door.cut()  # the first one counts no more: it comes back with the newer
        await until(lambda: box.connections.count(("a", True)) == 2)
        assert box.connections.count(("a", True)) == 2


async def test_strangers_cannot_take_the_port_for_themselves() -> None:
    async with fleet_box() as box:
        await box.join("a")
        authority = box.registry.authority().pem
        context = make_node_context(authority)
        strangers = [await dial("127.0.0.1", box.settings.port, context) for _ in range(40)]
        refused = 0
        for stranger in strangers:
            try:
                await stranger.call("fleet.authority", 10.0)
            except Unavailable:
                refused += 1
        assert refused == 8  # 32 at a time
        box.node("a").dial()
        await box.up("a")
        for stranger in strangers:
            await stranger.close()


async def test_a_line_without_an_end_is_refused() -> None:
    async with fleet_box() as box:
        authority = box.registry.authority().pem
        peer = await dial("127.0.0.1", box.settings.port, make_node_context(authority))
        with pytest.raises(SingularityError, match="at most 65536 bytes"):
            await peer.call("fleet.join", 10.0, token="x" * (1 << 20))
        await peer.close()


async def test_the_bridges_of_ranks_keep_their_large_buffers() -> None:
    """They use certificates as nodes do, and carry tensors."""
    code = (
        "from asyncio import sslproto; before = sslproto.SSLProtocol.max_size;"
        "import singularity_proxy.elastic.bridge.bridge;"
        "print(before, sslproto.SSLProtocol.max_size)"
    )
    command = [sys.executable, "-c", code]
    said = await asyncio.to_thread(subprocess.check_output, command, text=True)
    before, after = map(int, said.split())
    assert before == after > READ_BYTES

"""The dashboard's pages at a real service: who sees what, who may do what, and what is refused."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from singularity_scheduler.service.api.standby import standby_application
from support.attacks import attack
from support.dashboard_pages import Visitor, visitor
from support.scheduler_service import PREFIX, Platform, platform, until
from support.service_process import ServiceProcess
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

pytestmark = pytest.mark.asyncio

ADMIN_PAGES = ("map", "day", "quotas", "metrics", "nodes/local", "nodes/local/drain")
PAGES = ("sessions", "queue", "log")


async def holder(p: Platform, who: str, name: str) -> str:
    return await p.holder(who, name=name)


async def test_a_login_leads_back_and_the_browser_gets_no_token(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, visitor(p) as v:
        assert await v.log_in("alice-token") == f"{PREFIX}dashboard/log?text=x"
        page = await v.get("sessions")
        assert "My sessions" in page.text
        kept = [page.text, *(c.value or "" for c in v.web.cookies), str(page.headers)]
        assert not [text for text in kept if "alice-token" in text]
        [cookie] = [c for c in v.web.cookies if c.name == "singularity-dashboard"]
        assert cookie.path == f"{PREFIX}dashboard/"
        assert cookie.has_nonstandard_attr("HttpOnly")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "<style" not in page.text
        assert not re.search(r"<script(?! src=)|\son\w+=|\sstyle=", page.text)
        assert (await v.get("static/dashboard.css")).headers["Content-Type"] == "text/css"


async def test_a_service_that_no_hub_started_has_browsers_come_back_to_itself() -> None:
    """With nothing but address and token in its environment, as under ``up`` or systemd."""
    async with ServiceProcess(nodes=["node-1"], device_type="cpu", cpu_devices=1) as service:
        browser = Visitor(f"{service.url}dashboard/")
        back = await browser.get()
        browser.web.close()
        asked = parse_qs(urlsplit(back.headers["Location"]).query)
        assert asked["redirect_uri"] == [f"{PREFIX}oauth_callback"]
        assert asked["client_id"] == ["service-singularity"]
        assert {c.path for c in back.cookies} == {PREFIX}
        assert (await service.client().cluster())["devices"]


@attack(
    "oauth-state",
    "a login at the dashboard that another browser began, and one that nobody began",
    "nobody is logged in by it",
    root=False,
)
async def test_a_login_of_another_browser_or_without_a_request_counts_for_nothing(
    tmp_path: Path,
) -> None:
    async with platform(tmp_path) as p, visitor(p) as v:
        callback = f"{p.url}oauth_callback?code=alice-token&state=made-up"
        refused = await v.get(callback)
        assert refused.status_code == 403
        assert "the login was not completed" in refused.text
        assert (await v.get("sessions")).status_code == 302
        v.web.cookies.set("singularity-dashboard", "guessed", path=f"{PREFIX}dashboard/")
        assert (await v.get("sessions")).status_code == 302


async def test_who_is_logged_out_at_the_hub_is_logged_out_here(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, visitor(p, "alice") as v:
        assert (await v.get("sessions")).status_code == 200
        del p.hub.tokens["alice-token"]
        v.web.cookies.set("jupyterhub-session-id", "another", path="/")
        assert (await v.get("sessions")).status_code == 302
        refused = await v.ask("POST", "nodes/local/drain", data={"_xsrf": "any"})
        assert refused.status_code == 401
        assert "you are not logged in any more" in refused.text


async def test_users_see_their_own_and_admins_everything(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        mine = await holder(p, "alice", "mine")
        theirs = await holder(p, "bob", "secret-work")
        waiting = await p.kernel("bob", name="bobs-wait", tier="premium", devices=2)
        p.agent.busy(waiting, True)
        async with visitor(p, "alice") as alice, visitor(p, "admin") as admin:
            for path in (*PAGES, "sessions?user=bob", "log?user=bob", "log?node=local"):
                page = await alice.see(path)
                assert theirs not in page, path
                assert "secret-work" not in page, path
                assert "bobs-wait" not in page, path
            assert "Nothing fits" in await alice.see(f"log?session={theirs}")
            assert mine in await alice.see("log")
            assert "You hold 1 device now" in await alice.see("sessions")
            assert (await alice.get()).headers["Location"] == f"{PREFIX}dashboard/sessions"
            for path in ADMIN_PAGES:
                refused = await alice.get(path)
                assert refused.status_code == 403, path
                assert "alice may not see this: it takes an administrator" in refused.text
            assert (await admin.get()).headers["Location"] == f"{PREFIX}dashboard/map"
            for path in (*PAGES, *ADMIN_PAGES):
                page = await admin.see(path)
            assert "secret-work" in await admin.see("sessions")
            assert "secret-work" in await admin.see("nodes/local")
            assert "premium, bob/secret-work" not in await admin.see("map")
            assert "standard, bob/secret-work, in use" in await admin.see("map")
            assert "singularity_devices" in await admin.see("metrics")
            assert "secret-work" not in await admin.see("sessions?user=alice")


async def test_the_parts_of_a_run_on_several_nodes_say_which_they_are(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p, visitor(p, "alice") as v:
        run = {"command": "python train.py", "folder": "/home/alice"}
        for name in ("first", "wide"):  # so the second one waits
            await p.client().submit(run=run, name=name, devices=4, nodes=2)
        for path in ("sessions", "queue"):
            page = await v.see(path)
            for number in (1, 2):
                assert re.search(rf"wide(</a>)? \({number} of 2 nodes\)", page), path
        await holder(p, "alice", "narrow")
        assert not re.search(r"narrow(</a>)? \(", await v.see("sessions"))


async def may_see_all(p: Platform, who: str) -> bool:
    """Whether the API lets the owner of a token see what others have."""
    return "secret-work" in [s["name"] for s in await p.client(who).sessions()]


async def test_admins_of_the_hub_are_administrators_where_the_token_is_their_own(
    tmp_path: Path,
) -> None:
    async with platform(tmp_path) as p:
        await holder(p, "bob", "secret-work")
        async with visitor(p, "hub-admin") as v:
            assert (await v.get()).headers["Location"] == f"{PREFIX}dashboard/map"
            assert "(administrator)" in await v.see("map")
            assert "secret-work" in await v.see("sessions")
        seen = {who: await may_see_all(p, who) for who in ("admin", "alice", "hub-admin-all")}
        assert seen == {"admin": True, "alice": False, "hub-admin-all": True}
        # Made to do less than their owner may; or no user's.
        for less in ("hub-admin", "hub-admin-some", "hub-service"):
            assert not await may_see_all(p, less), less
        async with visitor(p, "hub-service") as v:
            assert (await v.get()).headers["Location"] == f"{PREFIX}dashboard/sessions"


async def test_admins_of_the_hub_are_users_where_a_setting_says_so(tmp_path: Path) -> None:
    async with platform(tmp_path, app={"hub_admins": False}) as p:
        await holder(p, "bob", "secret-work")
        async with visitor(p, "hub-admin") as v:
            assert "secret-work" not in await v.see("sessions")
            refused = await v.get("map")
            assert refused.status_code == 403
            assert "an admin of the Hub, or the scope" in refused.text
        assert not await may_see_all(p, "hub-admin-all")
        assert await may_see_all(p, "admin")


async def test_a_queue_tells_reasons_and_estimates(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await holder(p, "alice", "first")
        await holder(p, "alice", "second")
        waits = await p.kernel("bob", name="third", tier="basic")
        p.agent.busy(waits, True)
        p.agent.need(waits)
        await p.state(waits, "waiting")
        async with visitor(p, "admin") as admin, visitor(p, "bob") as bob:
            page = await admin.see("queue")
            assert "bob/third" in page
            assert "place 1 of the queue" in page
            assert "<b>1</b> basic" in page
            assert "bob/third" in await bob.see("queue?tier=basic")
            assert "Nobody waits of this tier" in await bob.see("queue?tier=premium")
            refused = await bob.get("queue?tier=gold")
            assert (refused.status_code, "there is no tier gold" in refused.text) == (400, True)


async def test_an_admin_cordons_and_drains_and_is_told_why_not(tmp_path: Path) -> None:
    async with (
        platform(tmp_path, nodes=("node-1", "node-2"), devices=2) as p,
        visitor(p, "admin") as v,
    ):
        done = await v.post("nodes/node-2/cordon", reason='a <fan> & "more"')
        assert (done.status_code, done.headers["Location"]) == (
            303,
            f"{PREFIX}dashboard/nodes/node-2",
        )
        page = await v.see("nodes/node-2")
        assert "is cordoned by root (a &lt;fan&gt; &amp; &#34;more&#34;)" in page
        assert "No sessions are on it now." in await v.see("nodes/node-2/drain")
        session = await p.holder("alice", name="big", devices=2)
        asks = await v.see("nodes/node-1/drain")
        assert "1 session is on it now: alice/big" in asks
        assert "Finish within (minutes, optional)" in asks
        page = await v.see("nodes/node-1")
        log = f'href="{PREFIX}dashboard/log?session={session}"'
        assert page.count(f"<a {log}>alice/big</a>") == 3, "at both devices and in the list"
        refused = await v.post("nodes/node-1/drain", reason="a fan", minutes="5")
        assert refused.status_code == 409
        assert "node node-1 was not drained and goes on: no other node can take" in refused.text
        assert 'value="a fan"' in refused.text, "what was filled in is still there"
        assert p.controller.state.nodes["node-1"].duty.duty.value == "open"
        for minutes in ("soon", "-1", "1.5", "999999", "0"):
            wrong = await v.post("nodes/node-1/drain", minutes=minutes)
            assert (wrong.status_code, "whole number of minutes" in wrong.text) == (400, True)
        assert (await v.post("nodes/node-2/uncordon")).status_code == 303
        done = await v.post("nodes/node-1/drain", reason="a fan", minutes="5")
        assert done.status_code == 303, done.text
        await until(
            lambda: p.controller.state.nodes["node-1"].duty.duty.value == "drained", "drained"
        )
        await p.state(session, "running")
        assert "is drained by root (a fan)" in await v.see("nodes/node-1")
        log = await v.see("log?node=node-1")
        assert "<code>node.drain</code>" in log
        again = await v.post("nodes/node-1/cordon")
        assert again.status_code == 409
        assert "there is nothing to cordon" in again.text
        assert (await v.post("nodes/none/drain")).status_code == 404
        assert (await v.post("nodes/node-1/explode")).status_code == 404
        assert (await v.post("nodes/node-1/undrain")).status_code == 303


async def test_the_end_of_a_session_is_taken_back_where_it_is_listed(tmp_path: Path) -> None:
    async with (
        platform(tmp_path, nodes=("node-1", "node-2"), devices=2) as p,
        visitor(p, "alice") as alice,
        visitor(p, "bob") as bob,
    ):
        closed, bare = await p.kernel(name="closed.ipynb"), await p.kernel(name="bare.ipynb")
        await p.client().checkpoint(closed)
        for session in (closed, bare):
            await p.client().end_session(session)
        page = await alice.see("sessions?show=all")
        assert page.count(">Take back</button>") == 1
        assert f'action="{PREFIX}dashboard/sessions/{closed}/reopen"' in page
        assert (await bob.post(f"sessions/{closed}/reopen")).status_code == 404
        refused = await alice.post(f"sessions/{bare}/reopen")
        assert refused.status_code == 409
        assert "there is no checkpoint of its process" in refused.text
        done = await alice.post(f"sessions/{closed}/reopen")
        assert (done.status_code, done.headers["Location"]) == (303, f"{PREFIX}dashboard/sessions")
        assert (await p.client().get_session(closed))["state"] == "suspended"
        assert "alice took its end back" in await alice.see("sessions")
        assert (await alice.post(f"sessions/{closed}/reopen")).status_code == 409


async def test_a_session_is_steered_from_its_page(tmp_path: Path) -> None:
    async with (
        platform(tmp_path, nodes=("node-1", "node-2"), devices=2) as p,
        visitor(p, "alice") as alice,
        visitor(p, "bob") as bob,
        visitor(p, "admin") as root,
    ):
        session = await p.holder("alice", name='a <b> "c" ü%20.ipynb')
        here = f"{PREFIX}dashboard/sessions/{session}/"
        page = await root.see(f"log?session={session}")
        offered = re.findall(rf'href="{here}(\w+)">([^<]+)&hellip;', page)
        assert offered == [("suspend", "Suspend"), ("park", "Park"), ("end", "End session")]
        assert "alice/a &lt;b&gt; &#34;c&#34; ü%20.ipynb is running: " in page
        asks = await root.see(f"sessions/{session}/park")
        assert "Free its devices until the next device call; nothing is lost." in asks
        done = await root.post(f"sessions/{session}/park")
        assert (done.status_code, done.headers["Location"]) == (
            303,
            f"{PREFIX}dashboard/log?session={session}",
        )
        assert (await p.client().get_session(session))["state"] == "parked"
        page = await alice.see(f"log?session={session}")
        assert "parked by root" in page
        assert re.findall(rf'href="{here}(\w+)"', page) == ["resume", "suspend", "end"]
        again = await alice.post(f"sessions/{session}/park")
        assert (again.status_code, "parked" in again.text) == (409, True)
        for verb in ("park", "end"):
            assert (await bob.get(f"sessions/{session}/{verb}")).status_code == 404
            assert (await bob.post(f"sessions/{session}/{verb}")).status_code == 404
        assert here not in await bob.see(f"log?session={session}")
        assert (await alice.get(f"sessions/{session}/explode")).status_code == 404
        assert "variables are lost" in await alice.see(f"sessions/{session}/end")
        forged = await alice.ask("POST", f"sessions/{session}/end", data={"_xsrf": "any"})
        assert forged.status_code == 403
        assert (await alice.post(f"sessions/{session}/end")).status_code == 303
        over = await p.client().get_session(session)
        assert over["process_state"] == "completed"
        assert "closed by alice: ended in the dashboard" in over["reason"]
        page = await alice.see(f"log?session={session}")
        assert re.search(r'<section id="subject" data-live>\s*</section>', page), page


@attack(
    "forms-of-other-sites",
    "another page makes a browser that is logged in send the forms of the dashboard",
    "refused without the page's own token; nothing is done",
    root=False,
)
async def test_nobody_else_makes_a_browser_do_something(tmp_path: Path) -> None:
    async with (
        platform(tmp_path, nodes=("node-1", "node-2")) as p,
        visitor(p, "admin") as admin,
        visitor(p, "alice") as alice,
    ):
        xsrf = await admin.xsrf()

        async def refused(v: Visitor, data: dict[str, str], **headers: str) -> None:
            answer = await v.ask("POST", "nodes/node-1/cordon", data=data, headers=headers)
            assert answer.status_code == 403, answer.text
            assert xsrf not in answer.text

        await refused(alice, {"_xsrf": await alice.xsrf()})
        await refused(admin, {})
        await refused(admin, {"_xsrf": await alice.xsrf()})
        await refused(admin, {"_xsrf": xsrf}, **{"Sec-Fetch-Site": "cross-site"})
        # A script of another page of the Hub, which a browser lets read what it asks for.
        elsewhere = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
        for path in ("map", "live", "log"):
            answer = await admin.get(path, headers=elsewhere)
            assert answer.status_code == 403
            assert xsrf not in answer.text, "else the next request could carry it"
        ours = {**elsewhere, "X-XSRFToken": xsrf}
        assert (await admin.get("map", headers=ours)).status_code == 200
        assert p.controller.state.nodes["node-1"].duty.duty.value == "open"
        api = await admin.get(f"{p.url}api/v1/admin/nodes")
        assert api.status_code == 401, "the login counts for the pages alone"


async def test_a_page_is_told_of_changes_that_it_may_show(tmp_path: Path) -> None:
    async with (
        platform(tmp_path, nodes=("node-1", "node-2")) as p,
        visitor(p, "alice") as alice,
        visitor(p, "admin") as admin,
    ):
        streams = [await v.get("live", stream=True, headers={}) for v in (alice, admin)]
        names: list[list[str]] = [[], []]

        def follow(number: int) -> None:
            for line in streams[number].iter_lines(chunk_size=1):
                if line.startswith(b"event: "):
                    names[number].append(line[7:].decode())

        readers = [asyncio.create_task(asyncio.to_thread(follow, n)) for n in (0, 1)]
        await until(lambda: names == [["snapshot"], ["snapshot"]], "both follow")
        await p.client("admin").cordon("node-1")
        await until(lambda: names[1] == ["snapshot", "change"], "the admin is told")
        assert names[0] == ["snapshot"]
        await p.kernel("bob", name="theirs")
        await p.kernel("alice", name="mine")
        await until(lambda: len(names[0]) > 1, "the user is told")
        assert set(names[0][1:]) == {"change"}
        await p.stop()  # which ends the streams
        await asyncio.gather(*readers, return_exceptions=True)
        await p.start()


async def test_browsers_find_the_dashboard_and_programs_the_service(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, visitor(p) as v:
        sent = await v.get(p.url, headers={"Accept": "text/html,*/*"})
        assert (sent.status_code, sent.headers["Location"]) == (302, f"{PREFIX}dashboard/")
        told = await v.get(p.url, headers={"Accept": "application/json"})
        assert told.json()["name"] == "jupyter-singularity"


async def test_a_service_that_stands_by_says_so_to_people(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, visitor(p) as v:
        sock, port = bind_unused_port()
        server = HTTPServer(standby_application(lambda: "<another> one leads"))
        server.add_sockets([sock])
        try:
            url = f"http://127.0.0.1:{port}{PREFIX}dashboard/map"
            page = await v.get(url, headers={"Accept": "text/html"})
            assert (page.status_code, page.headers["Refresh"]) == (503, "5")
            assert "&lt;another&gt; one leads" in page.text
            assert (await v.get(url)).json()["detail"] == "<another> one leads"
        finally:
            server.stop()
            await server.close_all_connections()


async def test_names_that_are_markup_stay_text(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.holder("alice", name="<script>alert(1)</script>")
        async with visitor(p, "admin") as v:
            for path in ("map", "sessions", "log", "nodes/local", "log?text=%3Cscript%3E"):
                assert "<script>alert" not in await v.see(path), path
            assert "&lt;script&gt;alert(1)" in await v.see("sessions")


async def test_a_page_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    async with platform(tmp_path) as p, visitor(p, "admin") as v:
        for path in ("nowhere", "nodes/none", "map?cluster=none"):
            missing = await v.get(path)
            assert missing.status_code == 404
            assert 'role="alert"' in missing.text
        for path in ("log?after=forged", "sessions?after=forged", "map?only=x", "sessions?show=x"):
            assert (await v.get(path)).status_code == 400, path
        assert "page 7" not in (await v.see("map?page=7"))


async def test_device_hours_are_shown_and_come_as_csv(tmp_path: Path) -> None:
    async with (
        platform(tmp_path) as p,
        visitor(p, "admin") as admin,
        visitor(p, "alice") as alice,
    ):
        await p.client("admin").set_quota("team", 4)
        await p.holder("alice", name="mine", virtual_cluster="team")
        await holder(p, "bob", "theirs")
        page = await admin.see("usage")
        assert '<th scope="row">alice</th>' in page
        assert '<th scope="row">bob</th>' in page
        assert '<th scope="row">bob</th>' not in await alice.see("usage")
        by_cluster = await admin.see("usage?by=virtual_cluster")
        assert '<th scope="row">team</th>' in by_cluster
        assert '<th scope="row">none</th>' in by_cluster
        for v, users in ((admin, ["alice", "bob"]), (alice, ["alice"])):
            file = await v.get("usage.csv?by=user")
            assert file.headers["Content-Type"] == "text/csv; charset=utf-8"
            assert 'filename="device-hours-by-user.csv"' in file.headers["Content-Disposition"]
            rows = list(csv.DictReader(io.StringIO(file.text)))
            assert [row["user"] for row in rows] == users
            assert all(float(row["device_s"]) > 0 for row in rows)
        wrong = await admin.get("usage?since=yesterday")
        assert (wrong.status_code, "since must be a time" in wrong.text) == (400, True)
        assert (await admin.get("usage?by=session")).status_code == 400
        assert "team" in await admin.see("quotas")
        assert "Virtual cluster team: 1 of 4 devices in use" in await alice.see("sessions")

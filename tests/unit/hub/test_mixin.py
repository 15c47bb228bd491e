"""`SingularitySpawnerMixin` over a Spawner that starts nothing: choice, refusals, state."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
import pytest_asyncio
from jupyterhub.spawner import Spawner, SpawnException
from jupyterhub.utils import format_exception
from singularity_spawner import SingularitySpawnerMixin, removals
from singularity_spawner.options import ServerOptions
from support.hub_scheduler import TOKEN, scheduler


class BaseSpawner(Spawner):
    """Stands for the deployment's own Spawner: records what happens to it."""

    running = False

    async def start(self):
        self.running = True
        return "127.0.0.1", 1

    async def stop(self, now=False):
        self.running = False

    async def poll(self):
        return None if self.running else 0

    def get_env(self):
        return {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}


class MixedSpawner(SingularitySpawnerMixin, BaseSpawner):
    pass


def make(url="", name="", kind=MixedSpawner, **traits):
    user = SimpleNamespace(name="alice", url="/user/alice/")
    orm_spawner = SimpleNamespace(
        name=name, user_options={"tier": "basic"}, display_name="", server=None, started=None
    )
    spawner = kind(service_url=url, service_token=TOKEN, service_timeout=0.0, **traits)
    spawner.user = user
    spawner.orm_spawner = orm_spawner
    return spawner


@pytest_asyncio.fixture
async def service():
    async with scheduler() as running:
        yield running


async def hub_start(spawner, options):
    """What the Hub does with `options` at a start, in its order."""
    spawner.user_options = options
    spawner.clear_state()
    await spawner._run_apply_user_options(options)
    return await spawner.start()


@pytest.mark.asyncio
async def test_a_start_asks_the_service_and_hands_the_choice_on(service):
    spawner = make(service.url)
    assert await hub_start(spawner, {"tier": "premium", "devices": 2}) == ("127.0.0.1", 1)
    env = spawner.get_env()
    assert env["SINGULARITY_API_URL"] == service.url
    assert env["SINGULARITY_TIER"] == "premium"
    assert env["SINGULARITY_DEVICES"] == "2"
    assert env["JUPYTER_DEFAULT_PROVISIONER_NAME"] == "singularity"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert set(service.tokens) == {f"token {TOKEN}"}
    assert all(isinstance(value, str) for value in env.values())


@pytest.mark.asyncio
async def test_the_scheduler_is_told_which_tiers_are_open(service):
    spawner = make(service.url, allowed_tiers=["standard", "basic"])
    with pytest.raises(SpawnException):
        await hub_start(spawner, {"tier": "premium"})
    assert service.tiers == {}
    await hub_start(spawner, {"tier": "basic"})
    assert service.tiers == {"alice": ["standard", "basic"]}


@pytest.mark.asyncio
async def test_no_options_mean_the_defaults(service):
    spawner = make(service.url, default_tier="basic", default_devices=2)
    await hub_start(spawner, {})
    assert spawner.choice == ServerOptions("basic", 2)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tier": "gold"}, "singularity_options"),
        ({"devices": 0}, "singularity_options"),
        ({"devices": -1}, "singularity_options"),
        ({"devices": "many"}, "singularity_options"),
        ({"devices": 10**6}, "singularity_options"),
        ({"device": 1}, "singularity_options"),
        ({"devices": 3}, "singularity_capacity"),
    ],
)
async def test_a_bad_choice_is_refused_and_not_kept(service, options, reason):
    spawner = make(service.url)
    with pytest.raises(SpawnException) as caught:
        await hub_start(spawner, options)
    assert caught.value.reason == reason
    assert caught.value.status_code == 400
    assert caught.value.message.endswith("nothing was started.")
    assert format_exception(caught.value)[0] == caught.value.message, "what the form shows"
    assert not spawner.running
    assert not spawner.orm_spawner.user_options, "the next start without options must work"
    await hub_start(spawner, spawner.orm_spawner.user_options or {})
    assert spawner.running


@pytest.mark.asyncio
async def test_a_deployments_own_hook_does_not_switch_the_checks_off(service):
    seen = []
    spawner = make(service.url, apply_user_options=lambda _, options: seen.append(options))
    with pytest.raises(SpawnException):
        await hub_start(spawner, {"devices": 0})
    assert seen == [{"devices": 0}]
    assert not spawner.running


@pytest.mark.asyncio
async def test_the_form_keeps_the_last_valid_choice_and_shows_free_devices(service):
    service.devices = ["0123456789ab", None]
    spawner = make(service.url)
    spawner.user_options = {"tier": "premium", "devices": 2}
    html = await spawner.get_options_form()
    assert (
        'value="premium" aria-describedby="singularity-tier-premium-help" required checked' in html
    )
    assert "1 of 2 cpu devices free now." in html
    spawner.user_options = {"tier": "gold"}
    assert 'value="standard"' in await spawner.get_options_form()


@pytest.mark.asyncio
async def test_the_form_says_what_waits_in_the_store(service):
    spawner = make(service.url, args=["--SingularityKernels.x=1"])
    assert "singularity-waits" not in await spawner.get_options_form()
    service.notebooks = [{"session": "aaaaaaaaaaaa"}]
    html = await spawner.get_options_form()
    assert "1 notebook waits in the store. It comes back when it is opened." in html
    spawner.hibernate = False
    assert "in the store" not in await spawner.get_options_form()


@pytest.mark.asyncio
async def test_the_form_works_while_the_service_is_away():
    spawner = make("http://127.0.0.1:1/services/singularity/")
    assert "does not answer just now" in await spawner.get_options_form()


def test_form_data_is_checked_before_the_hub_keeps_it():
    spawner = make()
    assert spawner.run_options_from_form({"tier": ["basic"], "devices": ["2"]}) == {
        "tier": "basic",
        "devices": 2,
    }
    with pytest.raises(SpawnException, match="at least 1 device"):
        spawner.run_options_from_form({"tier": ["basic"], "devices": ["0"]})


@pytest.mark.asyncio
async def test_a_service_that_is_away_is_waited_for(service):
    service.refusals = [(503, "Unavailable", "starting")]
    spawner = make(service.url)
    spawner.service_timeout = 20.0
    await hub_start(spawner, {})
    assert spawner.running


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("url", "status", "reason"),
    [
        ("http://127.0.0.1:1/services/singularity/", 503, "singularity_unavailable"),
        ("", 500, "singularity_unconfigured"),
    ],
)
async def test_without_a_service_nothing_is_started(url, status, reason):
    spawner = make(url)
    with pytest.raises(SpawnException) as caught:
        await hub_start(spawner, {})
    assert (caught.value.status_code, caught.value.reason) == (status, reason)
    assert "server was not started" in caught.value.message
    assert not spawner.running


@pytest.mark.asyncio
async def test_a_refusal_of_the_service_reaches_the_user(service):
    service.refusals = [(403, "Forbidden", "this node serves one user, 'bob'")]
    spawner = make(service.url)
    with pytest.raises(SpawnException) as caught:
        await hub_start(spawner, {})
    assert caught.value.message == "this node serves one user, 'bob'"
    assert caught.value.status_code == 403


@pytest.mark.asyncio
async def test_state_survives_a_hub_restart(service):
    spawner = make(service.url)
    await hub_start(spawner, {"tier": "premium", "devices": 2})
    state = json.loads(json.dumps(spawner.get_state()))
    again = make(service.url)
    again.load_state(state)
    assert again.choice == ServerOptions("premium", 2)
    assert again.get_env()["SINGULARITY_TIER"] == "premium"
    again.clear_state()
    assert "singularity" not in again.get_state()


def session(sid, **changes):
    return {"id": sid, "user": "alice", "kind": "interactive", "owner": {"server": ""}, **changes}


@pytest.mark.asyncio
async def test_without_hibernation_a_stop_ends_the_servers_sessions_and_no_others(service):
    service.sessions = [
        session("aaaaaaaaaaaa"),
        session("bbbbbbbbbbbb", user="bob"),
        session("cccccccccccc", kind="batch"),
        session("dddddddddddd", owner={"server": "second"}),
    ]
    spawner = make(service.url, hibernate=False)
    await hub_start(spawner, {})
    await spawner.stop()
    assert not spawner.running
    assert service.hibernated == []
    assert service.ended == [("aaaaaaaaaaaa", "the notebook server of alice was stopped")]
    await spawner.run_post_stop_hook()
    assert len(service.ended) == 1


@pytest.mark.asyncio
async def test_a_stop_suspends_and_ends_only_what_cannot_be_suspended(service, caplog):
    service.sessions = [session("aaaaaaaaaaaa"), session("bbbbbbbbbbbb")]
    service.kept = [
        {"session": "aaaaaaaaaaaa", "reason": "CRIU is missing", "possible": False},
        {"session": "bbbbbbbbbbbb", "reason": "the disk is full", "possible": True},
    ]
    spawner = make(service.url, name="big")
    for each in service.sessions:
        each["owner"] = {"server": "big"}
    await hub_start(spawner, {})
    with caplog.at_level("INFO"):
        await spawner.stop()
    assert not spawner.running
    assert service.hibernated == [("alice", "big")] * 2
    why = "the notebook server of alice/big was stopped (CRIU is missing)"
    assert service.ended == [("aaaaaaaaaaaa", why)]
    assert "A notebook of alice/big ends with its server: CRIU is missing" in caplog.text
    assert "bbbbbbbbbbbb goes on without the server: the disk is full" in caplog.text
    await spawner.delete_forever()
    assert [sid for sid, why in service.ended[1:] if "was removed" in why] == [
        "aaaaaaaaaaaa",
        "bbbbbbbbbbbb",
    ]


@pytest.mark.asyncio
async def test_what_an_open_page_calls_back_is_suspended_once_the_server_is_gone(service):
    running = []

    class Watched(MixedSpawner):
        async def _hibernated(self, seconds):
            running.append((self.running, seconds))
            return await super()._hibernated(seconds)

    spawner = make(service.url, kind=Watched, hibernate_timeout=45.0)
    await hub_start(spawner, {})
    await spawner.stop()
    (before, first), (after, second) = running
    assert (before, after) == (True, False)
    assert (first, second) == tuple(service.waits), "the service waits as long as the stop"
    assert first == 45.0
    assert 40 < second <= 45.0


@pytest.mark.asyncio
async def test_a_removed_named_server_takes_only_its_own_notebooks_along(service, caplog):
    service.sessions = [
        session("aaaaaaaaaaaa", owner={"server": "big"}),
        session("bbbbbbbbbbbb", owner={}),
        session("cccccccccccc"),
    ]
    await make(service.url, name="big").delete_forever()
    assert [sid for sid, _ in service.ended] == ["aaaaaaaaaaaa"]
    (said,) = [r.getMessage() for r in caplog.records if "which was removed" in r.getMessage()]
    assert said == (
        "1 notebook of alice/big, which was removed, ended; what was stored of them last is kept "
        "for Controller.undo_end_s: until then 'jupyter singularity reopen' of an administrator "
        "takes that back"
    )
    await make(service.url).delete_forever()
    assert [sid for sid, _ in service.ended[1:]] == ["bbbbbbbbbbbb", "cccccccccccc"]


@pytest.mark.asyncio
async def test_a_removal_while_the_scheduler_is_away_is_made_up_for(service, monkeypatch):
    monkeypatch.setattr(removals, "RETRY_S", 0.01)
    service.sessions = [session("aaaaaaaaaaaa")]
    service.refusals = [(503, "Unavailable", "starting")] * 3
    await make(service.url).delete_forever()
    assert service.ended == []
    later = make(service.url)  # of a new user with the same name
    with pytest.raises(SpawnException, match="are still to be ended"):
        await removals.finished("alice", "", 0.0)
    later.service_timeout = 20.0
    await hub_start(later, {})
    assert service.ended == [("aaaaaaaaaaaa", "the notebook server of alice was removed")]


@pytest.mark.asyncio
async def test_the_server_gets_our_kernel_manager_unless_it_has_another_one(service):
    ours = "--ServerApp.kernel_manager_class=singularity_kernel.server.kernels."
    spawner = make(service.url, args=["--x"])
    assert [a for a in spawner.get_args() if a.startswith(ours)]
    other = make(service.url, args=["--ServerApp.kernel_manager_class=their.Own"])
    for spawner in (other, make(service.url, hibernate=False)):
        assert not [a for a in spawner.get_args() if a.startswith(ours)]
        service.sessions, service.ended = [session("aaaaaaaaaaaa")], []
        await hub_start(spawner, {})
        await spawner.stop()
        assert service.ended, "its kernels end with it, as without hibernation"


@pytest.mark.asyncio
async def test_the_progress_page_says_what_waits(service):
    service.notebooks = [{}, {}]
    spawner = make(service.url)
    await hub_start(spawner, {})
    said = [event["message"] async for event in spawner._story.events()]
    assert "2 notebooks wait in the store. Each comes back when it is opened." in said


@pytest.mark.asyncio
async def test_a_server_that_died_by_itself_is_released_too(service):
    service.sessions = [session("aaaaaaaaaaaa")]
    service.kept = [{"session": "aaaaaaaaaaaa", "reason": "no CRIU", "possible": False}]
    spawner = make(service.url)
    await hub_start(spawner, {})
    spawner.running = False  # then the Hub calls the post-stop hook and not `stop`
    await spawner.run_post_stop_hook()
    assert [sid for sid, _ in service.ended] == ["aaaaaaaaaaaa"]


@pytest.mark.asyncio
async def test_a_stop_without_a_service_still_stops(service):
    spawner = make(service.url)
    await hub_start(spawner, {})
    spawner.service_url = "http://127.0.0.1:1/services/singularity/"
    await spawner.stop()
    assert not spawner.running


@pytest.mark.asyncio
async def test_progress_says_what_is_waited_for(service):
    service.devices = ["0123456789ab", "ba9876543210"]
    service.waiting = {"premium": 1}
    spawner = make(service.url)
    spawner._start_pending = True
    await hub_start(spawner, {"tier": "basic", "devices": 2})
    messages, progress = [], [0]
    async with asyncio.timeout(20):
        async for event in spawner.progress():
            messages.append(event["message"])
            progress.append(event.get("progress", progress[-1]))
            if "Waiting for the notebook server to answer" in event["message"]:
                break
    assert messages[0] == "Asking the scheduler about 2 devices at the basic tier."
    assert "0 of 2 cpu devices free now, 1 notebook waiting." in messages[1]
    assert "waits for its turn" in messages[1]
    assert "Starting the notebook server." in messages
    assert progress == sorted(progress)


@pytest.mark.asyncio
async def test_a_failed_start_ends_its_progress(service):
    spawner = make(service.url)
    with pytest.raises(SpawnException):
        await hub_start(spawner, {"devices": 3})
    async with asyncio.timeout(20):
        assert [event async for event in spawner._story.events()]

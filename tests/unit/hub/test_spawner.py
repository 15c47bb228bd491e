"""`SingularitySpawner` starts a process as the right user; the process here is not Jupyter."""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import os
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from jupyterhub.spawner import SpawnException
from singularity_proxy.layers import is_over_this, own_packages
from singularity_spawner.homes import folder_name
from singularity_spawner.proc import read_process
from singularity_spawner.spawner import NOTEBOOK_JOBS, SingularitySpawner
from sqlalchemy.engine import make_url
from support.hub_scheduler import TOKEN, scheduler
from support.uids import skip_root_alone

REPORT = """
import json, os, time
mask = os.umask(0)
report = {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "mask": mask,
          "cwd": os.getcwd(), "env": dict(os.environ)}
open("report.tmp", "w").write(json.dumps(report))
os.rename("report.tmp", "report.json")
time.sleep(60)
"""
ROOT = os.geteuid() == 0


@pytest_asyncio.fixture
async def service():
    async with scheduler() as running:
        uid = 1900000042 if ROOT else os.geteuid()
        gid = 1900000042 if ROOT else os.getegid()
        running.identities["alice"] = {"uid": uid, "gid": gid, "mapped": ROOT, "sentence": ""}
        yield running


@pytest.fixture
def homes():
    folder = Path(tempfile.mkdtemp(prefix="homes-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def make(service, homes, **traits):
    spawner = SingularitySpawner(
        service_url=service.url,
        service_token=TOKEN,
        service_timeout=0.0,
        homes_dir=str(homes),
        cmd=[sys.executable, "-c", REPORT],
        hub=SimpleNamespace(public_host="", api_url="http://127.0.0.1:1/hub/api", base_url="/hub/"),
        port=1,
        **traits,
    )
    spawner.user = SimpleNamespace(name="alice", url="/user/alice/", escaped_name="alice")
    spawner.orm_spawner = SimpleNamespace(
        name="", user_options={}, display_name="", server=None, started=None, oauth_client=None
    )
    return spawner


async def report_of(home):
    async with asyncio.timeout(20):
        while not (home / "report.json").exists():
            await asyncio.sleep(0.02)
    return json.loads((home / "report.json").read_text())


@skip_root_alone
@pytest.mark.asyncio
async def test_the_server_runs_as_its_user_in_its_home(service, homes):
    spawner = make(service, homes)
    await spawner.start()
    try:
        report = await report_of(homes / "alice")
    finally:
        await spawner.stop(now=True)
    identity = service.identities["alice"]
    home = str(homes / "alice")
    assert (report["uid"], report["gid"]) == (identity["uid"], identity["gid"])
    if ROOT:
        assert report["groups"] == []
    assert report["mask"] == 0o077
    assert report["cwd"] == home
    env = report["env"]
    assert (env["HOME"], env["USER"]) == (home, "alice")
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        assert env[name].startswith(f"{home}/")
    assert env["JUPYTER_DEFAULT_PROVISIONER_NAME"] == "singularity"
    assert await spawner.poll() is not None


@pytest.mark.asyncio
async def test_allow_root_is_said_only_to_a_server_that_must_run_as_root(service, homes):
    spawner = make(service, homes, args=["--x"])
    spawner.uid = 1900000042
    assert "--allow-root" not in spawner.get_args()
    spawner.uid = 0
    assert spawner.get_args()[0] == "--x"
    assert "--allow-root" in spawner.get_args()
    assert spawner.args == ["--x"]


@pytest.mark.asyncio
async def test_terminals_keep_the_servers_path_unless_told_otherwise(service, homes):
    own = "--ServerApp.terminado_settings={}"
    assert any("/sh" in a or "/bash" in a for a in make(service, homes).get_args())
    args = make(service, homes, args=[own]).get_args()
    assert [a for a in args if "terminado" in a] == [own]


@skip_root_alone
@pytest.mark.asyncio
@pytest.mark.parametrize("allowed", [True, False])
async def test_packages_of_the_users_own_go_before_those_of_the_server(service, homes, allowed):
    spawner = make(service, homes, own_packages=allowed)
    await spawner.start()
    try:
        report = await report_of(homes / "alice")
    finally:
        await spawner.stop(now=True)
    layer = own_packages(str(homes / "alice"))
    found = [str(path) for path in homes.glob("alice/.local/share/*/*")]
    assert found == ([layer.folder] if allowed else [])
    first = report["env"]["PATH"].partition(":")[0]
    assert (first == layer.programs) is allowed
    assert (layer.data in report["env"].get("JUPYTER_PATH", "")) is allowed
    if allowed:
        assert os.stat(layer.folder).st_uid == service.identities["alice"]["uid"]
        assert is_over_this(f"{layer.programs}/python")


@skip_root_alone
@pytest.mark.asyncio
async def test_where_the_users_packages_cannot_be_the_server_starts_all_the_same(service, homes):
    home = homes / "alice"
    home.mkdir(mode=0o700)
    (home / ".local").write_text("a file in the way")
    if ROOT:
        for path in (home, home / ".local"):
            os.chown(path, 1900000042, 1900000042)
    spawner = make(service, homes)
    await spawner.start()
    try:
        await report_of(home)
    finally:
        await spawner.stop(now=True)
    assert (home / ".local").read_text() == "a file in the way"


@pytest.mark.asyncio
async def test_a_server_of_another_environment_gets_no_packages_of_this_one(service, homes):
    spawner = make(service, homes)
    spawner.home = homes / "alice"
    assert "jupyter-singularity" in spawner.user_env({})["PATH"]
    spawner.cmd = ["jupyterhub-singleuser"]
    assert "PATH" not in spawner.user_env({})


@pytest.mark.root
@pytest.mark.asyncio
async def test_without_mapping_the_server_runs_as_the_hub_does(service, homes):
    service.identities["alice"] = {"uid": 0, "gid": 0, "mapped": False, "sentence": "shared"}
    spawner = make(service, homes)
    await spawner.start()
    try:
        report = await report_of(homes / "alice")
    finally:
        await spawner.stop(now=True)
    assert report["uid"] == 0


@pytest.mark.asyncio
async def test_a_home_of_somebody_else_is_not_taken_over(service, homes):
    (homes / "alice").symlink_to("/etc")
    with pytest.raises(SpawnException) as caught:
        await make(service, homes).start()
    assert caught.value.reason == "singularity_home"
    assert "belongs to uid" in caught.value.message


@pytest.mark.root
@pytest.mark.asyncio
async def test_homes_below_a_closed_folder_are_refused(service, homes):
    homes.chmod(0o700)
    with pytest.raises(SpawnException, match="cannot be passed by other uids"):
        await make(service, homes).start()


@pytest.mark.skipif(ROOT, reason="root may become anybody")
@pytest.mark.asyncio
async def test_without_root_another_uid_is_refused(service, homes):
    service.identities["alice"]["uid"] = os.geteuid() + 1
    with pytest.raises(SpawnException, match="cannot change it"):
        await make(service, homes).start()


@skip_root_alone
@pytest.mark.asyncio
async def test_after_a_hub_restart_the_server_is_found_and_stopped(service, homes):
    first = make(service, homes)
    await first.start()
    state = json.loads(json.dumps(first.get_state()))
    second = make(service, homes)
    second.load_state(state)
    assert await second.poll() is None
    assert (second.uid, second.pid) == (first.uid, first.pid)
    pid = second.pid
    await second.stop(now=True)  # the process is now a zombie, because `first` never asked for it
    assert read_process(pid).zombie
    assert await first.poll() is not None


@pytest.mark.asyncio
async def test_a_pid_that_belongs_to_another_process_is_not_our_server(service, homes):
    spawner = make(service, homes)
    me = read_process(os.getpid())
    spawner.load_state({"pid": me.pid, "started": me.started - 1, "identity": {"uid": 1, "gid": 1}})
    assert await spawner.poll() == 0


@pytest.mark.asyncio
async def test_a_hub_that_cannot_look_takes_no_server_for_dead(service, homes, monkeypatch):
    spawner = make(service, homes)
    me = read_process(os.getpid())
    spawner.load_state({"pid": me.pid, "started": me.started, "identity": {"uid": 1, "gid": 1}})

    def too_many(path):
        raise OSError(errno.EMFILE, "too many open files", str(path))

    monkeypatch.setattr(Path, "read_bytes", too_many)
    assert await spawner.poll() is None


@pytest.mark.filterwarnings("ignore:The declarative_mixin decorator")
@pytest.mark.asyncio
async def test_notebook_jobs_are_batch_sessions(service, homes):
    spawner = make(service, homes)
    told = [arg for arg in spawner.get_args() if arg.startswith("--SchedulerApp.")]
    assert told == list(NOTEBOOK_JOBS)
    for arg in told:
        module, _, name = arg.partition("=")[2].rpartition(".")
        assert f"class {name}(" in inspect.getsource(import_module(module))
    spawner.home = homes / folder_name("ada")
    assert [a for a in spawner.get_args() if a.startswith("--SchedulerApp.")] == told
    for user in ("Jim Jiang", "ünï", "o'neil", "a\\b"):
        spawner.home = homes / folder_name(user)
        [url] = [a for a in spawner.get_args() if a.startswith("--SchedulerApp.db_url=")]
        database = make_url(url.partition("=")[2]).database
        assert database == str(spawner.home / ".local/share/jupyter/scheduler.sqlite")
    own = "--SchedulerApp.scheduler_class=mine.Scheduler"
    spawner = make(service, homes, args=[own])
    assert [arg for arg in spawner.get_args() if "SchedulerApp" in arg] == [own]

"""Bad input on every face of the platform: one clear sentence each, and nothing has changed.

A real platform (JupyterHub, scheduler, agent, device proxies) with a notebook of alice's that holds
a device and a tensor, and a run of bob's. Every case does one wrong thing through the command line,
the REST API, the magics or the spawn form; after each of them all sessions are as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
import pytest_asyncio
import requests
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from singularity_spawner.platform.notebook import Notebook
from support.hub_platform import Person, environment_of, error_on, running_platform
from support.uids import OWN_UIDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLI = str(Path(sys.executable).with_name("jupyter-singularity"))
UNKNOWN = "0123456789ab"
LONG = 300
"""Characters that a sentence may have."""


@dataclass
class Scene:
    """A platform with people at work."""

    platform: Any
    home: Path
    environment: dict[str, str]
    notebook: Notebook
    session: str
    tokens: dict[str, str] = field(default_factory=dict)
    foreign: str = ""

    @property
    def api(self) -> str:
        return f"{self.platform.service_url}api/v1/"

    async def sessions(self) -> dict[str, tuple[Any, ...]]:
        """Everything about the active sessions that bad input must not change."""
        found = await self.platform.service().sessions("active")
        return {
            s["id"]: tuple(
                str(s[key]) for key in ("state", "devices", "epoch", "held_back", "tier", "run")
            )
            for s in found
        }

    # -- the four faces: each returns (code, sentence) --------------------------------------

    async def cli(self, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
        """Exit code and standard error of `jupyter singularity WORDS` in alice's terminal."""
        done = await asyncio.to_thread(
            subprocess.run,
            [CLI, *words],
            env={**self.environment, **(env or {})},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == "" or done.returncode == 0
        return done.returncode, done.stderr

    async def rest(
        self, method: str, path: str, body: Any = None, *, token: str = "alice", **kwargs: Any
    ) -> tuple[int, str]:
        """Status and `detail` of a call with alice's token."""
        headers = {"Authorization": f"token {self.tokens[token]}"} if token else {}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        answer = await asyncio.to_thread(
            requests.request,
            method,
            self.api + path,
            data=data,
            headers=headers,
            timeout=60,
            **kwargs,
        )
        if answer.status_code == 201:  # accepted; the run finds out as alice
            return await self.fate(answer.json()["id"])
        problem = answer.json()
        assert answer.headers["content-type"].startswith("application/problem+json")
        assert problem["status"] == answer.status_code
        assert problem["reason"]
        return answer.status_code, problem["detail"]

    async def fate(self, session: str) -> tuple[int, str]:
        """Exit code and reason of a run."""
        client = ServiceClient(self.platform.service_url, self.tokens["alice"])
        for _ in range(600):
            found = await client.get_session(session)
            if found["exit_code"] is not None and found["process_state"] == "failed":
                return int(found["exit_code"]), str(found["reason"])
            await asyncio.sleep(0.1)
        raise AssertionError(found)

    async def magic(self, line: str) -> tuple[str, str]:
        """ "error" and the sentence of `%singularity LINE` in alice's notebook."""
        cell = await self.notebook.start(f"%singularity {line}")
        try:
            await cell.wait(30)
        except SingularityError:
            return "error", cell.error.removeprefix("UsageError: ")
        return "", cell.text

    async def form(self, **fields: str) -> tuple[int, str]:
        """Status and sentence of the spawn form, sent by a user who has no server."""
        with Person(self.platform.url, "carla", self.platform.password) as person:
            assert await asyncio.to_thread(person.login)
            await asyncio.to_thread(person.spawn_page)
            answer = await asyncio.to_thread(person.submit, **fields)
            assert await self.platform.hub.server("carla") is None
            return answer.status_code, html.unescape(error_on(answer.text))

    def run(self, name: str, **more: Any) -> dict[str, Any]:
        """The body that submits the notebook `name` of alice's home."""
        return {"kind": "batch", "run": {"notebook": str(self.home / name), **more}}


def write_notebooks(home: Path) -> None:
    new = nbformat.v4
    cells = [
        new.new_code_cell("lr = 0.1\nepochs: int = 3", metadata={"tags": ["parameters"]}),
        new.new_code_cell("print(lr, epochs)"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, home / "train.ipynb")
    (home / "picture.ipynb").write_bytes(b"\x89PNG\r\n\x1a\n not a notebook")
    (home / "data.ipynb").write_text('{"cells": "none"}')
    for path in home.glob("*.ipynb"):
        path.chmod(0o644)


async def make_scene(platform: Any) -> Scene:
    url = await platform.start_server("alice", {"tier": "standard", "devices": 1})
    model = await platform.hub.server("alice")
    env = environment_of(model["state"]["pid"])
    home = Path(env["HOME"])
    write_notebooks(home)
    token = await platform.user_token("alice")
    notebook = Notebook(url, token, "work")
    await notebook.open()
    await notebook.run("import torch; x = torch.arange(8.0, device='cuda'); x.sum().item()", 60)
    client = ServiceClient(platform.service_url, token)
    (session,) = await client.sessions("active")
    wanted = ("SINGULARITY_API_URL", "JUPYTERHUB_API_TOKEN", "PATH")
    kept = {name: env[name] for name in wanted} | {
        name: os.environ[name] for name in os.environ if name.startswith(("JUPYTER_P", "PYTHON"))
    }
    scene = Scene(
        platform, home, {**kept, "HOME": str(home)}, notebook, session["id"], {"alice": token}
    )
    scene.tokens["expired"] = await platform.hub.new_token("alice", 1)
    expired_at = time.monotonic() + 1.5
    scene.tokens["admin"] = platform.admin_token
    if OWN_UIDS:
        scene.tokens["bob"] = await platform.user_token("bob")
        bob = ServiceClient(platform.service_url, scene.tokens["bob"])
        launch = {"mode": "capsule", "argv": ["sleep", "900"], "cwd": "/"}
        foreign = await bob.create_session(kind="batch", name="sleep", launch=launch)
        scene.foreign = foreign["id"]
    await asyncio.sleep(max(0.0, expired_at - time.monotonic()))
    return scene


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene():
    # A lease that lasts while the service is away: what is asked here is not what it is for.
    arguments = ["--Controller.lease_ttl_s=300"]
    async with running_platform(devices=2, service_args=arguments) as platform:
        made = await make_scene(platform)
        yield made
        # After all of it alice's notebook still has what it had.
        assert (await made.notebook.run("x.sum().item()", 60)).strip() == "28.0"
        await made.notebook.close()


Do = Callable[[Scene], Awaitable[tuple[Any, str]]]


@dataclass
class Case:
    name: str
    do: Do
    code: Any
    """Exit code, HTTP status or kind of the error."""
    says: str
    """Regular expression."""
    root: bool = False


def cli(name: str, code: int, says: str, *words: str, root: bool = False, **kw: Any) -> Case:
    def do(scene: Scene) -> Awaitable[tuple[int, str]]:
        known = {"FOREIGN": scene.foreign, "OWN": scene.session}
        return scene.cli(*(known.get(word, word) for word in words), **kw)

    return Case(f"cli: {name}", do, code, says, root)


def rest(name: str, code: int, says: str, method: str, path: str, body: Any = None, **kw: Any):
    root = kw.pop("root", False)

    def do(scene: Scene) -> Awaitable[tuple[int, str]]:
        made = body(scene) if callable(body) else body
        return scene.rest(method, path.replace("FOREIGN", scene.foreign), made, **kw)

    return Case(f"rest: {name}", do, code, says, root)


def magic(name: str, says: str, line: str) -> Case:
    return Case(f"magic: {name}", lambda scene: scene.magic(line), "error", says)


def form(name: str, says: str, **fields: str) -> Case:
    return Case(f"form: {name}", lambda scene: scene.form(**fields), 400, says)


def submitted(name: str = "train.ipynb", **more: Any) -> Callable[[Scene], dict[str, Any]]:
    """Body of a submission; `spec_*` goes beside the run, the rest into it."""
    spec = {key.removeprefix("spec_"): more.pop(key) for key in list(more) if "spec_" in key}
    return lambda scene: {**scene.run(name, **more), **spec}


GOLD = "unknown tier 'gold': pick premium, standard or basic"
AT_MOST = "asked, but this cluster has at most 2 for one session: ask for 1 to 2"
CASES = [
    # -- unknown tier ----------------------------------------------------------------------
    cli("submit, unknown tier", 64, GOLD, "submit", "train.ipynb", "--tier", "gold"),
    cli("run, unknown tier", 64, GOLD, "run", "--tier", "gold", "true"),
    rest("unknown tier", 400, GOLD, "POST", "sessions", submitted(spec_tier="gold")),
    rest("tier of a wrong type", 400, "tier", "POST", "sessions", submitted(spec_tier=3)),
    form("unknown tier", "Unknown tier 'gold'", tier="gold", devices="1"),
    # -- wrong numbers of devices ----------------------------------------------------------
    *(
        case
        for wrong, says in ((0, "at least 1"), (-1, "at least 1"), (10**6, AT_MOST))
        for case in (
            cli(
                f"submit, {wrong} devices", 64, says, "submit", "train.ipynb", f"--devices={wrong}"
            ),
            cli(f"run, {wrong} devices", 64, says, "run", f"--devices={wrong}", "true"),
            rest(f"{wrong} devices", 400, says, "POST", "sessions", submitted(spec_devices=wrong)),
        )
    ),
    cli("devices of a wrong type", 64, "devices", "submit", "train.ipynb", "--devices", "two"),
    rest(
        "devices of a wrong type", 400, "devices", "POST", "sessions", submitted(spec_devices="2")
    ),
    form("0 devices", "at least 1 device, not 0", tier="basic", devices="0"),
    form("-1 devices", "at least 1 device, not -1", tier="basic", devices="-1"),
    form("a million devices", "1000000 devices are more than", tier="basic", devices="1000000"),
    form("more than there are", "this cluster has 2 devices", tier="basic", devices="3"),
    form("devices of a wrong type", "must be a whole number", tier="basic", devices="two"),
    form("an unknown field", "Unknown server option 'gpu'", tier="basic", devices="1", gpu="1"),
    # -- notebooks -------------------------------------------------------------------------
    cli("no such notebook", 66, "there is no notebook .*/nix.ipynb", "submit", "nix.ipynb"),
    cli("a folder", 66, "is a folder and no notebook", "submit", "."),
    cli("not a notebook", 66, "picture.ipynb is not a notebook", "submit", "picture.ipynb"),
    cli("JSON, but no notebook", 66, "data.ipynb is not a notebook", "submit", "data.ipynb"),
    cli("no folder for the output", 73, "no folder", "submit", "train.ipynb", "-o", "nix/o.ipynb"),
    cli(
        "no such kernel", 66, "no kernel .fortran-77.", "submit", "train.ipynb", "-k", "fortran-77"
    ),
    rest(
        "no such notebook", 66, "there is no notebook", "POST", "sessions", submitted("nix.ipynb")
    ),
    rest("not a notebook", 66, "is not a notebook", "POST", "sessions", submitted("picture.ipynb")),
    rest(
        "a relative path",
        400,
        "run.notebook must be an absolute path, not 'train.ipynb'",
        "POST",
        "sessions",
        {"kind": "batch", "run": {"notebook": "train.ipynb"}},
    ),
    # -- parameters ------------------------------------------------------------------------
    cli(
        "unknown parameter",
        64,
        "no parameter 'epoch'; did you mean 'epochs'",
        *("submit", "train.ipynb", "-p", "epoch", "3"),
    ),
    cli("parameter type", 64, "takes a", "submit", "train.ipynb", "-p", "lr", "fast"),
    cli("half a parameter", 64, "-p", "submit", "train.ipynb", "-p", "lr"),
    cli("no name", 64, "name", "submit", "train.ipynb", "-p", "learning rate", "1"),
    cli("large parameters", 64, "64 KiB", "submit", "train.ipynb", "--env", f"A={'x' * 70_000}"),
    rest(
        "unknown parameter",
        64,
        "no parameter 'epoch'",
        *("POST", "sessions", submitted(parameters={"epoch": 3})),
    ),
    rest(
        "parameter type",
        64,
        "parameter 'lr' takes",
        *("POST", "sessions", submitted(parameters={"lr": "fast"})),
    ),
    rest(
        "large parameters",
        400,
        "at most 64 KiB together",
        *("POST", "sessions", submitted(parameters={"lr": "x" * 70_000})),
    ),
    rest(
        "an unknown key", 400, "did you mean 'tier'", "POST", "sessions", submitted(spec_teir="b")
    ),
    # -- sessions of others, and of nobody ----------------------------------------------------
    *(
        case
        for verb in ("show", "logs", "why", "history", "park", "preempt", "resume", "cancel")
        for case in (
            cli(f"{verb}, foreign session", 66, "no (active )?session", verb, "FOREIGN", root=True),
            cli(f"{verb}, unknown session", 66, "no (active )?session", verb, UNKNOWN),
        )
    ),
    *(
        rest(f"{method} {part}, foreign session", 404, "no session", method, path, root=True)
        for method, part in (
            ("GET", ""),
            ("GET", "/why"),
            ("GET", "/history"),
            ("GET", "/log"),
            ("DELETE", ""),
            ("POST", "/park"),
            ("POST", "/preempt"),
            ("POST", "/resume"),
            ("POST", "/migrate"),
        )
        for path in (f"sessions/FOREIGN{part}",)
    ),
    rest("unknown session", 404, f"no session {UNKNOWN}", "GET", f"sessions/{UNKNOWN}"),
    rest("no session id at all", 404, "no session", "GET", "sessions/..%2f..%2fetc"),
    rest("nothing there", 404, "nothing at", "GET", "sesions"),
    # -- tokens ----------------------------------------------------------------------------
    cli("no token", 69, "not set", "ls", env={"JUPYTERHUB_API_TOKEN": ""}),
    cli("a wrong token", 77, "does not know", "ls", env={"JUPYTERHUB_API_TOKEN": "nonsense"}),
    Case(
        "cli: expired token",
        lambda s: s.cli("ls", env={"JUPYTERHUB_API_TOKEN": s.tokens["expired"]}),
        77,
        "has expired",
    ),
    cli("no token file", 66, "token file .* cannot be read", "ls", "--token-file", "nix"),
    rest("expired token", 401, "has expired", "GET", "sessions", token="expired"),
    rest("no token", 401, "no JupyterHub token", "GET", "sessions", token=""),
    # -- the shape of requests ------------------------------------------------------------
    rest("oversize body", 413, "larger than 4 MiB", "POST", "sessions", b"x" * (5 << 20)),
    rest("not JSON", 400, "not JSON", "POST", "sessions", b"{"),
    rest("not an object", 400, "object", "POST", "sessions", [1]),
    rest("wrong method", 405, "", "PATCH", "sessions"),
    rest("limit is no number", 400, "limit", "GET", "sessions?limit=many"),
    rest("limit is too large", 400, "limit", "GET", "sessions?limit=100000"),
    rest("a cursor of no page", 400, "cursor", "GET", "sessions?cursor=nonsense"),
    rest("unknown state", 400, "state", "GET", "sessions?state=tired"),
    # -- the command line itself ------------------------------------------------------------
    cli("unknown command", 64, "did you mean 'submit'", "sumbit"),
    cli("unknown option", 64, "--teir", "submit", "train.ipynb", "--teir", "basic"),
    cli("a word too many", 64, "one word too many", "why", "a", "b"),
    cli("a word is missing", 64, "there is a word missing", "why"),
    cli("unknown state", 64, "there is no state 'tired'", "ls", "--state", "tired"),
    cli("no such file", 66, "no configuration file", "ls", "--config", "nix.py"),
    # -- what the session's state or this version does not allow -----------------------------
    cli("resume what runs", 70, "already holds", "resume", "OWN"),
    cli("go back to nothing", 66, "no checkpoint 'lunch'", "restore", "OWN", "lunch"),
    cli("no such node", 66, "no node 'mars'", "migrate", "OWN", "--node", "mars"),
    cli("no such device", 64, "no device 'cpu:9'", "migrate", "OWN", "--device", "cpu:9"),
    cli("where it is already", 70, "already", "migrate", "OWN", "--device", "cpu:0"),
    cli("service away", 69, "does not answer", "ls", "--url", "http://127.0.0.1:9/services/s/"),
    # -- magics ----------------------------------------------------------------------------
    magic("unknown verb", "no verb 'prak'; did you mean 'park'", "prak"),
    magic("unknown device", "no device 'cpu:9'", "migrate --device cpu:9"),
    magic("a million", "no device", "migrate --device 1000000"),
    magic("-1", "", "migrate --device=-1"),
    magic("where it is already", "already", "migrate --device cpu:0"),
    magic("resume what runs", "already holds", "resume"),
    magic("go back to nothing", "no checkpoint 'lunch'", "restore lunch"),
    magic("no such node", "no node 'mars'", "migrate --node mars"),
    magic("a name too many", "takes no name", "park now"),
    magic("a name too long", "at most 200 characters", "checkpoint " + "x" * 201),
    magic("no lines", "--limit must be 1 or more", "history --limit 0"),
    magic("a wrong type", "", "history --limit many"),
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.root] if case.root else [])
        for case in CASES
    ],
)
async def test_one_sentence_and_nothing_changed(scene: Scene, case: Case) -> None:
    before = await scene.sessions()
    code, said = await case.do(scene)
    assert_one_sentence(said)
    assert (code, said) == (case.code, said)
    assert re.search(case.says, said), said
    assert await scene.sessions() == before


def assert_one_sentence(said: str) -> None:
    text = said.strip()
    assert text
    assert "Traceback" not in text
    assert len(text.splitlines()) == 1, text
    assert len(text) <= LONG, text


# -- the service is away -------------------------------------------------------------------


async def test_without_the_service_every_face_says_so_and_the_notebook_goes_on(
    scene: Scene,
) -> None:
    """The service is killed; JupyterHub starts it again, and everything is there."""
    before = await scene.sessions()
    assert await health(scene) == 200
    with killed_service(scene.platform):
        await every_face_without_the_service(scene)
    await until_service(scene, 90)
    assert await scene.sessions() == before


async def every_face_without_the_service(scene: Scene) -> None:
    code, said = await scene.cli("ls")
    assert code == 69
    assert_one_sentence(said)
    code, said = await scene.cli("submit", "train.ipynb")
    assert (code, "does not answer" in said or "not reachable" in said) == (69, True), said
    kind, said = await scene.magic("why")
    assert kind == "error"
    assert "the scheduler service is away" in said
    assert_one_sentence(said)
    kind, said = await scene.magic("status")
    assert (kind, "away" in said) == ("", True)
    with pytest.raises(SingularityError) as caught:
        await scene.platform.start_server("carla", {"tier": "basic", "devices": 1})
    assert_one_sentence(caught.value.message)
    # The Hub answers a slow start before it fails; then the page's progress bar has the sentence.
    told = caught.value.message + scene.platform.folder.hub_log.read_text(errors="replace")
    assert "The scheduler service does not answer, so the server was not started" in told
    assert await scene.platform.hub.server("carla") is None
    assert (await scene.notebook.run("x.sum().item()", 60)).strip() == "28.0"


@contextlib.contextmanager
def killed_service(platform: Any) -> Iterator[None]:
    """A block without the service: JupyterHub starts it again whenever it looks, but it does not
    come up while somebody else works in its folder."""
    (pid,) = service_pids(platform)
    os.kill(pid, signal.SIGKILL)
    with open(platform.folder.scheduler / "service.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def service_pids(platform: Any) -> list[int]:
    """The scheduler service of this platform, as the kernel knows it."""
    from singularity_spawner.platform.processes import of_run

    found = []
    for process in of_run(platform.settings.instance):
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        if b"singularity_scheduler.service" in command:
            found.append(process.pid)
    return found


async def until_service(scene: Scene, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while await health(scene) != 200:
            await asyncio.sleep(0.5)


async def health(scene: Scene) -> int:
    """HTTP status of the service's `healthz`, 0 without an answer."""
    try:
        answer = await asyncio.to_thread(requests.get, f"{scene.api}healthz", timeout=5)
    except requests.RequestException:
        return 0
    return answer.status_code


def fill(path: Path) -> None:
    """Write to `path` until the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


# -- a full disk ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(short_dir: Path):
    """A disk of 4 MiB."""
    place = short_dir / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
async def test_a_full_disk_under_the_ledger(small_disk: Path) -> None:
    """Nothing is accepted that cannot be kept; what runs goes on; with space all works again."""
    url = f"sqlite:///{small_disk / 'ledger.sqlite'}"
    arguments = [f"--SchedulerApp.ledger_url={url}"]
    async with running_platform(devices=2, service_args=arguments) as platform:
        scene = await make_scene(platform)
        before = await scene.sessions()
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            fill(filler)
        says = "the scheduler's ledger cannot be written"
        for code, said in [
            await scene.cli("submit", "train.ipynb"),
            await scene.cli("run", "true"),
            await scene.cli("park", scene.session),
            await scene.cli("cancel", scene.session),
        ]:
            assert_one_sentence(said)
            assert (code, says in said) == (70, True), said
        status, said = await scene.rest("POST", "sessions", scene.run("train.ipynb"))
        assert (status, says in said) == (507, True)
        kind, said = await scene.magic("park")
        assert (kind, says in said) == ("error", True), said
        assert (await scene.notebook.run("x.sum().item()", 60)).strip() == "28.0"
        assert await scene.sessions() == before
        filler.unlink()
        code, said = await scene.cli("park", scene.session, "--json")
        assert code == 0
        await scene.notebook.close()

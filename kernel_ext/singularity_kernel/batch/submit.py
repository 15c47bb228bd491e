"""`jupyter singularity submit NOTEBOOK`: run a notebook as a batch session.

The run starts when the runs before it leave it room, and then needs neither this terminal nor the
server it was submitted from. It keeps its state when its devices are taken away, in the middle of a
cell too, and goes on when it gets others. The output notebook appears beside the notebook (or as
-o says) and can be opened while the run goes on.

What can be checked here is checked before anything is sent: the notebook, its parameters, the
kernel, the folder of the output. Parameters must have names that the notebook's cell tagged
'parameters' assigns, and values of the type of its defaults.

The run gets the variables HOME, USER, LOGNAME, SHELL, PATH, LANG, LC_*, TZ, VIRTUAL_ENV,
CONDA_PREFIX, CONDA_DEFAULT_ENV, PYTHONPATH, IPYTHONDIR, JUPYTER_PATH, JUPYTER_DATA_DIR,
JUPYTER_CONFIG_DIR, JUPYTER_CONFIG_PATH, JUPYTER_PREFER_ENV_PATH, JUPYTER_PLATFORM_DIRS and
XDG_{CONFIG,CACHE,DATA,STATE}_HOME as they are here, and those named with --env.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest, NotFound, SingularityError, Unavailable
from singularity_scheduler.cli import output as printing
from singularity_scheduler.cli.base import ServiceApp, wanted_devices
from singularity_scheduler.cli.exits import FAILED_RUN, CannotWrite
from traitlets import Bool, Integer, Unicode, default

from .fates import BadRun, Fate, NoKernel, NoNotebook, NotWritten
from .options import HELP, Given, split_options

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

PASSED_ON = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PATH",
        "LANG",
        "TZ",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "PYTHONPATH",
        "IPYTHONDIR",
        "JUPYTER_PATH",
        "JUPYTER_DATA_DIR",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_CONFIG_PATH",
        "JUPYTER_PREFER_ENV_PATH",
        "JUPYTER_PLATFORM_DIRS",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    }
)
"""Variables that a run gets without being asked for; LC_* too. None of them holds a secret."""

ENDED = frozenset({"completed", "failed", "cancelled"})

BEFORE = frozenset({"queued", "starting"})
"""Process states in which nothing has been printed."""

RETRY_S = 5.0
"""So long a submission is repeated, under the same key, while the service does not answer."""
AWAY_S = 30.0
"""So long `--wait` goes without the service before it gives up."""
POLL_S = 0.5


class SubmitApp(ServiceApp):
    name = "jupyter-singularity-submit"
    description = __doc__
    examples = """
        jupyter singularity submit train.ipynb
        jupyter singularity submit train.ipynb -o out.ipynb -p lr 0.1 -p epochs 3 --tier basic
        jupyter singularity submit train.ipynb --devices 2 --follow
    """
    synopsis = "NOTEBOOK"
    fewest = 1
    most = 1

    output = Unicode(
        config=True,
        help="""The output notebook. Empty: <notebook>-<session id>.ipynb beside the notebook.""",
    )
    tier = Unicode(
        config=True,
        help="""SLA tier of the run: "premium", "standard" or "basic". Empty: the scheduler's
        default. Default: SINGULARITY_TIER, which the spawn form sets.""",
    )
    devices = Integer(
        allow_none=True,
        default_value=None,
        config=True,
        help="""Virtual devices: how many accelerators the notebook sees. None: SINGULARITY_DEVICES,
        which the spawn form sets, else the scheduler's default.""",
    )
    kernel = Unicode(
        config=True,
        help="""Name of the kernel that runs the notebook. Empty: the one the notebook names.""",
    )
    cwd = Unicode(
        config=True,
        help="""The folder that the notebook runs in. Empty: the folder of the notebook.""",
    )
    run_name = Unicode(
        config=True, help="""What the session is called. Empty: the notebook's file name."""
    )
    wait = Bool(
        False,
        config=True,
        help="""Wait for the end; the exit code is 1 when the run failed or was cancelled.""",
    )
    follow = Bool(
        False,
        config=True,
        help="""The same, and print what the run prints (as `logs -f` does); with --json it goes to
        standard error.""",
    )
    flags = {
        "wait": ({"SubmitApp": {"wait": True}}, "Wait for the end of the run."),
        "follow": ({"SubmitApp": {"follow": True}}, "Print what the run prints until its end."),
        **{name: flag for name, flag in ServiceApp.flags.items() if "y" not in name},
    }
    aliases = {
        ("o", "output"): "SubmitApp.output",
        "tier": "SubmitApp.tier",
        "devices": "SubmitApp.devices",
        ("k", "kernel"): "SubmitApp.kernel",
        "cwd": "SubmitApp.cwd",
        "name": "SubmitApp.run_name",
        **ServiceApp.aliases,
    }

    session = ""
    """Id of the session, once there is one."""

    @default("tier")  # type: ignore[untyped-decorator]
    def _default_tier(self) -> str:
        return os.environ.get("SINGULARITY_TIER", "")

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Options with two words are read here, the others by traitlets."""
        self.given, rest = split_options(sys.argv[1:] if argv is None else argv)
        super().parse_command_line(rest)

    def emit_alias_help(self) -> Iterator[str]:
        yield from HELP.splitlines()
        yield from super().emit_alias_help()

    def complete(self, prefix: str) -> None:
        """File names: notebooks."""
        return None

    def interrupted(self) -> str:
        if not self.session and hasattr(self, "_run"):  # described, so it may have been sent
            return "the run may have been submitted: jupyter singularity ls shows it"
        if not self.session:
            return "nothing was submitted"
        return f"the run goes on; jupyter singularity logs -f {self.session} follows it"

    def execute(self) -> int | None:
        """Check what can be checked here, before the service is looked for."""
        try:
            self._run, notes = described(
                self.words[0],
                self.given,
                output=self.output,
                kernel=self.kernel,
                cwd=self.cwd,
                environ=os.environ,
            )
        except Fate as fate:
            raise _typed(fate) from None
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        return super().execute()

    async def work(self, client: ServiceClient) -> int | None:
        """Send, say the session's id; then wait or follow if asked to."""
        session = await self._send(client)
        self.session = str(session["id"])
        waits = self.wait or self.follow
        if not (self.json and waits):
            self.show(session, lambda: _accepted(session, waits))
        if not waits:
            return None
        return await self._end(client)

    async def _send(self, client: ServiceClient) -> dict[str, Any]:
        key, loop = uuid.uuid4().hex, asyncio.get_running_loop()
        give_up_at = loop.time() + RETRY_S
        while True:
            try:
                return await client.submit(
                    run=self._run,
                    tier=self.tier or None,
                    devices=wanted_devices(self.devices),
                    name=self.run_name,
                    key=key,  # asking twice gives one run
                )
            except Unavailable:
                if loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(POLL_S)

    async def _end(self, client: ServiceClient) -> int:
        if self.follow:
            await reached(client, self.session, lambda found: found["process_state"] not in BEFORE)
            async for text in client.log(self.session, follow=True):
                if self.json:
                    print(text, end="", file=sys.stderr, flush=True)
                else:
                    printing.emit(text, end="")
        session = await reached(client, self.session, lambda found: found["process_state"] in ENDED)
        if self.json:
            self.show(session, str)
        good = session["process_state"] == "completed"
        where = (session.get("run") or {}).get("output")
        sentence = f"session {self.session} {session['state']}: {session['reason']}"
        print(f"{sentence}; its output is {where}" if good else sentence, file=sys.stderr)
        return 0 if good else FAILED_RUN


def described(
    notebook: str,
    given: Given,
    *,
    output: str = "",
    kernel: str = "",
    cwd: str = "",
    environ: Mapping[str, str],
) -> tuple[dict[str, Any], list[str]]:
    """(the run as the service takes it, notes for the user); raises a `Fate` or a typed error with
    nothing sent."""
    from .files import check_writable, read_notebook, refuse_itself
    from .kernels import kernel_of
    from .parameters import check

    path = os.path.abspath(notebook)
    node = read_notebook(path)
    target = os.path.abspath(output) if output else None
    if target is not None:
        refuse_itself(path, target)
    check_writable(target or path.removesuffix(".ipynb") + "-output.ipynb")
    folder = os.path.abspath(cwd) if cwd else None
    if folder is not None and not os.path.isdir(folder):
        raise NotFound(f"there is no folder {folder} to run in; nothing was started")
    _, language = kernel_of(node, kernel or None)
    parameters = given.parameters()
    notes = check(node, parameters, language)
    run = {
        "notebook": path,
        "output": target,
        "parameters": parameters,
        "kernel": kernel or None,
        "folder": folder,
        "python": sys.executable,
        "variables": {**passed_on(environ), **given.variables(environ)},
    }
    return run, notes


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Of `environ` what a run gets by itself."""
    return {
        name: value
        for name, value in environ.items()
        if name in PASSED_ON or name.startswith("LC_")
    }


async def reached(
    client: ServiceClient, session: str, there: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The session's document once it is `there`; `Unavailable` after `AWAY_S` without service."""
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    while True:
        try:
            found = await client.get_session(session)
            heard_at = loop.time()
            if there(found):
                return found
        except Unavailable as error:
            if loop.time() - heard_at > AWAY_S:
                raise Unavailable(
                    f"the run goes on, but how it ends is not known here: {error.message}"
                ) from None
        await asyncio.sleep(POLL_S)


def _accepted(session: Mapping[str, Any], waits: bool) -> str:
    output_path = (session.get("run") or {}).get("output")
    lines = [f"session {session['id']} is {session['state']}; its output will be {output_path}"]
    if not waits:
        lines.append(f"follow it with: jupyter singularity logs -f {session['id']}")
    return "\n".join(lines)


def _typed(fate: Fate) -> SingularityError:
    """The command line's own error for what a run would have ended with."""
    kinds: dict[type[Fate], type[SingularityError]] = {
        BadRun: BadRequest,
        NoNotebook: NotFound,
        NoKernel: NotFound,
        NotWritten: CannotWrite,
    }
    return kinds.get(type(fate), SingularityError)(fate.message, **fate.fields)


def main(argv: list[str] | None = None) -> int:
    """Called by `jupyter singularity submit`; returns the exit code."""
    return SubmitApp.launch(argv)

"""`jupyter singularity submit NOTEBOOK`, or JOB.yml: run it as a batch session.

A file that ends in .yml or .yaml is a job file: an Azure ML command job, or a notebook in the same
style. What the command line says goes before what the file says, and both before what the
notebook's own metadata.singularity says. --dry-run shows what would be submitted.

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

import os
import sys
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest, Unavailable
from singularity_scheduler.cli.framework import output as printing
from singularity_scheduler.cli.framework.base import (
    ServiceApp,
    split_names,
    wanted_devices,
    wanted_share,
)
from singularity_scheduler.cli.framework.exits import FAILED_RUN
from singularity_scheduler.cli.runs.group_views import accepted, ended_group, outcome, succeeded
from singularity_scheduler.jobs import Job, read, resolve
from singularity_scheduler.jobs.sweeps import Sweep
from singularity_scheduler.jobs.wishes import merged
from singularity_scheduler.jobs.writing import written
from singularity_scheduler.requests.goals import parse_condition
from singularity_scheduler.requests.spec import parse_spec
from traitlets import Bool, Float, Integer, Unicode

from singularity_kernel.batch.running.fates import Fate

from .options import HELP, split_options
from .said import OPTIONS, OptionTraits
from .submission import Asked, Submission, make_folders, of_job, of_words, typed
from .sweeps import parse_sweep
from .swept import group_of, limits_of

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient
    from singularity_scheduler.client.reading import Until

JOB_FILES = (".yml", ".yaml")
"""How the name of a job file ends."""

BEFORE = frozenset({"queued", "starting"})
"""Process states in which nothing has been printed."""

RETRY_S = 5.0
"""So long a submission is repeated, under the same key, while the service does not answer."""
AWAY_S = 30.0
"""So long `--wait` goes without the service before it gives up."""
POLL_S = 0.5


class SubmitApp(OptionTraits, ServiceApp):
    name = "jupyter-singularity-submit"
    description = __doc__
    examples = """
        jupyter singularity submit train.ipynb
        jupyter singularity submit train.ipynb -o out.ipynb -p lr 0.1 -p epochs 3 --tier basic
        jupyter singularity submit train.ipynb --devices 2 --follow
        jupyter singularity submit train.ipynb --sweep lr=0.1,0.01 --sweep seed=0:4
        jupyter singularity submit job.yml --dry-run
    """
    synopsis = "NOTEBOOK|JOB.yml"
    fewest = 1
    most = 1

    output = Unicode(
        config=True,
        help="""The output notebook. Empty: <notebook>-<session id>.ipynb beside the notebook.""",
    )
    tier = Unicode(
        config=True,
        help="""SLA tier of the run: "premium", "standard" or "basic". Empty: SINGULARITY_TIER,
        which the spawn form sets, else the scheduler's default.""",
    )
    locations = Unicode(
        config=True,
        help="""Clusters and regions that the run may be in, separated by commas; see
        `jupyter singularity clusters`. Empty: SINGULARITY_LOCATIONS, else anywhere.""",
    )
    devices = Integer(
        allow_none=True,
        default_value=None,
        config=True,
        help="""Virtual devices: how many accelerators the notebook sees. None: SINGULARITY_DEVICES,
        which the spawn form sets, else the scheduler's default.""",
    )
    share = Float(
        allow_none=True,
        default_value=None,
        config=True,
        help="""Part of the time of one device that it asks for, from 0.001 to 1: below 1 it takes
        turns with others that share. None: SINGULARITY_DEVICE_SHARE, else whole devices.""",
    )
    elastic = Bool(
        False,
        config=True,
        help="""The run may go on with fewer physical devices than virtual ones: it starts on fewer
        when no more are free, gives some up before others are paused, and gets them back.""",
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
    run_timeout = Integer(
        allow_none=True,
        default_value=None,
        min=1,
        config=True,
        help="""Most seconds from the run's start to its end, without the time it is in the store.
        None: no limit.""",
    )
    max_retries = Integer(
        allow_none=True,
        default_value=None,
        min=0,
        config=True,
        help="""How often the run goes on by itself, from its last checkpoint or else from its
        beginning, when a process of it was killed or its node is gone. None: what the job file
        says, else 0.""",
    )
    max_parallel = Integer(
        allow_none=True,
        default_value=None,
        min=1,
        config=True,
        help="""Most runs of a sweep that are started and have not ended at a time. None: as many
        as there is room for.""",
    )
    sweep_timeout = Integer(
        allow_none=True,
        default_value=None,
        min=1,
        config=True,
        help="""So many seconds after it was submitted all runs of a sweep are ended, waiting
        included. None: no limit.""",
    )
    checkpoint_every_s = Float(
        allow_none=True,
        default_value=None,
        min=0.0,
        config=True,
        help="""Seconds between two checkpoints that are made of the run by itself, while something
        happens in it; 0: none. None: what the job file or the notebook says, else as the service
        is configured.""",
    )
    dry_run = Bool(
        False,
        config=True,
        help="""Check everything that can be checked here, print the spec that would be submitted,
        and submit nothing.""",
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
    stop_on_failure = Bool(
        False, config=True, help="""The first run of a sweep that fails ends the others."""
    )
    stop_when = Unicode(
        config=True,
        help="""A condition on values that the runs of a sweep record, such as "loss<0.01": the
        first run that meets it ends the others and goes on itself. Empty: none.""",
    )
    flags = {
        "stop-on-failure": (
            {"SubmitApp": {"stop_on_failure": True}},
            "The first run of a sweep that fails ends the others.",
        ),
        "elastic": (
            {"SubmitApp": {"elastic": True}},
            "The run may go on with fewer physical devices than virtual ones.",
        ),
        "dry-run": (
            {"SubmitApp": {"dry_run": True}},
            "Print what would be submitted, with every default filled in; submit nothing.",
        ),
        "wait": ({"SubmitApp": {"wait": True}}, "Wait for the end of the run."),
        "follow": ({"SubmitApp": {"follow": True}}, "Print what the run prints until its end."),
        **{name: flag for name, flag in ServiceApp.flags.items() if "y" not in name},
    }
    aliases = {
        ("o", "output"): "SubmitApp.output",
        "tier": "SubmitApp.tier",
        "devices": "SubmitApp.devices",
        "share": "SubmitApp.share",
        **{each.key.replace("_", "-"): f"SubmitApp.{each.key}" for each in OPTIONS},
        "locations": "SubmitApp.locations",
        ("k", "kernel"): "SubmitApp.kernel",
        "cwd": "SubmitApp.cwd",
        "name": "SubmitApp.run_name",
        "run-timeout": "SubmitApp.run_timeout",
        "checkpoint-every-s": "SubmitApp.checkpoint_every_s",
        "max-parallel": "SubmitApp.max_parallel",
        "sweep-timeout": "SubmitApp.sweep_timeout",
        "max-retries": "SubmitApp.max_retries",
        "stop-when": "SubmitApp.stop_when",
        **ServiceApp.aliases,
    }

    session = ""
    """Id of the session, once there is one."""
    sent = False
    """Whether the service was asked to start it."""
    sweep: Sweep
    """What is swept over; false: it is one run."""
    job: Job | None = None
    """The job file; None: the notebook itself is named."""

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
        if not self.session and self.sent:
            return "the run may have been submitted: jupyter singularity ls shows it"
        if not self.session:
            return "nothing was submitted"
        return f"the run goes on; jupyter singularity logs -f {self.session} follows it"

    def execute(self) -> int | None:
        """Check what can be checked here, before the service is looked for."""
        space = parse_sweep(word for (word,) in self.given.of("--sweep"))
        if self.words[0].endswith(JOB_FILES):
            self.job = resolve(read(self.words[0]), space)
        self.sweep = self._limited(self.job.sweep if self.job else Sweep(space))
        if self.sweep and self.follow:
            raise BadRequest("--follow is for one run: use --wait, or follow a member of the group")
        try:
            for values in reversed(self.sweep.samples or [{}]):
                self._submission = self._described(values)
        except Fate as fate:
            raise typed(fate) from None
        for note in self._submission.notes:
            print(f"note: {note}", file=sys.stderr)
        if self.dry_run:
            resolved = self._submission.resolved()
            if self.sweep:
                resolved["sweep"] = {
                    "members": len(self.sweep.combinations),
                    "values": self.sweep.space,
                    **limits_of(self.sweep),
                }
            self.show(resolved, lambda: written(resolved).rstrip())
            return None
        return super().execute()

    def _limited(self, sweep: Sweep) -> Sweep:
        """`sweep` with what the command line says of all its runs together."""
        said: dict[str, Any] = {}
        if self.max_parallel is not None:
            said["max_parallel"] = self.max_parallel
        if self.sweep_timeout is not None:
            said["timeout_s"] = self.sweep_timeout
        if self.stop_on_failure:
            said["stop_on_failure"] = True
        if self.stop_when:
            parse_condition(self.stop_when)
            said["stop_when"] = self.stop_when
        if said and not sweep:
            name = next(iter(said))
            word = "sweep-timeout" if name == "timeout_s" else name.replace("_", "-")
            raise BadRequest(f"--{word} is for sweeps: name one with --sweep NAME=VALUES")
        return replace(sweep, **said)

    def _described(self, values: Mapping[str, Any]) -> Submission:
        """What would be sent, with one combination of the sweep; the wishes of the environment are
        the last that count."""
        word, environ = self.words[0], os.environ
        asked = Asked(
            word,
            self.output,
            self.kernel,
            self.cwd,
            timeout_s=self.run_timeout,
            max_retries=self.max_retries,
        )
        if self.job is not None:
            job = self.job.with_values(values) if values else self.job
            self.given.swept = job.direct
            made = of_job(job, asked, self.given, self.run_name, self._wishes(), environ)
        else:
            self.given.swept = dict(values)
            asked = replace(
                asked,
                parameters=self.given.parameters(),
                variables=self.given.variables(environ),
            )
            made = of_words(asked, self.run_name, self._wishes(), environ)
        request = merged(made.request, surroundings(made.request, environ))
        parse_spec(request)
        return replace(made, request=request)

    async def work(self, client: ServiceClient) -> int | None:
        """Send, say the session's id; then wait or follow if asked to."""
        if self.sweep:
            return await self._work_group(client)
        session = await self._send(client)
        self.session = str(session["id"])
        waits = self.wait or self.follow
        if not (self.json and waits):
            self.show(session, lambda: _accepted(session, waits))
        if not waits:
            return None
        return await self._end(client)

    def _wishes(self) -> dict[str, Any]:
        """What the command line says."""
        return {
            "tier": self.tier,
            "devices": self.devices,
            **{each.key: getattr(self, each.key) for each in OPTIONS},
            "locations": split_names(self.locations),
            "device_share": self.share,
            "elastic": self.elastic or None,
            "checkpoint_every_s": self.checkpoint_every_s,
        }

    async def _work_group(self, client: ServiceClient) -> int | None:
        group = await self._send(client)
        self.session = str(group["sessions"][0]["id"])
        if not (self.json and self.wait):
            self.show(group, lambda: accepted(group))
        if not self.wait:
            return None
        ended = await ended_group(client, str(group["id"]))
        if self.json:
            self.show(ended, str)
        print(outcome(ended), file=sys.stderr)
        return 0 if succeeded(ended) else FAILED_RUN

    async def _send(self, client: ServiceClient) -> dict[str, Any]:
        """Return the session, or the group of a sweep. Raises `Unreached` when one of the tries may
        have started it, and a refusal as it is when none has."""
        group = None
        if self.sweep:
            group = group_of(self._submission, self.sweep, self.job, self.given)
        make_folders(self._submission.folders)
        wanted = {k: v for k, v in self._submission.request.items() if k != "kind"}
        self.sent = True

        def ask(key: str) -> Awaitable[dict[str, Any]]:
            if group:
                session, members, limits = group
                return client.submit_group(session, members, **limits, key=key)
            return client.submit(**wanted, key=key)

        from singularity_scheduler.client.repeat import ask_until_answered

        return await ask_until_answered(ask, RETRY_S)

    async def _end(self, client: ServiceClient) -> int:
        if self.follow:
            await self._wait(client, lambda found: found["process_state"] not in BEFORE)
            async for text in client.logs(self.session, follow=True):
                if self.json:
                    print(text, end="", file=sys.stderr, flush=True)
                else:
                    printing.emit(text, end="")
        await self._wait(client, "ended")
        session = await client.get_session(self.session)
        if self.json:
            self.show(session, str)
        for other in (session.get("part") or {}).get("sessions", ()):
            if session["process_state"] != "completed":
                break
            await client.wait(other, "ended", away_s=AWAY_S)  # all have succeeded, or it failed
            session = await client.get_session(other)
        good = session["process_state"] == "completed"
        where = (session.get("run") or {}).get("output")  # None: a command's
        sentence = f"session {self.session} {session['state']}: {session['reason']}"
        print(f"{sentence}; its output is {where}" if good and where else sentence, file=sys.stderr)
        return 0 if good else FAILED_RUN

    async def _wait(self, client: ServiceClient, until: Until) -> None:
        try:
            await client.wait(self.session, until, away_s=AWAY_S)
        except Unavailable as error:
            raise Unavailable(
                f"the run goes on, but how it ends is not known here: {error.message}"
            ) from None


def surroundings(request: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What the spawn form has set for everything started here; only looked at where `request` says
    nothing, so what is wrong there disturbs nobody else."""
    found: dict[str, Any] = {
        "tier": environ.get("SINGULARITY_TIER", ""),
        "locations": split_names(environ.get("SINGULARITY_LOCATIONS", "")),
    }
    if request.keys().isdisjoint(("devices", "device_share", "scale_policy")):
        found |= {"devices": wanted_devices(None), "device_share": wanted_share(None)}
    return found


def _accepted(session: Mapping[str, Any], waits: bool) -> str:
    output_path = (session.get("run") or {}).get("output")
    lines = [f"session {session['id']} is {session['state']}"]
    if output_path:
        lines[0] += f"; its output will be {output_path}"
    if part := session.get("part"):
        others = ", ".join(part["sessions"][1:])
        lines.append(f"it is part 0 of a run on {part['parts']} nodes; the others are {others}")
    if not waits:
        lines.append(f"follow it with: jupyter singularity logs -f {session['id']}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Called by `jupyter singularity submit`; returns the exit code."""
    return SubmitApp.launch(argv)

"""`jupyter singularity simulate`: replay a trace through our policy and others, and compare."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest
from traitlets import Bool, Float, Integer, List, Unicode

from singularity_scheduler import compiled
from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import CommandApp
from singularity_scheduler.cli.framework.exits import CannotWrite
from singularity_scheduler.cli.framework.loader import Completions

from .simulated import described, headline, sentences, table

if TYPE_CHECKING:
    from singularity_scheduler.sim.compare import Cluster, Result, Setup
    from singularity_scheduler.sim.replay import Costs
    from singularity_scheduler.sim.traces.records import Trace


class SimulateApp(CommandApp):
    """Replays; talks to no service and starts nothing."""

    name = "jupyter-singularity-simulate"
    synopsis = "TRACE | --synthetic"
    most = 1
    description = """Replay a trace of jobs through the policy of the live service and through other
    schedulers, on a cluster of your choice, and compare what comes out. TRACE is a file in one of
    the formats of the reference (plain or gzip); --synthetic makes a workload of batch jobs and
    notebooks instead. Nothing is started, and no service is needed."""
    examples = """
        jupyter singularity simulate jobs.csv --devices 64
        jupyter singularity simulate jobs.csv --load 0.9 --policy all --restart-s 30
        jupyter singularity simulate --synthetic --devices 256 --days 7 --plot plots
        jupyter singularity simulate jobs.csv --nodes 8 --set idle_soft_s=600 --json out.json
    """

    format = Unicode(config=True, help="Format of the trace. Empty: found by its first row.")
    read = List(
        Unicode(),
        config=True,
        help="""What the trace does not say by itself, as NAME=VALUE (see the reference of traces),
        for example durations={"bert": 600}; may be given several times.""",
    )
    jobs = Integer(0, config=True, help="Take this many jobs only, the first ones. 0: all.")
    synthetic = Bool(False, config=True, help="Make a workload instead of reading a trace.")
    days = Float(7.0, config=True, help="Days in which the synthetic workload is submitted.")
    workload = List(
        Unicode(),
        config=True,
        help="""More of the synthetic workload, as NAME=VALUE, for example notebook_share=0.05; may
        be given several times.""",
    )
    devices = Integer(
        0,
        config=True,
        help="Devices of the cluster, rounded up to whole nodes. 0: as --load or the trace says.",
    )
    nodes = Integer(0, config=True, help="Nodes of the cluster, in place of its devices.")
    devices_per_node = Integer(8, config=True, help="Devices of each node.")
    clusters = Integer(
        1,
        config=True,
        help="""Schedule the devices as so many equal clusters below regional and global levels, by
        our policy; the others have all of them in one cluster.""",
    )
    regions = Integer(
        1, config=True, help="Regions that the clusters are in: region0, region1 and so on."
    )
    load = Float(
        0.0,
        config=True,
        help="""Share of the devices' time that is asked for while jobs are submitted. It decides
        the size of the cluster for a trace, and the number of jobs of a synthetic workload, whose
        default is 0.9.""",
    )
    policy = Unicode(
        "singularity,srtf-oracle",
        config=True,
        help="""Policies to compare, separated by commas, or "all": singularity, fifo, sjf,
        srtf-oracle, srtf, tiresias, maxmin, reserve, kill, kill-hourly.""",
    )
    restart_s = Float(
        None,
        allow_none=True,
        config=True,
        help="""Seconds that it takes a preempted job to come back, the same for all. None: what our
        checkpoints were measured to take, 3.25 s to leave and 1.57 s to come back.""",
    )
    set = List(
        Unicode(),
        config=True,
        help="""A parameter of our policy, as NAME=VALUE, for example idle_soft_s=600; may be given
        several times.""",
    )
    tiers = Unicode(
        "20/40/40",
        config=True,
        help="""Percent of the jobs that are premium, standard and basic, drawn by a seeded hash of
        their names where the trace says no tiers.""",
    )
    seed = Integer(0, config=True, help="Seed of the tiers and of the synthetic workload.")
    json_file = Unicode(config=True, help="Write all figures to this file, one flat JSON object.")
    parquet = Unicode(
        config=True,
        help="""Write a row for each job and policy to this Parquet file, and the series over time
        beside it (NAME.series.parquet).""",
    )
    plot = Unicode(config=True, help="Write plots as PNG and SVG to this folder.")
    progress = Bool(False, config=True, help="Show the progress also where there is no terminal.")

    aliases = {
        **{
            name.replace("_", "-"): f"SimulateApp.{name}"
            for name in (
                *("format", "read", "jobs", "days", "workload", "devices", "nodes"),
                *(
                    "devices_per_node",
                    "clusters",
                    "regions",
                    "load",
                    "policy",
                    "restart_s",
                    "set",
                    "tiers",
                    "seed",
                ),
                *("parquet", "plot"),
            )
        },
        "json": "SimulateApp.json_file",
        **CommandApp.aliases,
    }
    flags = {
        "synthetic": (
            {"SimulateApp": {"synthetic": True}},
            "Make a workload of batch jobs and notebooks instead of reading a trace.",
        ),
        "progress": (
            {"SimulateApp": {"progress": True}},
            "Show the progress also where there is no terminal.",
        ),
        **CommandApp.flags,
    }

    def complete(self, prefix: str) -> Completions:
        return None

    def execute(self) -> None:
        how = compiled.use()  # before anything that it compiles is imported
        from singularity_scheduler.sim import compare
        from singularity_scheduler.sim.extras import need
        from singularity_scheduler.text.errors import in_words

        wanted = list(compare.POLICIES) if self.policy == "all" else self.policy.split(",")
        policies = compare.known([name.strip() for name in wanted if name.strip()])
        if not policies:
            raise BadRequest("--policy names no policy")
        for option, module, what in (
            (self.parquet, "pyarrow", "--parquet"),
            (self.plot, "matplotlib", "--plot"),
        ):
            if option:
                need(module, what)  # before the work, not after it
        with in_words():
            setup, tiers = self._setup()
            output.note(headline(setup))
            output.note(how)
            results = [self._replay(policy, setup) for policy in policies]
        self._write(setup, results, tiers)
        output.emit_human(table(results))
        output.emit_human("\n".join(sentences(results)))

    # -- what is replayed -------------------------------------------------------------------

    def _setup(self) -> tuple[Setup, str]:
        from singularity_scheduler.core.values.parameters import NAMES, Parameters
        from singularity_scheduler.sim.compare import Setup

        chosen = pairs("--set", self.set)
        _only("--set", chosen, NAMES)
        parameters = Parameters.from_dict(chosen)
        for name in ("devices", "nodes", "jobs"):
            if getattr(self, name) < 0:
                raise BadRequest(f"--{name} must be 0 or more")
        if not 1 <= self.devices_per_node <= 64:
            raise BadRequest("--devices-per-node must be from 1 to 64")
        if self.devices and self.nodes:
            raise BadRequest("give --devices or --nodes, not both")
        if not 0 <= self.load <= 100:
            raise BadRequest("--load must be above 0 and at most 100")
        if bool(self.words) == self.synthetic:
            raise BadRequest(f"give a trace or --synthetic: {self.name.replace('-', ' ')} TRACE")
        if self.synthetic:
            trace, cluster = self._made()
            tiers = "workload"
        else:
            trace, cluster = self._opened()
            tiers = self._assign(trace, cluster)
        setup = Setup(
            trace,
            cluster,
            self._costs(),
            parameters,
            self.jobs or None,
            clusters=self.clusters,
            regions=self.regions,
        )
        return setup, tiers

    def _costs(self) -> Costs:
        from singularity_scheduler.sim.compare import MEASURED, fixed

        if self.restart_s is None:
            return MEASURED
        if not 0 <= self.restart_s < 1e9:
            raise BadRequest("--restart-s must be 0 seconds or more")
        return fixed(self.restart_s)

    def _made(self) -> tuple[Trace, Cluster]:
        from singularity_scheduler.sim.compare import cluster_for
        from singularity_scheduler.sim.traces.synthetic import Workload, synthetic

        size = self.devices_per_node
        cluster = cluster_for(self.nodes * size or self.devices or 256, size)
        more = pairs("--workload", self.workload)
        _only("--workload", more, (f.name for f in fields(Workload)))
        given = {"devices": cluster.devices, "seed": self.seed, "load": self.load or 0.9}
        if "jobs" not in more:
            given["days"] = self.days
        try:
            return synthetic(Workload(**{**given, **more})), cluster
        except TypeError as error:
            raise BadRequest(f"--workload has a value of the wrong kind: {error}") from None

    def _opened(self) -> tuple[Trace, Cluster]:
        from singularity_scheduler.sim.compare import Cluster, cluster_for, devices_for
        from singularity_scheduler.sim.traces.formats import open_trace
        from singularity_scheduler.sim.traces.table import ReadOptions

        more = pairs("--read", self.read)
        _only("--read", more, (f.name for f in fields(ReadOptions)))
        if "ignore" in more:
            more["ignore"] = frozenset(str(more["ignore"]).split(","))
        try:
            options = ReadOptions(**more)
        except TypeError as error:
            raise BadRequest(f"--read has a value of the wrong kind: {error}") from None
        trace = open_trace(self.words[0], self.format or None, options)
        if self.nodes:
            return trace, Cluster(self.nodes, self.devices_per_node)
        devices = self.devices
        if not devices and self.load:
            devices = devices_for(trace, self.load)
        devices = devices or trace.devices or 0
        if not devices:
            raise BadRequest("give the size of the cluster: --devices, --nodes or --load")
        return trace, cluster_for(devices, self.devices_per_node)

    def _assign(self, trace: Trace, cluster: Cluster) -> str:
        """Tiers, where the trace says none; in words."""
        from singularity_scheduler.sim.traces.tiers import assign_tiers

        if any(job.tier for job in trace):
            return "trace"
        try:
            premium, standard, basic = (float(part) / 100 for part in self.tiers.split("/"))
        except ValueError:
            raise BadRequest(
                f"--tiers must be three percentages like 20/40/40, not '{self.tiers[:40]}'"
            ) from None
        assign_tiers(trace, self.seed, (premium, standard, basic), devices=cluster.devices)
        return str(self.tiers)

    # -- on the way -------------------------------------------------------------------------

    def _replay(self, policy: str, setup: Setup) -> Result:
        from singularity_scheduler.sim.compare import replay

        total = setup.limit or setup.trace.count
        if not self.progress and not sys.stderr.isatty():
            return replay(policy, setup)
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()),
        )
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=console.is_terminal) as bar:
            task = bar.add_task(f"{policy} (jobs)", total=total)
            result = replay(policy, setup, lambda at, done: bar.update(task, completed=done))
            bar.update(task, completed=result.record.finished)
            return result

    # -- results ----------------------------------------------------------------------------

    def _write(self, setup: Setup, results: list[Result], tiers: str) -> None:
        from singularity_scheduler.sim import plots
        from singularity_scheduler.sim.summary import flat, write_parquet

        try:
            if self.json_file:
                summaries = {result.policy: result.summary for result in results}
                figures = flat(described(setup, tiers, self.seed), summaries)
                path = Path(self.json_file)
                path.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
                output.note(f"written: {path}")
            if self.parquet:
                for path in write_parquet(
                    Path(self.parquet), {r.policy: r.record for r in results}
                ):
                    output.note(f"written: {path}")
            if self.plot:
                drawn = plots.draw(Path(self.plot), results, setup.parameters)
                output.note(f"written: {', '.join(map(str, drawn))}")
        except OSError as error:
            raise CannotWrite(
                f"{error.filename or 'a result'} cannot be written ({error.strerror or error})"
            ) from None


def pairs(option: str, words: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE; a value is JSON, or else a text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadRequest(f"{option} needs NAME=VALUE, not '{word[:60]}'")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        if isinstance(found[name], list):
            found[name] = tuple(found[name])
    return found


def _only(option: str, given: dict[str, Any], names: Iterable[str]) -> None:
    from singularity_scheduler.text.phrases import nearest

    there = list(names)
    for name in given:
        if name not in there:
            raise BadRequest(f"{option} knows no '{name[:40]}': {nearest(name, there)}")


main = SimulateApp.launch

"""Small seeded trace files, one per format that `sim.traces.open_trace` reads."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from singularity_scheduler.sim.traces.table import ReadOptions

MODELS = ("ResNet-18 (batch size 32)", "LM (batch size 5)", "A3C")


def clock(seconds: int, zone: str = "") -> str:
    """A time of day on 2020-06-09 or later, as the cluster logs write it."""
    day, rest = divmod(seconds, 86_400)
    return f"2020-06-{9 + day:02} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}{zone}"


@dataclass(frozen=True)
class Made:
    """The text of a file and what a reader must find in it."""

    text: str
    jobs: int
    devices: int
    """Sum over the jobs."""
    device_seconds: float


@dataclass
class Rows:
    """Collects lines while it counts what they ask for."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    jobs: int = 0
    devices: int = 0
    device_seconds: float = 0.0

    def job(self, seconds: float) -> tuple[int, int, int]:
        """(submitted, seconds, devices) of one more job."""
        count = self.rng.choice((1, 1, 2, 4, 8))
        self.jobs += 1
        self.devices += count
        self.device_seconds += count * seconds
        return self.rng.randrange(5 * 86_400), int(seconds), count

    def made(self) -> Made:
        return Made("\n".join(self.lines) + "\n", self.jobs, self.devices, self.device_seconds)


def philly(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    return f"{clock(at)},{run}.0,{gpus},{run * gpus}.0,vc{number % 3}"


def tiresias(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    return f"{number},{gpus},{at},600,vgg19,{run},30"


def helios(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    return (
        f"{1000 + number},u{number % 4},vc{number % 3},{gpus},4,1,COMPLETED,{clock(at)},"
        f"{clock(at + 5)},{clock(at + 5 + run)},{run},5"
    )


def acme(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    zone = "+08:00"
    return (
        f"job{number},u{number % 4},1,{gpus},128,Other,FAILED,{clock(at, zone)},"
        f"{clock(at + 32, zone)},{clock(at + 32 + run, zone)},{run + 32},32,{run * gpus}.0"
    )


def openb(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    spec = rows.rng.choice(("", "T4", "V100M16|V100M32"))
    return f"p{number},6000,12288,{gpus},1000,{spec},LS,Running,{at},{at + 9 + run},{at + 9}"


def pollux(rows: Rows, number: int) -> str:
    at, _, gpus = rows.job(1800)
    return f"ncf-{number},{at},ncf,{gpus},256"


def pai(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    return f"j{number},worker,{gpus},Terminated,{at}.0,{at + run}.0,600.0,29.2,100.0,V100"


def gavel(rows: Rows, number: int) -> str:
    at, run, gpus = rows.job(rows.rng.randrange(3000))
    model = rows.rng.choice(MODELS)
    command = "python3 main.py -b 'x\""
    return f"{model}\t{command}\t/work\t--steps\t1\t{run * 10}\t{gpus}\t1\t-1.000000\t{at}.0"


HEADERS: dict[str, tuple[str, Callable[[Rows, int], str]]] = {
    "philly": ("timestamp,duration,num_gpus,gpu_time,cluster", philly),
    "tiresias": ("job_id,num_gpu,submit_time,iterations,model_name,duration,interval", tiresias),
    "helios": (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,"
        "duration,queue",
        helios,
    ),
    "acme": (
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,"
        "duration,queue,gpu_time",
        acme,
    ),
    "openb": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time",
        openb,
    ),
    "pollux": ("name,time,application,num_replicas,batch_size", pollux),
    "pai": ("", pai),
    "gavel": ("", gavel),
}


def philly_log(rows: Rows, number: int) -> dict[str, object]:
    at, run, gpus = rows.job(rows.rng.randrange(2, 3000))
    machines = [{"ip": f"m{number}", "gpus": [f"gpu{i}" for i in range(gpus)]}]
    half = run // 2
    return {
        "status": "Pass",
        "vc": f"vc{number % 3}",
        "jobid": f"application_{number}",
        "submitted_time": clock(at),
        "user": f"u{number % 4}",
        "attempts": [
            {"start_time": clock(at + 9), "end_time": clock(at + 9 + half), "detail": machines},
            {"start_time": None, "end_time": clock(at + 9 + half), "detail": machines},
            {
                "start_time": clock(at + 99 + half),
                "end_time": clock(at + 99 + run),
                "detail": machines,
            },
        ],
    }


FORMATS = (*HEADERS, "philly-log")


def made(format: str, seed: int = 0, jobs: int = 12) -> Made:
    """A file of `format` with `jobs` jobs in no order."""
    rows = Rows(random.Random(f"{format}/{seed}"))
    if format == "philly-log":
        entries = [philly_log(rows, number) for number in range(jobs)]
        rows.lines = [json.dumps(entries, indent=1)]
    else:
        header, row = HEADERS[format]
        rows.lines = [*([header] if header else []), *(row(rows, n) for n in range(jobs))]
    return rows.made()


def options(folder: Path) -> ReadOptions:
    """What the files of `made` do not say: 10 steps a second, 1,800 s a run."""
    path = folder / "simulation_throughputs.json"
    speeds = {str((model, n)): {"null": 10.0} for model in MODELS for n in (1, 2, 4, 8)}
    path.write_text(json.dumps({"v100": speeds}))
    return ReadOptions(throughputs=path, durations={"ncf": 1800.0})

"""Alibaba openb (2023): nodes and pods of one cluster, as published with FGD (ATC 2023).

The placement study reads both lists as they are; `read_openb` makes jobs of the pods.
Source of the format: hkust-adsl/kubernetes-scheduler-simulator, data/csv (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from singularity_scheduler.sim.traces.collector import Collector
from singularity_scheduler.sim.traces.records import BadTrace, Job, Trace
from singularity_scheduler.sim.traces.table import PLAIN, ReadOptions, Row, rows

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
POD_EXTRAS = (
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
_PRIORITY = {"Guaranteed": "high", "LS": "high", "Burstable": "medium", "BE": "low"}


@dataclass(frozen=True, slots=True)
class OpenbNode:
    """A machine; `model` is "" where it has no GPU."""

    sn: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class OpenbPod:
    """A pod: `num_gpu` GPUs, `gpu_milli` thousandths of each. `gpu_spec` lists the models that it
    accepts, () is any. Times are seconds of the trace, None where the list does not say."""

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    gpu_spec: tuple[str, ...]
    qos: str
    created_s: float | None
    deleted_s: float | None
    scheduled_s: float | None


def read_openb_nodes(path: str | Path, options: ReadOptions = PLAIN) -> list[OpenbNode]:
    """The node list, in the file's order. Raises `BadTrace`."""
    nodes: list[OpenbNode] = []
    seen: dict[str, int] = {}
    for row in rows(path, "an openb node list", NODE_COLUMNS, (), options.ignore):
        node = OpenbNode(
            sn=_name(row, "sn", seen),
            cpu_milli=row.whole("cpu_milli"),
            memory_mib=row.whole("memory_mib"),
            gpus=row.devices("gpu", low=0),
            model=row.text("model"),
        )
        if node.gpus and not node.model:
            raise row.bad(f"the node has {node.gpus} GPUs, but model is missing", "model")
        nodes.append(node)
    return _some(path, nodes)


def read_openb_pods(path: str | Path, options: ReadOptions = PLAIN) -> list[OpenbPod]:
    """The pod list, in the file's order; the variants without times are read too."""
    return _some(path, [pod for _, pod in _pods(path, options)])


def read_openb(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """The pods that ran on GPUs as jobs: they run from `scheduled_time` to `deletion_time` and are
    submitted at `creation_time`. Quality of service becomes the priority. A pod that accepts one
    model asks for that type; one that accepts several asks for any, and is counted in `facts`."""
    collector = Collector(path)
    widened = 0
    for row, pod in _pods(path, options):
        if pod.num_gpu == 0:
            collector.skip("asks for no GPU")
        elif pod.created_s is None:
            raise row.bad("creation_time is missing: this list of pods has no times", None)
        elif pod.scheduled_s is None or pod.deleted_s is None:
            collector.skip("was never placed")
        else:
            widened += len(pod.gpu_spec) > 1
            collector.add(row, _job(pod, pod.created_s, pod.deleted_s - pod.scheduled_s))
    return collector.trace("openb", {"accept_several_types": widened})


def _job(pod: OpenbPod, submit_s: float, work_s: float) -> Job:
    return Job(
        id=0,
        name=pod.name,
        submit_s=submit_s,
        work_s=work_s,
        devices=pod.num_gpu,
        share_milli=pod.gpu_milli if pod.num_gpu == 1 else 1000,
        priority=_PRIORITY.get(pod.qos, "medium"),
        device_type=pod.gpu_spec[0] if len(pod.gpu_spec) == 1 else "",
    )


def _pods(path: str | Path, options: ReadOptions) -> Iterator[tuple[Row, OpenbPod]]:
    seen: dict[str, int] = {}
    for row in rows(path, "an openb pod list", POD_COLUMNS, POD_EXTRAS, options.ignore):
        gpus = row.devices("num_gpu", low=0)
        created = row.seconds("creation_time") if row.text("creation_time") else None
        deleted = row.seconds("deletion_time") if row.text("deletion_time") else None
        scheduled = row.seconds("scheduled_time") if row.text("scheduled_time") else None
        for column, start in (("creation_time", created), ("scheduled_time", scheduled)):
            if start is not None and deleted is not None and deleted < start:
                raise row.bad(f"deletion_time is before {column}", "deletion_time")
        yield (
            row,
            OpenbPod(
                name=_name(row, "name", seen),
                cpu_milli=row.whole("cpu_milli"),
                memory_mib=row.whole("memory_mib"),
                num_gpu=gpus,
                gpu_milli=row.whole("gpu_milli", 1 if gpus else 0, 1000),
                gpu_spec=tuple(part for part in row.text("gpu_spec").split("|") if part),
                qos=row.text("qos"),
                created_s=created,
                deleted_s=deleted,
                scheduled_s=scheduled,
            ),
        )


def _name(row: Row, column: str, seen: dict[str, int]) -> str:
    name = row.text(column)
    if not name:
        raise row.bad(f"{column} is missing", column)
    before = seen.setdefault(name, row.number_in_file)
    if before != row.number_in_file:
        raise row.bad(f"{column} {name[:60]!r} is the same as in row {before}", column)
    return name


T = TypeVar("T")


def _some(path: str | Path, found: list[T]) -> list[T]:
    if not found:
        raise BadTrace(f"{Path(path).name} has a header but no rows", file=Path(path).name)
    return found

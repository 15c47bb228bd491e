"""The openb lists: nodes, pods, and jobs made of the pods."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_scheduler.sim.traces.logs.openb import (
    OpenbNode,
    OpenbPod,
    read_openb,
    read_openb_nodes,
    read_openb_pods,
)
from singularity_scheduler.sim.traces.records import BadTrace, Job

NODES = """sn,cpu_milli,memory_mib,gpu,model
n0,64000,262144,2,P100
n1,32000,131072,0,
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,6000,12288,1,460,,LS,Running,427061,427161,427071
p1,12000,16384,8,1000,V100M16|V100M32,BE,Failed,10,40,20
p2,4000,1024,0,0,,BE,Running,5,6,5
p3,12000,16384,2,1000,T4,Guaranteed,Pending,10,40,
p4,12000,16384,2,1000,T4,Guaranteed,Running,10,10,10
"""


def file(tmp_path: Path, text: str, name: str = "openb.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_nodes_and_pods(tmp_path: Path) -> None:
    assert read_openb_nodes(file(tmp_path, NODES)) == [
        OpenbNode("n0", 64000, 262144, 2, "P100"),
        OpenbNode("n1", 32000, 131072, 0, ""),
    ]
    pods = read_openb_pods(file(tmp_path, PODS))
    assert len(pods) == 5
    assert pods[1] == OpenbPod(
        "p1", 12000, 16384, 8, 1000, ("V100M16", "V100M32"), "BE", 10.0, 40.0, 20.0
    )
    assert pods[3].scheduled_s is None


def test_a_list_without_times(tmp_path: Path) -> None:
    short = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,500\n"
    assert read_openb_pods(file(tmp_path, short)) == [
        OpenbPod("p0", 1, 1, 1, 500, (), "", None, None, None)
    ]
    with pytest.raises(BadTrace, match=r"openb\.csv row 2: creation_time is missing"):
        read_openb(file(tmp_path, short))


def test_pods_as_jobs(tmp_path: Path) -> None:
    trace = read_openb(file(tmp_path, PODS))
    assert list(trace) == [
        Job(0, "p1", 0.0, 20.0, 8, priority="low"),
        Job(1, "p4", 0.0, 0.0, 2, priority="high", device_type="T4"),
        Job(2, "p0", 427051.0, 90.0, 1, share_milli=460, priority="high"),
    ]
    assert trace.skipped == {"asks for no GPU": 1, "was never placed": 1}
    assert trace.facts["accept_several_types"] == 1


@pytest.mark.parametrize(
    ("old", "new", "row", "sentence"),
    [
        ("p1,", "p0,", 3, "name 'p0' is the same as in row 2"),
        (",460,", ",1460,", 2, "gpu_milli is 1460: it must be at most 1,000"),
        (",460,", ",0,", 2, "gpu_milli is 0: it must be at least 1"),
        (",10,40,20", ",10,40,50", 3, "deletion_time is before scheduled_time"),
        (",1,460,", ",-1,460,", 2, "num_gpu is -1: it must be at least 0"),
        ("p4,", ",", 6, "name is missing"),
    ],
)
def test_bad_pods(tmp_path: Path, old: str, new: str, row: int, sentence: str) -> None:
    assert PODS.count(old) >= 1
    with pytest.raises(BadTrace) as caught:
        read_openb_pods(file(tmp_path, PODS.replace(old, new, 1)))
    assert caught.value.message == f"openb.csv row {row}: {sentence}"
    assert (caught.value.fields["file"], caught.value.fields["row"]) == ("openb.csv", row)


def test_bad_nodes(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"openb\.csv row 2: the node has 2 GPUs, but model is miss"):
        read_openb_nodes(file(tmp_path, NODES.replace("P100", "")))
    with pytest.raises(BadTrace, match=r"openb\.csv has a header but no rows"):
        read_openb_nodes(file(tmp_path, NODES.splitlines()[0]))

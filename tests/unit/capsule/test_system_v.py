"""What the tables of System V objects say of a capsule."""

from __future__ import annotations

import pytest
from singularity_proxy.capsule.images.system_v import name_first

SEM = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime"
MSG = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid"
SHM = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid"
A_SEM = "         0          0   600          1  1000  1000  1000  1000          0 1764000000"
A_MSG = "         0          0   600           4          1  5001     0  1000  1000  1000  1000"
MAPPED = "         0          0   600                  4096  5001  5001      1  1000  1000"
ALONE = "         0          1   600                  4096  5001  5001      0  1000  1000"


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([SEM, MSG, SHM], ""),
        ([SEM, A_SEM, MSG, SHM], "System V semaphores"),
        ([SEM, MSG, A_MSG, SHM], "a System V message queue"),
        ([SEM, MSG, SHM, MAPPED], ""),
        (
            [SEM, MSG, SHM, MAPPED, ALONE],
            "System V shared memory that no process is attached to",
        ),
    ],
)
def test_what_no_image_holds_is_named(lines: list[str], name: str) -> None:
    assert name_first(lines) == name

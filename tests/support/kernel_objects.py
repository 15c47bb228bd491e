"""Kinds of kernel objects that a session can hold. Run inside a capsule, as `RUN` with the names of
some of `KINDS`.

Each kind is a function that makes the object and returns a check, which is called after the session
was saved and brought back (when `/tmp/go` is there) and raises when the object is not as it was.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from support import (  # each of them fills KINDS
    kernel_objects_of_files,  # noqa: F401
    kernel_objects_of_processes,  # noqa: F401
    kernel_objects_of_sockets,  # noqa: F401
)
from support.kernel_object import KINDS, Check

RUN = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
    "from support.kernel_objects import main; main()"
)
"""The program, for `python -c`."""


def main() -> None:
    checks: dict[str, Check] = {}
    for name in sys.argv[1:]:
        try:
            checks[name] = KINDS[name]()
        except Exception as error:
            print("absent", name, repr(error), flush=True)
    print("on", flush=True)
    while not os.path.exists("/tmp/go"):
        time.sleep(0.01)
    for name, check in checks.items():
        try:
            check()
            print("ok", name, flush=True)
        except BaseException as error:
            print("wrong", name, repr(error), flush=True)
    print("end", flush=True)
    time.sleep(14400)

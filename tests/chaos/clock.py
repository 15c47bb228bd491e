"""The clock of the scheduler service and of node agents, which a campaign can set.

A machine's own clock is everybody's, so Python's `time.time` of these processes alone is moved: by
a `sitecustomize` that they find on PYTHONPATH, which reads the offset from a file. Clocks that
cannot be set (CLOCK_MONOTONIC, CLOCK_BOOTTIME) are not touched, nor are times of files.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

_CUSTOMIZE = """\
import os, struct, sys
if {{"singularity_scheduler.service", "singularity_scheduler.agent"}} & set(sys.orig_argv):
    import time
    _time, _path = time.time, {path!r}

    def _moved():
        try:
            with open(_path, "rb", buffering=0) as file:
                return _time() + struct.unpack("d", file.read(8))[0]
        except (OSError, struct.error):
            return _time()

    time.time = _moved
"""


class Clock:
    """The clock of one platform, with its files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "offset"

    def make(self) -> None:
        """Write the files; every user must be able to pass the folder, for it is on their path."""
        self.folder.mkdir()
        self.folder.chmod(0o755)
        (self.folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(path=str(self._file)))
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Let it be so much ahead of the machine's."""
        partial = self._file.with_name(".offset")
        partial.write_bytes(struct.pack("d", seconds))
        os.replace(partial, self._file)

    def environment(self) -> dict[str, str]:
        """What the platform is started with."""
        return {"PYTHONPATH": str(self.folder)}  # not the campaign's own

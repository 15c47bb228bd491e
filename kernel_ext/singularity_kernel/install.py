"""`jupyter singularity install`: the kernelspec and the server extension's configuration.

A wheel brings both files by itself; an editable install and a change of place (``--user``) need
this. Idempotent: existing files are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir
from singularity_proxy.errors import NoSpace, SingularityError, Unsupported

KERNELSPEC = Path("share/jupyter/kernels/singularity")
SERVER_CONFIG = Path("etc/jupyter/jupyter_server_config.d")


def sources() -> tuple[Path, Path]:
    """The kernelspec's folder and the configuration's: in the checkout of an editable install,
    else where the wheel put them."""
    checkout = Path(__file__).resolve().parents[2]
    candidates = [
        (checkout / "kernel_ext" / "kernelspec", checkout / "ui_labext" / "jupyter-config"),
        (Path(sys.prefix) / KERNELSPEC, Path(sys.prefix) / SERVER_CONFIG),
    ]
    for kernelspec, config in candidates:
        if (kernelspec / "kernel.json").exists():
            return kernelspec, config
    raise Unsupported(
        "the kernelspec is in none of "
        f"{', '.join(str(k) for k, _ in candidates)}; install jupyter-singularity again"
    )


def install(prefix: Path | None) -> list[Path]:
    """Install below `prefix`, or for this user only (None); returns the files written."""
    kernelspec, config = sources()
    if prefix is None:
        data, etc = Path(jupyter_data_dir()), Path(jupyter_config_dir())
        targets = (data / "kernels" / "singularity", etc / "jupyter_server_config.d")
    else:
        targets = (prefix / KERNELSPEC, prefix / SERVER_CONFIG)
    files = [(file, targets[0]) for file in sorted(kernelspec.iterdir())]
    files += [(file, targets[1]) for file in sorted(config.glob("singularity*.json"))]
    written = []
    for file, folder in files:
        target = folder / file.name
        if not (target.exists() and target.samefile(file)):
            _copy(file, target)
        written.append(target)
    return written


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
        raise NoSpace(
            f"{target} could not be written ({error.strerror}) and was left as it was; "
            "choose another place with --user or --prefix"
        ) from None


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="jupyter singularity install", description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--sys-prefix", action="store_true", help="into this Python environment (the default)"
    )
    where.add_argument("--user", action="store_true", help="for this user only")
    where.add_argument("--prefix", type=Path, help="below this folder")
    parser.add_argument("--json", action="store_true", help="print the files as JSON")
    options = parser.parse_args(argv)
    try:
        written = install(None if options.user else options.prefix or Path(sys.prefix))
    except SingularityError as error:
        print(f"jupyter singularity install: {error.message}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([str(path) for path in written]))
    else:
        for path in written:
            print(f"installed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

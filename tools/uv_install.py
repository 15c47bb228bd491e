"""Installs Python packages with uv where pip would get them: `python tools/uv_install.py ARGUMENTS`
runs `uv pip install ARGUMENTS` in the environment of this Python.

uv does not read pip's settings. What `pip config list` says (files and PIP_* variables) is given to
it in its own variables; one that is set already stays. Standard library only: `./dev` calls this
before anything else is installed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}
"""pip's name of a setting -> uv's variable for it."""
SEPARATORS = {"UV_FIND_LINKS": ","}
SETTING = re.compile(r"^(?P<section>[^.]+)\.(?P<name>[\w.-]+?)=(?P<value>'.*'|\".*\")$")


def read_pip_settings(listing: str) -> dict[str, str]:
    """The settings in the output of `pip config list`: those for `install` win over global ones,
    and variables over both."""
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = SETTING.match(line)
        if match is None or match["section"] not in ranks:
            continue
        name, rank = match["name"].lower().replace("_", "-"), ranks[match["section"]]
        if rank >= found.get(name, (0, ""))[0]:
            found[name] = (rank, str(ast.literal_eval(match["value"])))
    return {name: value for name, (_, value) in found.items()}


def uv_environment(settings: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """`own` with uv's variables for pip's `settings`."""
    # pip takes the best version of all indexes, uv by default that of the first with the package.
    wanted = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_PROGRESS": "1"}
    for name, value in settings.items():
        if (variable := VARIABLES.get(name)) is not None and value.strip():
            wanted[variable] = SEPARATORS.get(variable, " ").join(value.split())
    return wanted | own


def main() -> int:
    here = Path(sys.executable).parent
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    environment = uv_environment(read_pip_settings(listing), dict(os.environ))
    command = [str(here / "uv"), "pip", "install", "--python", sys.executable, *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

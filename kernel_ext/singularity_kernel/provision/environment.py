"""What of the server's environment may enter a session, and which kernels load our extension.

Pure functions; called by the provisioner before it asks for a session. The node agent strips the
same secrets once more: here they are removed so that they are not even sent.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from singularity_proxy import layers
from singularity_proxy.capsule.launcher import stripped_environment

EXTENSION = "singularity_kernel"

NESTED = "SINGULARITY_NESTED"
"""Set in kernels that were started inside a session: their idleness says nothing about it."""

_SECRETS = frozenset({"JUPYTER_TOKEN", "JUPYTER_PASSWORD"})
"""The server's own keys; what the Hub and the scheduler gave it goes by the capsule's own rule."""

_KEPT = "JPY_SESSION_NAME"
"""The notebook's path: no secret, and libraries read it to find their own notebook."""

_TELL = """
import sys
if "singularity_proxy.worker.hook" not in sys.modules:
    def tell(*_, ip=get_ipython()):
        ip.events.unregister("pre_run_cell", tell)
        print(
            f"This kernel's Python ({sys.executable}) is not under the device proxy, so it sees no "
            f"accelerator; all else works: 'jupyter singularity environment {sys.prefix}' in a "
            "terminal brings such an environment there.",
            file=sys.stderr,
        )
    get_ipython().events.register("pre_run_cell", tell)
app = get_ipython().kernel.parent
own = [app.config[name].get("code_to_run") for name in ("IPKernelApp", "InteractiveShellApp")]
app.code_to_run = next(filter(None, own), "")
app._run_cmd_line_code()
"""
"""What a kernel runs as it starts whose environment may have nothing of ours: its first cell says
so, if that is so. Then it runs the code, or the file, that its user's configuration names, which
IPython would run in the place of this."""

_SLOT = "ConnectionFileMixin.code_to_run"
"""Where the kernel's command line has `_TELL`: a class of the kernel's application whose settings
count less than those that people make, and replace none of them."""

_LAUNCHERS = frozenset({"ipykernel_launcher", "ipykernel"})


def session_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without the tokens and addresses of the Hub, the server and the scheduler: process
    images must never hold them. JPY_PARENT_PID goes too: with it a kernel ends with its server.
    """
    kept = {k: v for k, v in stripped_environment(environ).items() if k not in _SECRETS}
    if _KEPT in environ:
        kept[_KEPT] = environ[_KEPT]
    return kept


def with_own_packages(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """`argv` of a kernel of this environment, started by the user's own Python over it if PATH
    names one first; any other kernel as it is."""
    argv = list(argv)
    if argv and _same_python(argv[0], environ):
        argv[0] = layers.first_python(environ) or argv[0]
    return argv


def with_extension(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """`argv` of a kernel, with ``--ext singularity_kernel`` when it starts IPython's kernel with
    this environment's Python, or a user's own over it; another environment may not have the
    extension installed."""
    argv = list(argv)
    if _is_ipykernel(argv) and EXTENSION not in argv:
        found = shutil.which(argv[0], path=environ.get("PATH"))
        if found is not None and (_same_python(found, environ) or layers.is_over_this(found)):
            argv += ["--ext", EXTENSION]
    return argv


def with_word_of_it(argv: Sequence[str]) -> list[str]:
    """`argv` of a session's kernel, which says in its first cell that its Python is not under the
    device proxy when that is so: an environment of the user's own may have nothing of ours. One
    that is told on its command line what to run first does that alone."""
    argv = list(argv)
    if _is_ipykernel(argv) and EXTENSION not in argv:
        argv.append(f"--{_SLOT}=exec({_TELL!r}, dict(get_ipython=get_ipython))")
    return argv


def _is_ipykernel(argv: Sequence[str]) -> bool:
    return any(flag == "-m" and module in _LAUNCHERS for flag, module in itertools.pairwise(argv))


def _same_python(executable: str, environ: Mapping[str, str]) -> bool:
    found = shutil.which(executable, path=environ.get("PATH"))
    if found is None:
        return False
    # A virtual environment's python is a link to the base one: the folder tells them apart.
    same_folder = os.path.dirname(os.path.abspath(found)) == os.path.dirname(
        os.path.abspath(sys.executable)
    )
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)

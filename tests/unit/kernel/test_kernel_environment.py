"""What may enter a session, and which kernels load the extension."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from ipykernel.kernelapp import IPKernelApp
from IPython.core.interactiveshell import InteractiveShellABC
from singularity_kernel.install import KERNELSPEC, install
from singularity_kernel.provision.environment import (
    session_environment,
    with_extension,
    with_own_packages,
    with_word_of_it,
)
from singularity_proxy.layers import Layer
from singularity_scheduler.service import dashboard
from traitlets.config import Config


def test_secrets_stay_outside_and_the_rest_goes_in() -> None:
    secrets = {
        "JUPYTERHUB_API_TOKEN": "s",
        "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/",
        "JPY_API_TOKEN": "s",
        "JPY_PARENT_PID": "1",
        "SINGULARITY_API_URL": "u",
        "JUPYTER_TOKEN": "s",
        "JUPYTER_PASSWORD": "s",
    }
    kept = {
        "PATH": "/bin",
        "HOME": "/home/ada",
        "JPY_SESSION_NAME": "a.ipynb",
        "JUPYTER_DEFAULT_PROVISIONER_NAME": "singularity",
    }
    assert session_environment({**secrets, **kept}) == kept


HERE = {"PATH": os.path.dirname(sys.executable)}


@pytest.mark.parametrize(
    ("argv", "added"),
    [
        ([sys.executable, "-m", "ipykernel_launcher", "-f", "x"], True),
        (["python", "-m", "ipykernel", "-f", "x"], True),
        ([sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "x"], True),
        ([sys.executable, "-m", "bash_kernel", "-f", "x"], False),
        (["R", "--slave", "-e", "IRkernel::main()"], False),
        (["/usr/bin/env", "-m", "ipykernel_launcher"], False),
        (["no-such-python", "-m", "ipykernel_launcher"], False),
        ([sys.executable, "-m", "ipykernel_launcher", "--ext", "singularity_kernel"], False),
        ([], False),
    ],
)
def test_our_own_ipython_kernels_load_the_extension(argv: list[str], added: bool) -> None:
    extra = ["--ext", "singularity_kernel"] if added else []
    assert with_extension(argv, HERE) == argv + extra


def test_another_environment_of_the_same_python_does_not(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(os.path.realpath(sys.executable))
    argv = [str(other), "-m", "ipykernel_launcher", "-f", "x"]
    assert with_extension(argv, HERE) == argv


def test_a_kernel_of_this_environment_is_started_by_the_users_layer_over_it(tmp_path: Path) -> None:
    layer = Layer(str(tmp_path / "own"))
    layer.make()
    path = {"PATH": f"{layer.programs}:{HERE['PATH']}"}
    argv = ["-m", "ipykernel_launcher", "-f", "x"]
    mine = [f"{layer.programs}/python", *argv]
    assert with_own_packages([sys.executable, *argv], path) == mine
    assert with_own_packages([sys.executable, *argv], HERE) == [sys.executable, *argv]
    assert with_own_packages(["/usr/bin/env", *argv], path) == ["/usr/bin/env", *argv]
    assert with_own_packages([], path) == []
    assert with_extension(mine, HERE) == [*mine, "--ext", "singularity_kernel"]


def test_kernels_that_may_have_nothing_of_ours_are_told_to_say_so() -> None:
    other = ["/opt/other/bin/python", "-m", "ipykernel_launcher", "-f", "x"]
    assert with_word_of_it(other)[:-1] == other
    assert "not under the device proxy" in with_word_of_it(other)[-1]
    for argv in (["R", "-e", "x"], [*other, "--ext", "singularity_kernel"]):
        assert with_word_of_it(argv) == argv


OTHER = ["/opt/other/bin/python", "-m", "ipykernel_launcher", "-f", "x"]


@InteractiveShellABC.register
class Shell:
    """What is needed of a kernel's shell."""

    def __init__(self, run_cell: Callable[..., None], app: IPKernelApp) -> None:
        self.run_cell = run_cell
        self.kernel = SimpleNamespace(parent=app)
        self.events = SimpleNamespace(register=lambda *_: None)


def started(argv: list[str], configuration: dict[str, Any]) -> list[str]:
    """What a kernel's application runs as it starts, with a user's configuration file: "ours", and
    their code or file."""
    app, ran = IPKernelApp(), []

    def run_cell(code: str, **_: Any) -> None:
        if "under the device proxy" not in code:
            ran.append(code)
            return
        ran.append("ours")
        exec(code, {"get_ipython": lambda: app.shell})

    app.shell = Shell(run_cell, app)
    app.parse_command_line(argv[3:])
    given = app.cli_config
    app.update_config(Config(configuration))
    app.update_config(given)  # in this order, as IPython does it
    app._exec_file = lambda name, **_: ran.append(name)
    app._run_cmd_line_code()
    return ran


@pytest.mark.parametrize("section", ["InteractiveShellApp", "IPKernelApp"])
def test_what_a_user_s_configuration_runs_first_is_run(section: str) -> None:
    argv = with_word_of_it(OTHER)
    assert started(argv, {}) == ["ours"]
    assert started(argv, {section: {"code_to_run": "x = 1"}}) == ["ours", "x = 1"]
    assert started(argv, {section: {"file_to_run": __file__}}) == ["ours", __file__]


@pytest.mark.parametrize("option", ["-c", "--IPKernelApp.code_to_run="])
def test_what_a_kernel_s_command_line_runs_first_is_run(option: str) -> None:
    own = [option, "x = 1"] if option == "-c" else [f"{option}x = 1"]
    assert started(with_word_of_it([*OTHER, *own]), {}) == ["x = 1"]


def test_the_kernel_has_the_platforms_logo_in_the_launcher(tmp_path: Path) -> None:
    written = install(tmp_path)
    spec, logo = (tmp_path / KERNELSPEC / name for name in ("kernel.json", "logo-svg.svg"))
    assert {spec, logo} <= set(written)
    icon = Path(dashboard.__file__).with_name("static") / "icon.svg"
    assert logo.read_bytes() == icon.read_bytes(), "one logo everywhere"
    assert ElementTree.parse(logo).getroot().get("viewBox") == "0 0 16 16"

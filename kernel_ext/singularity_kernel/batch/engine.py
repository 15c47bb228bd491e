"""``papermill --engine singularity in.ipynb out.ipynb``: papermill's runs as sessions.

In a terminal of a server of the platform the kernel becomes a batch session of its own, named after
the notebook; inside a session it is that session's. Without a platform the engine refuses: a run
without the devices that were asked for would be a silent surprise.

The engine ``singularity-remote``, or ``SINGULARITY_REMOTE=1`` with this one, submits the notebook
as a batch session and waits for its end (see `remote`): papermill's command line knows no options
of engines.

Every ``import papermill`` loads this module, in the middle of its own import: nothing of papermill
may be imported here at the top.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import SingularityError

from .addresses import without_secret
from .running.fates import BadRun, Fate, NoKernel, NotRun

if TYPE_CHECKING:
    from .running.client import Live
    from .running.facts import Facts
    from .running.stop import Stop

REMOTE = "SINGULARITY_REMOTE"
"""The variable that makes the engine `singularity` a remote one: anything but "" and "0"."""

NO_PLATFORM = (
    "the engine 'singularity' needs the platform, and SINGULARITY_API_URL is not set; nothing was "
    "run: start papermill from a terminal of a server of the platform, or leave out --engine"
)


class SingularityEngine:
    """papermill's engine `singularity`; its methods are the ones that papermill calls."""

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        """The kernel that runs `nb`, before the run."""
        from papermill.utils import nb_kernel_name  # type: ignore[import-untyped]

        return str(nb_kernel_name(nb, name))

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        """The language that parameters of `nb` are written in."""
        from papermill.utils import nb_language

        return str(nb_language(nb, language))

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, Any] = True,
        log_output: bool = False,
        autosave_cell_every: int | None = None,
        *,
        stop: Stop | None = None,
        live: Live | None = None,
        without_ids: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run `nb` and return it with its outputs; raises a `Fate`, which papermill's command line
        shows as one sentence. The last arguments are the runner's: without `stop` SIGTERM and
        Ctrl-C are handled here, so that the session ends with papermill; `without_ids` says that
        the notebook's file had no cell ids."""
        if stop is None and os.environ.get(REMOTE, "") not in ("", "0"):
            return SingularityRemoteEngine.execute_notebook(
                nb, kernel_name, output_path, progress_bar, log_output, **kwargs
            )
        from .running.client import Live
        from .running.record import AUTOSAVE_S, RunRecord
        from .running.stop import Stop

        hide_secrets(nb)
        kernel = _Kernel(kernel_name, _named(kwargs.get("input_path") or output_path))
        record = RunRecord(
            nb,
            facts=kernel.facts,
            output_path=output_path,
            progress_bar=progress_bar,
            log_output=log_output,
            autosave_cell_every=AUTOSAVE_S if autosave_cell_every is None else autosave_cell_every,
        )
        name_cells(nb, without_ids)
        with (stop or Stop()).listening() as asked:
            record.notebook_start()
            try:
                kernel.run(record, asked, live or Live(), log_output=log_output, **kwargs)
            finally:
                record.cleanup_pbar()
                record.notebook_complete()
        return record.nb


class SingularityRemoteEngine(SingularityEngine):
    """papermill's engine `singularity-remote`."""

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, Any] = True,
        log_output: bool = False,
        autosave_cell_every: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run `nb` as a batch session and return it with its outputs; raises a `Fate` or the
        service's own error, both shown as one sentence. SIGTERM and Ctrl-C end the session. The
        output is saved whenever the run has saved its own, whatever `autosave_cell_every` says."""
        from singularity_kernel.provision.provisioner import Mode, mode

        from .remote import RemoteRun
        from .running.stop import Stop

        if mode() is Mode.LOCAL:
            raise NoKernel(NO_PLATFORM)
        if mode() is not Mode.SESSION:
            raise BadRun(
                "a session cannot wait for a remote run of papermill; nothing was run: use "
                "'%singularity submit', or papermill in a terminal of a server of the platform"
            )
        for option in ("execution_timeout", "stdout_file", "stderr_file"):
            if kwargs.get(option) is not None:
                raise BadRun(f"the remote engine does not take {option}; nothing was run")
        hide_secrets(nb)
        name_cells(nb, False)
        title = os.path.basename(_named(kwargs.get("input_path") or output_path))
        with Stop().listening() as asked:
            try:
                run = RemoteRun(nb, kernel_name, output_path, title, progress_bar)
                return run.run(asked, log_output)
            except SingularityError as error:
                if isinstance(error, Fate):
                    raise
                raise NotRun(error.message, **error.fields) from None


def hide_secrets(nb: Any) -> None:
    """Leave the signatures of addresses out of what papermill writes into the notebook."""
    for name in ("input_path", "output_path"):
        if isinstance(path := nb.metadata.papermill.get(name), str):
            nb.metadata.papermill[name] = without_secret(path)


def _named(path: Any) -> str:
    return without_secret(str(path or ""))


def name_cells(nb: Any, without_ids: bool) -> None:
    """Give the cells that papermill and nbformat have given random ids steady ones: two runs of one
    notebook are to differ in times alone."""
    taken = {cell.get("id") for cell in nb.cells}
    for number, cell in enumerate(nb.cells, start=1):
        injected = "injected-parameters" in cell.metadata.get("tags", [])
        name = "injected-parameters" if injected else f"cell-{number}"
        if "id" in cell and (injected or without_ids) and name not in taken:
            taken.add(name)
            cell["id"] = name


class _Kernel:
    """The kernel of one run: which situation it is in, and what is known of its session."""

    def __init__(self, name: str, notebook: str) -> None:
        from singularity_kernel.provision.provisioner import Mode, mode

        self._name = name
        self._notebook = notebook
        self._own = mode() is Mode.SESSION
        self._session: str | None = None
        if mode() is Mode.LOCAL:
            raise NoKernel(NO_PLATFORM)
        if self._own:
            self._refuse_other_provisioner()

    def _refuse_other_provisioner(self) -> None:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

        from .running.client import PROVISIONER

        try:
            spec = KernelSpecManager().get_kernel_spec(self._name)
        except NoSuchKernel:
            return  # the start says so
        named = spec.metadata.get("kernel_provisioner", {}).get("provisioner_name", PROVISIONER)
        if named != PROVISIONER:
            raise NoKernel(
                f"the kernel '{self._name}' is started by '{named}' and not by the platform; "
                "nothing was run: name another kernel with -k, or leave out --engine"
            )

    def run(
        self,
        record: Any,
        stop: Stop,
        live: Live,
        *,
        log_output: bool,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        stdout_file: Any = None,
        stderr_file: Any = None,
        input_path: str | None = None,
        **others: Any,
    ) -> None:
        """Run the cells; see `RunClient.execute`. The arguments are papermill's; `others` become
        traits of nbclient, as with papermill's own engine."""
        from papermill.log import logger  # type: ignore[import-untyped]

        from .running.client import RunClient, SessionKernelManager

        client = RunClient(
            record,
            stop=stop,
            live=live,
            **{
                "kernel_manager_class": SessionKernelManager,
                "kernel_name": self._name,
                "timeout": execution_timeout,
                "start_timeout_s": start_timeout,
                "log": logger,
                "log_output": log_output,
                "stdout_file": stdout_file,
                "stderr_file": stderr_file,
                **others,
            },
        )
        try:
            client.execute(env={**os.environ, "JPY_SESSION_NAME": self._notebook})
        finally:
            self._session = client.session

    def facts(self) -> Facts:
        """Of the kernel's session, as far as it is known now."""
        from .running.facts import asked_facts, session_facts

        if not self._own:
            return session_facts()
        return asked_facts(self._session)

"""`jupyter singularity connect`: the connection file of a session's kernel."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_core.paths import jupyter_runtime_dir
from singularity_proxy.errors import SingularityError
from traitlets import Unicode

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.sessions.choosing import SessionApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ConnectApp(SessionApp):
    name = "jupyter-singularity-connect"
    synopsis = "SESSION"
    most = 1
    description = """Write the connection file of one of your sessions, so that another client can
    use its kernel: that of a fork, which no notebook is connected to, or one that got another place
    because the node of its connection was lost. The file holds the kernel's key and is yours alone.
    SESSION is an id, the beginning of one, or the name of an active session."""
    examples = """
        jupyter singularity connect train-b
        jupyter console --existing FILE
    """

    file = Unicode(
        config=True,
        help="""Where to write it; it must not exist. Empty: `singularity-ID.json` in Jupyter's
        runtime folder, written anew.""",
    )
    aliases = {"file": "ConnectApp.file", **SessionApp.aliases}

    async def work(self, client: ServiceClient) -> None:
        session = await self.session(client)
        connection = await client.connection(session)
        path = self._write(session, connection)
        shown = texts.clean(str(path))
        self.show(
            {"session": session, "file": str(path)},
            lambda: f"{shown}\nUse it with: jupyter console --existing {shown}",
        )

    def _write(self, session: str, connection: dict[str, Any]) -> Path:
        own = Path(jupyter_runtime_dir()) / f"singularity-{session}.json"
        path = Path(self.file).absolute() if self.file else own
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.file:
                path.unlink(missing_ok=True)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(connection, file)
        except OSError as error:
            raise SingularityError(f"{path} was not written: {error.strerror}") from None
        return path


main = ConnectApp.launch

"""`jupyter singularity export`: the job file of a batch session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from singularity_proxy.errors import Conflict
from singularity_scheduler.cli.framework.exits import CannotWrite
from singularity_scheduler.cli.sessions.choosing import SessionApp
from singularity_scheduler.jobs import job_file
from traitlets import Bool, Unicode

from .submission import is_passed_on

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ExportApp(SessionApp):
    name = "jupyter-singularity-export"
    description = """Write the job file that describes a run of a notebook: submitted again it asks
    for the same. SESSION is an id, the beginning of one, or the name of an active session. The
    service does not tell the values of variables of the environment, so they are written as null,
    which stands for the value where the file is submitted."""
    examples = """
        jupyter singularity export 3f9c > job.yml
        jupyter singularity export 3f9c -o job.yml
    """
    offers_ended = True

    output = Unicode(config=True, help="The job file to write. Empty: standard output.")
    replace = Bool(False, config=True, help="Whether --output may replace a file.")
    flags = {
        "replace": ({"ExportApp": {"replace": True}}, "Let --output replace a file."),
        **SessionApp.flags,
    }
    aliases = {("o", "output"): "ExportApp.output", **SessionApp.aliases}

    async def work(self, client: ServiceClient) -> None:
        session = await client.get_session(await self.session(client))
        text = job_file(session, is_passed_on)
        if not self.output:
            self.show({"job": text}, text.rstrip)
            return
        self._write(text)
        print(f"written: {self.output}", file=sys.stderr)

    def _write(self, text: str) -> None:
        try:
            with open(self.output, "w" if self.replace else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise Conflict(
                f"{self.output} is there already; nothing was written: --replace replaces it"
            ) from None
        except OSError as error:
            raise CannotWrite(
                f"the job file {self.output} cannot be written ({error.strerror})"
            ) from None


main = ExportApp.launch

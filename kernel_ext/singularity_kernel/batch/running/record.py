"""The output notebook while a run goes on: papermill's bookkeeping with three differences.

Cells that never ran stay "pending" (papermill calls them completed), a save that fails does not end
the run, and ``metadata.singularity`` says which session this is and what each cell met.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from papermill.engines import NotebookExecutionManager  # type: ignore[import-untyped]

from singularity_kernel.batch.addresses import why, without_secret, write_errors

from .facts import Facts, of_cell
from .fates import NotWritten

logger = logging.getLogger("singularity.batch")

AUTOSAVE_S = 5
"""How often a cell that prints is saved; papermill doubles it when saving is slow."""

LAST_TRIES = 3
LAST_PAUSE_S = 1.0
"""The final save is tried so often, with so many seconds between."""


class RunRecord(NotebookExecutionManager):  # type: ignore[misc]
    """Holds the notebook of one run; made by `SingularityEngine`, told by `RunClient`."""

    def __init__(self, nb: Any, *, facts: Callable[[], Facts], **kwargs: Any) -> None:
        super().__init__(nb, **kwargs)
        self._facts = facts
        self._saved_at = ""
        self._news = False
        """An output came after the last save."""
        self._unsaved = ""
        """Why the last save failed."""

    @property
    def _place(self) -> str:
        """The output, for people."""
        return without_secret(str(self.output_path))

    def notebook_start(self, **kwargs: Any) -> None:
        """Clear what an earlier run left and save; raises `NotWritten` before anything has run."""
        self.nb.metadata["singularity"] = self._facts().of_notebook()
        for cell in self.nb.cells:
            cell.metadata.pop("singularity", None)
        super().notebook_start(**kwargs)
        if self._unsaved:
            raise NotWritten(
                f"the output notebook {self._place} cannot be written ({self._unsaved}); "
                "nothing was run: free space, or choose another output"
            )

    def autosave_cell(self, **kwargs: Any) -> None:
        """There is a new output; saved when the last save is long enough ago."""
        self._news = True
        self.save_news()

    def save_news(self) -> None:
        """The same without a new output; called every second, because the last one before a long
        silence would wait for the next."""
        if self._news:
            super().autosave_cell()

    def save(self, **kwargs: Any) -> None:
        """Write the notebook. A failure is logged once and made good by a later save."""
        try:
            super().save(**kwargs)
        except write_errors() as error:
            self.last_save_time = self.now()
            if not self._unsaved:
                logger.warning(
                    "the output notebook %s cannot be written now (%s): the run goes on, the last "
                    "good version is kept",
                    self._place,
                    why(error),
                )
            self._unsaved = why(error)
        else:
            if self._unsaved:
                logger.warning("the output notebook %s is written again", self._place)
            self._unsaved = ""
            self._news = False
            self._saved_at = self.now().isoformat(timespec="seconds")

    def notebook_complete(self, **kwargs: Any) -> None:
        """Finish the metadata and save; raises `NotWritten` when that fails for seconds."""
        self.end_time = self.now()
        about = self.nb.metadata.papermill
        about["end_time"] = self.end_time.isoformat()
        if about.get("start_time"):
            about["duration"] = (self.end_time - self.start_time).total_seconds()
        self.complete_pbar()
        self.cleanup_pbar()
        self.save()  # first: a cancelled run has only seconds, and the answer below may be slow
        self._tell(self._facts())
        for _ in range(LAST_TRIES):
            self.save()
            if not self._unsaved:
                return
            time.sleep(LAST_PAUSE_S)
        kept = f"the version of {self._saved_at} is kept" if self._saved_at else "there is none"
        raise NotWritten(
            f"the output notebook {self._place} cannot be written ({self._unsaved}); {kept}: "
            "free space and submit the run again"
        )

    def _tell(self, facts: Facts) -> None:
        """Complete ``metadata.singularity``. The agent may be away at the end: what it said before
        is not forgotten."""
        known = self.nb.metadata["singularity"]
        known.update({k: v for k, v in facts.of_notebook().items() if v is not None})
        since = None
        for cell in self.nb.cells:
            about = cell.metadata.papermill
            if facts.history and cell.cell_type == "code" and about.get("end_time"):
                start = since or about["start_time"]  # what comes between two belongs to the second
                cell.metadata["singularity"] = of_cell(facts, start, about["end_time"])
                since = about["end_time"]


__all__ = ["AUTOSAVE_S", "RunRecord"]

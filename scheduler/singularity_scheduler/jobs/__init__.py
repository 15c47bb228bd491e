"""Job files: Azure ML's command jobs, and notebooks in the same style.

`read` and `resolve` make a `Job` of a file, `job_file` writes one of a session, `schema` is what is
published. Everything wrong in a file is a `BadJob` with file and line.
"""

from .errors import BadJob
from .exporting import job_file
from .reading import Document, parse, read
from .resolving import Job, resolve
from .schema import Row, Use, rows, schema

__all__ = [
    "BadJob",
    "Document",
    "Job",
    "Row",
    "Use",
    "job_file",
    "parse",
    "read",
    "resolve",
    "rows",
    "schema",
]

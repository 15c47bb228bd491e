"""Notebook files: read with a sentence for what is wrong, written so that no reader ever sees half
of one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import sys
from typing import Any

from .running.fates import BadRun, NoNotebook, NotWritten


def read_notebook(path: str) -> Any:
    """The notebook at `path` as an nbformat v4 node; raises `NoNotebook`."""
    nbformat = _nbformat()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise NoNotebook(f"there is no notebook {path}; nothing was started") from None
    except IsADirectoryError:
        raise NoNotebook(f"{path} is a folder and no notebook; nothing was started") from None
    except OSError as error:
        raise NoNotebook(
            f"the notebook {path} cannot be read ({error.strerror}); nothing was started"
        ) from None
    except UnicodeDecodeError:
        raise not_a_notebook(path) from None
    try:
        if not isinstance(json.loads(text)["nbformat"], int):  # nbformat takes any object for one
            raise not_a_notebook(path)
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except Exception:  # nbformat raises many kinds, its own, json's, KeyError and AttributeError
        raise not_a_notebook(path) from None
    return notebook


def _nbformat() -> Any:
    """The module `nbformat`, imported without rfc3987_syntax: where that is installed, jsonschema
    loads it for addresses, of which notebooks have none, and it compiles a grammar for a second."""
    slow = "rfc3987_syntax"
    hidden = slow not in sys.modules
    if hidden:
        sys.modules[slow] = None  # type: ignore[assignment]
    try:
        import nbformat

        return nbformat
    finally:
        if hidden:
            del sys.modules[slow]


def not_a_notebook(path: str) -> NoNotebook:
    if path.endswith((".yml", ".yaml")):
        return NoNotebook(
            f"{path} is not a notebook; nothing was started: job files are submitted in a terminal "
            "of the notebook server (jupyter singularity submit)"
        )
    return NoNotebook(
        f"{path} is not a notebook; nothing was started: give a file that Jupyter saved (.ipynb)"
    )


def refuse_itself(notebook: str, output: str) -> None:
    """`BadRun` when the output would replace the notebook."""
    if os.path.realpath(output) == os.path.realpath(notebook):
        raise BadRun("the output would replace the notebook itself; nothing was started: name it")


def check_writable(path: str) -> None:
    """`NotWritten` when the output at `path` could surely not be written; makes nothing."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise NotWritten(
            f"there is no folder {folder} for the output; nothing was started: make it"
        )
    if os.path.isdir(path):
        raise NotWritten(f"the output {path} is a folder; nothing was started: name a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NotWritten(
            f"the folder {folder} of the output cannot be written; nothing was started"
        )


def write_whole(path: str, text: str) -> None:
    """Put `text` at `path` so that it holds the old text or the new one at any moment, also after
    a crash; raises OSError and leaves the old one. A link stays a link."""
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    partial = os.path.join(folder, f".{name[:200]}.{os.getpid()}.part")
    mode = 0o666
    with contextlib.suppress(OSError):
        mode = os.stat(target).st_mode & 0o777
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def why_not(error: OSError) -> str:
    """What a person calls `error`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return error.strerror or str(error)


def set_aside(path: str) -> str:
    """Rename the output at `path` to ``NAME-attempt-N.ipynb``, so that the next attempt does not
    replace it; returns the new path, "" when there is none or it cannot be renamed."""
    target = os.path.realpath(path)
    stem = target.removesuffix(".ipynb")
    numbers = itertools.count(1)
    kept = next(p for n in numbers if not os.path.lexists(p := f"{stem}-attempt-{n}.ipynb"))
    try:
        os.rename(target, kept)
    except OSError:
        return ""
    return kept


class WholeFiles:
    """papermill's handler of local files, with `write_whole`. The runner registers it for absolute
    paths; it is the only one that writes there.

    A run that went back to a checkpoint finds what it had written after it: that is set aside. So
    each text is compared with what was written last, which is in the image of the process.
    """

    def __init__(self) -> None:
        self._written: dict[str, tuple[tuple[int, int, int], bytes]] = {}
        """path -> what its file was then, and the hash of its text."""

    def read(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    def listdir(self, path: str) -> list[str]:
        return [os.path.join(path, name) for name in os.listdir(path)]

    def write(self, text: str, path: str) -> None:
        if path in self._written and not self._is_ours(path):
            set_aside(path)
        write_whole(path, text)
        self._written[path] = (_what_it_is(path), hashlib.sha256(text.encode()).digest())

    def _is_ours(self, path: str) -> bool:
        """Whether nobody has written there since; also of a file that was copied meanwhile."""
        known, digest = self._written[path]
        try:
            if _what_it_is(path) == known:
                return True
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").digest() == digest
        except OSError:
            return True  # there is nothing to keep

    def pretty_path(self, path: str) -> str:
        return path


def _what_it_is(path: str) -> tuple[int, int, int]:
    info = os.stat(path)
    return info.st_ino, info.st_mtime_ns, info.st_size

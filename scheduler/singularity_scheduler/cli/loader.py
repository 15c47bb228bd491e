"""How the words of a command line are read: traitlets' options, but strict, and completable.

traitlets passes unknown options by with a warning and its refusals are a page of usage; here a
wrong word is one sentence (`BadRequest`) and nothing happens. Options may stand between the other
words, and the other words can be completed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from singularity_proxy.errors import BadRequest
from traitlets.config.loader import ArgumentError, Config, KVArgParseConfigLoader

Completions = Iterable[str] | dict[str, str] | None
"""What a word may become, with or without texts; None: file names."""

Completer = Callable[[str], Completions]
"""Gives the completions of a word that begins with the given characters."""

NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


class StrictParser(KVArgParseConfigLoader.parser_class):  # type: ignore[misc]
    """Raises `BadRequest` instead of printing the usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        lacks = re.fullmatch(r"argument (\S+): expected .* argument", message)
        raise BadRequest(f"the option {lacks[1]} needs a value" if lacks else message)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Options may stand before, between and after the other words."""
        return self.parse_intermixed_args(args, namespace)


class StrictLoader(KVArgParseConfigLoader):  # type: ignore[misc]
    """Used by `CommandApp`; `traits` are the ``Class.trait`` that its command line may set,
    `completer` completes the words that are no options."""

    parser_class = StrictParser
    traits: frozenset[str] = frozenset()
    completer: Completer | None = None

    def load_config(self, *args: Any, **kwargs: Any) -> Config:
        try:
            return super().load_config(*args, **kwargs)
        except ArgumentError as error:
            raise BadRequest(" ".join(str(error).split())) from None

    def _parse_args(self, args: Any) -> Any:
        for word in args:
            if word == "--":
                break
            self._check(word.partition("=")[0])
        return super()._parse_args(args)

    def _check(self, word: str) -> None:
        """Raise for an option that there is not; before argparse looks for its value."""
        if not word.startswith("-") or word == "-" or NUMBER.fullmatch(word):
            return
        known = [("--" if len(key) > 1 else "-") + key for key in (*self.aliases, *self.flags)]
        if word in known or word.removeprefix("--") in self.traits:
            return
        near = difflib.get_close_matches(word, [*known, *(f"--{t}" for t in self.traits)], n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists them"
        raise BadRequest(f"there is no option {word}; {hint}")

    def _add_arguments(self, aliases: Any, flags: Any, classes: Any) -> None:
        super()._add_arguments(aliases, flags, classes)
        completer = self.completer
        if completer is None:
            return

        def complete(prefix: str = "", **options: Any) -> Iterable[str] | dict[str, str]:
            found = completer(prefix)
            return files(prefix, **options) if found is None else found

        for action in self.parser._actions:
            if action.dest == "extra_args":
                action.completer = complete


def files(prefix: str, **options: Any) -> list[str]:
    """Names of files; only called while completing, so argcomplete is there."""
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter()(prefix, **options))


__all__ = ["Completions", "StrictLoader", "StrictParser"]

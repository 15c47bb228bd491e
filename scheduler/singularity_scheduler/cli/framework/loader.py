"""How the words of a command line are read: traitlets' options, but strict, and completable.

traitlets passes unknown options by with a warning and its refusals are a page of usage; here a
wrong word is one sentence (`BadRequest`) and nothing happens. Options may stand between the other
words, and the other words can be completed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from singularity_proxy.errors import BadRequest
from traitlets.config.loader import (
    ArgumentError,
    Config,
    DeferredConfigString,
    KVArgParseConfigLoader,
)

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
    before_completing: Callable[[Config], None] | None = None
    """Called with what the line says so far before the completer is."""

    def load_config(self, *args: Any, **kwargs: Any) -> Config:
        try:
            return super().load_config(*args, **kwargs)
        except (ArgumentError, BadRequest) as error:
            raise BadRequest(self._named(" ".join(str(error).split()))) from None

    def _named(self, sentence: str) -> str:
        """The sentence with options as they are typed: traitlets calls them by their classes."""
        for alias, trait in self.aliases.items():
            if len(alias) > 1:
                sentence = sentence.replace(f"--{trait} ", f"--{alias} ")
        return sentence

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
        plain = {name.lstrip("-"): name for name in (*known, *(f"--{t}" for t in self.traits))}
        near = difflib.get_close_matches(word.lstrip("-"), plain, n=1)
        hint = f"did you mean {plain[near[0]]}?" if near else "--help lists them"
        raise BadRequest(f"there is no option {word}; {hint}")

    def _argcomplete(self, classes: list[Any], subcommands: Any) -> None:
        """Options are offered behind a dash only; not the doubles that traitlets makes of
        one-letter options (``--n``), and ``--Class.`` not before its first letter is there."""
        if "_ARGCOMPLETE" not in os.environ:
            return
        hidden = [f"--{key}" for key in (*self.aliases, *self.flags) if len(key) == 1]
        word = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
        if not re.search(r"\s--[A-Z]\w*$", word):
            hidden += [f"--{cls.__name__}." for cls in classes]
        self._argcomplete_kwargs = {"always_complete_options": False, "exclude": hidden}
        super()._argcomplete(classes, subcommands)

    def _add_arguments(self, aliases: Any, flags: Any, classes: Any) -> None:
        super()._add_arguments(aliases, flags, classes)
        completer = self.completer
        if completer is None:
            return

        def complete(
            prefix: str = "", parsed_args: Any = None, **options: Any
        ) -> Iterable[str] | dict[str, str]:
            if self.before_completing is not None:
                self.before_completing(self._typed(parsed_args))
            found = completer(prefix)
            return files(prefix, **options) if found is None else found

        for action in self.parser._actions:
            if action.dest == "extra_args":
                action.completer = complete

    def _typed(self, parsed: Any) -> Config:
        """The options of an unfinished line."""
        typed = Config()
        for action in self.parser._actions:
            value = getattr(parsed, action.dest, None)
            if isinstance(value, str) and isinstance(action.metavar, str):
                section, _, name = action.metavar.rpartition(".")
                typed[section][name] = DeferredConfigString(value)
        return typed


def files(prefix: str, **options: Any) -> list[str]:
    """Names of files; only called while completing, so argcomplete is there."""
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter()(prefix, **options))


__all__ = ["Completions", "StrictLoader", "StrictParser"]

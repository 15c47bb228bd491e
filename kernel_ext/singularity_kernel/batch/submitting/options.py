"""The options of `submit` that take two words or may be repeated: traitlets cannot read those, so
they are taken out of the command line first. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.errors import BadRequest, NotFound

from .values import from_yaml, value_of

_LONG = {
    "--parameters": "-p",
    "--parameters-raw": "-r",
    "--parameters-file": "-f",
    "--parameters-yaml": "-y",
}

_TAKES = {
    "-p": (2, "a name and a value: -p lr 0.1"),
    "-r": (2, "a name and a text: -r version 010"),
    "-f": (1, "a file: -f parameters.yaml"),
    "-y": (1, "YAML: -y 'lr: 0.1'"),
    "--sweep": (1, "a name and its values: --sweep lr=0.1,0.01, or --sweep seed=0:4"),
    "--env": (1, "a variable: --env DATA=/data, or --env DATA for the one that is set here"),
}

HELP = """\
-p NAME VALUE, --parameters NAME VALUE
    A parameter of the notebook, read as papermill reads it: 0.1 is a number, true, True, false and
    False are truth values, None is None, everything else is text. May be repeated.
-r NAME TEXT, --parameters-raw NAME TEXT
    A parameter that is text, whatever it looks like. May be repeated.
-f FILE, --parameters-file FILE
    A YAML or JSON file with parameters. May be repeated; -p and -r go before it.
-y YAML, --parameters-yaml YAML
    Parameters as YAML or JSON. May be repeated; -p and -r go before it.
--sweep NAME=VALUE,VALUE,... or NAME=FROM:TO[:STEP]
    Run the notebook once for each of these values, read as -p reads them; FROM:TO are the whole
    numbers from FROM on and below TO. Repeated: for all combinations. They are one group, see
    `jupyter singularity group`. A command of a job file: NAME stands for ${{search_space.NAME}} and
    ${{inputs.NAME}}.
--env NAME[=VALUE]
    A variable for the environment of the run; without a value, the one that is set here. It is
    stored with the run, so no secrets. May be repeated."""
"""What `submit --help` says of them."""


@dataclass
class Given:
    """The options that were taken out, in the order they were given."""

    values: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    swept: dict[str, Any] = field(default_factory=dict)
    """Values of one combination of a sweep."""

    def of(self, option: str) -> list[tuple[str, ...]]:
        return [words for name, words in self.values if name == option]

    def parameters(self) -> dict[str, Any]:
        """All parameters, later ones over earlier ones, in papermill's order of sources: files,
        YAML, -p, -r. Raises `NotFound` or `BadRun`."""
        found: dict[str, Any] = {}
        for (path,) in self.of("-f"):
            try:
                with open(path, encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is no text"
                raise NotFound(
                    f"the file {path} with parameters cannot be read ({why}); nothing was started"
                ) from None
            found.update(from_yaml(text, f"the file {path}"))
        for (text,) in self.of("-y"):
            found.update(from_yaml(text, f"-y '{text}'"))
        found.update({name: value_of(text) for name, text in self.of("-p")})
        found.update(dict(self.of("-r")))  # type: ignore[arg-type]
        if twice := found.keys() & self.swept.keys():
            raise BadRequest(
                f"{min(twice)} has a value and is swept over; nothing was started: give one of them"
            )
        found.update(self.swept)
        return found

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of --env; raises `BadRequest` for one that is not set."""
        found = {}
        for (word,) in self.of("--env"):
            name, given, value = word.partition("=")
            if not given and name not in environ:
                raise BadRequest(
                    f"--env {name}: the variable {name} is not set here; nothing was started: give "
                    f"it a value with --env {name}=VALUE"
                )
            found[name] = value if given else environ[name]
        return found


def split_options(words: Sequence[str]) -> tuple[Given, list[str]]:
    """(the options above, all other words); raises `BadRequest` for one without its values. Behind
    ``--`` everything is a plain word."""
    given = Given()
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            rest += words[index:]
            break
        name, equals, value = word.partition("=")
        option = _LONG.get(name, name)
        if option not in _TAKES or (equals and not name.startswith("--")):
            rest.append(word)
            index += 1
            continue
        count, usage = _TAKES[option]
        taken = ((value,) if equals else ()) + tuple(words[index + 1 :])
        if len(taken) < count:
            raise BadRequest(f"{name} takes {usage}; nothing was started")
        given.values.append((option, taken[:count]))
        index += 1 + count - bool(equals)
    return given, rest

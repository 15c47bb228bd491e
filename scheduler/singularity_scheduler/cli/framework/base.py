"""What the commands of `jupyter singularity` have in common.

`CommandApp`: options, configuration files, one sentence per refusal, exit codes.
`ReportApp`: one that prints something, for people or with ``--json`` for programs.
`ServiceApp`: one that talks to the scheduler service.

A command's module has ``main(argv: list[str]) -> int``, which is `CommandApp.launch` of its class.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from jupyter_core.application import JupyterApp, NoStart
from singularity_proxy.errors import BadRequest, Forbidden, NotFound, SingularityError, Unavailable
from traitlets import Bool, Float, TraitError, Unicode, default, validate
from traitlets.config import Application
from traitlets.config.loader import Config, ConfigFileNotFound

from . import output
from .exits import FAILED_RUN, INTERRUPTED, OK, CannotWrite, code_of
from .loader import Completions, StrictLoader

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = Any
COMMON_CONFIG = "jupyter_singularity_config"
"""Name of the configuration file that all commands read, before their own."""


class CommandApp(JupyterApp):  # type: ignore[misc]
    """Base of every command: `execute` does the work and returns the exit code."""

    synopsis: ClassVar[str] = ""
    """The words that are no options, for the sentence about a wrong number of them."""
    fewest: ClassVar[int] = 0
    most: ClassVar[int | None] = 0
    """How many such words it takes; `most` None: any number."""

    flags: ClassVar[dict[Any, Any]] = {
        "debug": ({"Application": {"log_level": 10}}, "Say on standard error what is done."),
        ("y", "yes"): ({"JupyterApp": {"answer_yes": True}}, "Answer yes to questions."),
        "generate-config": (
            {"JupyterApp": {"generate_config": True}},
            "Write a configuration file with the defaults and end.",
        ),
        "show-config": (
            {"Application": {"show_config": True}},
            "Show the configuration that would be used and end.",
        ),
        "show-config-json": (
            {"Application": {"show_config_json": True}},
            "The same as JSON.",
        ),
    }
    aliases: ClassVar[dict[Any, Any]] = {
        "log-level": "Application.log_level",
        "config": "JupyterApp.config_file",
    }

    exit_code: int = OK

    # -- for commands -----------------------------------------------------------------------

    def execute(self) -> int | None:
        """What the command does; the exit code (None: 0). Refusals are typed errors."""
        self.print_help()
        return None

    @property
    def words(self) -> list[str]:
        """The words of the command line that are no options."""
        return list(self.extra_args)

    def interrupted(self) -> str:
        """The sentence when Ctrl-C ends the command; empty: nothing is said."""
        return ""

    def complete(self, prefix: str) -> Completions:
        """Completions of a word that begins with `prefix`; None: file names are completed."""
        return ()

    def offer(self) -> None:
        """Let argcomplete complete this command's line; ends the process."""
        flags, aliases = self.flatten_flags()
        classes = list(self._classes_with_config_traits())
        self._create_loader([], aliases, flags, classes).load_config()

    def _configure(self, typed: Config) -> None:
        """For completions that depend on settings."""
        self.load_config_file()
        self.update_config(typed)

    # -- the way of a command ---------------------------------------------------------------

    @classmethod
    def launch(cls, argv: Sequence[str] | None = None) -> int:
        """Run the command with these words and return its exit code; a module's `main`."""
        words = list(sys.argv[1:] if argv is None else argv)
        app = cls()
        command = cls.name.replace("-", " ")
        try:
            app.initialize(words)
            app.start()
            return app.exit_code
        except NoStart:
            return OK
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else (FAILED_RUN if done.code else OK)
        except (BrokenPipeError, output.ReaderGone):
            output.drop(sys.stdout)
            return OK
        except KeyboardInterrupt:
            sentence = app.interrupted()
            if sentence:  # not behind the "^C" of the terminal
                start = "\n" if sys.stderr.isatty() else ""
                output.note(f"{start}{command}: {sentence}")
            return INTERRUPTED
        except (SingularityError, TraitError) as error:
            # A setting from the environment is only looked at when it is used.
            failure = BadRequest(_plain(error)) if isinstance(error, TraitError) else error
            as_json = hasattr(app, "json") and (app.json or "--json" in words)
            output.say(command, failure, as_json)
            return code_of(failure)

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the command line and the configuration files; a wrong one is a `BadRequest`."""
        self.parse_command_line(argv)
        if self.generate_config:
            return
        self.load_config_file()

    def start(self) -> None:
        super().start()
        self._check_words()
        self.exit_code = self.execute() or OK

    def _check_words(self) -> None:
        count = len(self.words)
        if count < self.fewest or (self.most is not None and count > self.most):
            usage = f"{self.name.replace('-', ' ')} {self.synopsis}".strip()
            what = (
                f"'{self.words[self.most or 0]}' is one word too many"
                if count > self.fewest
                else "there is a word missing"
            )
            raise BadRequest(f"{what}: {usage}")

    def write_default_config(self) -> None:
        """For --generate-config; an existing file is only replaced if somebody agrees."""
        path = self.config_file or os.path.join(self.config_dir, f"{self.config_file_name}.py")
        if os.path.exists(path) and not self.answer_yes and not sys.stdin.isatty():
            raise BadRequest(
                f"{path} is there already and nobody can be asked here; nothing was written: "
                "--yes replaces it"
            )
        try:
            super().write_default_config()
        except OSError as error:
            raise CannotWrite(
                f"{path} cannot be written ({error.strerror}); it was left as it was"
            ) from None

    def print_version(self) -> None:
        from importlib import metadata

        print(metadata.version("jupyter-singularity"))

    # -- configuration ----------------------------------------------------------------------

    def migrate_config(self) -> None:
        """Nothing of ours is as old as what JupyterApp migrates."""

    def load_config_file(self, suppress_errors: bool = True) -> None:
        """Jupyter's own file, the one of all our commands, this command's; or just --config."""
        names: list[tuple[str, str | list[str]]] = [
            ("jupyter_config", self.config_file_paths),
            (COMMON_CONFIG, self.config_file_paths),
            (self.config_file_name, self.config_file_paths),
        ]
        if self.config_file:
            folder, name = os.path.split(os.path.abspath(self.config_file))
            if not os.path.exists(self.config_file):
                raise NotFound(f"there is no configuration file {self.config_file}")
            names[1:] = [(name, [folder])]
        elif self.config_file_name == COMMON_CONFIG:
            del names[2:]
        self.raise_config_file_errors = True
        for name, path in names:
            try:
                Application.load_config_file(self, name, path=path)
            except ConfigFileNotFound:
                continue
            except SingularityError:
                raise
            except Exception as error:
                where = self.config_file or f"{name}.py"
                raise BadRequest(
                    f"the configuration file {where} cannot be used "
                    f"({type(error).__name__}: {' '.join(str(error).split())})"
                ) from None

    def update_config(self, config: Config) -> None:
        """Refuse a wrong value with a sentence; traitlets would end the process."""
        try:
            super().update_config(config)
        except TraitError as error:
            raise BadRequest(_plain(error)) from None

    def _create_loader(self, argv: Any, aliases: Any, flags: Any, classes: Any) -> StrictLoader:
        loader = StrictLoader(argv, aliases, flags, classes=classes, log=self.log)
        loader.completer, loader.before_completing = self.complete, self._configure
        loader.traits = frozenset(
            f"{cls.__name__}.{name}" for cls in classes for name in cls.class_traits(config=True)
        )
        return loader


class ReportApp(CommandApp):
    """A command that prints an answer."""

    json = Bool(
        False,
        config=True,
        help="""Print the answer as JSON and nothing else on standard output; a refusal is a
        problem document (as of the REST API) on standard error.""",
    )
    flags: ClassVar[dict[Any, Any]] = {
        "json": ({"ReportApp": {"json": True}}, "Print JSON; refusals too, on standard error."),
        **CommandApp.flags,
    }

    def show(self, value: Json, human: Callable[[], object]) -> None:
        """Print the answer: `value` with --json, else what `human()` gives, a string or
        something that rich can print."""
        if self.json:
            output.emit_json(value)
        else:
            output.emit_human(human())


class ServiceApp(ReportApp):
    """A command that asks the scheduler service; `work` does it."""

    url = Unicode(
        config=True,
        help="""Address of the scheduler service, ending in "/services/singularity/". Default:
        SINGULARITY_API_URL, which servers of the platform have.""",
    )
    token_file = Unicode(
        config=True,
        help="""File with the JupyterHub token to use, in its first line. Empty: the token is in
        JUPYTERHUB_API_TOKEN, as in servers of the platform.""",
    )
    timeout = Float(
        60.0,
        config=True,
        help="Seconds to wait for one answer of the service before giving up.",
    )
    aliases: ClassVar[dict[Any, Any]] = {
        "url": "ServiceApp.url",
        "token-file": "ServiceApp.token_file",
        **CommandApp.aliases,
    }

    @default("url")  # type: ignore[untyped-decorator]
    def _default_url(self) -> str:
        return address(os.environ.get("SINGULARITY_API_URL", ""))

    @validate("url")  # type: ignore[untyped-decorator]
    def _check_url(self, proposal: Any) -> str:
        return address(str(proposal["value"]))

    @validate("timeout")  # type: ignore[untyped-decorator]
    def _check_timeout(self, proposal: Any) -> float:
        if not 0 < float(proposal["value"]) < 1e6:
            raise TraitError("the timeout must be more than 0 seconds")
        return float(proposal["value"])

    async def work(self, client: ServiceClient) -> int | None:
        """What the command asks for and shows; the exit code (None: 0)."""
        self.print_help()
        return None

    def execute(self) -> int | None:
        return asyncio.run(self.work(self.client()))

    def client(self, timeout: float | None = None) -> ServiceClient:
        """The client for the configured service; `Unavailable` when nothing says where it is."""
        from singularity_scheduler.client import ServiceClient

        token = self.token()
        missing = [
            text
            for text, value in (("SINGULARITY_API_URL", self.url), ("JUPYTERHUB_API_TOKEN", token))
            if not value
        ]
        if missing:
            # Sessions get neither, on purpose: code in a notebook may only act on its own session.
            instead = (
                "use %singularity in a cell, or a terminal of the server"
                if os.environ.get("SINGULARITY_SESSION")
                else "use this in a server of the platform, or give --url and --token-file"
            )
            raise Unavailable(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, so the "
                f"scheduler cannot be reached: {instead}",
                missing=missing,
            )
        return ServiceClient(self.url, token, timeout=timeout or self.timeout)

    def token(self) -> str:
        """The token of the file, or of the environment; empty when there is none."""
        if not self.token_file:
            token = os.environ.get("JUPYTERHUB_API_TOKEN", "").strip()
            if not is_token(token) and token:
                raise BadRequest("what JUPYTERHUB_API_TOKEN holds is not a token")
            return token
        path = Path(self.token_file).expanduser()
        try:
            text = path.read_text(encoding="ascii").strip()
        except PermissionError:
            raise Forbidden(f"the token file {path} may not be read by this user") from None
        except UnicodeDecodeError:
            raise BadRequest(f"the token file {path} does not hold a token") from None
        except OSError as error:
            raise NotFound(f"the token file {path} cannot be read ({error.strerror})") from None
        first = text.splitlines()[0].strip() if text else ""
        if not is_token(first):
            raise BadRequest(f"the token file {path} must hold a token in its first line")
        return first


def address(url: str) -> str:
    """`url` as the client takes it; `TraitError` when it cannot be a service's. "": none."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if url and not url.startswith(("http://", "https://")):
        raise TraitError(f"the address {url!r} must begin with http:// or https://")
    if url and (not whole or not url.isprintable() or " " in url):
        raise TraitError(f"the address {url!r} is not one of a service")
    return url


def is_token(text: str) -> bool:
    """Whether `text` may be a token: it goes into a header."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def wanted_devices(given: int | None) -> int | None:
    """Virtual devices that a command asks for: --devices, else what the spawn form has set
    (SINGULARITY_DEVICES), else None for the scheduler's default."""
    name, what = "SINGULARITY_DEVICES", "a number of devices"
    return given if given is not None else _said(name, int, what, "--devices")


def wanted_share(given: float | None) -> float | None:
    """Part of one device that a command asks for: --share, else SINGULARITY_DEVICE_SHARE, else None
    for whole devices."""
    name, what = "SINGULARITY_DEVICE_SHARE", "a number from 0.001 to 1"
    return given if given is not None else _said(name, float, what, "--share")


Number = TypeVar("Number", int, float)


def _said(name: str, kind: Callable[[str], Number], what: str, option: str) -> Number | None:
    """The number in an environment variable; None when there is none."""
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise BadRequest(
            f"{name} is {text!r}, but it must be {what}; nothing was started: give {option}"
        ) from None


def split_names(text: str) -> list[str]:
    """Names that are separated by commas."""
    return [name for part in text.split(",") if (name := part.strip())]


def _plain(error: TraitError) -> str:
    """A trait's refusal without the names of classes: "limit: expected an int, not ..."."""
    text = " ".join(str(error).split())
    before, found, after = text.partition(" instance expected ")
    if not found:
        return text
    name = before.split("'")[1] if before.count("'") >= 2 else before
    return f"--{name.replace('_', '-')}: expected {after}"


__all__ = ["CommandApp", "ReportApp", "ServiceApp", "split_names", "wanted_devices"]

"""Writes the reference pages from the code: `./dev docs` runs it, a test compares the result.

python docs/generate.py            # writes docs/reference/*.md and openapi.json
python docs/generate.py --check    # exit code 1 and the names when a page is out of date
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from generate_api import events_page, metrics_page, openapi_document, rest_page
from generate_jobs import job_files_page, job_schema
from generate_objects import kernel_objects_page
from generate_reasons import reasons_page
from generate_support import support_page
from generate_text import cell, first_paragraph, table
from generate_tunnel import tunnel_page

os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
NOTE = (
    "<!-- Written by docs/generate.py from the code; change the code, then run ./dev docs. -->\n\n"
)
CONFIGURABLE_PACKAGES = (
    "singularity_scheduler",
    "singularity_kernel",
    "singularity_spawner",
    "singularity_labext",
)


# ---- configuration -------------------------------------------------------------------------------


def modules(package: str) -> Iterator[Any]:
    yield importlib.import_module(package)
    path = importlib.import_module(package).__path__
    for info in pkgutil.walk_packages(path, prefix=f"{package}."):
        if not info.name.endswith("__main__") and ".migrations." not in info.name:
            yield importlib.import_module(info.name)


def configurables() -> list[type]:
    """Our classes with settings of their own, by name."""
    from traitlets.config import Configurable

    found: dict[str, type] = {}
    for package in CONFIGURABLE_PACKAGES:
        for module in modules(package):
            for cls in vars(module).values():
                if (
                    inspect.isclass(cls)
                    and issubclass(cls, Configurable)
                    and cls.__module__ == module.__name__
                    and own_traits(cls)
                ):
                    found[cls.__name__] = cls
    return [found[name] for name in sorted(found)]


def own_traits(cls: Any) -> dict[str, Any]:
    """Its settings, those of the parts that it is put together of among them (classes that cannot
    be configured on their own), without what it has of another class that can be."""
    from traitlets.config import Configurable

    return {
        name: trait
        for name, trait in cls.class_traits(config=True).items()
        if trait.this_class is cls or not issubclass(trait.this_class, Configurable)
    }


def default_of(trait: Any) -> str:
    text = trait.default_value_repr()
    home = os.path.expanduser("~")
    return text.replace(str(ROOT), "(checkout)").replace(home, "~") if len(home) > 1 else text


def configuration_page() -> str:
    out = [
        "# Configuration\n",
        "Settings are traitlets: in a configuration file `c.ClassName.name = value`, on the "
        "command line of the class's program `--ClassName.name=value`.\n",
    ]
    for cls in configurables():
        out.append(
            f"## {cls.__name__}\n\n`{cls.__module__}` {cell(first_paragraph(cls.__doc__))}\n"
        )
        rows: list[tuple[object, ...]] = []
        for name, trait in sorted(own_traits(cls).items()):
            kind = type(trait).__name__
            dynamic = any(
                name in getattr(base, "_trait_default_generators", {}) for base in cls.__mro__
            )
            default = "(computed)" if dynamic else f"`{default_of(trait)}`"
            rows.append((f"`{name}`", kind, default, trait.help))
        out.append(table(("setting", "type", "default", "meaning"), rows))
    return "\n".join(out)


# ---- states --------------------------------------------------------------------------------------


def states_page() -> str:
    from singularity_scheduler.core.values import states

    def transitions(steps: dict[Any, Any]) -> str:
        def order(step: Any) -> tuple[int, int]:
            state, event = step
            return list(type(state)).index(state), list(type(event)).index(event)

        rows: list[tuple[object, ...]] = [
            (f"`{state.value}`", event.value, f"`{steps[state, event].value}`")
            for state, event in sorted(steps, key=order)
        ]
        return table(("from", "event", "to"), rows)

    def meanings(words: dict[Any, str]) -> str:
        return table(
            ("state", "meaning"),
            [(f"`{getattr(k, 'value', k)}`", text) for k, text in words.items()],
        )

    return "\n".join(
        [
            "# Session states\n",
            "A session has two states: of its process and of its devices. People see one word "
            "that is derived from both.\n",
            "## The word shown\n",
            meanings(states.WORDS),
            "## Process state\n",
            meanings(states.PROCESS_MEANING),
            transitions(states.PROCESS_TRANSITIONS),
            "## Device state\n",
            meanings(states.DEVICE_MEANING),
            transitions(states.DEVICE_TRANSITIONS),
        ]
    )


# ---- magics, command line, errors ----------------------------------------------------------------


def magics_page() -> str:
    from singularity_kernel.kernel.magics import SingularityMagics

    text = inspect.cleandoc(SingularityMagics.singularity.__doc__ or "").removeprefix("::")
    return (
        "# %singularity\n\nLoaded by itself in kernels of the platform; elsewhere by "
        "`%load_ext singularity_kernel`.\n\n```text\n" + inspect.cleandoc(text).strip() + "\n```\n"
    )


def help_of(word: str) -> str:
    """The section of a command: a table of its own options, or what its `--help` prints."""
    from singularity_scheduler.cli.framework.base import CommandApp
    from singularity_scheduler.cli.framework.commands import load_command

    loaded, app = load_command(word)
    if app is None:
        own = (v for v in vars(loaded).values() if inspect.isclass(v) and issubclass(v, CommandApp))
        app = next((cls for cls in own if cls.__module__ == loaded.__name__), None)
    if app is None:
        out = io.StringIO()
        os.environ["COLUMNS"] = "90"
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            loaded.main(["--help"])
        return f"```text\n{out.getvalue().strip()}\n```\n"
    base = next(cls for cls in app.__mro__ if cls.__module__ == CommandApp.__module__)
    usage = " ".join(f"{app.name.replace('-', ' ')} {app.synopsis}".split())
    parts = [" ".join(app.description.split()) + "\n", f"```text\n{usage}\n```\n"]
    if rows := options_of(app, base):
        parts.append(table(("option", "meaning"), rows))
    if more := getattr(loaded, "HELP", ""):  # options that traitlets does not know
        parts.append(f"```text\n{more.strip()}\n```\n")
    if isinstance(app.examples, str):  # the trait of the base class when it has none
        parts.append(f"```bash\n{inspect.cleandoc(app.examples).strip()}\n```\n")
    return "\n".join(parts)


def options_of(app: Any, base: Any = None) -> list[tuple[object, ...]]:
    """Options and meanings of a command that `base` does not have."""

    def names(keys: Any, value: str = "") -> str:
        each = (keys,) if isinstance(keys, str) else keys
        dashed = ["--" + key if len(key) > 1 else "-" + key for key in each]
        return ", ".join(f"`{name}{value}`" for name in dashed)

    flags = {k: v for k, v in app.flags.items() if not base or k not in base.flags}
    aliases = {k: v for k, v in app.aliases.items() if not base or k not in base.aliases}
    rows: list[tuple[object, ...]] = [(names(k), text) for k, (_, text) in flags.items()]
    for keys, target in aliases.items():
        path, *texts = target if isinstance(target, tuple) else (target,)
        trait = app.class_traits().get(path.split(".")[-1])
        meaning = texts[0] if texts else trait.help
        rows.append((names(keys, " ..."), meaning.replace("<", "&lt;")))
    return rows


def command_line_page() -> str:
    from singularity_scheduler.cli import COMMANDS
    from singularity_scheduler.cli.framework.base import CommandApp, ReportApp, ServiceApp
    from singularity_scheduler.cli.framework.exits import MEANINGS

    rows: list[tuple[object, ...]] = [
        (f"[`{word}`](#{word})", text) for word, (_, text) in COMMANDS.items()
    ]
    out = [
        "# Command line\n",
        "`jupyter singularity COMMAND`; each command has `--help`, with `--help-all` for every "
        "setting. Settings may also stand in `jupyter_singularity_config.py` (for all commands) "
        "and `jupyter_singularity_COMMAND_config.py` in Jupyter's configuration folders "
        "(`jupyter --paths`). How to use it: [the command line](../how-to/command-line.md).\n",
        table(("command", "what it does"), rows),
        "## Exit codes\n",
        table(("code", "meaning"), list(MEANINGS.items())),
        "`run` passes its command's exit code on; `up` ends with 1 when a part of the platform "
        "failed and with 2 when it refused.\n",
        "## Options of all commands\n",
        table(("option", "meaning"), options_of(CommandApp)),
        "Of commands that print an answer:\n",
        table(("option", "meaning"), options_of(ReportApp, CommandApp)),
        "Of commands that ask the scheduler:\n",
        table(("option", "meaning"), options_of(ServiceApp, ReportApp)),
    ]
    out += [f"## {word}\n\n{help_of(word)}" for word in COMMANDS]
    return "\n".join(out)


def errors_page() -> str:
    from singularity_proxy import errors
    from singularity_scheduler.service.api.problems import NotAllowed, Unauthenticated

    def walk(cls: type[errors.SingularityError]) -> Iterator[type[errors.SingularityError]]:
        if cls.__module__ == errors.__name__:
            yield cls
            for sub in cls.__subclasses__():
                yield from walk(sub)

    rows: list[tuple[object, ...]] = [
        (f"`{c.__name__}`", f"`{c.reason}`", c.http_status, first_paragraph(c.__doc__))
        for c in (*walk(errors.SingularityError), Unauthenticated, NotAllowed)
    ]
    return (
        "# Errors\n\nEvery error has one sentence for people and a stable `reason` for programs. "
        "REST answers are `application/problem+json`.\n\n"
        + table(("error", "reason", "HTTP status", "when"), rows)
    )


# ---- the ring ------------------------------------------------------------------------------------


PLAIN_FIELDS = {
    "magic": "says that this is a ring",
    "version": "of this layout",
    "virtual_device": "number of the device that user code sees",
    "request_bytes": "size of the request queue, a power of two",
    "reply_bytes": "size of the reply queue, a power of two",
    "epoch": "of the lease under which a proxy attached",
    "memory_current": "bytes in use",
    "ring_memory_current": "bytes that this ring's worker has, what operators use inside included",
    "cudnn_version": "of the device's PyTorch; 0: none",
    "multiprocessors": "of the physical device",
    "device_name": "of the physical device",
    "proxy_torch": "version of PyTorch in the proxy",
    "worker_torch": "version of PyTorch in the worker",
}
"""Fields whose name says it all to a C++ reader, so `ring.h` has no comment there."""


def header_comments() -> dict[str, str]:
    """Field name -> comment, from the C++ side of the layout."""
    source = (ROOT / "proxy/singularity_proxy/wire/ring.h").read_text()
    pattern = re.compile(
        r"^\s*(?:alignas\(64\) )?(?:std::atomic<)?u?int\d+_t>?\s+(\w+);\s*// (.*)$"
    )
    found = dict(PLAIN_FIELDS)
    for line in source.splitlines():
        if match := pattern.match(line):
            found[match[1]] = match[2]
    return found


def ring_page() -> str:
    from singularity_proxy.wire import ring

    comments = header_comments()
    fields = [(offset, 4, name) for name, offset in ring._U32.items()]
    fields += [(offset, 8, name) for name, offset in ring._U64.items()]
    fields += [(offset, size, name) for name, (offset, size) in ring._TEXT.items()]
    rows: list[tuple[object, ...]] = []
    for offset, size, name in sorted(fields):
        plain = re.sub(r"^(request|reply)_(head|tail)$", r"\2", name)
        rows.append((offset, size, f"`{name}`", comments.get(plain, "")))
    rows.append((ring.FAILURE_OFFSET, ring.FAILURE_BYTES, "`failure`", "sentence, NUL terminated"))
    states: list[tuple[object, ...]] = [(s.value, f"`{s.name.lower()}`") for s in ring.RingState]
    return "\n".join(
        [
            "# Ring file\n",
            "One file in /dev/shm per worker process and virtual device: "
            f"{ring.HEADER_BYTES >> 10} KiB of header, then the request queue "
            f"({ring.REQUEST_BYTES >> 20} MiB by default), then the reply queue "
            f"({ring.REPLY_BYTES >> 20} MiB). Little endian; layout version {ring.VERSION}.\n",
            table(("offset", "bytes", "field", "meaning"), rows),
            "## Values of `state`\n",
            table(("value", "state"), states),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "states.md": states_page,
    "magics.md": magics_page,
    "command-line.md": command_line_page,
    "errors.md": errors_page,
    "reasons.md": reasons_page,
    "rest.md": rest_page,
    "metrics.md": metrics_page,
    "events.md": events_page,
    "ring.md": ring_page,
    "support.md": support_page,
    "kernel-objects.md": kernel_objects_page,
    "tunnel.md": tunnel_page,
    "job-files.md": job_files_page,
}


def render() -> dict[str, str]:
    """File name in docs/reference -> text."""
    pages = {name: NOTE + page().rstrip() + "\n" for name, page in PAGES.items()}
    published = {"openapi.json": openapi_document(), "job.v1.schema.json": job_schema()}
    return pages | published


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the reference pages from the code.")
    parser.add_argument("--check", action="store_true", help="only compare; 1 when out of date")
    options = parser.parse_args(argv)
    stale = []
    for name, text in render().items():
        path = REFERENCE / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if options.check and stale:
        print(f"out of date, run ./dev docs: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

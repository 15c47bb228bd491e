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
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def cell(text: object) -> str:
    """`text` as the content of a Markdown table cell."""
    return " ".join(str(text).split()).replace("``", "`").replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell(c) for c in line) + " |" for line in lines) + "\n"


def first_paragraph(doc: str | None) -> str:
    return inspect.cleandoc(doc or "").split("\n\n")[0]


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
                    and cls.class_own_traits(config=True)
                ):
                    found[cls.__name__] = cls
    return [found[name] for name in sorted(found)]


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
        for name, trait in sorted(cls.class_own_traits(config=True).items()):  # type: ignore[attr-defined]
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
    from singularity_scheduler.core import states

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
    from singularity_kernel.magics import SingularityMagics

    text = inspect.cleandoc(SingularityMagics.singularity.__doc__ or "").removeprefix("::")
    return (
        "# %singularity\n\nLoaded by itself in kernels of the platform; elsewhere by "
        "`%load_ext singularity_kernel`.\n\n```text\n" + inspect.cleandoc(text).strip() + "\n```\n"
    )


def help_of(module: str, word: str) -> str:
    """The section of a command: a table of its own options, or what its `--help` prints."""
    from singularity_scheduler.cli.base import CommandApp

    loaded = importlib.import_module(module)
    own = (v for v in vars(loaded).values() if inspect.isclass(v) and issubclass(v, CommandApp))
    app = next((cls for cls in own if cls.__module__ == module), None)
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
    from singularity_scheduler.cli.base import CommandApp, ReportApp, ServiceApp
    from singularity_scheduler.cli.exits import MEANINGS

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
    out += [f"## {word}\n\n{help_of(module, word)}" for word, (module, _) in COMMANDS.items()]
    return "\n".join(out)


def errors_page() -> str:
    from singularity_proxy import errors
    from singularity_scheduler.service.problems import NotAllowed, Unauthenticated

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


# ---- REST ----------------------------------------------------------------------------------------


def example_session() -> str:
    from dataclasses import replace

    from singularity_scheduler.core.cluster import ClusterState
    from singularity_scheduler.core.model import Kind, SessionView, Tier
    from singularity_scheduler.core.states import DeviceState, ProcessState
    from singularity_scheduler.service.documents import session_document

    view = SessionView(
        id="3f9c2a7b10de",
        user="ada",
        kind=Kind.INTERACTIVE,
        name="train.ipynb",
        tier=Tier.STANDARD,
        virtual_devices=1,
        node="local",
        created_at=1.8e9,
        updated_at=1.8e9 + 60,
    )
    view = replace(
        view,
        process_state=ProcessState.LIVE,
        device_state=DeviceState.HELD,
        devices=("cpu:1",),
        reason="holds cpu:1",
        epoch=3,
        busy=True,
        server="",
    )
    return json.dumps(session_document(ClusterState(), view), indent=2)


def rest_page() -> str:
    from singularity_scheduler.service import schemas
    from singularity_scheduler.service.handlers import TABLE

    order = {"GET": 0, "POST": 1, "PUT": 2, "DELETE": 3}
    operations = sorted(TABLE, key=lambda o: (o.below_api, o.path, order[o.method]))
    rows: list[tuple[object, ...]] = [
        (f"[`{o.method} {o.route or '/'}`](#{o.name})", o.summary) for o in operations
    ]
    out = [
        "# REST API\n",
        "Below `/services/singularity/` of the Hub, described by "
        "[openapi.json](openapi.json) (OpenAPI 3.1), which the service also answers at "
        "`api/v1/openapi.json`. Calls carry a JupyterHub token (`Authorization: token ...`) with "
        "the scope `custom:singularity:use` or `custom:singularity:admin`. A refusal is an "
        "`application/problem+json` document whose `detail` is the sentence for people "
        "([errors](errors.md)).\n",
        "A `POST` with an `Idempotency-Key` header may be repeated: it is done once. The same key "
        "with another request is refused. Keys and parameters that an operation does not know are "
        "refused too, with the nearest one that it knows. A body has at most 4 MiB.\n",
        "Lists come in pages: pass `next` as `cursor` to go on. Each answer has an `X-Request-ID` "
        "that stands in the service's log too; one that the caller sends is kept.\n",
        table(("operation", "what it does"), rows),
    ]
    for o in operations:
        out.append(f"## {o.name}\n\n`{o.method} {o.route or '/'}`: {o.summary}\n")
        answer = o.answer if "/" in o.answer or o.answer == "object" else f"`{o.answer}`"
        out.append(f"For {o.who.value}. Answers {o.status} with {answer}.\n")
        values: list[tuple[object, ...]] = [
            (f"`{p.name}`", p.where, shown_schema(p.schema), shown_default(p), p.description)
            for p in (*o.path_parameters, *o.query)
        ]
        if values:
            out.append(table(("parameter", "in", "value", "default", "meaning"), values))
        if o.body and (keys := schemas.COMPONENTS[o.body]["properties"]):
            body: list[tuple[object, ...]] = [
                (f"`{k}`", shown_schema(v), v.get("description", "")) for k, v in keys.items()
            ]
            out.append(f"Body `{o.body}`:\n\n" + table(("key", "value", "meaning"), body))
        for header, text in o.headers.items():
            out.append(f"Answer header `{header}`: {text}\n")
    for name in ("Run", "Launch"):
        keys = schemas.COMPONENTS[name]["properties"]
        about: list[tuple[object, ...]] = [
            (f"`{k}`", shown_schema(v), v.get("description", "")) for k, v in keys.items()
        ]
        out.append(
            f"## {name}\n\n{schemas.COMPONENTS[name]['description']}\n\n"
            + table(("key", "value", "meaning"), about)
        )
    out.append(f"## A session\n\n```json\n{example_session()}\n```\n")
    out.append("The states are in [session states](states.md).\n")
    return "\n".join(out)


def shown_schema(schema: dict[str, Any]) -> str:
    """A schema in a word or two, for a table."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "oneOf" in schema:
        return " or ".join(shown_schema(s) for s in schema["oneOf"])
    if "enum" in schema:
        return ", ".join(f"`{v}`" for v in schema["enum"])
    kind = schema.get("type", "any")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array":
        return f"list of {shown_schema(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is not None:
        return f"{words}, {low} to {high}"
    return f"{words}, at least {low}" if low is not None else words


def shown_default(parameter: Any) -> str:
    return "" if parameter.default in (None, "") else f"`{json.dumps(parameter.default)}`"


def openapi_document() -> str:
    from singularity_scheduler.service.handlers import openapi_text

    return openapi_text().decode()


# ---- metrics, events -----------------------------------------------------------------------------


def metrics_page() -> str:
    from prometheus_client import Counter, Gauge, Histogram
    from singularity_scheduler.core.cluster import ClusterState
    from singularity_scheduler.service import handlers
    from singularity_scheduler.service.metrics import Metrics

    assert handlers.TABLE
    kinds = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
    metrics = Metrics(ClusterState(), None)
    rows: list[tuple[object, ...]] = []
    values: dict[str, list[str]] = {}
    for metric in dict.fromkeys(metrics.registry._collector_to_names):
        if isinstance(metric, Counter | Gauge | Histogram):
            name = metric._name + ("_total" if isinstance(metric, Counter) else "")
            labels = metric._labelnames
            rows.append(
                (
                    f"`{name}`",
                    kinds[type(metric)],
                    ", ".join(f"`{label}`" for label in labels),
                    metric._documentation,
                )
            )
            for series in getattr(metric, "_metrics", {}):
                for label, value in zip(labels, series, strict=True):
                    known = values.setdefault(label, [])
                    if value not in known:
                        known.append(value)
    return "\n".join(
        [
            "# Metrics\n",
            "`GET /services/singularity/metrics` of the Hub, in Prometheus' text format. It needs "
            "a JupyterHub token with the scope `read:metrics` or `custom:singularity:admin`, "
            "unless `SchedulerApp.authenticate_metrics` is off. Every series is there from the "
            "start.\n",
            table(("metric", "type", "labels", "meaning"), rows),
            "## Values of the labels\n",
            table(
                ("label", "values"),
                [(f"`{k}`", ", ".join(f"`{v}`" for v in some)) for k, some in values.items()],
            ),
            "A Prometheus job:\n",
            "```yaml\n- job_name: singularity\n  metrics_path: /services/singularity/metrics\n"
            "  authorization:\n    credentials_file: /etc/prometheus/hub-token\n"
            '  static_configs:\n    - targets: ["hub.example.org"]\n```\n',
        ]
    )


def events_page() -> str:
    import yaml
    from singularity_scheduler.client.schemas import SCHEMAS

    out = [
        "# Events\n",
        "Schemas of [jupyter_events](https://jupyter-events.readthedocs.io). The service writes "
        "all of them to the file `SchedulerApp.event_log`, when one is set. The JupyterLab "
        "extension emits the first one, for this user's sessions, through the event logger of "
        "the user's Jupyter server.\n",
    ]
    for path in SCHEMAS.values():
        schema = yaml.safe_load(path.read_text())
        rows: list[tuple[object, ...]] = [
            (
                f"`{name}`",
                shown_schema(one),
                "yes" if name in schema["required"] else "",
                one.get("description", ""),
            )
            for name, one in schema["properties"].items()
        ]
        out.append(
            f"## {schema['title']}\n\n`{schema['$id']}`: {first_paragraph(schema['description'])}"
            f"{' It names people.' if schema['personal-data'] else ''}\n"
        )
        out.append(table(("field", "value", "always", "meaning"), rows))
    return "\n".join(out)


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "states.md": states_page,
    "magics.md": magics_page,
    "command-line.md": command_line_page,
    "errors.md": errors_page,
    "rest.md": rest_page,
    "metrics.md": metrics_page,
    "events.md": events_page,
    "ring.md": ring_page,
}


def render() -> dict[str, str]:
    """File name in docs/reference -> text."""
    pages = {name: NOTE + page().rstrip() + "\n" for name, page in PAGES.items()}
    return {**pages, "openapi.json": openapi_document()}


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

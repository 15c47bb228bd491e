"""The pages about the scheduler's API, its metrics and events, for docs/generate.py."""

from __future__ import annotations

import json
from typing import Any

from generate_text import first_paragraph, table

# ---- REST ----------------------------------------------------------------------------------------


def example_session() -> str:
    from dataclasses import replace

    from singularity_scheduler.core.reasons.reason import because
    from singularity_scheduler.core.state.cluster import ClusterState
    from singularity_scheduler.core.values.model import SessionView
    from singularity_scheduler.core.values.requested import Kind, Tier
    from singularity_scheduler.core.values.states import DeviceState, ProcessState
    from singularity_scheduler.service.schemas.documents import session_document

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
        why=because("held", devices=("cpu:1",), virtual=1, saved=False),
        epoch=3,
        busy=True,
        server="",
    )
    return json.dumps(session_document(ClusterState(), view), indent=2)


def rest_page() -> str:
    from singularity_scheduler.service.operations.handlers import TABLE
    from singularity_scheduler.service.schemas import common as schemas

    order = {"GET": 0, "POST": 1, "PUT": 2, "PATCH": 3, "DELETE": 4}
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
        other = f" or, when asked for it, {o.other}" if o.other else ""
        out.append(f"For {o.who.value}. Answers {o.status} with {answer}{other}.\n")
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
    from singularity_scheduler.service.operations.handlers import openapi_text

    return openapi_text().decode()


# ---- metrics, events -----------------------------------------------------------------------------


def metrics_page() -> str:
    from prometheus_client import Counter, Gauge, Histogram
    from singularity_scheduler.core.state.cluster import ClusterState
    from singularity_scheduler.service.api.metrics import Metrics
    from singularity_scheduler.service.operations import handlers

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

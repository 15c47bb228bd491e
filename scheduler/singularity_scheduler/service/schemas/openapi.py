"""The OpenAPI 3.1 document of the API, made from the table of operations."""

from __future__ import annotations

import json
from functools import cache
from http import HTTPStatus
from typing import Any

from singularity_scheduler.service.operations.table import TABLE, Operation, Parameter, Who

from . import common as schemas
from .vocabulary import ref

Json = dict[str, Any]

VERSION = "1"
"""Of the API, as in ``api/v1``."""


@cache
def openapi_text() -> bytes:
    """The document as the service sends it."""
    return (json.dumps(document(), indent=1) + "\n").encode()


def document() -> Json:
    """The whole document; schemas of requests and answers are its components."""
    paths: dict[str, Json] = {}
    for operation in TABLE:
        paths.setdefault(f"/{operation.route}", {})[operation.method.lower()] = _operation(
            operation
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jupyter-singularity",
            "version": VERSION,
            "summary": "Sessions whose accelerators come and go.",
            "description": "Every refusal is an application/problem+json document; its `detail` "
            "is one sentence for people, its `reason` a stable word for programs.",
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "servers": [{"url": "../..", "description": "The service's own address at the Hub."}],
        "paths": paths,
        "components": {
            "schemas": schemas.COMPONENTS,
            "securitySchemes": {
                "hub": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A JupyterHub token; `Authorization: token ...` works too.",
                }
            },
        },
    }


def _operation(operation: Operation) -> Json:
    parameters = [*operation.path_parameters, *operation.query]
    if operation.keyed:
        parameters.append(IDEMPOTENCY_KEY)
    made: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"For {operation.who.value}.",
        "security": [] if operation.who is Who.ANYBODY else [{"hub": []}],
        "parameters": [_parameter(p) for p in parameters],
        "responses": _responses(operation),
    }
    if operation.body:
        made["requestBody"] = {
            "required": _needs_body(operation.body),
            "content": {"application/json": {"schema": ref(operation.body)}},
        }
    return made


IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[ -~]+$"},
    "The same request with the same key is done once and answered again; another request with it "
    "is refused (409).",
    where="header",
)


def _needs_body(name: str) -> bool:
    schema = schemas.COMPONENTS[name]
    return bool(schema.get("required") or schema.get("oneOf"))


def _parameter(parameter: Parameter) -> Json:
    schema = dict(parameter.schema)
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.description,
        "schema": schema,
    }


def _responses(operation: Operation) -> Json:
    found: Json = {}
    for status in (operation.status, *operation.also):
        found[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": _content(operation.answer)
            | (_content(operation.other) if operation.other else {}),
            **(
                {
                    "headers": {
                        name: {"description": text, "schema": {"type": "string"}}
                        for name, text in operation.headers.items()
                    }
                }
                if operation.headers
                else {}
            ),
        }
    for error in operation.errors:
        said = f"{error.__name__}: {' '.join((error.__doc__ or '').split())}"
        entry = found.setdefault(str(error.http_status), {"description": said, "content": {}})
        entry["content"]["application/problem+json"] = {"schema": ref("Problem")}
    return found


def _content(answer: str) -> Json:
    if "/" in answer:
        return {answer.partition(";")[0]: {"schema": {"type": "string"}}}
    schema = {"type": "object"} if answer == "object" else ref(answer)
    return {"application/json": {"schema": schema}}

"""Submits a notebook for the view, checked as `jupyter singularity submit` checks it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from singularity_scheduler.client import ServiceClient
from singularity_scheduler.jobs.wishes import merged
from singularity_scheduler.requests.spec import parse_spec

from singularity_kernel.batch.files import read_notebook
from singularity_kernel.batch.running.fates import BadRun
from singularity_kernel.batch.submitting.submission import Asked, of_words
from singularity_kernel.batch.submitting.submit import surroundings
from singularity_kernel.batch.submitting.values import value_of


def request_of(
    notebook: str,
    output: str,
    *,
    name: str,
    tier: str,
    parameters: Mapping[str, str],
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """What is sent to the service; raises a typed error with nothing sent. The view knows only
    texts: one that does not fit the notebook's parameter as a number or truth value stays text."""
    environ = os.environ
    values = {key: value_of(text) for key, text in parameters.items()}
    while True:
        asked = Asked(notebook, output, parameters=values, metadata=metadata)
        try:
            made = of_words(asked, name, {"tier": tier}, environ)
            break
        except BadRun as error:
            wrong = str(error.fields.get("parameter"))
            if wrong not in parameters or values[wrong] == parameters[wrong]:
                raise
            values[wrong] = parameters[wrong]
    request = merged(made.request, surroundings(made.request, environ))
    parse_spec(request)
    return request


async def submit(request: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Send it; asking twice under one key gives one session."""
    client = ServiceClient.from_environment()
    return await client.submit(**{k: v for k, v in request.items() if k != "kind"}, key=key)


def render(notebook: str, target: str) -> None:
    """Write the notebook as HTML to `target`; nothing when there is none yet."""
    if not os.path.exists(notebook):
        return
    from nbconvert import HTMLExporter

    text, _ = HTMLExporter().from_notebook_node(read_notebook(notebook))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)

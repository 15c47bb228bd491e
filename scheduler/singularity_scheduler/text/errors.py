"""What the core refuses becomes the typed errors that people and programs get. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from singularity_proxy.errors import BadRequest, SingularityError

from singularity_scheduler.core.reasons.reason import Reason, to_json
from singularity_scheduler.core.reasons.refusals import Refused, refuse

from .reasons import render


def to_error(refused: Refused) -> SingularityError:
    """Return the typed error of a refusal, with its sentence, and among its fields the code and the
    arguments that the sentence was made of (`reason_code`, `reason_args`)."""
    told = to_json(refused.why)
    facts = {"reason_code": told["code"], "reason_args": told["args"], **refused.fields}
    return refused.kind(render(refused.why), **facts)


def bad_request(why: Reason, /, **fields: Any) -> SingularityError:
    """Return the error of a request that says what cannot be."""
    return to_error(refuse(BadRequest, why, **fields))


@contextmanager
def in_words() -> Iterator[None]:
    """Let what the core refuses meanwhile leave as the error that `to_error` makes of it."""
    try:
        yield
    except Refused as refused:
        raise to_error(refused) from None

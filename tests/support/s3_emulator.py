"""S3 and STS by moto, with what moto leaves out: requests one at a time (so that its conditions are
atomic), keys that are not taken, and the session policies of assumed roles.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import re
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs, unquote

from support.emulator import Emulator

BUCKET, KEY = "checkpoints", "test"
ROLE = "arn:aws:iam::123456789012:role/sessions"


class S3Emulator(Emulator):
    """`with S3Emulator() as server:` runs one with an empty bucket; it ends with the block."""

    def __init__(self) -> None:
        super().__init__("support.s3_emulator")

    def url(self, prefix: str, bucket: str = BUCKET, **query: str) -> str:
        """The address of a store."""
        query = {"region": "us-east-1", "endpoint": self.address, **query}
        return f"s3://{bucket}/{prefix}?" + "&".join(f"{k}={v}" for k, v in query.items())

    @property
    def options(self) -> dict[str, Any]:
        """For `open_store`."""
        return {"access_key_id": KEY, "secret_access_key": KEY}

    def __enter__(self) -> S3Emulator:
        super().__enter__()
        scope = "Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host"
        make = urllib.request.Request(
            f"{self.address}/{BUCKET}",
            method="PUT",
            headers={"Authorization": f"AWS4-HMAC-SHA256 {scope}, Signature=0"},
        )
        urllib.request.urlopen(make, timeout=60).close()
        return self


# ---- in the emulator's process -------------------------------------------------------------------

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_REFUSAL = "<ErrorResponse><Error><Code>{0}</Code></Error></ErrorResponse>"


class Gate:
    """What stands before moto."""

    def __init__(self, app: Wsgi) -> None:
        self._app, self._lock = app, threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            key = _access_key(environ)
            policy = None if key == KEY else _session_policy(key)
            if key != KEY and policy is None:
                return _refuse(start, "InvalidAccessKeyId")
            if policy is not None and not _allows(policy, environ):
                return _refuse(start, "AccessDenied")
            seen: list[Any] = []
            body = list(self._app(environ, lambda *answer: seen.extend(answer)))
            get = environ["REQUEST_METHOD"] in ("GET", "HEAD")
            if policy is not None and get and seen[0].startswith("404"):
                return _refuse(
                    start, "AccessDenied"
                )  # as who may not list the whole bucket is told
            start(*seen)
            return body


def _access_key(environ: dict[str, Any]) -> str:
    signed = environ.get("HTTP_AUTHORIZATION", "")
    found = re.search(r"Credential=([^/]+)/", signed)
    if found is None:
        given = parse_qs(environ.get("QUERY_STRING", "")).get("X-Amz-Credential", [""])
        found = re.match(r"([^/]+)/", given[0])
    return found[1] if found else ""


def _session_policy(key: str) -> dict[str, Any] | None:
    from moto.sts.models import sts_backends

    for account in list(sts_backends.values()):
        for backend in account.values():
            for role in backend.assumed_roles:
                if role.access_key_id == key:
                    return json.loads(role.policy)  # type: ignore[no-any-return]
    return None


def _allows(policy: dict[str, Any], environ: dict[str, Any]) -> bool:
    bucket, _, key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")
    method = environ["REQUEST_METHOD"]
    verbs = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
    query = parse_qs(environ.get("QUERY_STRING", ""))
    verb = verbs[method] if key else "ListBucket"
    resource = f"{bucket}/{key}" if key else bucket
    return _allowed(policy, verb, resource, query.get("prefix", [""])[0])


def _allowed(policy: dict[str, Any], verb: str, resource: str, prefix: str) -> bool:
    for statement in policy["Statement"]:
        actions = statement["Action"]
        if f"s3:{verb}" not in ([actions] if isinstance(actions, str) else actions):
            continue
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", "*")
        if fnmatch.fnmatchcase(f"arn:aws:s3:::{resource}", statement["Resource"]) and (
            fnmatch.fnmatchcase(prefix, wanted)
        ):
            return True
    return False


def _refuse(start: Callable[..., Any], code: str) -> list[bytes]:
    body = _REFUSAL.format(code).encode()
    start("403 Forbidden", [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as real services do

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Gate(DomainDispatcherApplication(create_backend_app))
    make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))

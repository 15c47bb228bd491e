"""What Google Cloud Storage answers to the requests of its XML API that the store makes, after its
documentation: an object has a generation that no other write has, an etag that is a hash of the
contents, and conditions are on generations.

No package is an emulator of that API (fake-gcs-server refuses its uploads), so this is not more
than a stand-in: it holds the store to what is written about Google, not to Google.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from support.emulator import Emulator

BUCKET, TOKEN = "checkpoints", "token-of-the-test"


class GoogleStandIn(Emulator):
    """`with GoogleStandIn() as server:` runs one with an empty bucket; it ends with the block."""

    def __init__(self) -> None:
        super().__init__("support.google_stand_in")

    def url(self, prefix: str, bucket: str = BUCKET) -> str:
        """The address of a store."""
        return f"gs://{bucket}/{prefix}?endpoint={self.address}"

    @property
    def options(self) -> dict[str, Any]:
        """For `open_store`."""
        return {"credentials": fixed_token(TOKEN)}


def fixed_token(token: str) -> Any:
    """Credentials of google-auth that are always this token."""
    from google.auth.credentials import Credentials

    class Fixed(Credentials):  # type: ignore[misc]
        def refresh(self, request: object) -> None:
            self.token = token

    return Fixed()


# ---- in the process of the stand-in --------------------------------------------------------------


@dataclass
class Object:
    data: bytes
    generation: int
    at: datetime

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer is sent at once
    objects: dict[str, Object] = {}
    lock = threading.Lock()
    last = [1000]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "AuthenticationRequired")
        if bucket != BUCKET:
            return self.refuse(404, "NoSuchBucket")
        with self.lock:
            if not key:
                return self.list(parse_qs(parts.query))
            return self.one(key, body)

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_one

    def one(self, key: str, body: bytes) -> None:
        found = self.objects.get(key)
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (found.generation if found else 0):
            return self.refuse(412, "PreconditionFailed")
        if self.command == "PUT":
            self.last[0] += 1
            found = Object(body, self.last[0], datetime.now(timezone.utc))
            self.objects[key] = found
            return self.answer(200, **self.about(found))
        if found is None:
            return self.refuse(404, "NoSuchKey")
        if self.command == "DELETE":
            del self.objects[key]
            return self.answer(204)
        return self.answer(200, found.data, **self.about(found))

    def about(self, found: Object) -> dict[str, str]:
        return {
            "ETag": found.etag,
            "Last_Modified": format_datetime(found.at, usegmt=True),
            "x_goog_generation": str(found.generation),
        }

    def list(self, query: dict[str, list[str]]) -> None:
        names = ("prefix", "delimiter", "start-after")
        prefix, delimiter, after = (query.get(name, [""])[0] for name in names)
        lines, folders = [], set()
        for key, found in sorted(self.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            at = found.at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            lines.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified>"
                f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>"
            )
        for folder in sorted(folders):
            lines.append(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>")
        text = "".join(lines)
        self.answer(200, f"<ListBucketResult>{text}</ListBucketResult>".encode())


def main(port: int) -> None:
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Checkpoints in a bucket, through obstore: what S3 and Google Cloud Storage have in common."""

from __future__ import annotations

import contextlib
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from singularity_proxy.checkpoint.keys import missing_library
from singularity_proxy.errors import (
    BadRequest,
    NoSpace,
    SingularityError,
    StoreRefused,
    StoreUnavailable,
    Unsupported,
)

from .base import Data, Entry, Moved, ObjectMissing, ObjectStore, check_key
from .connections import CODE, Answer, Connections

STAMP = 16
"""Random bytes before the contents of every object. The etag of a bucket may be a hash of what was
written (it is in S3), so without them writing the same twice would not change it, and a collector
could remove what a writer has just touched."""

PROBES = "+probe/"
"""Where the objects are that conditions are tried on; no user's name begins like this."""

PROBE_KEPT_S = 86_400.0
"""Nobody tries for so long."""

UNANSWERED = 0
"""`status` of a StoreUnavailable whose request may have been carried out; it has `what` came in
place of an answer, and how often it was `tried`."""

FAILED_FOR_S = 1.0
"""Who asks for credentials so soon after there were none is told the same. Requests that need them
ask one after the other, and each would wait as long for a service that hangs."""

_STATUS = re.compile(r"status code: (\d{3})")
_RETRIES = re.compile(r"\bafter (\d+) retries")
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId")
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "TemporaryRedirect")
_FULL = ("QuotaExceeded", "XMinioStorageFull")
_MACHINES_OWN = ("169.254.", "metadata.google.internal")
"""Where a machine of a cloud asks for credentials: what obstore tries last."""


class BucketUrl(NamedTuple):
    """The parts of a store's URL."""

    bucket: str
    prefix: str
    options: dict[str, str]


class Credentials(ABC):
    """Credentials that end: called by obstore whenever it has none that are valid."""

    failed: SingularityError | None = None
    """Why there were none the last time."""
    _failed_at = 0.0

    def __call__(self) -> dict[str, Any]:
        if self.failed is not None and time.monotonic() - self._failed_at < FAILED_FOR_S:
            raise self.failed
        try:
            found = self.fetch()
        except SingularityError as error:
            self._failed_at, self.failed = time.monotonic(), error
            raise
        self.failed = None
        return found

    @abstractmethod
    def fetch(self) -> dict[str, Any]:
        """What obstore takes as credentials of this kind of store. Raises StoreRefused,
        StoreUnavailable."""


@dataclass(frozen=True)
class Pace:
    """How a store is spoken to: a request is tried `retries` more times when the service is busy or
    cannot be reached, after `backoff_s`, twice that, ... seconds; `connect_timeout_s` and
    `read_timeout_s` (for sending a request until the answer begins, and between its pieces) are for
    one try. `transfers` run at once."""

    transfers: int = 8
    retries: int = 3
    backoff_s: float = 0.4
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0


class BucketStore(ObjectStore):
    """An object is written by one request; `swap` and `delete_if` are conditional requests, and
    `prepare` proves that the service carries them out."""

    scheme: str
    extra: str
    """What of the package brings its libraries."""

    never: ClassVar[dict[str, str]]
    """A condition, as `condition` gives them, that no object fulfils."""

    def __init__(
        self,
        parts: BucketUrl,
        pace: Pace,
        *,
        make: bool,
    ) -> None:
        try:
            import obstore
        except ImportError:
            raise missing_library("obstore", self.extra) from None
        self._api = obstore
        self.url = f"{self.scheme}://{parts.bucket}/{parts.prefix}".rstrip("/")
        self.transfers, self.pace = pace.transfers, pace
        self.stat_is_cheap = False
        self.bucket, self.prefix = parts.bucket, f"{parts.prefix}/" if parts.prefix else ""
        self._tries = pace.retries + 1
        self._users: list[BucketStore] = []
        self._connections = Connections(pace.connect_timeout_s, pace.read_timeout_s)
        self.client: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=pace.connect_timeout_s),
            "read_timeout": timedelta(seconds=pace.read_timeout_s),
            # Of an answer that goes on, however slowly, nothing is given up.
            "timeout": timedelta(hours=1),
        }
        self.retry: dict[str, Any] = {
            "max_retries": pace.retries,
            "retry_timeout": timedelta(minutes=3),
            "backoff": {
                "init_backoff": timedelta(seconds=pace.backoff_s),
                "max_backoff": timedelta(seconds=max(15.0, pace.backoff_s)),
                "base": 2,
            },
        }
        self.credentials: Credentials | None = None
        try:
            self._store: Any = self.connect()
        except obstore.exceptions.BaseError as error:
            raise self._failed(error, "opened", "") from None
        except ValueError:
            raise BadRequest(
                f"{self.url} cannot be used with the options that were given"
            ) from None
        if make:
            try:
                self.prepare()
            except BaseException:
                self.close()  # nobody else gets to know of its connections
                raise

    # ---- what the kinds of services differ in ----------------------------------------------------

    @abstractmethod
    def connect(self) -> Any:
        """obstore's store; may set `credentials`."""

    @abstractmethod
    def condition(self, key: str, etag: str) -> dict[str, str]:
        """obstore's mode of writing the object if it still has that etag. Raises Moved."""

    @abstractmethod
    def delete_request(self, key: str, condition: dict[str, str]) -> tuple[str, dict[str, str]]:
        """(URL, headers) of a request that removes the object on a `condition`; {}: on none."""

    @abstractmethod
    def scoped(self, root: str) -> BucketStore:
        """The same store with credentials for the objects below `root` alone; `self`: there are
        none."""

    # ---- the interface ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Prove that the service keeps the conditions of requests, on an object made for it. Many
        that speak S3 ignore some of them; with such a one a collector would remove what a session
        has just stored."""
        key = PROBES + os.urandom(16).hex()
        first = self.swap(key, b"", None)
        broken = []
        for name, try_it in (
            ("If-None-Match of PUT", lambda: self._write(key, self._stamped([b""]), "create")),
            ("If-Match of PUT", lambda: self._write(key, self._stamped([b""]), self.never)),
            ("If-Match of DELETE", lambda: self._delete_on(key, lambda: self.never)),
        ):
            with contextlib.suppress(Moved, ObjectMissing):
                try_it()
                broken.append(name)
        made = self.stat(key)
        if made is not None and not broken:
            self.delete_if(key, first)
            for entry in self.list(PROBES):  # and those of agents that were killed here
                if made.modified - entry.modified > PROBE_KEPT_S:
                    self.delete(entry.key)
        if broken:
            self.delete(key)
            raise Unsupported(
                f"the service of the checkpoint store {self.url} does not keep the condition "
                f"{' and '.join(broken)}, without which checkpoints could be lost; nothing was "
                "stored, use a service that does"
            )

    def for_user(self, root: str) -> ObjectStore:
        found = self.scoped(check_key(root))
        if found is not self:
            found._connections = self._connections  # all go to the same place
            self._users.append(found)
        return found

    def put(self, key: str, data: Sequence[Data], *, durable: bool = True) -> None:
        self._write(key, self._stamped(data), "overwrite")

    def flush(self) -> None:
        """An accepted object is durable."""

    def read(self, key: str) -> tuple[bytes, str]:
        data, etag = self._read(key)
        return data[STAMP:], etag

    def stat(self, key: str) -> Entry | None:
        path = self._path(key)
        try:
            with self._found_or_missing(key), self._typed("read", key):
                return self._entry(self._api.head(self._store, path))
        except ObjectMissing:
            return None

    def list(self, prefix: str) -> Iterator[Entry]:
        check_key(prefix.rstrip("/"))
        with self._typed("listed"):
            for some in self._api.list(self._store, self.prefix + prefix, chunk_size=1000):
                for meta in some:
                    yield self._entry(meta)

    def names(self, prefix: str) -> Iterator[str]:
        start = self.prefix + prefix
        with self._typed("listed"):
            found = self._api.list_with_delimiter(self._store, start or None)
        for name in (*found["common_prefixes"], *(meta["path"] for meta in found["objects"])):
            yield name[len(start) :].rstrip("/")

    def touch(self, key: str) -> bool:
        while True:
            try:
                data, etag = self._read(key)
                self.swap(key, data[STAMP:], etag)  # with another stamp
                return True
            except ObjectMissing:
                return False
            except Moved:
                continue  # written or removed meanwhile: look again

    def delete(self, key: str) -> None:
        # Not by obstore: it has S3 remove a list of objects, and a refusal in that has no status.
        with contextlib.suppress(ObjectMissing, Moved):
            self._delete_on(key, lambda: {})

    def delete_if(self, key: str, etag: str) -> bool:
        try:
            self._delete_on(key, lambda: self.condition(key, etag))
            return True
        except (ObjectMissing, Moved):
            return False

    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        body, tried = self._stamped([data]), 0
        while True:
            try:
                return self._write_if(key, body, etag)
            except (Moved, ObjectMissing):
                break
            except StoreUnavailable as error:
                # It may have been carried out without an answer, or may yet be. All tries write the
                # same bytes, so whichever arrives is told from what others wrote.
                if error.fields.get("status") != UNANSWERED:
                    raise
                tried += error.fields["tried"]  # obstore repeats what was certainly not sent
                if tried >= self._tries:
                    raise self._told(error.fields["what"], "written", key, tried) from None
                time.sleep(self.pace.backoff_s * 2 ** (tried - 1))
        try:
            now, now_etag = self._read(key)
        except ObjectMissing:
            raise Moved(key) from None
        if now == body:
            return now_etag
        raise Moved(key)

    def close(self) -> None:
        for each in self._users:
            each.close()
        self._users.clear()
        self._connections.close()
        self._store = None  # its connections end with it

    # ---- inside ----------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return self.prefix + check_key(key)

    @staticmethod
    def _stamped(data: Sequence[Data]) -> bytes:
        return b"".join((os.urandom(STAMP), *data))

    def _write(self, key: str, body: bytes, mode: Any) -> str:
        path = self._path(key)
        with self._typed("written", key):
            done = self._api.put(self._store, path, body, mode=mode, use_multipart=False)
        return str(done["e_tag"])

    def _write_if(self, key: str, body: bytes, etag: str | None) -> str:
        return self._write(key, body, "create" if etag is None else self.condition(key, etag))

    def _read(self, key: str) -> tuple[bytes, str]:
        """(stamp and contents, etag)."""
        path = self._path(key)
        with self._found_or_missing(key), self._typed("read", key):
            found = self._api.get(self._store, path)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def _delete_on(self, key: str, condition: Callable[[], dict[str, str]]) -> None:
        """Remove the object on a condition. Raises Moved, ObjectMissing."""
        for tried in range(1, self._tries + 1):
            # obstore has no condition for this request, so it only signs it.
            url, headers = self.delete_request(key, condition())
            answer = self._connections.send("DELETE", url, headers)
            if isinstance(answer, Answer) and answer.status < 300:
                return
            busy = not isinstance(answer, Answer) or answer.status in (408, 429, 500, 502, 503, 504)
            if not busy or tried == self._tries:
                raise self._told(answer, "removed", key, tried) from None
            time.sleep(self.pace.backoff_s * 2 ** (tried - 1))

    def _entry(self, meta: Mapping[str, Any]) -> Entry:
        return Entry(
            meta["path"][len(self.prefix) :],
            max(0, meta["size"] - STAMP),
            meta["last_modified"].timestamp(),
            str(meta["e_tag"]),
        )

    @contextlib.contextmanager
    def _found_or_missing(self, key: str) -> Iterator[None]:
        """Credentials for one user's objects may not ask whether an object exists that does not: S3
        answers 403 then. The list of that user's objects says which it was."""
        try:
            yield
        except StoreRefused:
            if self.credentials is None or self.credentials.failed is not None:
                raise
            if "/" not in key or self._is_listed(key):
                raise
            raise ObjectMissing(f"the checkpoint store {self.url} has no {key}", key=key) from None

    def _is_listed(self, key: str) -> bool:
        """Whether the object stands in the list of its folder, which is read from just before it
        on: these services list by name."""
        path = self._path(key)
        folder = path.rpartition("/")[0]
        with self._typed("listed"):
            for some in self._api.list(self._store, folder, offset=path[:-1], chunk_size=16):
                for meta in some:
                    if meta["path"] >= path:
                        return bool(meta["path"] == path)
        return False

    @contextlib.contextmanager
    def _typed(self, verb: str, key: str = "") -> Iterator[None]:
        """The library's errors as ours. Theirs quote requests, so nothing of their text is passed
        on but a status and the service's own word for it."""
        try:
            yield
        except (self._api.exceptions.BaseError, FileNotFoundError, PermissionError) as error:
            raise self._failed(error, verb, key) from None

    def _failed(self, error: Exception, verb: str, key: str) -> Exception:
        text, kinds = str(error), self._api.exceptions
        if isinstance(error, (kinds.AlreadyExistsError, kinds.PreconditionError)):
            return Moved(key)
        retries = _RETRIES.search(text)
        tried = int(retries[1]) + 1 if retries else 1
        if self.credentials is not None and self.credentials.failed is not None:
            return self.credentials.failed
        if any(place in text for place in _MACHINES_OWN):
            return StoreRefused(
                f"there are no credentials for the checkpoint store {self.url}; nothing was "
                f"{verb}, give the node agent some",
                store=self.url,
            )
        if status := _STATUS.search(text):
            code = CODE.search(text)
            return self._told(Answer(int(status[1]), code[1] if code else "", tried), verb, key)
        if isinstance(error, (kinds.UnauthenticatedError, kinds.PermissionDeniedError)):
            return self.refused(verb)
        if "kind: Timeout" in text or "timed out" in text:
            return self._told("did not answer in time", verb, key, tried)
        if "HTTP error" in text or "HttpError" in text:
            return self._told("cannot be reached", verb, key, tried)
        name = type(error).__name__
        return StoreUnavailable(
            f"the checkpoint store {self.url} could not be {verb} ({name})", store=self.url
        )

    def _told(self, answer: Answer | str, verb: str, key: str, tried: int = 0) -> Exception:
        """The error of an answer that says no, or of what came in place of an answer."""
        if isinstance(answer, str):
            return StoreUnavailable(
                f"the checkpoint store {self.url} {answer} (tried {tried} times)",
                store=self.url,
                status=UNANSWERED,
                what=answer,
                tried=tried,
            )
        status, code, times = answer
        times = max(tried, times)
        if code == "NoSuchBucket":
            return StoreUnavailable(
                f"the checkpoint store {self.url} has no bucket (404 NoSuchBucket); nothing was "
                f"{verb}, make the bucket '{self.bucket}' and try again",
                store=self.url,
                status=status,
            )
        if status == 404 and key:
            return ObjectMissing(f"the checkpoint store {self.url} has no {key}", key=key)
        if status in (409, 412) and key:
            return Moved(key)
        if status == 301 or code in _ELSEWHERE:
            return StoreUnavailable(
                f"the checkpoint store {self.url} is in another region ({status} {code}); nothing "
                f"was {verb}, name the bucket's region as ?region=",
                store=self.url,
                status=status,
            )
        if status in (401, 403) or code in _EXPIRED:
            return self.refused(verb, code)
        if status == 507 or code in _FULL:
            return NoSpace(
                f"the checkpoint store {self.url} is full ({status} {code})", store=self.url
            )
        repeated = f", tried {times} times" if status in (408, 429) or status >= 500 else ""
        return StoreUnavailable(
            f"the checkpoint store {self.url} answered {status} {code}".rstrip() + repeated,
            store=self.url,
            status=status,
        )


def parse_bucket_url(url: str, known: Sequence[str], example: str) -> BucketUrl:
    """The parts of a store's URL, whose query may name the `known` options. Raises BadRequest,
    which does not quote what may be a credential."""
    parts = urlsplit(url)
    prefix = "/".join(unquote(each) for each in parts.path.split("/") if each)
    options = dict(parse_qsl(parts.query))
    if not parts.hostname or "@" in parts.netloc or ":" in parts.netloc:
        raise BadRequest(f"the checkpoint store {parts.scheme}:// names no bucket; use {example}")
    if unknown := sorted(set(options) - set(known)):
        raise BadRequest(
            f"a checkpoint store {parts.scheme}:// takes no {unknown[0]} in its address; it takes "
            f"{', '.join(known)}, and credentials from the environment"
        )
    if prefix:
        check_key(prefix)
    return BucketUrl(parts.netloc, prefix, options)

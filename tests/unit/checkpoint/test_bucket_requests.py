"""What a store in a bucket asks for, and how often, of a bucket in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from singularity_proxy.checkpoint.stores import bucket as bucket_store
from singularity_proxy.checkpoint.stores.base import ObjectMissing
from singularity_proxy.checkpoint.stores.bucket import BucketStore, BucketUrl, Credentials, Pace
from singularity_proxy.errors import StoreRefused, StoreUnavailable


class Given(Credentials):
    """Credentials that are always there."""

    def fetch(self) -> dict[str, Any]:
        return {}


class MemoryBucket(BucketStore):
    scheme, extra = "memory", "none"
    never: ClassVar[dict[str, str]] = {"e_tag": "none"}

    def __init__(self, **pace: Any) -> None:
        super().__init__(BucketUrl("bucket", "team", {}), Pace(**pace), make=False)

    def connect(self) -> Any:
        from obstore.store import MemoryStore

        self.credentials = Given()
        return MemoryStore()

    def condition(self, key: str, etag: str) -> dict[str, str]:
        return {"e_tag": etag}

    def delete_request(self, key: str, condition: dict[str, str]) -> tuple[str, dict[str, str]]:
        raise AssertionError("nothing is removed here")

    def scoped(self, root: str) -> BucketStore:
        return self


@pytest.fixture
def bucket() -> Iterator[MemoryBucket]:
    store = MemoryBucket(backoff_s=0.0)
    yield store
    store.close()


def replace(store: BucketStore, **functions: Any) -> None:
    """Some of obstore's functions, for this store alone."""
    parts = {name: getattr(obstore, name) for name in dir(obstore)}
    store._api = SimpleNamespace(**{**parts, **functions})


def test_what_is_refused_is_looked_for_in_the_list_where_it_would_stand(
    bucket: MemoryBucket,
) -> None:
    """With credentials for one user S3 says 403 of what is not there. The folder of the object may
    be all that the user has (`alice/clock`): none of it is read but what stands there."""
    keys = [f"alice/chunks/{n:02x}/{n:02x}" for n in range(40)]
    keys += ["alice/clock", "alice/s%2Fy/h", "alice/sessions/s/head", "bob/clock"]
    for key in keys:
        bucket.put(key, [b"x"])
    seen: list[str] = []

    def look(*args: Any, **options: Any) -> Iterator[list[Any]]:
        for some in obstore.list(*args, **options):
            seen.extend(meta["path"] for meta in some)
            yield some

    def refuse(*_: Any) -> Any:
        raise PermissionDeniedError("Server returned status code: 403 Forbidden")

    replace(bucket, list=look, head=refuse, get=refuse)
    for key in keys:
        with pytest.raises(StoreRefused):
            bucket.stat(key)
        with pytest.raises(StoreRefused):
            bucket.read(key)
    assert "team/alice/chunks/00/00" in seen
    seen.clear()
    for key in ("alice/clocks", "alice/cloc", "alice/sessions/s/hea", "alice/zz", "carol/clock"):
        assert bucket.stat(key) is None
        with pytest.raises(ObjectMissing):
            bucket.read(key)
    assert not [path for path in seen if "/chunks/" in path]
    seen.clear()
    with pytest.raises(StoreRefused):
        bucket.stat("alice/clock")
    assert seen[0] == "team/alice/clock"


@pytest.mark.parametrize(
    ("text", "asked", "tried"),
    [
        ("HTTP error: operation timed out", 4, 4),
        ("HTTP error: connection refused, after 3 retries, max_retries: 3", 1, 4),
        ("HTTP error: connection refused, after 1 retries, max_retries: 3", 2, 4),
    ],
)
def test_a_swap_is_tried_as_often_as_any_other_request(
    bucket: MemoryBucket, text: str, asked: int, tried: int
) -> None:
    """Some failures obstore repeats itself."""
    calls: list[str] = []

    def fail(_: Any, path: str, *__: Any, **___: Any) -> Any:
        calls.append(path)
        raise GenericError(text)

    replace(bucket, put=fail)
    with pytest.raises(StoreUnavailable, match=rf"\(tried {tried} times\)"):
        bucket.swap("alice/head", b"x", None)
    assert calls == ["team/alice/head"] * asked


def test_who_waits_for_credentials_does_not_wait_for_each_other_s_failure() -> None:
    """Requests that need new ones ask one after the other. Of a service that hangs, the first one's
    failure is that of all; later it is asked again."""

    class Away(Credentials):
        asked, away = 0, True

        def fetch(self) -> dict[str, Any]:
            self.asked += 1
            if self.away:
                raise StoreUnavailable("STS cannot be reached")
            return {"token": "t"}

    credentials = Away()
    for _ in range(8):
        with pytest.raises(StoreUnavailable, match="STS cannot be reached"):
            credentials()
        credentials._failed_at = time.monotonic()  # however slow this machine is
    assert credentials.asked == 1
    credentials._failed_at -= bucket_store.FAILED_FOR_S
    credentials.away = False
    assert credentials() == {"token": "t"}
    assert credentials.failed is None
    assert credentials() == {"token": "t"}
    assert credentials.asked == 3

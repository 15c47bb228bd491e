"""What is special about S3 and Google Cloud Storage: addresses, credentials of one user each,
conditions, and a service that fails."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.cleaning.retention import Policy
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores import bucket as bucket_store
from singularity_proxy.checkpoint.stores.base import Moved, ObjectMissing
from singularity_proxy.checkpoint.stores.bucket import BucketStore
from singularity_proxy.checkpoint.stores.google import GoogleStore, user_boundary
from singularity_proxy.checkpoint.stores.s3 import S3Store, user_policy
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import (
    BadRequest,
    StoreChanged,
    StoreRefused,
    StoreUnavailable,
    Unsupported,
)
from singularity_scheduler.agent.store.stores import Stores
from support.checkpoint_data import noise
from support.google_stand_in import TOKEN, GoogleStandIn, fixed_token
from support.s3_emulator import ROLE, S3Emulator
from support.store_faults import FaultProxy

QUICK = {"backoff_s": 0.01, "connect_timeout_s": 20.0, "read_timeout_s": 20.0, "retries": 2}


@pytest.fixture
def server(emulator: Callable[[str], Any]) -> S3Emulator:
    return emulator("s3")  # type: ignore[no-any-return]


@pytest.fixture
def google(emulator: Callable[[str], Any]) -> GoogleStandIn:
    return emulator("google")  # type: ignore[no-any-return]


@pytest.fixture
def proxy(server: S3Emulator) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store of a test is closed after it, also when it fails."""
    stores: list[BucketStore] = []
    original = BucketStore.__init__

    def remember(self: BucketStore, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        stores.append(self)

    monkeypatch.setattr(BucketStore, "__init__", remember)
    yield
    for store in stores:
        store.close()
    gc.collect()


def store_at(server: S3Emulator, prefix: str, **options: Any) -> S3Store:
    query = options.pop("query", {})
    return S3Store(server.url(prefix, **query), **{**server.options, **QUICK, **options})


def through(server: S3Emulator, proxy: FaultProxy, prefix: str, **options: Any) -> S3Store:
    query = {"endpoint": f"http://127.0.0.1:{proxy.port}"}
    return store_at(server, prefix, query=query, **options)


# ---- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://key:topsecret@bucket/x", "names no bucket"),
        ("s3://bucket/x?secret_access_key=topsecret", "takes no secret_access_key in its address"),
        ("s3://bucket/a/../b", "is not the name of a stored object"),
        ("s3://bucket/x?user_role=topsecret", "user_role is no ARN of a role"),
        (f"s3://bucket/x?user_role={ROLE}&endpoint=https://e", "needs sts_endpoint as well"),
        ("gs://", "names no bucket"),
        ("gs://bucket/x?token=topsecret", "takes no token in its address"),
        ("gs://bucket/x?per_user=topsecret", "per_user of a checkpoint store gs:// is yes or no"),
    ],
)
def test_addresses_that_are_no_store(url: str, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        open_store(url)
    assert said in caught.value.message
    assert "topsecret" not in caught.value.message


def test_an_address_without_its_options_is_shown(server: S3Emulator) -> None:
    store = store_at(server, "shown/deep")
    assert store.url == "s3://checkpoints/shown/deep"


# ---- a service that fails ------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["busy", "hang", "refuse"])
def test_a_service_that_fails_is_one_sentence(
    server: S3Emulator, proxy: FaultProxy, fault: str
) -> None:
    """What was listed before stays, and the save works afterwards."""
    box = Checkpoints(through(server, proxy, f"all-{fault}"), "alice")
    hasty = through(server, proxy, f"all-{fault}", make=False, retries=1, read_timeout_s=2.0)
    first = box.save(Request("s", 1, "files"), [Part("x", "scratch", data=noise(100_000, 1))])
    part = Part("x", "scratch", data=noise(100_000, 2))

    def fail(name: str) -> None:
        if name == "save.pinned":
            proxy.mode = fault

    with pytest.raises(StoreUnavailable) as caught:
        Checkpoints(hasty, "alice").save(Request("s", 1, "files", name="n"), [part], on_step=fail)
    what = {
        "busy": "answered 503, tried 2 times",
        "hang": "did not answer in time (tried 2 times)",
        "refuse": "cannot be reached (tried 2 times)",
    }[fault]
    assert caught.value.message == (
        f"checkpoint 'n' of session s was not made: the checkpoint store "
        f"s3://checkpoints/all-{fault} {what}; older checkpoints were kept"
    )
    proxy.mode = "pass"
    assert box.list("s") == [first]
    second = box.save(Request("s", 1, "files"), [part])
    assert box.list("s") == [first, second]
    box.collect(spare_s=0, dead_after_s=-1)
    assert box.verify("s", first.id) == box.verify("s", second.id) == 1


def test_short_failures_are_bridged(server: S3Emulator, proxy: FaultProxy) -> None:
    """Two requests in a row fail, whichever they are: nobody notices."""
    box = Checkpoints(through(server, proxy, "short"), "alice")
    part = Part("x", "scratch", data=noise(100_000, 1))

    def fail(name: str) -> None:
        proxy.mode, proxy.left = "busy", 2

    for _ in range(2):
        box.save(Request("s", 1, "files"), [part], on_step=fail)
    box.collect(spare_s=0, on_step=fail)
    proxy.mode = "pass"
    assert len(box.list("s")) == 2
    assert box.verify("s") == 1


def test_a_lost_answer_is_not_taken_for_a_lost_race(
    server: S3Emulator, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = through(server, proxy, "lost")
    proxy.mode, proxy.left = "lose", 1
    first = store.swap("u/head", b"one", None)
    assert store.read("u/head") == (b"one", first)
    proxy.mode, proxy.left = "lose", 1
    second = store.swap("u/head", b"two", first)
    assert store.read("u/head") == (b"two", second)
    with pytest.raises(Moved):
        store.swap("u/head", b"three", first)
    read = store._read

    def lose_the_next(key: str) -> tuple[bytes, str]:
        found = read(key)
        monkeypatch.setattr(store, "_read", read)
        proxy.mode, proxy.left = "lose", 1
        return found

    monkeypatch.setattr(store, "_read", lose_the_next)
    assert store.touch("u/head")
    data, third = store.read("u/head")
    assert (data, third != second) == (b"two", True)
    proxy.mode, proxy.left = "lose", 1
    store.put("u/a", [b"x"])
    proxy.mode, proxy.left = "lose", 1
    assert store.get("u/a") == b"x"


def test_a_store_that_hangs_holds_up_nothing_else(server: S3Emulator, proxy: FaultProxy) -> None:
    """Other threads of the process go on while a request waits."""
    store = through(server, proxy, "hangs", retries=0, read_timeout_s=20.0)
    proxy.mode = "hang"
    failed: list[StoreUnavailable] = []

    def put() -> None:
        try:
            store.put("u/a", [noise(1 << 20)])
        except StoreUnavailable as error:
            failed.append(error)

    seen = proxy.seen
    thread = threading.Thread(target=put)
    thread.start()
    while proxy.seen == seen:
        thread.join(0.01)
    assert sum(range(1000)) == 499_500
    assert thread.is_alive()
    proxy.__exit__()  # the line is cut: nobody waits for the time to run out
    thread.join(60)
    assert not thread.is_alive()
    assert len(failed) == 1


def test_nobody_at_the_address() -> None:
    with FaultProxy(9) as proxy:
        port = proxy.port
    url = f"s3://bucket/x?region=us-east-1&endpoint=http://127.0.0.1:{port}"
    with pytest.raises(StoreUnavailable) as caught:
        open_store(url, access_key_id="a", secret_access_key="b", **QUICK)
    assert caught.value.message == (
        "the checkpoint store s3://bucket/x cannot be reached (tried 3 times)"
    )


def test_a_bucket_that_is_not_there(server: S3Emulator) -> None:
    url = server.url("x", bucket="no-such-bucket")
    said = "has no bucket \\(404 NoSuchBucket\\).* make the bucket 'no-such-bucket' and try again"
    with pytest.raises(StoreUnavailable, match=said):
        open_store(url, **server.options, **QUICK)
    store = open_store(url, make=False, **server.options, **QUICK)
    for call in (
        lambda: store.get("u/a"),
        lambda: list(store.list("u/")),
        lambda: list(store.names("")),
        lambda: store.delete_if("u/a", '"0"'),
        lambda: store.swap("u/a", b"x", None),
    ):
        with pytest.raises(StoreUnavailable, match=said):
            call()


# ---- credentials ---------------------------------------------------------------------------------


def test_wrong_keys_are_told_without_naming_them(server: S3Emulator) -> None:
    store = store_at(
        server, "x", make=False, access_key_id="AKIAWRONG", secret_access_key="topsecret"
    )
    for call in (
        lambda: store.put("u/a", [b"x"]),
        lambda: store.get("u/a"),
        lambda: list(store.list("u/")),
        lambda: store.delete_if("u/a", '"0"'),
    ):
        with pytest.raises(StoreRefused) as caught:
            call()
        assert "does not take these credentials (InvalidAccessKeyId)" in caught.value.message
        assert "AKIAWRONG" not in caught.value.message
        assert "topsecret" not in caught.value.message


@pytest.mark.usefixtures("environment")
def test_credentials_of_the_environment(server: S3Emulator) -> None:
    store = open_store(server.url("env"), **QUICK)
    store.put("u/a", [b"x"])
    assert store.get("u/a") == b"x"


def for_users(server: S3Emulator, prefix: str, **options: Any) -> S3Store:
    query = {"user_role": ROLE, "sts_endpoint": server.address}
    return store_at(server, prefix, query=query, **options)


def test_a_user_reaches_only_what_is_theirs(server: S3Emulator) -> None:
    store = for_users(server, "team/users")
    store.put("bob/secret", [b"of bob"])
    alice, bob = store.for_user("alice"), store.for_user("bob")
    assert bob.get("bob/secret") == b"of bob"
    entry = bob.stat("bob/secret")
    assert entry is not None
    for call in (
        lambda: alice.get("bob/secret"),
        lambda: alice.stat("bob/secret"),
        lambda: alice.put("bob/secret", [b"x"]),
        lambda: alice.delete("bob/secret"),
        lambda: alice.delete_if("bob/secret", entry.etag),
        lambda: alice.swap("bob/secret", b"x", entry.etag),
        lambda: alice.touch("bob/secret"),
        lambda: list(alice.list("bob/")),
        lambda: list(alice.names("bob/")),
        lambda: list(alice.names("")),
        lambda: alice.put("alicia/x", [b"x"]),
    ):
        with pytest.raises(StoreRefused, match="does not take these credentials"):
            call()
    assert store.get("bob/secret") == b"of bob"


def test_checkpoints_with_credentials_of_the_user(server: S3Emulator) -> None:
    """All that a save, a restore and a collector do, with nothing beyond the user's prefix."""
    box = Checkpoints(for_users(server, "scoped").for_user("alice"), "alice")
    with pytest.raises(ObjectMissing):
        box.store.get("alice/nothing")
    assert box.store.stat("alice/nothing") is None
    assert not box.store.delete_if("alice/nothing", '"0"')
    box.store.delete("alice/nothing")
    one = box.save(Request("s", 1, "files"), [Part("x", "scratch", data=noise(100_000, 1))])
    two = box.save(Request("s", 1, "files"), [Part("x", "scratch", data=noise(100_000, 2))])
    assert box.list("s") == [one, two]
    box.delete("s", one.id)
    assert box.collect(spare_s=0).chunks > 0
    assert box.verify("s", two.id) == 1


def test_without_a_role_users_share_the_agents_credentials(server: S3Emulator) -> None:
    store = store_at(server, "shared")
    assert store.for_user("alice") is store


def test_a_role_that_cannot_be_taken_is_one_sentence(server: S3Emulator) -> None:
    wrong = {"access_key_id": "AKIAWRONG", "secret_access_key": "topsecret"}
    store = for_users(server, "refused", make=False, **wrong)
    with pytest.raises(StoreRefused) as caught:
        store.for_user("alice").put("alice/a", [b"x"])
    assert caught.value.message == (
        "the checkpoint store s3://checkpoints/refused gave no credentials for one user: role "
        f"{ROLE} cannot be taken (InvalidAccessKeyId)"
    )


def test_an_sts_that_is_away_is_one_sentence(server: S3Emulator) -> None:
    with FaultProxy(9) as proxy:
        port = proxy.port
    query = {"user_role": ROLE, "sts_endpoint": f"http://127.0.0.1:{port}"}
    store = store_at(server, "away", query=query, retries=0)
    with pytest.raises(StoreUnavailable) as caught:
        store.for_user("alice").get("alice/a")
    assert "gave no credentials for one user: STS cannot be reached" in caught.value.message


def test_the_policy_of_a_user() -> None:
    policy = user_policy("b", "p/o'neil%2A/", "aws-cn", {})
    assert len(policy) < 2048
    objects, listing, _ = json.loads(policy)["Statement"]
    assert objects["Resource"] == "arn:aws-cn:s3:::b/p/o'neil%2A/*"
    assert listing["Condition"] == {"StringLike": {"s3:prefix": "p/o'neil%2A/*"}}


# ---- the agent's side ----------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
@pytest.mark.asyncio
async def test_the_agent_stores_with_credentials_of_the_user(server: S3Emulator) -> None:
    url = server.url("agent", user_role=ROLE, sts_endpoint=server.address)
    stores = Stores(url, "", Policy(), 1)
    try:
        part = Part("x", "scratch", data=noise(50_000))
        await stores.call("alice", lambda box: box.save(Request("s", 1, "files"), [part]))
        with pytest.raises(StoreRefused):
            await stores.call("alice", lambda box: box.store.put("bob/x", [b"x"]))
        assert stores.describe() == {
            "available": True,
            "url": "s3://checkpoints/agent",
            "id": stores.identity,
            "reason": "",
        }
        again = Stores(url, "", Policy(), 1, identity=stores.identity)
        assert await again.call("alice", lambda box: box.verify("s")) == 1
        again.close()
        other = Stores(url, "", Policy(), 1, identity="another")
        with pytest.raises(StoreChanged):
            await other.call("alice", lambda box: box.list("s"))
        other.close()
    finally:
        stores.close()


@pytest.mark.usefixtures("environment")
@pytest.mark.asyncio
async def test_the_agent_goes_on_while_its_store_hangs(
    server: S3Emulator, proxy: FaultProxy
) -> None:
    url = server.url("agent-hangs", endpoint=f"http://127.0.0.1:{proxy.port}")
    stores = Stores(url, "", Policy(), 1)
    await stores.probe()
    proxy.mode, seen = "hang", proxy.seen
    save = Request("s", 1, "files")
    part = Part("x", "scratch", data=noise(50_000))
    saving = asyncio.create_task(stores.call("alice", lambda box: box.save(save, [part])))
    while proxy.seen == seen:
        await asyncio.sleep(0.01)  # the loop answers others meanwhile
    assert not saving.done()
    proxy.mode = "refuse"
    proxy.__exit__()  # the line is cut: nobody waits for the time to run out
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await saving
    stores.close()


# ---- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["If-None-Match of PUT", "If-Match of PUT", "If-Match of DELETE"])
@pytest.mark.parametrize("kind", ["s3", "google"])
def test_a_service_that_ignores_conditions_is_refused(
    emulator: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, kind: str, named: str
) -> None:
    server, store_class = emulator(kind), {"s3": S3Store, "google": GoogleStore}[kind]
    write, deleting = BucketStore._write, store_class.delete_request
    ignored = {"If-None-Match of PUT": str, "If-Match of PUT": dict}.get(named, bytes)

    def ignore(self: BucketStore, key: str, body: bytes, mode: Any) -> str:
        return write(self, key, body, "overwrite" if isinstance(mode, ignored) else mode)

    def ignore_delete(self: Any, key: str, condition: dict[str, str]) -> Any:
        url, headers = deleting(self, key, condition)
        return url, {name: value for name, value in headers.items() if name == "Authorization"}

    monkeypatch.setattr(BucketStore, "_write", ignore)
    if named == "If-Match of DELETE":
        monkeypatch.setattr(store_class, "delete_request", ignore_delete)
    with pytest.raises(Unsupported) as caught:
        open_store(server.url("ignores"), **server.options, **QUICK)
    assert f"does not keep the condition {named}, without which" in caught.value.message
    store = store_class(server.url("ignores"), **server.options, **QUICK, make=False)
    assert list(store.list("+probe/")) == []


def test_nothing_is_left_of_a_probe(server: S3Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of one that was cut short, after a day."""
    store = store_at(server, "probes")
    store.put("+probe/left", [b""])
    store.prepare()
    assert [entry.key for entry in store.list("+probe/")] == ["+probe/left"]
    monkeypatch.setattr(bucket_store, "PROBE_KEPT_S", -1.0)
    store.prepare()
    assert list(store.list("+probe/")) == []


def test_an_object_that_is_written_again_has_another_etag(server: S3Emulator) -> None:
    """S3's own etag is a hash of the contents."""
    store = store_at(server, "stamps")
    store.put("u/a", [b"same"])
    first = store.read("u/a")[1]
    store.put("u/a", [b"same"])
    assert store.read("u/a")[1] != first


# ---- Google --------------------------------------------------------------------------------------


def test_a_token_that_google_does_not_take(google: GoogleStandIn) -> None:
    with pytest.raises(StoreRefused) as caught:
        open_store(google.url("x"), credentials=fixed_token("topsecret"), **QUICK)
    assert "does not take these credentials" in caught.value.message
    assert "topsecret" not in caught.value.message


def test_no_credentials_for_google(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    def none(**_: object) -> object:
        raise DefaultCredentialsError("topsecret")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(google.auth, "default", none)
    with pytest.raises(StoreRefused, match="there are no credentials for the checkpoint store gs:"):
        open_store("gs://bucket/x")


def test_a_bucket_of_google_that_is_not_there(google: GoogleStandIn) -> None:
    with pytest.raises(StoreUnavailable, match="make the bucket 'nobody' and try again"):
        open_store(google.url("x", bucket="nobody"), **google.options, **QUICK)


class Exchange:
    """Answers what google-auth asks Google's service of tokens."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.status = 200

    def __call__(self, url: str, method: str, headers: Any, body: bytes, **_: Any) -> Any:
        self.asked.append(parse_qs(body.decode()))
        answer = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        self.data, self.headers = json.dumps(answer).encode(), {}
        return self


def test_a_user_of_google_is_given_a_limited_token(google: GoogleStandIn) -> None:
    """As far as what is asked of Google; that Google keeps to it was not tried."""
    url = google.url("team") + "&per_user=yes"
    store = open_store(url, **google.options, **QUICK)
    user, exchange = store.for_user("alice"), Exchange()
    assert isinstance(user, GoogleStore)
    user._token._request = exchange
    user.put("alice/a", [b"x"])
    assert user.delete_if("alice/a", user.read("alice/a")[1])
    assert len(exchange.asked) == 1
    asked = json.loads(unquote(exchange.asked[0]["options"][0]))
    asked = asked["accessBoundary"]["accessBoundaryRules"]
    assert asked == [
        {
            "availableResource": "//storage.googleapis.com/projects/_/buckets/checkpoints",
            "availablePermissions": ["inRole:roles/storage.objectAdmin"],
            "availabilityCondition": {
                "expression": user_boundary("checkpoints", "team/alice/")["condition"]
            },
        }
    ]
    assert "startsWith('projects/_/buckets/checkpoints/objects/team/alice/')" in str(asked)
    assert open_store(google.url("team"), **google.options).for_user("alice").url == store.url


def test_a_token_that_google_does_not_limit_is_one_sentence(google: GoogleStandIn) -> None:
    store = open_store(google.url("team") + "&per_user=yes", **google.options, **QUICK)
    user, exchange = store.for_user("alice"), Exchange()
    exchange.status = 400
    assert isinstance(user, GoogleStore)
    user._token._request = exchange
    with pytest.raises(StoreRefused) as caught:
        user.put("alice/a", [b"x"])
    assert caught.value.message == (
        "the checkpoint store gs://checkpoints/team gave no credentials (OAuthError of google-auth)"
    )

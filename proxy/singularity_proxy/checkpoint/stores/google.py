"""Checkpoints in Google Cloud Storage."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timezone
from typing import Any, ClassVar
from urllib.parse import quote

from singularity_proxy.checkpoint.keys import missing_library
from singularity_proxy.errors import BadRequest, StoreRefused, StoreUnavailable

from .base import Moved, ObjectMissing
from .bucket import BucketStore, Credentials, Pace, parse_bucket_url

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GoogleStore(BucketStore):
    """`url`: `gs://BUCKET/PREFIX[?per_user=yes&endpoint=URL]`.

    Credentials: `credentials` (of google-auth), else its application default credentials: the file
    that GOOGLE_APPLICATION_CREDENTIALS names, who is logged in with gcloud, or the machine's. With
    `per_user` the objects of each user are read and written with a token that Google limits to the
    prefix of the user.

    Conditions are on generations, which listings do not have: an object is asked for its generation
    first, and its etag says whether it is still the one that is meant.
    """

    scheme, extra = "gs", "gcs"
    never: ClassVar[dict[str, str]] = {"version": "1"}

    def __init__(
        self,
        url: str,
        *,
        make: bool = True,
        credentials: Any = None,
        _user: str = "",
        **pace: Any,
    ) -> None:
        parts = parse_bucket_url(url, ("per_user", "endpoint"), "gs://BUCKET/PREFIX")
        if parts.options.get("per_user", "no") not in ("yes", "no"):
            raise BadRequest("per_user of a checkpoint store gs:// is yes or no")
        self._url, self._user, self._given = url, _user, credentials
        self._per_user = parts.options.get("per_user") == "yes"
        self._endpoint = parts.options.get("endpoint", ENDPOINT).rstrip("/")
        super().__init__(parts, Pace(**pace), make=make)

    def connect(self) -> Any:
        from obstore.store import GCSStore as Connection

        boundary = user_boundary(self.bucket, f"{self.prefix}{self._user}/") if self._user else None
        self._token = GoogleCredentials(self.url, self._given, boundary, self.pace.read_timeout_s)
        self.credentials = self._token
        if self._endpoint.startswith("http://"):
            self.client["allow_http"] = True
        config = {} if self._endpoint == ENDPOINT else {"base_url": self._endpoint}
        return Connection(
            self.bucket,
            config=config,
            client_options=self.client,
            retry_config=self.retry,
            credential_provider=self._token,
        )

    def condition(self, key: str, etag: str) -> dict[str, str]:
        return {"version": self._generation(key, etag)}

    def delete_request(self, key: str, condition: dict[str, str]) -> tuple[str, dict[str, str]]:
        url = f"{self._endpoint}/{quote(self.bucket)}/{quote(self._path(key), safe='')}"
        headers = {"Authorization": f"Bearer {self._token()['token']}"}
        if condition:
            headers["x-goog-if-generation-match"] = condition["version"]
        return url, headers

    def scoped(self, root: str) -> BucketStore:
        if not self._per_user:
            return self
        return GoogleStore(
            self._url,
            make=False,
            credentials=self._token.source,
            _user=root,
            **asdict(self.pace),
        )

    def _generation(self, key: str, etag: str) -> str:
        """The generation of the object if it has that etag. Raises Moved."""
        path = self._path(key)
        try:
            with self._found_or_missing(key), self._typed("read", key):
                found = self._api.head(self._store, path)
        except ObjectMissing:
            raise Moved(key) from None
        if str(found["e_tag"]) != etag or not found["version"]:
            raise Moved(key)
        return str(found["version"])


class GoogleCredentials(Credentials):
    """Tokens of google-auth, limited to `boundary` if there is one."""

    def __init__(
        self, url: str, source: Any, boundary: dict[str, str] | None, timeout_s: float
    ) -> None:
        try:
            import google.auth
            from google.auth import downscoped, exceptions
            from google.auth.transport.requests import Request
        except ImportError:
            raise missing_library("google-auth", "gcs") from None
        self._url, self._exceptions, self._timeout_s = url, exceptions, timeout_s
        self._request: Any = Request()
        if source is None:
            try:
                source, _ = google.auth.default(scopes=[SCOPE])
            except exceptions.DefaultCredentialsError:
                raise StoreRefused(
                    f"there are no credentials for the checkpoint store {url}; nothing was opened, "
                    "give the node agent some",
                    store=url,
                ) from None
        self.source = source
        self._mine: Any = source
        if boundary is not None:
            rule = downscoped.AccessBoundaryRule(
                boundary["resource"],
                [boundary["permission"]],
                downscoped.AvailabilityCondition(boundary["condition"]),
            )
            self._mine = downscoped.Credentials(source, downscoped.CredentialAccessBoundary([rule]))

    def fetch(self) -> dict[str, Any]:
        try:
            if not self._mine.valid:
                self._mine.refresh(self._ask)
        except self._exceptions.TransportError:
            raise StoreUnavailable(
                f"the checkpoint store {self._url} gave no credentials: Google's service of tokens "
                "cannot be reached",
                store=self._url,
            ) from None
        except self._exceptions.GoogleAuthError as error:
            raise StoreRefused(
                f"the checkpoint store {self._url} gave no credentials "
                f"({type(error).__name__} of google-auth)",
                store=self._url,
            ) from None
        ends = self._mine.expiry
        return {
            "token": self._mine.token,
            "expires_at": ends and ends.replace(tzinfo=timezone.utc),
        }

    def _ask(self, *args: Any, **options: Any) -> Any:
        return self._request(*args, **{"timeout": self._timeout_s, **options})


def user_boundary(bucket: str, prefix: str) -> dict[str, str]:
    """The credential access boundary that leaves nothing but the objects below `prefix`."""
    name = f"projects/_/buckets/{bucket}"
    listed = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
    return {
        "resource": f"//storage.googleapis.com/{name}",
        "permission": "inRole:roles/storage.objectAdmin",
        "condition": f"resource.name.startsWith('{name}/objects/{prefix}') || "
        f"{listed}.startsWith('{prefix}')",
    }

"""Checkpoints in Azure Blob."""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from singularity_proxy.checkpoint.keys import missing_library
from singularity_proxy.errors import (
    BadRequest,
    NoSpace,
    StoreUnavailable,
)

from .base import Data, Entry, Moved, ObjectMissing, ObjectStore, check_key

_MOVED, _MISSING, _REFUSED = (409, 412), 404, (401, 403)
_LOCAL = re.compile(r"localhost|\d+\.\d+\.\d+\.\d+|\[.*\]")


class AzureStore(ObjectStore):
    """An object is a block blob, written by one request; `swap` and conditional deletes use its
    ETag.

    `url`: `abs://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX[?SAS]` (as papermill writes it),
    the same with https, or `http://HOST:PORT/ACCOUNT/CONTAINER/PREFIX` of an emulator.

    Credentials, the first that is given: the SAS in the URL, `sas_token`, `account_key`,
    `connection_string`, `credential` (a TokenCredential); then the environment variables
    AZURE_STORAGE_SAS_TOKEN, AZURE_STORAGE_KEY and AZURE_STORAGE_CONNECTION_STRING; then
    azure-identity's DefaultAzureCredential (managed identity, workload identity, `az login`).

    A request is tried `retries` more times when the service is busy or cannot be reached, after
    0.4, 0.8, 1.6 ... seconds (`backoff_s`); `connect_timeout_s` and `read_timeout_s` are for one
    try. `transfers` run at once.
    """

    def __init__(
        self,
        url: str,
        *,
        sas_token: str = "",
        account_key: str = "",
        connection_string: str = "",
        credential: Any = None,
        create_container: bool = False,
        transfers: int = 8,
        retries: int = 3,
        backoff_s: float = 0.4,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 10.0,
        **client_options: Any,
    ) -> None:
        try:
            import azure.core.exceptions as errors
            from azure.core import MatchConditions
            from azure.storage.blob import ContainerClient, ExponentialRetry
        except ImportError:
            raise missing_library("azure-storage-blob") from None
        self._errors, self._match = errors, MatchConditions

        class Retry(ExponentialRetry):  # type: ignore[misc]
            """The library's own waits for seconds before the second try, and up to six."""

            def get_backoff_time(self, settings: dict[str, Any]) -> float:
                wait: float = backoff_s * 2 ** int(settings["count"])
                return wait * random.uniform(0.75, 1.0)

        account_url, container, prefix, sas_in_url = parse_url(url)
        self.url = f"{account_url}/{container}/{prefix}".rstrip("/")
        self.transfers = transfers
        self.stat_is_cheap = False
        self._tries = retries + 1
        self._prefix = f"{prefix}/" if prefix else ""
        with self._typed("opened"):
            self._container: Any = ContainerClient(
                account_url,
                container,
                credential=_credential(
                    sas_in_url or sas_token, account_key, connection_string, credential
                ),
                retry_policy=Retry(retry_total=retries),
                connection_timeout=connect_timeout_s,
                read_timeout=read_timeout_s,
                max_single_put_size=256 << 20,
                max_single_get_size=64 << 20,
                **client_options,
            )
        if create_container:
            try:
                with self._typed("opened"), contextlib.suppress(errors.ResourceExistsError):
                    self._container.create_container()
            except BaseException:
                self.close()
                raise

    # ---- the interface ---------------------------------------------------------------------------

    def put(self, key: str, data: Sequence[Data], *, durable: bool = True) -> None:
        body = bytes(data[0]) if len(data) == 1 else b"".join(data)
        with self._typed("written"):
            self._blob(key).upload_blob(body, overwrite=True, length=len(body))

    def flush(self) -> None:
        """An accepted blob is durable."""

    def read(self, key: str) -> tuple[bytes, str]:
        with self._typed("read", key):
            found = self._blob(key).download_blob()
            return found.readall(), found.properties.etag

    def stat(self, key: str) -> Entry | None:
        try:
            with self._typed("read", key):
                return self._entry(self._blob(key).get_blob_properties())
        except ObjectMissing:
            return None

    def list(self, prefix: str) -> Iterator[Entry]:
        check_key(prefix.rstrip("/"))
        with self._typed("listed"):
            for blob in self._container.list_blobs(name_starts_with=self._prefix + prefix):
                yield self._entry(blob)

    def names(self, prefix: str) -> Iterator[str]:
        start = self._prefix + prefix
        with self._typed("listed"):
            for item in self._container.walk_blobs(name_starts_with=start, delimiter="/"):
                yield item.name[len(start) :].rstrip("/")

    def touch(self, key: str) -> bool:
        try:
            with self._typed("written", key):
                # Setting metadata changes the ETag and sends nothing of the contents.
                self._blob(key).set_blob_metadata({"touched": os.urandom(8).hex()})
                return True
        except ObjectMissing:
            return False

    def delete(self, key: str) -> None:
        with contextlib.suppress(ObjectMissing, Moved), self._typed("removed", key):
            self._blob(key).delete_blob()

    def delete_if(self, key: str, etag: str) -> bool:
        try:
            with self._typed("removed", key):
                self._blob(key).delete_blob(**self._if(etag))
                return True
        except (ObjectMissing, Moved):
            return False

    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        missing = {"match_condition": self._match.IfMissing}
        condition = missing if etag is None else self._if(etag)
        try:
            with self._typed("written", key):
                answer = self._blob(key).upload_blob(
                    data, overwrite=True, length=len(data), **condition
                )
                return str(answer["etag"])
        except (Moved, ObjectMissing):
            # Our own write may have arrived, its answer not, and the request been repeated.
            try:
                now, now_etag = self.read(key)
            except ObjectMissing:
                raise Moved(key) from None
            if now == data and now_etag != etag:
                return now_etag
            raise Moved(key) from None

    def close(self) -> None:
        self._container.close()

    # ---- inside ----------------------------------------------------------------------------------

    def _blob(self, key: str) -> Any:
        return self._container.get_blob_client(self._prefix + check_key(key))

    def _entry(self, blob: Any) -> Entry:
        etag = str(blob.etag)
        etag = etag if etag.startswith('"') else f'"{etag}"'  # listings leave the quotes out
        key = blob.name[len(self._prefix) :]
        return Entry(key, int(blob.size), blob.last_modified.timestamp(), etag)

    def _if(self, etag: str) -> dict[str, Any]:
        return {"etag": etag, "match_condition": self._match.IfNotModified}

    @contextlib.contextmanager
    def _typed(self, verb: str, key: str = "") -> Iterator[None]:
        """The library's errors as ours. Theirs may quote URLs with their signatures, so nothing of
        their text is passed on."""
        errors = self._errors
        try:
            yield
        except errors.ClientAuthenticationError:
            raise self.refused(verb) from None
        except errors.HttpResponseError as error:
            raise self._answered(error, verb, key) from None
        except (errors.ServiceRequestError, errors.ServiceResponseError) as error:
            late = isinstance(
                error, (errors.ServiceRequestTimeoutError, errors.ServiceResponseTimeoutError)
            )
            what = "did not answer in time" if late else "cannot be reached"
            raise StoreUnavailable(
                f"the checkpoint store {self.url} {what} (tried {self._tries} times)",
                store=self.url,
            ) from None
        except errors.AzureError as error:
            raise StoreUnavailable(
                f"the checkpoint store {self.url} could not be {verb} ({type(error).__name__})",
                store=self.url,
            ) from None

    def _answered(self, error: Any, verb: str, key: str) -> Exception:
        status = error.status_code
        code = getattr(error, "error_code", None) or error.reason or ""
        code = str(getattr(code, "value", code))
        if status == _MISSING and code != "ContainerNotFound" and key:
            return ObjectMissing(f"the checkpoint store {self.url} has no {key}", key=key)
        if status in _MOVED and key:
            return Moved(key)
        if status in _REFUSED:
            return self.refused(verb, code)
        if status == 507 or code == "AccountLimitExceeded":
            return NoSpace(f"the checkpoint store {self.url} is full ({code})", store=self.url)
        tried = f", tried {self._tries} times" if status in (408, 429) or status >= 500 else ""
        return StoreUnavailable(
            f"the checkpoint store {self.url} answered {status} {code}{tried}".replace("  ", " "),
            store=self.url,
            status=status,
        )


def parse_url(url: str) -> tuple[str, str, str, str]:
    """(account URL, container, prefix, SAS) of a store's URL. Raises BadRequest."""
    parts = urlsplit(url)
    path = [unquote(each) for each in parts.path.split("/") if each]
    scheme = "https" if parts.scheme == "abs" else parts.scheme
    account = f"{scheme}://{parts.netloc}"
    if _LOCAL.fullmatch(parts.hostname or ""):  # an emulator: the account is in the path
        account += f"/{path[0]}" if path else ""
        path = path[1:]
    if not path or "@" in parts.netloc:
        raise BadRequest(
            f"'{scheme}://{parts.hostname}{quote(parts.path)}' names no container; use "
            "abs://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX"
        )
    prefix = "/".join(path[1:])
    if prefix:
        check_key(prefix)
    return account, path[0], prefix, parts.query


def _credential(sas: str, key: str, connection: str, credential: Any) -> Any:
    if sas or key or connection or credential is not None:
        pass
    else:
        sas = os.environ.get("AZURE_STORAGE_SAS_TOKEN", "")
        key = os.environ.get("AZURE_STORAGE_KEY", "")
        connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if sas:
        from azure.core.credentials import AzureSasCredential

        return AzureSasCredential(sas.lstrip("?"))
    if key or connection:
        return key or _key_of(connection)
    if credential is not None:
        return credential
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise missing_library("azure-identity") from None
    return DefaultAzureCredential()


def _key_of(connection: str) -> Any:
    """The credential in a connection string; the account is the URL's."""
    fields = dict(part.split("=", 1) for part in connection.split(";") if "=" in part)
    if fields.get("AccountKey"):
        return fields["AccountKey"]
    if fields.get("SharedAccessSignature"):
        from azure.core.credentials import AzureSasCredential

        return AzureSasCredential(fields["SharedAccessSignature"].lstrip("?"))
    raise BadRequest("the connection string has neither AccountKey nor SharedAccessSignature")

"""Which store a URL means. Each kind is imported when it is asked for: it may need a library."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote, urlsplit

from singularity_proxy.errors import BadRequest

from .base import ObjectStore


def open_store(url: str, *, make: bool = True, **options: Any) -> ObjectStore:
    """The store behind `url`: a folder's path or `file://` URL, Azure Blob as
    `abs://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX[?SAS]` or the same with https, S3 as
    `s3://BUCKET/PREFIX`, Google Cloud Storage as `gs://BUCKET/PREFIX`.

    `options` are those of the store's class (credentials, retries); a folder has none. With `make`
    False a folder or bucket is left as it is until `prepare`: it may not be the one that is wanted.
    Called by the node agent at start. Raises BadRequest, Unsupported (a library is missing, or the
    service lacks what is needed), StoreUnavailable, StoreRefused.
    """
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("", "file"):
        from .folder import FolderStore

        if options:
            raise BadRequest(f"a folder as checkpoint store takes no {', '.join(sorted(options))}")
        path = unquote(urlsplit(url).path) if scheme else url
        if not posixpath.isabs(path):
            raise BadRequest(f"the checkpoint folder '{url}' is not an absolute path")
        return FolderStore(path, make=make)
    if scheme in ("abs", "https", "http"):
        from .azure import AzureStore

        return AzureStore(url, **options)
    if scheme == "s3":
        from .s3 import S3Store

        return S3Store(url, make=make, **options)
    if scheme == "gs":
        from .google import GoogleStore

        return GoogleStore(url, make=make, **options)
    raise BadRequest(
        f"'{scheme}://' is no checkpoint store; use a folder's path, abs://ACCOUNT.blob."
        "core.windows.net/CONTAINER/PREFIX, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
    )

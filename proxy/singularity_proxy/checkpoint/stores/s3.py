"""Checkpoints in S3, or in a service that speaks it and keeps its conditions."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from datetime import timedelta, timezone
from typing import Any, ClassVar

from singularity_proxy.checkpoint.keys import missing_library
from singularity_proxy.errors import BadRequest, StoreRefused, StoreUnavailable

from .bucket import BucketStore, Credentials, Pace, parse_bucket_url

_ROLE = re.compile(r"arn:([a-z0-9-]+):iam::[^:]*:role/.+")
_SIGNED_FOR = timedelta(minutes=5)


class S3Store(BucketStore):
    """`url`: `s3://BUCKET/PREFIX[?region=R&endpoint=URL&user_role=ARN&sts_endpoint=URL]`.

    Credentials: `access_key_id` and `secret_access_key` (and `session_token`); else the environment
    variables of those names with AWS_ before them, a web identity token, those of a container or of
    the machine. With `user_role` the objects of each user are read and written with credentials of
    that role that STS limits to the prefix of the user, made with the credentials that boto3 finds.
    """

    scheme, extra = "s3", "s3"
    never: ClassVar[dict[str, str]] = {"e_tag": '"00000000000000000000000000000000"'}

    def __init__(
        self,
        url: str,
        *,
        make: bool = True,
        access_key_id: str = "",
        secret_access_key: str = "",
        session_token: str = "",
        _user: str = "",
        _sts: Any = None,
        **pace: Any,
    ) -> None:
        example = "s3://BUCKET/PREFIX"
        known = ("region", "endpoint", "user_role", "sts_endpoint")
        parts = parse_bucket_url(url, known, example)
        self._where, self._user, self._sts = parts.options, _user, _sts
        role = parts.options.get("user_role", "")
        if role and not _ROLE.fullmatch(role):
            raise BadRequest(
                "user_role is no ARN of a role, such as arn:aws:iam::ACCOUNT:role/NAME"
            )
        if role and "endpoint" in parts.options and "sts_endpoint" not in parts.options:
            raise BadRequest(
                "a checkpoint store with user_role and an endpoint of its own needs sts_endpoint "
                "as well: else its keys would be sent to Amazon"
            )
        names = ("access_key_id", "secret_access_key", "session_token")
        given = zip(names, (access_key_id, secret_access_key, session_token), strict=True)
        self._keys = {name: value for name, value in given if value}
        self._url = url
        super().__init__(parts, Pace(**pace), make=make)

    def connect(self) -> Any:
        from obstore.store import S3Store as Connection

        config = {k: v for k, v in self._where.items() if k in ("region", "endpoint")}
        if config.get("endpoint", "").startswith("http://"):
            self.client["allow_http"] = True
        more: dict[str, Any] = {}
        if self._user:
            self.credentials = more["credential_provider"] = UserCredentials(
                self.url,
                self._sts,
                self._where["user_role"],
                self._user,
                user_policy(self.bucket, f"{self.prefix}{self._user}/", self._partition(), config),
            )
        else:
            config.update(self._keys)
        return Connection(
            self.bucket, config=config, client_options=self.client, retry_config=self.retry, **more
        )

    def condition(self, key: str, etag: str) -> dict[str, str]:
        return {"e_tag": etag}

    def delete_request(self, key: str, condition: dict[str, str]) -> tuple[str, dict[str, str]]:
        path = self._path(key)
        with self._typed("removed", key):
            url = self._api.sign(self._store, "DELETE", path, _SIGNED_FOR)
        return url, {"If-Match": condition["e_tag"]} if condition else {}

    def scoped(self, root: str) -> BucketStore:
        if not self._where.get("user_role"):
            return self
        # One for all users: to make one finds credentials, which may take requests of its own.
        self._sts = self._sts or sts_client(self._where, self._keys, self.pace)
        return S3Store(
            self._url, make=False, _user=root, _sts=self._sts, **self._keys, **asdict(self.pace)
        )

    def _partition(self) -> str:
        return self._where["user_role"].split(":")[1]


class UserCredentials(Credentials):
    """Credentials of a role for the objects of one user, made by the client `sts`."""

    def __init__(self, url: str, sts: Any, role: str, user: str, policy: str) -> None:
        self._url, self._client, self._role, self._policy = url, sts, role, policy
        self._name = "singularity-" + re.sub(r"[^\w+=,.@-]", "-", user, flags=re.ASCII)[:50]

    def fetch(self) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            made = self._client.assume_role(
                RoleArn=self._role, RoleSessionName=self._name, Policy=self._policy
            )["Credentials"]
        except (ClientError, NoCredentialsError) as error:
            code = (
                error.response.get("Error", {}).get("Code", "refused")
                if isinstance(error, ClientError)
                else ""
            )
            raise StoreRefused(
                f"the checkpoint store {self._url} gave no credentials for one user: role "
                f"{self._role} cannot be taken ({code or 'there are no credentials for STS'})",
                store=self._url,
            ) from None
        except BotoCoreError as error:
            raise StoreUnavailable(
                f"the checkpoint store {self._url} gave no credentials for one user: STS cannot be "
                f"reached ({type(error).__name__})",
                store=self._url,
            ) from None
        return {
            "access_key_id": made["AccessKeyId"],
            "secret_access_key": made["SecretAccessKey"],
            "token": made["SessionToken"],
            "expires_at": made["Expiration"].astimezone(timezone.utc),
        }


def sts_client(where: dict[str, str], keys: dict[str, str], pace: Pace) -> Any:
    """Make boto3's client of STS with these `keys`, else with the credentials that boto3 finds;
    `where`: the options of the store's address. The region is that of the address, else that of
    the environment. Raises Unsupported without boto3."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise missing_library("boto3", "s3") from None
    named = (where.get("region"), *map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION")))
    session = boto3.Session(
        aws_access_key_id=keys.get("access_key_id"),
        aws_secret_access_key=keys.get("secret_access_key"),
        aws_session_token=keys.get("session_token"),
    )
    return session.client(
        "sts",
        endpoint_url=where.get("sts_endpoint"),
        region_name=next(filter(None, named), "us-east-1"),
        config=Config(
            connect_timeout=pace.connect_timeout_s,
            read_timeout=pace.read_timeout_s,
            retries={"total_max_attempts": pace.retries + 1, "mode": "standard"},
        ),
    )


def user_policy(bucket: str, prefix: str, partition: str, config: dict[str, str]) -> str:
    """The session policy that leaves a role nothing but the objects below `prefix`."""
    all_of_it = f"arn:{partition}:s3:::{bucket}"
    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
            "Resource": f"{all_of_it}/{prefix}*",
        },
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": all_of_it,
            "Condition": {"StringLike": {"s3:prefix": f"{prefix}*"}},
        },
    ]
    if "endpoint" not in config:  # a bucket may be encrypted with a key of its owner
        statements.append(
            {"Effect": "Allow", "Action": ["kms:GenerateDataKey", "kms:Decrypt"], "Resource": "*"}
        )
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))

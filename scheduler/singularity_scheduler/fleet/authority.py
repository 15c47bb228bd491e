"""The fleet's certificate authority: it signs the service and the nodes, and nothing else.

Pure: it is given the time, and whoever calls it keeps its files (`registry`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from singularity_proxy.membership.certificates import (
    format_serial,
    life_of,
    make_key,
    pin_of,
    read_certificate,
    read_key,
    read_request,
    write_key,
)
from singularity_proxy.wire.tls import SERVICE_NAME

from .settings import NODE_LIFE_S

DAY_S = 86_400.0

AUTHORITY_LIFE_S = 3650 * DAY_S
SERVICE_LIFE_S = 90 * DAY_S

SKEW_S = 300.0
"""Certificates count so much before they were made, but no more than a tenth of their life: clocks
differ."""

_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jupyter-singularity fleet")])


@dataclass(frozen=True)
class Issued:
    """A certificate that was just signed."""

    pem: bytes
    serial: str
    ends: float


class Authority:
    """Made by `create` or `read`."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, pem: bytes) -> None:
        self._key = key
        self.pem = pem
        """Its own certificate, which every node keeps."""

    @classmethod
    def create(cls, now: float) -> Authority:
        """Make a new authority with a key of its own."""
        key = make_key()
        builder = _begin(_AUTHORITY, key.public_key(), now, AUTHORITY_LIFE_S)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        return cls(key, _sign(builder, key))

    @classmethod
    def read(cls, key_pem: bytes, pem: bytes) -> Authority:
        """Take up an authority that was kept; raises `BadRequest`."""
        read_certificate(pem)
        return cls(read_key(key_pem), pem)

    @property
    def key_pem(self) -> bytes:
        """Its private key: whoever has it can make nodes."""
        return write_key(self._key)

    @property
    def pin(self) -> str:
        """What a join string says of it."""
        return pin_of(self.pem)

    def certify_service(self, now: float) -> bytes:
        """Return certificate and private key (PEM) for the service, good at any address."""
        key = make_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVICE_NAME)])
        builder = _begin(name, key.public_key(), now, SERVICE_LIFE_S)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(SERVICE_NAME)]), critical=False
        )
        return self._finish(builder, ExtendedKeyUsageOID.SERVER_AUTH) + write_key(key)

    def certify_node(
        self, node: str, request: bytes, now: float, life_s: float = NODE_LIFE_S
    ) -> Issued:
        """Return a certificate that says `node`, for the key of the request; raises `BadRequest`.
        What else the request says counts for nothing."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        builder = _begin(name, read_request(request), now, life_s)
        pem = self._finish(builder, ExtendedKeyUsageOID.CLIENT_AUTH)
        return Issued(pem, format_serial(read_certificate(pem).serial_number), life_of(pem).ends)

    def _finish(self, builder: x509.CertificateBuilder, usage: x509.ObjectIdentifier) -> bytes:
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        return _sign(builder, self._key)


def _begin(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, now: float, life_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - min(SKEW_S, life_s / 10)))
        .not_valid_after(_time(now + life_s))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)

"""Keys, requests and certificates of a fleet's nodes. The only cryptography is that of the library.

A node makes its key itself and keeps it; what it sends is a request, which the fleet's authority
answers with a certificate. Times are seconds since 1970.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from singularity_proxy.errors import BadRequest

CURVE = ec.SECP256R1
"""P-256: what every TLS 1.3 implementation has."""


@dataclass(frozen=True)
class Life:
    """From when to when a certificate counts."""

    begins: float
    ends: float

    @property
    def half(self) -> float:
        """When it is to be renewed."""
        return (self.begins + self.ends) / 2


def read_certificate(pem: bytes) -> x509.Certificate:
    """Parse a certificate; raises `BadRequest`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise BadRequest("what was sent as a certificate is none") from None


def life_of(pem: bytes) -> Life:
    """Return from when to when a certificate counts; raises `BadRequest`."""
    certificate = read_certificate(pem)
    return Life(
        certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )


def serial_of(pem: bytes) -> str:
    """Return the serial number as a TLS connection tells it; raises `BadRequest`."""
    return format_serial(read_certificate(pem).serial_number)


def format_serial(number: int) -> str:
    """Return the number in hexadecimal digits, an even count of them, as `ssl` does."""
    digits = f"{number:X}"
    return digits if len(digits) % 2 == 0 else f"0{digits}"


def pin_of(pem: bytes) -> str:
    """Return SHA-256 of the public key in a certificate; raises `BadRequest`."""
    public = read_certificate(pem).public_key()
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def make_key() -> ec.EllipticCurvePrivateKey:
    """Make a new private key."""
    return ec.generate_private_key(CURVE())


def write_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse a private key; raises `BadRequest`, which repeats nothing of it."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadRequest("the file of the private key does not hold one")
    return key


def make_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a request (PEM) for a certificate of this key. It names nobody: the authority says
    who its owner is."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key that a request is for; raises `BadRequest` unless whoever made the
    request has its private key."""
    try:
        request = x509.load_pem_x509_csr(pem)
        signed = request.is_signature_valid
        public = request.public_key()
    except ValueError:
        raise BadRequest("what was sent as a certificate request is none") from None
    if not signed:
        raise BadRequest("the certificate request is not signed with its own key")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, CURVE):
        raise BadRequest("a node's key must be one of the curve P-256")
    return public

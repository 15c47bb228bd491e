"""Who may connect to a bridge: whoever has the gang's key. TLS 1.3 both ways.

From the key each bridge makes the same certificate (Ed25519 signs alike each time, RFC 8032), shows
it and takes no other. So there are no certificates to hand out, and nothing but the key is secret.
"""

from __future__ import annotations

import datetime
import ssl

from singularity_proxy.errors import BadRequest, Unsupported
from singularity_proxy.wire.tls import load_identity

KEY_BYTES = 32


def read_key(text: str) -> bytes:
    """The key in 64 hexadecimal digits; raises BadRequest."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadRequest(f"the key of a bridge must be {2 * KEY_BYTES} hexadecimal digits")
    return key


def contexts(key: bytes) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For the side that listens, and for the one that connects. Raises Unsupported."""
    certificate, secret = _certificate(key)
    listens = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    connects = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connects.check_hostname = False  # the certificate is the gang's, wherever its parts are
    for context in (listens, connects):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate.decode())
        load_identity(context, certificate + secret)
    return listens, connects


def token(key: bytes) -> bytes:
    """What the rendezvous of the same part shows to its bridge."""
    return _derived(key, b"rendezvous")


def _certificate(key: bytes) -> tuple[bytes, bytes]:
    """(certificate, private key) as PEM, alike wherever they are made."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise _missing() from None
    secret = Ed25519PrivateKey.from_private_bytes(_derived(key, b"identity"))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "jupyter-singularity gang")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(int.from_bytes(_derived(key, b"serial")[:16], "big") >> 1 | 1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))  # none, RFC 5280 4.1.2.5
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, None)
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _derived(key: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose (HKDF with SHA-256, RFC 5869)."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise _missing() from None
    info = b"jupyter-singularity bridge 1\0" + purpose
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key)


def _missing() -> Unsupported:
    return Unsupported(
        "ranks on several nodes need the Python package cryptography, which is not installed here: "
        "install it where the node agent runs"
    )

"""The fleet's authority: what it signs, and for whom."""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from singularity_proxy.errors import BadRequest
from singularity_proxy.membership.certificates import (
    format_serial,
    life_of,
    make_key,
    make_request,
    pin_of,
    read_certificate,
    read_key,
    read_request,
    write_key,
)
from singularity_scheduler.fleet.authority import SKEW_S, Authority
from singularity_scheduler.fleet.settings import NODE_LIFE_S

NOW = 1_800_000_000.0


def usage_of(pem: bytes) -> list[x509.ObjectIdentifier]:
    found = read_certificate(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    return list(found.value)


def test_a_node_gets_a_certificate_of_its_name_and_key() -> None:
    authority, key = Authority.create(NOW), make_key()
    issued = authority.certify_node("gpu-1", make_request(key), NOW)
    found = read_certificate(issued.pem)
    assert [a.value for a in found.subject] == ["gpu-1"]
    assert found.public_key() == key.public_key()
    assert usage_of(issued.pem) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    found.verify_directly_issued_by(read_certificate(authority.pem))
    life = life_of(issued.pem)
    assert (life.begins, life.ends) == (NOW - SKEW_S, NOW + NODE_LIFE_S)
    assert issued.ends == life.ends
    assert NOW + 0.49 * NODE_LIFE_S < life.half < NOW + 0.51 * NODE_LIFE_S


def test_a_short_life_begins_about_now_so_that_its_half_is_to_come() -> None:
    authority = Authority.create(NOW)
    life = life_of(authority.certify_node("a", make_request(make_key()), NOW, 20.0).pem)
    assert NOW < life.half < life.ends


def test_the_name_in_a_request_counts_for_nothing() -> None:
    key = make_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "another-node")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name)
    request = request.add_extension(x509.BasicConstraints(True, None), critical=True)
    pem = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    found = read_certificate(Authority.create(NOW).certify_node("a", pem, NOW).pem)
    assert [a.value for a in found.subject] == ["a"]
    basic = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.value.ca is False


def test_the_service_gets_another_kind_of_certificate() -> None:
    pem = Authority.create(NOW).certify_service(NOW)
    assert usage_of(pem) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert read_key(pem).public_key() == read_certificate(pem).public_key()


def test_an_authority_is_the_same_after_its_files() -> None:
    authority = Authority.create(NOW)
    again = Authority.read(authority.key_pem, authority.pem)
    assert (again.pem, again.pin) == (authority.pem, authority.pin)
    issued = again.certify_node("a", make_request(make_key()), NOW)
    read_certificate(issued.pem).verify_directly_issued_by(read_certificate(authority.pem))


def test_two_authorities_have_two_pins() -> None:
    one, other = Authority.create(NOW), Authority.create(NOW)
    assert len(one.pin) == 64
    assert one.pin == pin_of(one.pem) != other.pin


def other_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request with the name of one key and the signature of another."""
    good, bad = make_request(key), make_request(make_key())
    der = x509.load_pem_x509_csr(good).public_bytes(serialization.Encoding.DER)
    foreign = x509.load_pem_x509_csr(bad).signature
    own = x509.load_pem_x509_csr(good).signature
    if len(own) != len(foreign):
        return b""
    broken = x509.load_der_x509_csr(der.replace(own, foreign))
    return broken.public_bytes(serialization.Encoding.PEM)


def test_a_request_must_be_signed_with_its_own_key() -> None:
    broken = next(filter(None, (other_request(make_key()) for _ in range(1000))))
    with pytest.raises(BadRequest, match="not signed with its own key"):
        read_request(broken)


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN CERTIFICATE REQUEST-----\n"])
def test_what_is_no_request_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest, match="is none"):
        read_request(text)


def test_keys_of_other_kinds_are_refused() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(BadRequest, match="P-256"):
        read_request(make_request(key))
    with pytest.raises(BadRequest, match="does not hold one"):
        read_key(b"nonsense")
    assert read_key(write_key(key)).public_key() == key.public_key()


def test_serial_numbers_are_written_as_tls_writes_them() -> None:
    assert [format_serial(n) for n in (0xABC, 0x1ABC, 0xF)] == ["0ABC", "1ABC", "0F"]


def test_a_certificate_made_now_counts_now() -> None:
    life = life_of(Authority.create(time.time()).pem)
    assert life.begins < time.time() < life.ends

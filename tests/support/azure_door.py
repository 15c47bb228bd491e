"""A way to Azurite under the name that Azure has: a proxy for HTTPS, and a certificate.

Programs that know only ``ACCOUNT.blob.core.windows.net`` reach the emulator with the environment
that `Door` gives them; nothing of theirs is changed.
"""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.azurite import ACCOUNT, Azurite

HOST = f"{ACCOUNT}.blob.core.windows.net"


@contextmanager
def door(folder: Path) -> Iterator[tuple[Azurite, dict[str, str]]]:
    """An Azurite, and the environment in which it is Azure."""
    certificate, key = _certificate(folder)
    with (
        Azurite("--cert", str(certificate), "--key", str(key)) as server,
        _proxy(server.port) as port,
    ):
        yield (
            server,
            {
                "HTTPS_PROXY": f"http://127.0.0.1:{port}",
                "NO_PROXY": "127.0.0.1,localhost",
                "REQUESTS_CA_BUNDLE": str(certificate),
            },
        )


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return paths


@contextmanager
def _proxy(target: int) -> Iterator[int]:
    """Answers CONNECT to `HOST` with a connection to `target`, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    threading.Thread(target=_serve, args=(client, target), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _serve(client: socket.socket, target: int) -> None:
    with client, suppress(OSError):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(4096)
        if not head.startswith(f"CONNECT {HOST}:443 ".encode()):
            client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", target)) as there:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(there, client), daemon=True)
            back.start()
            _copy(client, there)
            back.join(5)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

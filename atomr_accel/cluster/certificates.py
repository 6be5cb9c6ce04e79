"""Certificates for the nodes of a first cluster."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import LibraryMissing
from .._install import install_command
from ..wire.options import several
from ._settings import check_name

if TYPE_CHECKING:
    from cryptography import x509


def make_certificates(
    folder: str | os.PathLike[str], nodes: Iterable[str], *, days: int = 365
) -> list[Path]:
    """Write certificates of nodes, and an authority that signs them, into a folder.

    The authority is made if the folder has none: ``authority.pem`` and ``authority.key``. Each node
    gets ``<node>.pem`` and ``<node>.key``. A node needs these two and ``authority.pem``, and no
    other file. Only their owner can read keys (mode 0600).

    Args:
        folder: where to write; it is made if it is missing.
        nodes: names of nodes.
        days: until the certificates expire.

    Returns:
        The files that were written.

    Raises:
        FileExistsError: a node has a certificate there already.
        LibraryMissing: package cryptography is not installed.
        TypeError: nodes is one string.
        ValueError: a bad name, or days below 1.
    """
    _check_library()
    from cryptography.hazmat.primitives import serialization

    names = [check_name("a node's name", name) for name in several(nodes, "nodes")]
    if "authority" in names:
        raise ValueError("a node's name must be another one, not 'authority', the authority's own")
    if days < 1:
        raise ValueError(f"days must be at least 1, not {days!r}")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (place / f"{name}.pem").exists():
            raise FileExistsError(f"{place / name}.pem is there already; remove it first")
    written: list[Path] = []

    def save(name: str, key: Any, certificate: x509.Certificate) -> None:
        _write(place / f"{name}.key", _pem(key), 0o600)
        public = certificate.public_bytes(serialization.Encoding.PEM)
        _write(place / f"{name}.pem", public, 0o644)
        written.extend((place / f"{name}.key", place / f"{name}.pem"))

    if not (place / "authority.pem").exists():
        key = _new_key()
        save("authority", key, _issued("authority", key.public_key(), None, key, days))
    authority, signer = _authority(place)
    for name in names:
        key = _new_key()
        save(name, key, _issued(name, key.public_key(), authority, signer, days))
    return written


def request_certificate(folder: str | os.PathLike[str], node: str) -> bytes:
    """Make a node's key, which stays in a folder, and return a request to sign its certificate.

    Args:
        folder: where to write ``<node>.key``, which only its owner can read.
        node: the node's name.

    Returns:
        The request (PEM), for `sign_certificate`. Nothing in it is secret.

    Raises:
        FileExistsError: the node has a key there already.
    """
    _check_library()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key, name = _new_key(), check_name("a node's name", node)
    _write(Path(folder) / f"{name}.key", _pem(key), 0o600)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def sign_certificate(
    folder: str | os.PathLike[str], node: str, request: bytes, *, days: int = 365
) -> bytes:
    """Sign a node's certificate by the authority in a folder.

    Args:
        folder: where `make_certificates` has made the authority.
        node: the name that the certificate gets, whatever the request says.
        request: what `request_certificate` has returned.
        days: until the certificate expires.

    Returns:
        The certificate (PEM).

    Raises:
        ValueError: the request is none, or whoever sent it does not have its key.
    """
    _check_library()
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        asked = x509.load_pem_x509_csr(request)
    except ValueError as error:
        raise ValueError(
            "request must be what request_certificate has returned, not other bytes"
        ) from error
    if not asked.is_signature_valid:
        raise ValueError("request must be signed by its own key, not by another one")
    authority, signer = _authority(Path(folder))
    certificate = _issued(
        check_name("a node's name", node), asked.public_key(), authority, signer, days
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _check_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise LibraryMissing(
            f"certificates need package cryptography: {install_command('cluster')}",
            library="cryptography",
        ) from error


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    secret: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return secret


def _authority(place: Path) -> tuple[x509.Certificate, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    certificate = x509.load_pem_x509_certificate((place / "authority.pem").read_bytes())
    key = serialization.load_pem_private_key((place / "authority.key").read_bytes(), None)
    return certificate, key


def _issued(
    name: str, public: Any, issuer: x509.Certificate | None, signer: Any, days: int
) -> x509.Certificate:
    """Return a certificate of a public key; without an issuer, that of an authority itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if issuer is not None:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        )
    return builder.sign(signer, hashes.SHA256())

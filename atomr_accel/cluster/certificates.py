"""Certificates for the nodes of a first cluster."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._errors import LibraryMissing
from .._install import install_command
from ._settings import check_name


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
        ValueError: a bad name, or days below 1.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise LibraryMissing(
            f"certificates need package cryptography: {install_command('cluster')}",
            library="cryptography",
        ) from error
    names = [check_name("a node's name", name) for name in nodes]
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
    now = dt.datetime.now(dt.UTC)

    def write(path: Path, content: bytes, mode: int) -> None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        written.append(path)

    def issued(name: str, issuer: x509.Name | None, signer: Any) -> tuple[Any, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        authority = issuer is None
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key((signer or key).public_key()),
                critical=False,
            )
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=authority,
                    crl_sign=authority,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        if not authority:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
            )
        return key, builder.sign(signer or key, hashes.SHA256())

    def save(name: str, key: Any, certificate: x509.Certificate) -> None:
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        write(place / f"{name}.key", secret, 0o600)
        write(place / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)

    if (place / "authority.pem").exists():
        authority = x509.load_pem_x509_certificate((place / "authority.pem").read_bytes())
        signer: Any = serialization.load_pem_private_key(
            (place / "authority.key").read_bytes(), None
        )
    else:
        signer, authority = issued("authority", None, None)
        save("authority", signer, authority)
    for name in names:
        save(name, *issued(name, authority.subject, signer))
    return written

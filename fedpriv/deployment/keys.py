"""The certificates of a deployment's server and operators, and the key pairs of its nodes.

A certificate authority of the deployment's own signs the server's certificate (ECDSA, P-256). A node has an
ECDSA key (P-384) in OpenSSH's format, which Flower's SuperNode reads. Private files are written with mode
0600 from the start, and never over an existing file.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpriv._internal import validation

_AUTHORITY_DAYS, _SERVER_DAYS, _OPERATOR_DAYS = 730, 365, 365
LOOPBACK_DAYS = 3650  # of the certificate that only this machine sees
_EARLIER = datetime.timedelta(minutes=10)  # a certificate is valid on a machine whose clock is slow
_PRIVATE, _PUBLIC = 0o600, 0o644
_NODE_CURVES = {"secp256r1": "nistp256", "secp384r1": "nistp384", "secp521r1": "nistp521"}


class KeyFileError(validation.FedprivError):
    """A key or certificate is missing, unreadable, or does not belong to its partner."""


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write_new(path: Path, content: bytes, private: bool = False) -> None:
    """Writes a file that must not exist; a private one is never readable for others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE if private else _PUBLIC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def make_authority(name: str, days: int = _AUTHORITY_DAYS) -> Authority:
    """A new certificate authority, for two years."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = _certificate(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def make_server_certificate(
    authority: Authority, hosts: Sequence[str], days: int = _SERVER_DAYS
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """(a server's certificate for these host names and addresses, its private key), for a year."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    builder = _certificate(_named(hosts[0]), issuer, key.public_key(), days)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    for extension, critical in (
        (names, False),
        (authority_key, False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority.key, hashes.SHA256()), key


def make_operator_certificate(
    name: str, days: int = _OPERATOR_DAYS
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """(an operator's certificate, which its own key signs, its private key), for a year. The server knows it
    by its hash."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = _certificate(subject, subject, key.public_key(), days)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, hashes.SHA256()), key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.not_valid_before(now - _EARLIER).not_valid_after(now + datetime.timedelta(days))


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem(certificate: x509.Certificate) -> bytes:
    """The certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key in PEM (PKCS 8), without a password."""
    return _private(key, serialization.PrivateFormat.PKCS8)


def _private(key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def make_node_key() -> tuple[bytes, bytes]:
    """(private key, public key) of a node, both in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    return _private(key, serialization.PrivateFormat.OpenSSH), public_line(key.public_key())


def node_public_pem(path: Path) -> bytes:
    """A node's public key in PEM, as Flower registers it. Raises KeyFileError."""
    key = serialization.load_ssh_public_key(read_node_public(path))
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_line(key: ec.EllipticCurvePublicKey) -> bytes:
    """The public key as a line of OpenSSH's format."""
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_bytes(*openssh) + b"\n"


def fingerprint(public: bytes) -> str:
    """The fingerprint of a public key's line, as ``ssh-keygen -l`` prints it.

    >>> fingerprint(b"ecdsa-sha2-nistp256 AAAA comment")
    'SHA256:cJ6AyISHokEeHuTfufIqhhSS0gxHZRUMDHlKvXD4FHw'
    """
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def read_node_public(path: Path) -> bytes:
    """A node's public key, as its line without a comment. Raises KeyFileError."""
    try:
        key = serialization.load_ssh_public_key(_content(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "is no public key in OpenSSH's format", error) from None
    return _checked_curve(path, key)


def read_node_private(path: Path) -> bytes:
    """The public line of the private key in a file. Raises KeyFileError."""
    try:
        key = serialization.load_ssh_private_key(_content(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "is no private key in OpenSSH's format", error) from None
    return _checked_curve(path, key.public_key())


def _checked_curve(path: Path, key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _NODE_CURVES:
        hint = "make one with `ssh-keygen -t ecdsa -b 384`"
        raise KeyFileError(f"{path} holds a key that Flower's nodes cannot use; {hint}")
    return public_line(key)


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates of a PEM file. Raises KeyFileError if there is none."""
    try:
        return x509.load_pem_x509_certificates(_content(path))
    except ValueError as error:
        raise _no_key(path, "is no certificate in PEM", error) from None


def require_key_of(certificate: x509.Certificate, path: Path, whose: str) -> None:
    """Raises KeyFileError, which says ``whose``, unless the file holds the private key of the certificate."""
    try:
        key = serialization.load_pem_private_key(_content(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "is no private key in PEM without a password", error) from None
    kind = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*kind) != certificate.public_key().public_bytes(*kind):
        raise KeyFileError(f"{path} is not the private key of {whose} certificate")


def require_issued(chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], where: Path) -> None:
    """Raises KeyFileError unless one of the roots has issued the server's certificate, or its chain."""
    last = chain[0]
    for link in chain[1:]:
        _require_direct(last, [link], where)
        last = link
    if last not in roots:
        _require_direct(last, roots, where)


def _require_direct(issued: x509.Certificate, roots: Sequence[x509.Certificate], where: Path) -> None:
    for root in roots:
        try:
            issued.verify_directly_issued_by(root)
            return
        except (ValueError, TypeError, InvalidSignature):
            continue
    raise KeyFileError(f"the server's certificate was not issued by an authority in {where}")


def covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether the certificate is for this host name or address."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return any(_matches(host.lower(), name.lower()) for name in names.get_values_for_type(x509.DNSName))


def _matches(host: str, name: str) -> bool:
    """Whether a host has this name, in which ``*`` may stand for the first label."""
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])


def _no_key(path: Path, what: str, error: Exception) -> KeyFileError:
    # Some of the library's errors repeat a line of the file, however long.
    return KeyFileError(f"{path} {what} ({validation.shortened(str(error))})")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read ({error.strerror})") from None

"""Operators: who may start, stop and watch runs from another machine, each by a certificate.

``operators.json`` in the server's folder has each operator's certificate by name. A connection is an
operator's if it proves the key of one of these certificates. No authority's signature is believed in their
place. Whoever administers the server's machine adds and revokes operators; the control proxy
(:mod:`fedpriv.deployment.control`) reads the file at each request, so a change holds at once.
"""

from __future__ import annotations

import datetime
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fedpriv._internal import validation
from fedpriv._internal.files import atomic, read_json, sync_folder
from fedpriv.deployment import folders, keys
from fedpriv.deployment.folders import OPERATOR_PORT, USUAL_OPERATOR_PORT, Party, operator_folder

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_PATIENCE = 10.0  # seconds for a connection
CERTIFICATE, KEY, WHO = "operator.crt", "operator.key", "/operator"


def fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-256 hash of a certificate, in hex, as `openssl x509 -fingerprint -sha256` has it."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def read(server: Party) -> dict[str, x509.Certificate]:
    """{name: certificate} of the operators, empty before the first.

    Raises KeyFileError for a damaged file.
    """
    path = server.operators
    if not path.exists():
        return {}
    try:
        table = read_json(path.read_bytes())
        return {str(name): x509.load_pem_x509_certificate(text.encode()) for name, text in table.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise keys.KeyFileError(f"{path} cannot be read ({type(error).__name__}); restore a copy") from None


def named(
    certificates: Mapping[str, x509.Certificate], certificate: bytes, now: datetime.datetime | None = None
) -> str:
    """The operator of a certificate (DER), or "" if none has it or it is not valid ``now``."""
    now = datetime.datetime.now(datetime.UTC) if now is None else now
    for name, own in certificates.items():
        if own.public_bytes(serialization.Encoding.DER) == certificate:
            return name if own.not_valid_before_utc <= now <= own.not_valid_after_utc else ""
    return ""


def require_name(name: str) -> None:
    """Raises ArgumentError for what cannot be an operator's name."""
    if not _NAME.fullmatch(name):
        allowed = "be up to 32 lower-case letters, digits, - and _, and begin with a letter or digit"
        raise validation.fail("NAME", name, allowed)


def add(server: Party, name: str, certificate: Path | None = None, into: Path | None = None) -> Path:
    """Lets an operator in, and makes the operator's folder; returns the folder.

    Args:
        server: the server's party.
        name: the operator's name, which the log has.
        certificate: the operator's own certificate, whose key stays with its owner; None makes both.
        into: where the folder is made; by default beside the server's.

    Raises ArgumentError if the name is taken or the folder exists, KeyFileError for an unusable certificate.
    """
    require_name(name)
    if OPERATOR_PORT not in server.facts:
        path = server.folder / folders.PARTY_FILE
        raise validation.fail(
            f"{OPERATOR_PORT} in {path}", None, "be set", f"add `{OPERATOR_PORT} = {USUAL_OPERATOR_PORT}`"
        )
    present = read(server)
    if name in present:
        raise validation.fail("NAME", name, "be new", "revoke the operator first to give another certificate")
    folder = (server.folder.parent if into is None else into) / operator_folder(name)
    if folder.exists():
        raise validation.fail("NAME", name, "be new", f"{folder} exists, and keys are never written over")
    if certificate is None:
        own, key = keys.make_operator_certificate(name)
    else:
        own, key = keys.read_certificates(certificate)[0], None
    if fingerprint(own) in map(fingerprint, present.values()):
        raise keys.KeyFileError(f"{certificate} is another operator's certificate")
    folder.mkdir(mode=0o700, parents=True)
    keys.write_new(folder / CERTIFICATE, keys.pem(own))
    if key is not None:
        keys.write_new(folder / KEY, keys.private_pem(key), private=True)
    keys.write_new(folder / "ca.crt", server.roots.read_bytes())
    facts = {
        "party": operator_folder(name),
        "nodes": server.nodes,
        "host": str(server.facts["hosts"][0]),
        OPERATOR_PORT: int(server.facts[OPERATOR_PORT]),
        "certificate": CERTIFICATE,
        "certificate-key": KEY,
        "root-certificates": "ca.crt",
    }
    (folder / folders.PARTY_FILE).write_text(folders.facts_text(facts))
    _write(server, {**present, name: own})
    return folder


def revoke(server: Party, name: str) -> None:
    """Ends an operator's access at once. Raises ArgumentError if there is none of this name."""
    present = read(server)
    if name not in present:
        known = ", ".join(sorted(present)) or "none"
        raise validation.fail("NAME", name, "be an operator", f"operators: {known}")
    _write(server, {other: own for other, own in present.items() if other != name})


def _write(server: Party, certificates: Mapping[str, x509.Certificate]) -> None:
    table = {name: keys.pem(own).decode() for name, own in sorted(certificates.items())}
    with atomic(server.operators) as file:
        file.write((json.dumps(table, indent=1) + "\n").encode())
    sync_folder(server.operators.parent)


class UnreachableError(validation.FedprivError):
    """The control proxy does not answer at its address."""


def refusal(operator: Party) -> str:
    """Why the control proxy does not let this operator in, in one line; "" if it does.

    Raises KeyFileError for a certificate or key that cannot be used, and UnreachableError.
    """
    own = keys.read_certificates(operator.path("certificate"))[0]
    keys.require_key_of(own, operator.path("certificate-key"), "the operator's")
    mark = f"the certificate {fingerprint(own)[:16]}..."
    ask = "ask who administers the server to add it with `fedpriv deploy operator add`"
    if own.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        return f"{mark} ended on {own.not_valid_after_utc:%Y-%m-%d}: make a new one, and {ask}"
    host, port = operator.server_address
    tls = ssl.create_default_context(cafile=str(operator.roots))
    tls.load_cert_chain(operator.path("certificate"), operator.path("certificate-key"))
    connection = http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=tls)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        return f"{host}:{port} has a wrong certificate ({error.verify_message}): do not go on, ask for ca.crt"
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UnreachableError(f"{host}:{port} cannot be reached ({why})") from None
    try:
        connection.request("GET", WHO)
        answer = connection.getresponse()
        text = answer.read(400).decode(errors="replace")
    except (OSError, http.client.HTTPException):  # TLS 1.3 refuses a client after the handshake
        return f"{host}:{port} does not know {mark}: it was revoked, or never added; {ask}"
    finally:
        connection.close()
    return "" if answer.status == http.client.OK else f"{host}:{port} refuses {mark}: {text}"

"""Looks at a party's folder and machine before anything starts, and says what is wrong and what to do.

Every look is harmless: nothing is charged, registered or changed, and nothing private is printed.
"""

from __future__ import annotations

import datetime
import errno
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography import x509

from fedpriv._internal import validation
from fedpriv.deployment import keys, running
from fedpriv.deployment.folders import Party, versions

_SOON = datetime.timedelta(days=30)


class State(StrEnum):
    """How a look ended; only WRONG keeps a deployment from working."""

    OK = "ok"
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """What one look has found.

    Attributes:
        party: the party that was looked at.
        subject: what was looked at.
        state: how it is.
        text: what was seen.
        remedy: what to do; empty if nothing is to be done.
    """

    party: str
    subject: str
    state: State
    text: str
    remedy: str = ""


class FaultError(Exception):
    """A look has found something wrong: what it is, and what to do."""

    def __init__(self, text: str, remedy: str, state: State = State.WRONG) -> None:
        super().__init__(text)
        self.text, self.remedy, self.state = text, remedy, state


Look = tuple[str, Callable[[], str]]  # a subject, and the function that looks and returns what it saw


def looked(party: Party, looks: Iterator[Look]) -> Iterator[Finding]:
    """The findings of these looks. A look that fails does not keep the others from happening."""
    for subject, look in looks:
        try:
            yield Finding(party.name, subject, State.OK, look())
        except FaultError as fault:
            yield Finding(party.name, subject, fault.state, fault.text, fault.remedy)
        except (validation.FedprivError, OSError) as error:
            yield Finding(party.name, subject, State.WRONG, str(error), _REMEDY.get(subject, ""))


def what_runs(party: Party) -> Iterator[Finding]:
    """Whether the party runs now; nothing for an operator, of whom nothing does."""
    for seen in running.look(party.folder):
        state = State.OK if seen.runs else State.WRONG
        remedy = "" if seen.runs else f"start {party.folder}/start.sh, which says what keeps it from starting"
        yield Finding(party.name, seen.subject, state, seen.text, remedy)


_REMEDY = {
    "certificate": "give the party the files that belong together, or make a new deployment",
    "loopback": "restore the three loopback files of the server's folder, or make a new deployment",
    "authority": "copy the server's ca.crt into this folder",
    "key": "put the node's own private key there, and name it as private-key in policy.toml",
    "ledger": "restore the ledger and its anchor from a copy before the node answers anything",
    "peers": "put the owners' public identity keys into peers.txt, a line a partition, the same everywhere",
    "policy": "correct policy.toml; `fedpriv node policy` checks it",
}


def installed(party: Party) -> str:
    """The versions of this machine, held against those that the deployment was made with."""
    wanted, here = dict(party.facts["versions"]), versions()
    for name in ("fedpriv", "flwr"):
        if wanted.get(name) != here[name]:
            remedy = f'install the same everywhere: pip install "{name}=={wanted.get(name)}"'
            raise FaultError(
                f"{name} {here[name]} is installed; the deployment has {wanted.get(name)}", remedy
            )
    other = str(wanted.get("torch", "")).split("+")[0].rsplit(".", 1)[0]
    if other != here["torch"].split("+")[0].rsplit(".", 1)[0]:
        text = f"torch {here['torch']} is installed; the deployment has {wanted.get('torch')}"
        raise FaultError(text, "install the same release everywhere, so that results agree", State.NOTE)
    return ", ".join(f"{name} {version}" for name, version in here.items())


def private(path: Path) -> None:
    """Raises FaultError if others can read a private file."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FaultError(f"others than its owner can read {path}", f"chmod 600 {path}")


def dates(certificate: x509.Certificate, what: str, renew: str = "") -> str:
    """Until when the certificate is valid. Raises FaultError if it is not valid now, or not for long."""
    now = datetime.datetime.now(datetime.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    renew = renew or f"renew the {what}, and start the server again"
    if now < begin:
        raise FaultError(
            f"the {what} is valid from {begin:%Y-%m-%d %H:%M} UTC on", "set this machine's clock"
        )
    if now > end:
        raise FaultError(f"the {what} ended on {end:%Y-%m-%d}", renew)
    if end - now < _SOON:
        raise FaultError(f"the {what} ends on {end:%Y-%m-%d}", renew, State.NOTE)
    return f"valid until {end:%Y-%m-%d}"


def authority(party: Party) -> str:
    """The dates of the certificates of the authorities that the party trusts."""
    return "; ".join(dates(root, "authority's certificate") for root in keys.read_certificates(party.roots))


def require_free(host: str, port: int, remedy: str) -> None:
    """Raises FaultError unless this process may listen at the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = "in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
            raise FaultError(f"{host}:{port} is {why}", remedy) from None

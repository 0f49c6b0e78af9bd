"""The looks of `fedpriv deploy check` at an operator's folder."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.deployment import checks, keys, operators
from fedpriv.deployment.checks import FaultError, Look, State
from fedpriv.deployment.folders import Party


def looks(operator: Party, before_start: bool = False) -> Iterator[Look]:
    """What is looked at; nothing of an operator's is started, so ``before_start`` changes nothing."""
    yield "versions", lambda: checks.installed(operator)
    yield "authority", lambda: checks.authority(operator)
    yield "operator's certificate", lambda: _certificate(operator)
    yield "server", lambda: _server(operator)


def _certificate(operator: Party) -> str:
    own, key = keys.read_certificates(operator.path("certificate"))[0], operator.path("certificate-key")
    keys.require_key_of(own, key, "the operator's")
    checks.private(key)
    return checks.dates(own, "operator's certificate", "have the server's administrator add another one")


def _server(operator: Party) -> str:
    try:
        refused = operators.refusal(operator)
    except operators.UnreachableError as error:
        remedy = "start the server; let this machine out to that port in the firewall"
        raise FaultError(str(error), remedy, State.NOTE) from None
    if refused:
        raise FaultError(refused, "see `fedpriv deploy operator list` on the server's machine")
    host, port = operator.server_address
    return f"{host}:{port} lets this operator in"

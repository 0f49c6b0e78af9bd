"""The refusals of parties and the server."""

from __future__ import annotations

from fedpriv._internal import validation


class ProtocolError(validation.FedprivError, ValueError):
    """A message or a request breaks the protocol. The text names parties and public numbers only."""


class TooFewError(ProtocolError):
    """Fewer parties than the threshold answered, so nothing is released."""

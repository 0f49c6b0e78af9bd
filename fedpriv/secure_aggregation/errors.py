"""The refusals of parties and the server."""

from __future__ import annotations

from collections.abc import Mapping

from fedpriv._internal import validation


class ProtocolError(validation.FedprivError, ValueError):
    """A message or a request breaks the protocol. The text names parties and public numbers only."""


class TooFewError(ProtocolError):
    """Fewer parties than the threshold answered, so nothing is released.

    Attributes:
        missing: {party: why it is missing}, as far as the server knows.
    """

    def __init__(self, text: str, missing: Mapping[int, str] | None = None) -> None:
        super().__init__(text)
        self.missing = dict(missing or {})


class RefusalError(ProtocolError):
    """A party refuses what the server shows it: somebody tampers, and the run must not go on."""

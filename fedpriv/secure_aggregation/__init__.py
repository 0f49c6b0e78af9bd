"""Secure aggregation: the server learns the sum of the parties' messages, and no message.

After Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", in the
form that withstands a malicious server. :class:`Member` and :class:`Party` are a party's side,
:class:`Server` is the server's. They are state machines without input and output: whoever runs them carries
the messages. docs/explanation/secure-aggregation.md describes the exchanges and what is claimed.
"""

from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import Identity, Session, smallest_threshold
from fedpriv.secure_aggregation.party import Member, Party
from fedpriv.secure_aggregation.server import Server

__all__ = [
    "Identity",
    "Member",
    "Party",
    "ProtocolError",
    "Server",
    "Session",
    "TooFewError",
    "smallest_threshold",
]

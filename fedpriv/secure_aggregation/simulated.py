"""A release between simulated parties and their server, in one process.

Everything between a party and the server is the bytes that a network would carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from fedpriv.secure_aggregation.keys import Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Member, Party
from fedpriv.secure_aggregation.server import Server

Leaving = Mapping[Exchange, Set[int]]
Sent = Callable[[Exchange, Mapping[int, bytes]], None]


def aggregate(
    session: Session,
    members: Mapping[int, Member],
    message: Callable[[int], Vector],
    leave: Leaving | None = None,
    sent: Sent = lambda exchange, replies: None,
) -> tuple[Vector, list[int]]:
    """(the sum modulo 2^64 of the survivors' messages, the survivors).

    Args:
        session: the release.
        members: the parties by number.
        message: called once with each party's number, for its message.
        leave: the parties that answer no more from an exchange on.
        sent: called with the replies of each exchange.

    Raises:
        ProtocolError: fewer parties than the threshold answered (TooFewError), or one broke the protocol.
    """
    present = set(members)

    def asked(exchange: Exchange, ask: Callable[[int], bytes], parties: Set[int]) -> dict[int, bytes]:
        present.difference_update((leave or {}).get(exchange, ()))
        replies = {party: ask(party) for party in sorted(parties & present)}
        sent(exchange, replies)
        return replies

    server = Server(session)
    parties: dict[int, Party] = {number: member.join(session) for number, member in members.items()}
    announced = server.announced(asked(Exchange.KEYS, lambda p: parties[p].keys(), set(parties)))
    shares = asked(Exchange.SHARES, lambda p: parties[p].shares(announced), set(parties))
    routed = server.routed(shares)
    masked = asked(Exchange.MASKED, lambda p: parties[p].masked(routed[p], message(p)), routed.keys())
    alive = server.survivors(masked)
    signed = server.signed(asked(Exchange.SURVIVORS, lambda p: parties[p].survivors(alive), set(alive)))
    return server.total(asked(Exchange.REVEAL, lambda p: parties[p].reveal(signed), set(alive))), alive

"""A release between parties and their server, wherever the parties are.

Everything between a party and the server is the bytes that a network would carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fedpriv.secure_aggregation.errors import ProtocolError, RefusalError, TooFewError
from fedpriv.secure_aggregation.keys import Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Member, Party
from fedpriv.secure_aggregation.server import Server

Leaving = Mapping[Exchange, Set[int]]
Sent = Callable[[Exchange, Mapping[int, bytes]], None]
# What the server shows a party: the session, the announced keys, {peer: ciphertext}, the survivors' numbers,
# or their signatures, by exchange.
Shown = Session | Sequence[bytes] | Mapping[int, bytes] | Sequence[int]
Ask = Callable[[Exchange, Mapping[int, Any]], Mapping[int, bytes]]

_SILENT = "silent in the exchange of {}"


@dataclass(frozen=True)
class Aggregate:
    """What a release gave.

    Attributes:
        total: the sum of the survivors' messages modulo 2^64.
        survivors: the parties whose messages are in it, ascending.
        missing: {party: why its message is not in it}.
    """

    total: Vector
    survivors: list[int]
    missing: dict[int, str]


@dataclass
class Participant:
    """A member that answers the server's exchanges, release after release.

    Attributes:
        member: the party for the whole run.
        party: its part in the release of now.
    """

    member: Member
    party: Party | None = field(default=None, repr=False)

    def answer(self, exchange: Exchange, shown: Any, message: Callable[[], Vector]) -> bytes:
        """The reply to what the server shows.

        Args:
            exchange: which exchange it is.
            shown: what the server shows this party.
            message: gives the party's message; called in the exchange of masked messages alone.

        Raises ProtocolError if the party refuses.
        """
        if exchange is Exchange.KEYS:
            self.party = self.member.join(shown)
            return self.party.keys()
        if self.party is None:
            raise ProtocolError(f"{exchange.name.lower()} is out of order: this party joined no release")
        if exchange is Exchange.MASKED:
            return self.party.masked(shown, message())
        if exchange is Exchange.SHARES:
            return self.party.shares(shown)
        if exchange is Exchange.SURVIVORS:
            return self.party.survivors(shown)
        return self.party.reveal(shown)


def in_process(members: Mapping[int, Member], message: Callable[[int], Vector]) -> Ask:
    """Parties in this process; ``message`` gives the message of a party's number."""
    participants = {number: Participant(member) for number, member in members.items()}

    def ask(exchange: Exchange, shown: Mapping[int, Any]) -> Mapping[int, bytes]:
        return {party: answer(exchange, party, shown[party]) for party in sorted(shown)}

    def answer(exchange: Exchange, party: int, shown: Any) -> bytes:
        try:
            return participants[party].answer(exchange, shown, lambda: message(party))
        except TooFewError:
            raise
        except ProtocolError as error:
            raise refusal(party, exchange, str(error)) from None

    return ask


def refusal(party: int, exchange: Exchange, why: str) -> RefusalError:
    """The error of a party that refuses an exchange."""
    return RefusalError(f"party {party} refuses the exchange of {exchange.name.lower()}: {why}")


def leaving(ask: Ask, leave: Leaving) -> Ask:
    """The same parties, some of which answer no more from an exchange on."""
    gone = set[int]()

    def left(exchange: Exchange, shown: Mapping[int, Any]) -> Mapping[int, bytes]:
        gone.update(leave.get(exchange, ()))
        return ask(exchange, {party: own for party, own in shown.items() if party not in gone})

    return left


def aggregate(session: Session, ask: Ask, sent: Sent = lambda exchange, replies: None) -> Aggregate:
    """One release, by the server's side of the protocol.

    Args:
        session: the release.
        ask: shows each of some parties its part of an exchange, and returns the replies that came in time.
        sent: called with the replies of each exchange.

    Raises:
        TooFewError: fewer parties than the threshold answered, and no message was dropped.
        ProtocolError: somebody tampers: a party refuses (RefusalError), a revealed share is false, or
            messages that break the protocol were dropped and too few are left.
    """
    server, silent = Server(session), dict[int, str]()

    def asked(exchange: Exchange, shown: Mapping[int, Shown]) -> Mapping[int, bytes]:
        replies = ask(exchange, shown)
        silent.update({party: _SILENT.format(exchange.name.lower()) for party in shown.keys() - replies})
        sent(exchange, replies)
        return replies

    try:
        announced = server.announced(asked(Exchange.KEYS, dict.fromkeys(session.parties, session)))
        senders = [int.from_bytes(message[1:3], "big") for message in announced]
        routed = server.routed(asked(Exchange.SHARES, dict.fromkeys(senders, announced)))
        alive = server.survivors(asked(Exchange.MASKED, routed))
        signed = server.signed(asked(Exchange.SURVIVORS, dict.fromkeys(alive, alive)))
        total = server.total(asked(Exchange.REVEAL, dict.fromkeys(alive, signed)))
    except TooFewError as error:
        if server.refused:
            why = next(iter(server.refused.values()))
            raise ProtocolError(f"{why}, and without its message there are too few: {error}") from None
        raise TooFewError(str(error), silent) from None
    missing = silent | server.refused
    return Aggregate(total, alive, {party: why for party, why in missing.items() if party not in alive})

"""Messages of secure aggregation of any content: the release is right without them, or ends in a sentence."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.fuzzing import amounts, for_all, mutations, outcome
from helpers.secure_parties import EXCHANGES, Cohort, identity, plain_sum

from fedpriv.secure_aggregation.messages import Exchange, sealed

PARTIES, ATTACKER = 4, 2
ALLOWED = 1 << 20  # bytes: every message here is smaller than a kilobyte
WORDS = ("party", "parties", "message", "peer")
_HEAD, _SIGNATURE = 3, 64


def released(exchange: str, message: bytes) -> None:
    """A release in which a party's message is this one; the sum has the honest parties' values."""
    cohort = Cohort(PARTIES, alter={exchange: lambda replies: {**replies, ATTACKER: message}})
    total = cohort.total()
    honest = plain_sum({party: value for party, value in cohort.values.items() if party != ATTACKER})
    if exchange != "masked":  # there the party may choose its own value
        assert any(np.array_equal(total, sound) for sound in (honest, plain_sum(cohort.values)))


def sent(exchange: str) -> bytes:
    """The message that the party sends by the protocol."""
    cohort = Cohort(PARTIES)
    cohort.total()
    return cohort.sent[exchange][ATTACKER]


@amounts
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_hostile_message_of_a_party_changes_no_sum(exchange: str, examples: int) -> None:
    def read(message: bytes) -> None:
        outcome(lambda: released(exchange, message), WORDS, f"secure aggregation, {exchange}", ALLOWED)

    read(sent(exchange))
    for_all(examples, mutations((sent(exchange),)), read, (sent(exchange),))


@amounts
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_signed_hostile_message_of_a_party_changes_no_sum(exchange: str, examples: int) -> None:
    session, number = Cohort(PARTIES).session, Exchange[exchange.upper()]

    def read(body: bytes) -> None:
        message = sealed(session, identity(ATTACKER), number, ATTACKER, body)
        outcome(lambda: released(exchange, message), WORDS, f"secure aggregation, signed {exchange}", ALLOWED)

    body = sent(exchange)[_HEAD:-_SIGNATURE]
    read(body)
    for_all(examples, mutations((body,)), read, (body,))

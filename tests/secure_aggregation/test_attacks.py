"""What a malicious server or a malicious peer tries, and the sentence that refuses it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.secure_parties import Cohort, identity, stream

from fedpriv._internal.validation import ArgumentError
from fedpriv.secure_aggregation import messages
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import Session
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Member, Party


def forged(cohort: Cohort, exchange: Exchange, party: int, body: bytes, signer: int | None = None) -> bytes:
    """A message of ``party`` with another body, signed by ``signer``."""
    return messages.sealed(cohort.session, identity(signer or party), exchange, party, body)


def to_exchange_3(cohort: Cohort) -> tuple[list[int], list[bytes]]:
    alive = cohort.until_masked()
    signed = {p: cohort.parties[p].survivors(alive) for p in alive}
    return alive, cohort.server.signed(signed)


def refused(party: Party, cohort: Cohort, alive: list[int]) -> None:
    """After a refusal the party answers nothing more."""
    for ask in (party.keys, lambda: party.survivors(alive), lambda: party.reveal([])):
        with pytest.raises(ProtocolError, match="out of order"):
            ask()


def test_both_shares_of_a_party_are_never_revealed() -> None:
    """The server calls party 4 alive first and dead then: the second question is refused."""
    cohort = Cohort(4)
    alive, signed = to_exchange_3(cohort)
    cohort.parties[1].reveal(signed)
    others = [forged(cohort, Exchange.SURVIVORS, p, messages.pack_numbers([1, 2, 3])) for p in (1, 2, 3)]
    with pytest.raises(ProtocolError, match="reveal is out of order: a party answers each exchange once"):
        cohort.parties[1].reveal(others)
    with pytest.raises(ProtocolError, match="survivors is out of order"):
        cohort.parties[2].survivors([1, 2, 3])
    refused(cohort.parties[1], cohort, alive)


def test_each_share_that_is_revealed_is_of_one_kind() -> None:
    cohort = Cohort(7, leave={"masked": {6, 7}})
    alive, signed = to_exchange_3(cohort)
    for party in alive:
        _, body = messages.opened(cohort.session, Exchange.REVEAL, cohort.parties[party].reveal(signed))
        seeds, keys = messages.read_reveal(party, body)
        assert (set(seeds), set(keys)) == ({1, 2, 3, 4, 5}, {6, 7})


def test_other_survivors_shown_to_two_parties_are_refused() -> None:
    cohort = Cohort(7)
    cohort.until_masked()
    sets = {p: list(range(1, 8)) if p < 4 else list(range(1, 7)) for p in range(1, 8)}
    signed = [cohort.parties[p].survivors(sets[p]) for p in range(1, 7)]
    for party in (1, 5):
        with pytest.raises(ProtocolError, match="another set of survivors"):
            cohort.parties[party].reveal(signed)
        refused(cohort.parties[party], cohort, sets[party])


def test_too_few_signatures_of_the_survivors_are_refused() -> None:
    cohort = Cohort(7)
    _, signed = to_exchange_3(cohort)
    with pytest.raises(TooFewError, match="4 parties signed the set of survivors; the threshold is 5"):
        cohort.parties[1].reveal(signed[:4])
    with pytest.raises(ProtocolError, match="two messages"):
        cohort.parties[2].reveal([*signed[:4], signed[0]])
    with pytest.raises(ProtocolError, match="leaves this party out"):
        cohort.parties[7].reveal(signed[:5])
    late = Cohort(7, leave={"masked": {7}})
    alive, signed = to_exchange_3(late)
    outside = forged(late, Exchange.SURVIVORS, 7, messages.pack_numbers(alive))
    with pytest.raises(ProtocolError, match="not a survivor signed"):
        late.parties[1].reveal([*signed, outside])


def test_survivors_without_this_party_or_unknown_or_few_are_refused() -> None:
    for numbers, why in (
        ([2, 3, 4], "leaves this party out"),
        ([1, 2], "2 parties sent a masked message; the threshold is 3"),
        ([1, 2, 3, 9], "did not all share their keys"),
        ([1, 2, 3, 3], "did not all share their keys"),
    ):
        cohort = Cohort(4)
        cohort.until_masked()
        with pytest.raises(ProtocolError, match=why):
            cohort.parties[1].survivors(numbers)


def test_an_old_release_is_not_joined_again() -> None:
    cohort = Cohort(3, release=4)
    for release in (4, 3):
        with pytest.raises(ProtocolError, match=f"release {release} is not new: this party joined release 4"):
            cohort.members[1].join(replace(cohort.session, release=release))
    assert cohort.members[1].join(replace(cohort.session, release=5)).number == 1
    assert cohort.members[1].join(replace(cohort.session, run="other", release=0)).number == 1


@pytest.mark.parametrize("changed", [{"run": "other"}, {"release": 1}, {"threshold": 4}, {"length": 6}])
def test_messages_of_another_release_are_refused(changed: dict[str, object]) -> None:
    """A replay: each message is bound to run, release, cohort, threshold and length."""
    cohort = Cohort(4)
    old = {p: party.keys() for p, party in cohort.parties.items()}
    session = replace(cohort.session, **changed)  # type: ignore[arg-type]
    party = Party(session, identity(1), stream(1))
    own = party.keys()
    with pytest.raises(ProtocolError, match="party 2 did not sign"):
        party.shares([own, *(old[p] for p in (2, 3, 4))])


def test_swapped_or_unsigned_keys_are_refused() -> None:
    """The man in the middle: the server puts its own keys in the place of a peer's."""
    fresh = Cohort(4)
    theirs = fresh.parties[2].keys()[3:-64]
    for attack, why in (
        (lambda c, sent: forged(c, Exchange.KEYS, 2, theirs[::-1], signer=9), "party 2 did not sign"),
        (lambda c, sent: sent[2][:-64] + bytes(64), "party 2 did not sign"),
        (lambda c, sent: sent[2][:3] + sent[2][35:67] + sent[2][3:35] + sent[2][67:], "party 2 did not sign"),
        (lambda c, sent: sent[3], "two messages"),
        (lambda c, sent: b"", "too short"),
    ):
        cohort = Cohort(4)
        sent = {p: party.keys() for p, party in cohort.parties.items()}
        with pytest.raises(ProtocolError, match=why):
            cohort.parties[1].shares([sent[1], attack(cohort, sent), sent[3], sent[4]])


def test_a_party_notices_other_keys_of_its_own() -> None:
    cohort = Cohort(4)
    sent = {p: party.keys() for p, party in cohort.parties.items()}
    other = forged(cohort, Exchange.KEYS, 1, sent[1][35:67] + sent[1][3:35])
    with pytest.raises(ProtocolError, match="for this party are not those that it sent"):
        cohort.parties[1].shares([other, sent[2], sent[3], sent[4]])


def test_a_peer_that_repeats_a_key_is_refused() -> None:
    """Party 2 repeats party 3's mask key, and would know the mask of parties 1 and 3 if it had its secret."""
    for body in (
        lambda two, three: three[:32] + two[32:],
        lambda two, three: two[:32] + three[32:],
        lambda two, three: two[:32] * 2,
        lambda two, three: three[32:] + two[32:],
    ):
        cohort = Cohort(4)
        sent = {p: party.keys() for p, party in cohort.parties.items()}
        repeated = forged(cohort, Exchange.KEYS, 2, body(sent[2][3:-64], sent[3][3:-64]))
        with pytest.raises(ProtocolError, match="the same key"):
            cohort.parties[1].shares([sent[1], repeated, sent[3], sent[4]])


def test_a_key_of_small_order_is_refused() -> None:
    cohort = Cohort(4)
    sent = {p: party.keys() for p, party in cohort.parties.items()}
    weak = forged(cohort, Exchange.KEYS, 2, bytes(32) + sent[2][35:67])
    for place in (weak, forged(cohort, Exchange.KEYS, 2, sent[2][3:35] + bytes(32))):
        fresh = Cohort(4)
        sent = {p: party.keys() for p, party in fresh.parties.items()}
        if place is not weak:
            with pytest.raises(ProtocolError, match="not a key for agreement"):
                fresh.parties[1].shares([sent[1], place, sent[3], sent[4]])
            continue
        announced = [sent[1], place, sent[3], sent[4]]
        shares = {p: fresh.parties[p].shares(announced) for p in (1, 3, 4)}
        texts = {p: messages.read_shares(p, shares[p][3:-64])[2][1] for p in (3, 4)}
        with pytest.raises(ProtocolError):
            fresh.parties[1].masked({**texts, 2: bytes(80)}, fresh.values[1])


def test_a_shrunken_or_foreign_cohort_is_refused() -> None:
    cohort = Cohort(6)
    pinned, member = cohort.session.cohort, Member(identity(1), cohort.session.cohort)
    for other in (pinned[:3], pinned[::-1], (*pinned[:5], identity(9).public)):
        with pytest.raises(ProtocolError, match="cohort is not the one whose identity keys"):
            member.join(Session("run", 0, other, len(other), 5, bytes(32)))
    with pytest.raises(ProtocolError, match="not in its cohort"):
        Member(identity(9), pinned).join(cohort.session)
    with pytest.raises(ProtocolError, match="repeats an identity key"):
        Session("run", 0, (*pinned[:5], pinned[0]), 5, 5, bytes(32))


def test_parties_that_are_shown_different_requests_refuse_each_others_signatures() -> None:
    """The server shows party 1 another request's digest: nobody's keys are signed for its session."""
    cohort = Cohort(4)
    other = replace(cohort.session, request=bytes([1]) * 32)
    alone = Member(identity(1), other.cohort).join(other, stream(1))
    sent = [alone.keys(), *(cohort.parties[p].keys() for p in (2, 3, 4))]
    with pytest.raises(ProtocolError, match="party 2 did not sign its message"):
        alone.shares(sent)
    with pytest.raises(ProtocolError, match="party 1 did not sign its message"):
        cohort.parties[2].shares(sent)
    for digest in (b"", bytes(31), bytes(33)):
        with pytest.raises(ProtocolError, match="the digest of the request has not 32 bytes"):
            replace(cohort.session, request=digest)


def test_a_lowered_threshold_is_refused() -> None:
    """By the protocol's smallest against each kind of server, and by the owner's minimum."""
    pinned = Cohort(9).session.cohort
    for minimum, malicious, smallest in ((0, True, 7), (0, False, 5), (8, True, 8), (9, False, 9)):
        member = Member(identity(1), pinned, minimum, malicious)
        if smallest > 5:
            with pytest.raises(
                ProtocolError, match=f"threshold is {smallest - 1}; it must be at least {smallest}"
            ):
                member.join(Session("run", 0, pinned, smallest - 1, 5, bytes(32)))
        assert member.join(Session("run", 0, pinned, smallest, 5, bytes(32))).number == 1
    for threshold in (4, 10):
        with pytest.raises(ArgumentError, match=r"it must lie in \[5, 9\]"):
            Session("run", 0, pinned, threshold, 5, bytes(32))
    for few in (0, 1, 65):
        with pytest.raises(ArgumentError, match=r"parties is \d+; it must lie in \[2, 64\]"):
            Session("run", 0, tuple(identity(p).public for p in range(few)), few, 5, bytes(32))


def test_too_few_announced_or_shared_keys_are_refused_by_the_parties() -> None:
    cohort = Cohort(4)
    sent = [party.keys() for party in cohort.parties.values()]
    with pytest.raises(TooFewError, match="2 parties announced keys; the threshold is 3"):
        cohort.parties[1].shares(sent[:2])
    with pytest.raises(ProtocolError, match="leaves this party out"):
        cohort.parties[2].shares([sent[0], sent[2], sent[3]])
    cohort = Cohort(4)
    sent = [party.keys() for party in cohort.parties.values()]
    shares = {p: party.shares(sent) for p, party in cohort.parties.items()}
    routed = cohort.server.announced(dict(enumerate(sent, 1))) and cohort.server.routed(shares)
    with pytest.raises(TooFewError, match="2 parties shared their keys; the threshold is 3"):
        cohort.parties[1].masked({2: routed[1][2]}, cohort.values[1])


def test_altered_or_exchanged_shares_are_refused() -> None:
    for attack in (
        lambda texts: {**texts, 2: texts[3], 3: texts[2]},
        lambda texts: {**texts, 2: bytes([texts[2][0] ^ 1]) + texts[2][1:]},
        lambda texts: {**texts, 2: b""},
    ):
        cohort = Cohort(4)
        sent = {p: party.keys() for p, party in cohort.parties.items()}
        announced = cohort.server.announced(sent)
        routed = cohort.server.routed({p: q.shares(announced) for p, q in cohort.parties.items()})
        with pytest.raises(ProtocolError, match="were altered, or are of other keys"):
            cohort.parties[1].masked(attack(routed[1]), cohort.values[1])


def test_other_keys_shown_to_two_parties_do_not_fit() -> None:
    """Each party's encryption is bound to all the keys that it saw."""
    cohort = Cohort(7)
    sent = [party.keys() for party in cohort.parties.values()]
    one = cohort.parties[1].shares(sent)
    other = cohort.parties[2].shares(sent[:6])
    text = messages.read_shares(2, other[3:-64])[2][1]
    texts = {p: messages.read_shares(p, cohort.parties[p].shares(sent)[3:-64])[2][1] for p in (3, 4, 5, 6, 7)}
    assert one
    with pytest.raises(ProtocolError, match="shares of party 2"):
        cohort.parties[1].masked({2: text, **texts}, cohort.values[1])


def test_a_party_masks_once_and_only_messages_of_the_agreed_form() -> None:
    for values in (np.zeros(4, np.uint64), np.zeros(5, np.int64), np.zeros((5, 1), np.uint64)):
        cohort = Cohort(3)
        cohort.values[1] = values
        with pytest.raises(ArgumentError, match="values is"):
            cohort.until_masked()
    cohort = Cohort(3)
    cohort.until_masked()
    with pytest.raises(ProtocolError, match="masked is out of order"):
        cohort.parties[1].masked({}, cohort.values[1])


def flipped(replies: dict[int, bytes], party: int, place: int) -> dict[int, bytes]:
    text = bytearray(replies[party])
    text[place] ^= 1
    return {**replies, party: bytes(text)}


def test_an_altered_masked_message_is_dropped_by_its_signature() -> None:
    """Party 2's message is altered on its way: its party counts as gone, and the sum is the others'."""
    cohort = Cohort(4, alter={"masked": lambda replies: flipped(replies, 2, 60)})
    alive = cohort.until_masked()
    assert alive == [1, 3, 4]
    assert cohort.server.refused == {2: "party 2 did not sign its message with its identity key"}


@pytest.mark.parametrize("exchange", ["keys", "shares", "masked", "survivors", "reveal"])
def test_one_party_in_anothers_name_counts_as_gone(exchange: str) -> None:
    cohort = Cohort(4, alter={exchange: lambda replies: {**replies, 4: replies[3]}})
    if exchange in ("survivors", "reveal"):
        assert (cohort.total() == sum(cohort.values.values())).all()
    else:
        cohort.leave = {exchange: set()}
        cohort.until_masked()
    assert cohort.server.refused == {4: "party 4 sent a message of party 3"}


@pytest.mark.parametrize(("kind", "why"), [(0, "self mask are false"), (1, "mask key are false")])
def test_a_false_share_releases_nothing(kind: int, why: str) -> None:
    """A survivor signs a share that it was not given: the secret is checked before it is used."""
    cohort = Cohort(4, leave={"masked": {4}})
    cohort.alter = {"reveal": lambda replies: with_false_share(cohort, replies, kind)}
    with pytest.raises(ProtocolError, match=why):
        cohort.total()


def test_a_share_that_does_not_fit_the_others_releases_nothing() -> None:
    cohort = Cohort(4)
    cohort.alter = {"reveal": lambda replies: with_false_share(cohort, replies, 0)}
    with pytest.raises(ProtocolError, match="do not agree"):
        cohort.total()


def with_false_share(cohort: Cohort, replies: dict[int, bytes], kind: int) -> dict[int, bytes]:
    """Party 2's reveal with another first share of this kind (0: seeds, 1: mask keys), signed by it."""
    _, body = messages.opened(cohort.session, Exchange.REVEAL, replies[2])
    rows = [{p: s.to_bytes(32, "big") for p, s in table.items()} for table in messages.read_reveal(2, body)]
    rows[kind][next(iter(rows[kind]))] = bytes(31) + b"\5"
    return {**replies, 2: forged(cohort, Exchange.REVEAL, 2, messages.pack_reveal(*rows))}


def test_a_missing_share_counts_as_a_party_that_is_gone() -> None:
    def without(replies: dict[int, bytes]) -> dict[int, bytes]:
        _, body = messages.opened(cohort.session, Exchange.REVEAL, replies[2])
        return {**replies, 2: forged(cohort, Exchange.REVEAL, 2, body[:35])}

    cohort = Cohort(4, alter={"reveal": without})
    assert (cohort.total() == sum(cohort.values.values())).all()
    assert cohort.server.refused == {2: "party 2 did not reveal one share for each party"}
    cohort = Cohort(4, leave={"reveal": {4}}, alter={"reveal": without})
    with pytest.raises(TooFewError):
        cohort.total()

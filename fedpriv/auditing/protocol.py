"""The server's view of secure aggregation, and what it must not show.

The server sees every message of the protocol: keys, encrypted shares, masked messages, revealed shares. It
removes all masks whose keys it can compute. What is left of a message must be uniform modulo 2^64, in each
party and release, and so must the difference of two of them: a mask that is missing or used twice leaves
small numbers. The auditor also knows each party's secrets and its plain message, and computes what the party
had to send.

>>> draws = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64)
>>> uniform(draws) > 0.01, uniform(draws >> np.uint64(1)) < 1e-9
(True, True)
>>> noise = np.random.default_rng(0).normal(0, 2.0**30, 1000).astype(np.int64).view(np.uint64)
>>> uniform(noise) < 1e-9  # each bit by itself is as often 1 as 0
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy import stats

from fedpriv.auditing.noise_tests import Residuals
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.secure_engine import LocalParties, SecureEngine, as_sums, grid_steps, whole_steps
from fedpriv.federated.worker import zeros
from fedpriv.secure_aggregation import messages, shamir
from fedpriv.secure_aggregation.aggregation import aggregate, in_process, leaving
from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.keys import DIGEST, KEY, Identity, Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Member, Party, pair_mask, self_mask

_HEAD, _SIGNATURE = 3, 64  # bytes around a message's body
_MASK_KEY, _SEED = 0, 2  # which of its draws a party takes for its mask key and for its self-mask seed
_TESTS = 127  # bits of a number, and changes from bit to bit
_CERTAIN = 1e-9  # no chance gives a smaller p-value
_PROBE_LENGTH = 256  # numbers in the messages of the release in which parties leave
_NO_COHORT = np.zeros(0, np.int64)


@dataclass
class Release:
    """One release, as the server and the auditor see it.

    Attributes:
        session: what the parties agreed on.
        replies: {exchange: {party: its message}}: all that the server sees.
        drawn: {party: what it drew from its entropy, in its order}.
        plain: {party: its message before masks}.
    """

    session: Session | None = None
    replies: dict[Exchange, dict[int, bytes]] = field(default_factory=dict)
    drawn: dict[int, list[bytes]] = field(default_factory=dict)
    plain: dict[int, Vector] = field(default_factory=dict)

    def body(self, exchange: Exchange, party: int) -> bytes:
        """The body of a party's message."""
        return self.replies[exchange][party][_HEAD:-_SIGNATURE]

    def mask_keys(self) -> dict[int, bytes]:
        """{party: its public mask key}."""
        return {p: self.body(Exchange.KEYS, p)[:KEY] for p in self.replies.get(Exchange.KEYS, {})}

    def binding(self) -> bytes:
        """What the masks' keys are bound to."""
        assert self.session is not None
        keys = {p: self.body(Exchange.KEYS, p) for p in self.replies[Exchange.KEYS]}
        return self.session.context + messages.digest_of(keys)

    def masked(self) -> dict[int, Vector]:
        """{party: its masked message}."""
        parties = self.replies.get(Exchange.MASKED, {})
        return {p: np.frombuffer(self.body(Exchange.MASKED, p), "<u8", offset=KEY) for p in parties}

    def revealed(self) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]:
        """For seeds and for mask keys: {party: {who revealed it: share}}."""
        found: tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]] = ({}, {})
        for sender in self.replies.get(Exchange.REVEAL, {}):
            for kind, shares in enumerate(messages.read_reveal(sender, self.body(Exchange.REVEAL, sender))):
                for party, share in shares.items():
                    found[kind].setdefault(party, {})[sender] = share
        return found

    def seeds(self) -> dict[int, bytes]:
        """{party: the self-mask seed that the server computes from revealed shares}."""
        assert self.session is not None
        threshold = self.session.threshold
        return {
            party: shamir.reconstruct(shares, threshold).to_bytes(KEY, "big")
            for party, shares in self.revealed()[0].items()
            if len(shares) >= threshold
        }

    def stripped(self) -> dict[int, Vector]:
        """{party: its masked message without the self mask, where the server can remove it}."""
        seeds, binding = self.seeds(), self.binding()
        return {
            party: vector - stream(self_mask(binding, party, seeds[party]), len(vector))
            for party, vector in self.masked().items()
            if party in seeds
        }

    def faults(self) -> Iterator[str]:
        """What the protocol forbids and the server sees, in a few words each."""
        seeds, keys = self.revealed()
        arrived = self.masked().keys()
        if seeds.keys() & keys.keys():
            yield "both shares of a party, of its self mask and of its mask key"
        elif keys.keys() & arrived or seeds.keys() - arrived:
            yield "a revealed share of a mask that must stay secret"

    def expected(self, party: int) -> Vector | None:
        """What the party had to send, by its own secrets; None if it drew too few."""
        drawn, binding = self.drawn.get(party, []), self.binding()
        if len(drawn) <= _SEED:
            return None
        sharers = self.replies[Exchange.SHARES].keys()
        keys = self.mask_keys()
        total = self.plain[party] + stream(
            self_mask(binding, party, drawn[_SEED]), length := len(self.plain[party])
        )
        for peer in sharers - {party}:
            mask = stream(pair_mask(binding, drawn[_MASK_KEY], keys[peer], party, peer), length)
            total = total + mask if party < peer else total - mask
        return total


def stream(key: bytes, length: int) -> Vector:
    """The mask of a key: ``length`` numbers, in one piece."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), "<u8")


def uniform(vector: Vector) -> float:
    """The p-value of numbers that are claimed to be independent and uniform modulo 2^64.

    Each bit is a fair coin, and so is whether it equals its neighbour: exact binomial tests, times their
    number.
    """
    count = len(vector)
    pairs = (vector ^ (vector >> np.uint64(1))) & np.uint64(2**63 - 1)
    ones = np.concatenate([_ones(vector), _ones(pairs)[:63]])
    rarer = np.minimum(ones, count - ones)
    return float(min(1.0, _TESTS * min(1.0, 2 * stats.binom.cdf(rarer.min(), count, 0.5))))


def _ones(vector: Vector) -> NDArray[np.int64]:
    """How many numbers have bit 0, 1, ... 63 set."""
    octets = np.ascontiguousarray(vector.astype("<u8")).view(np.uint8).reshape(len(vector), 8)
    ones: NDArray[np.int64] = np.unpackbits(octets, axis=1, bitorder="little").sum(0, dtype=np.int64)
    return ones


class WatchedProtocol:
    """A run's secure aggregation, observed.

    Args:
        gather: gives a silo's sums with its share of the noise.
        parties: the number of silos.
        threshold: fewer survivors release nothing.

    Attributes:
        tests: of what the server sees, and of what the auditor knows.
        answered: the plain messages of the release of now, which no server sees.
    """

    def __init__(self, gather: Callable[[SumRequest], PartialSum], parties: int, threshold: int) -> None:
        self._gather, self._threshold, self._parties = gather, threshold, parties
        self._members: dict[int, Member] = {}
        self.tests = Residuals(1)
        self.answered: list[tuple[Shard, PartialSum]] = []
        self._release, self._mask_keys, self._seeds = Release(), set[bytes](), set[bytes]()
        self._kept: list[dict[int, Vector]] = []  # what is left of the first and the last release's messages
        self._engine = SecureEngine(
            LocalParties(self, parties, threshold, self._member), threshold, sent=self._sent
        )

    def answer(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.secure_engine.Silos`. The plain message is recorded."""
        reply, (shard,) = self._gather(request), request.shards
        self.answered.append((shard, reply))
        assert shard.home is not None
        self._release.plain[shard.home + 1] = whole_steps(reply.sums, grid_steps(request))
        return reply

    def gather(self, request: SumRequest) -> PartialSum:
        """The sum of a release, by the protocol. The release is tested."""
        self._release, self.answered = Release(), []
        self.tests.add([], _NO_COHORT, 1.0)
        like = zeros(request.query)
        try:
            found = self._engine.gather(request)
        except ProtocolError as error:
            self._test()
            self.tests.fault(f"a protocol that breaks off ({error})")
            return PartialSum(like, 0).to(request.query)
        self._test()
        arrived = self._release.masked().keys()
        plain = [self._release.plain[party] for party in arrived]
        total = as_sums(np.sum(plain, axis=0, dtype=np.uint64), like, grid_steps(request)) if plain else like
        pairs = zip(total, found.sums, strict=True)
        if found.parties and any((one.double().cpu() != other.cpu()).any() for one, other in pairs):
            self.tests.fault("a sum that is not the sum of the parties' messages")
        return found

    def read(self, request: SumRequest) -> tuple[Mapping[int, PartialSum], ...]:
        """For each adversary of messages {silo: what it takes for the silo's sums}.

        The first one takes masked messages as they are, the second one removes the self masks.
        """
        like, steps = zeros(request.query), grid_steps(request)
        return tuple(
            {party - 1: PartialSum(as_sums(vector, like, steps), 1) for party, vector in vectors.items()}
            for vectors in (self._release.masked(), self._release.stripped())
        )

    def probe(self) -> None:
        """Tests one more release, of random numbers, in which as many parties leave as may."""
        gone = set(range(self._threshold + 1, self._parties + 1))
        if not gone:
            return
        self._release = Release()
        plain = {p: np.frombuffer(os.urandom(8 * _PROBE_LENGTH), np.uint64) for p in self._members}
        self._release.plain = plain
        cohort = next(iter(self._members.values())).cohort
        session = Session("audit", 0, cohort, self._threshold, _PROBE_LENGTH, bytes(DIGEST))
        ask = leaving(in_process(self._members, lambda party: plain[party]), {Exchange.MASKED: gone})
        self.tests.add([], _NO_COHORT, 1.0)
        try:
            found = aggregate(session, ask, self._sent)
        except ProtocolError as error:
            self._test()
            return self.tests.fault(f"a protocol that breaks off where parties leave ({error})")
        self._test()
        survivors = [plain[party] for party in found.survivors]
        if gone & set(found.survivors) or (found.total != np.sum(survivors, axis=0, dtype=np.uint64)).any():
            self.tests.fault("a sum that is not that of the survivors' messages")

    def _sent(self, exchange: Exchange, replies: Mapping[int, bytes]) -> None:
        self._release.replies[exchange] = dict(replies)

    def _member(self, identity: Identity, cohort: tuple[bytes, ...], threshold: int) -> Member:
        member = _Watched(identity, cohort, threshold, watch=self._joined)
        self._members[cohort.index(identity.public) + 1] = member
        return member

    def _joined(self, session: Session, number: int) -> list[bytes]:
        """Where the auditor writes what a party draws in a release."""
        self._release.session = session
        return self._release.drawn.setdefault(number, [])

    def _test(self) -> None:
        """Tests the release of now."""
        release = self._release
        for found in release.faults():
            self.tests.fault(found)
        keys = list(release.mask_keys().values())
        if len(set(keys)) < len(keys) or self._mask_keys & set(keys):
            self.tests.fault("a mask key that was used before")
        self._mask_keys.update(keys)
        masked = release.masked()
        if not masked:
            return
        left = {**masked, **release.stripped()}
        for vectors, what in ((masked, "a masked message"), (left, "a message without its self mask")):
            self._uniform(vectors, f"{what} that is not uniform")
        for before in self._kept:
            again = {p: left[p] - before[p] for p in left.keys() & before.keys() if _alike(left, before, p)}
            self._uniform(again, "a mask that was used in an earlier release")
        if len(left) > 2:  # two messages add up to the sum, so that one tells the other
            neighbours = zip(sorted(left)[:-1], sorted(left)[1:], strict=True)
            self._uniform({p: left[p] - left[q] for p, q in neighbours}, "a mask that parties share")
        self._kept = [*self._kept[:1], left]
        seeds = list(release.seeds().values())
        if len(set(seeds)) < len(seeds) or self._seeds & set(seeds):
            self.tests.fault("a self-mask seed that was used before")
        self._seeds.update(seeds)
        if self.tests.p_value < _CERTAIN:
            return  # what the server sees has a name for it
        for party, vector in masked.items():
            expected = release.expected(party)
            if expected is None or (expected != vector).any():
                return self.tests.fault("a masked message without the masks of this release's fresh keys")

    def _uniform(self, vectors: Mapping[int, Vector], what: str) -> None:
        self.tests.take([(what, uniform(vector)) for vector in vectors.values()])


def _alike(one: Mapping[int, Vector], other: Mapping[int, Vector], party: int) -> bool:
    return len(one[party]) == len(other[party])


class _Watched(Member):
    """A member whose draws the auditor sees."""

    def __init__(
        self,
        identity: Identity,
        cohort: tuple[bytes, ...],
        threshold: int,
        watch: Callable[[Session, int], list[bytes]],
    ) -> None:
        super().__init__(identity, cohort, threshold)
        self._watch = watch

    def join(self, session: Session, entropy: shamir.Entropy = os.urandom) -> Party:
        """See :class:`Member`."""
        drawn = self._watch(session, self.cohort.index(self.identity.public) + 1)

        def draw(size: int) -> bytes:
            drawn.append(entropy(size))
            return drawn[-1]

        return super().join(session, draw)

"""The exchanges: exact sums, parties that leave, and a second implementation that agrees bit for bit."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from helpers.plain_secure_aggregation import aggregate
from helpers.secure_parties import EXCHANGES, Cohort, messages_of, plain_sum, stream

from fedpriv.secure_aggregation.errors import TooFewError
from fedpriv.secure_aggregation.threshold import smallest_threshold

SIZES = [2, 3, 4, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (*range(8, 17), 24, 33))]
SIZES += [pytest.param(n, marks=[pytest.mark.slow, pytest.mark.exhaustive]) for n in (48, 64)]


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_the_plain_ones_with_parties_that_leave_at_each_exchange(size: int) -> None:
    """Up to the number that the threshold allows, at one exchange or spread over them."""
    most = size - smallest_threshold(size)
    draws = random.Random(size)
    for where in (*EXCHANGES, "spread"):
        gone = draws.sample(range(1, size + 1), most)
        leave = (
            {where: set(gone)} if where != "spread" else {e: set(gone[k::5]) for k, e in enumerate(EXCHANGES)}
        )
        cohort = Cohort(size, leave=leave)
        late = set().union(*(leave.get(e, set()) for e in EXCHANGES[3:]))  # their messages had arrived
        there = set(cohort.values) - set(gone) | late
        assert (cohort.total() == plain_sum({p: cohort.values[p] for p in there})).all()
        assert not cohort.server.refused


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_below_the_threshold_nothing_is_released(exchange: str) -> None:
    """Of every size beyond what the threshold allows; the server has no sum to return."""
    for size in (2, 4, 6):
        fewest = smallest_threshold(size)
        for left in range(fewest):
            cohort = Cohort(size, leave={exchange: set(range(left + 1, size + 1))})
            with pytest.raises(TooFewError, match=f"^{left} .*threshold is {fewest}$"):
                cohort.total()


@pytest.mark.parametrize(
    ("size", "threshold", "stages"),
    [
        (2, 2, [{1, 2}] * 5),
        (5, 4, [{1, 2, 3, 4, 5}] * 5),
        (
            7,
            5,
            [{1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 5, 7}, {1, 3, 4, 5, 7}, {1, 3, 4, 5, 7}, {1, 3, 4, 5, 7}],
        ),
        (
            7,
            5,
            [{1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 5, 6, 7}, {2, 3, 5, 6, 7}, {2, 3, 5, 6, 7}, {2, 3, 5, 6, 7}],
        ),
        (6, 5, [{1, 2, 3, 4, 5, 6}] * 3 + [{1, 2, 3, 5, 6}] * 2),
    ],
)
def test_a_second_implementation_sends_the_same_messages(
    size: int, threshold: int, stages: list[set[int]]
) -> None:
    leave = {
        exchange: set(range(1, size + 1)) - stage for exchange, stage in zip(EXCHANGES, stages, strict=True)
    }
    asked = hashlib.sha256(b"a request").digest()
    cohort = Cohort(size, length=9, threshold=threshold, run="a run", release=3, request=asked, leave=leave)
    total = cohort.total()
    secrets = [hashlib.sha256(b"identity %d" % p).digest() for p in range(1, size + 1)]
    entropies = [stream(p) for p in range(1, size + 1)]
    values = [messages_of(size, 9)[p].tolist() for p in range(1, size + 1)]
    other = aggregate("a run", 3, asked, secrets, threshold, values, entropies, stages)
    for exchange in EXCHANGES:
        assert cohort.sent[exchange] == other.messages[exchange], exchange
    assert total.tolist() == other.total


def test_a_masked_message_alone_is_uniform_and_changes_with_each_release() -> None:
    """The same message of zeros in two releases of other randomness: bits of one half each, no repetition."""
    seen = []
    for release in (0, 1):
        cohort = Cohort(3, length=4096, release=release)
        cohort.values = {p: np.zeros(4096, np.uint64) for p in cohort.values}
        cohort.until_masked()
        body = cohort.sent["masked"][1][35:-64]
        seen.append(np.frombuffer(body, "<u8"))
    ones = np.unpackbits(np.concatenate(seen).view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(2 * 4096 * 64)
    assert len(np.unique(np.concatenate(seen))) == 2 * 4096


def test_numbers_of_the_whole_range_add_up_modulo_2_to_the_64() -> None:
    cohort = Cohort(3, length=4)
    signed = np.array([[-1, 2**62, -(2**62), 5], [1, 2**62 - 1, -(2**62), -7], [-9, 0, 1, 2]], np.int64)
    cohort.values = {p: row.view(np.uint64) for p, row in enumerate(signed, 1)}
    assert cohort.total().view(np.int64).tolist() == signed.sum(axis=0).tolist()

"""Shamir's sharing: published numbers, exact properties, and refusals."""

from __future__ import annotations

import itertools
import os

import pytest

from fedpriv._internal.validation import ArgumentError
from fedpriv.secure_aggregation import shamir
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError


def test_the_field_is_the_largest_prime_of_256_bits() -> None:
    """Fermat's test to several bases; numbers between it and 2^256 are not prime."""

    def passes(number: int) -> bool:
        return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13))

    assert passes(shamir.PRIME)
    assert not any(passes(number) for number in range(shamir.PRIME + 1, 2**256))


def test_published_numbers() -> None:
    """The example of Wikipedia's article: secret 1234, polynomial 1234 + 166 x + 94 x^2."""
    draws = iter((166, 94))
    shares = shamir.split(1234, 3, 6, lambda size: next(draws).to_bytes(size, "big"))
    assert shares == [1494, 1942, 2578, 3402, 4414, 5614]
    assert shamir.reconstruct({2: 1942, 4: 3402, 5: 4414}, 3) == 1234


@pytest.mark.parametrize(("threshold", "parties"), [(1, 1), (2, 2), (2, 5), (4, 5), (5, 5), (43, 64)])
def test_any_threshold_of_shares_gives_the_secret(threshold: int, parties: int) -> None:
    secret = shamir.element(os.urandom)
    shares = dict(enumerate(shamir.split(secret, threshold, parties, os.urandom), 1))
    for chosen in itertools.islice(itertools.combinations(shares, threshold), 20):
        assert shamir.reconstruct({x: shares[x] for x in chosen}, threshold) == secret
    assert shamir.reconstruct(shares, threshold) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """For t - 1 shares and any secret there is one polynomial, so the shares tell nothing of the secret."""
    shares = shamir.split(7, 3, 5, os.urandom)
    for other in (0, 1, shamir.PRIME - 1):
        # the polynomial through (0, other), (1, share 1), (2, share 2), at 3
        third = sum(w * y for w, y in zip((1, -3, 3), (other, *shares[:2]), strict=True)) % shamir.PRIME
        assert shamir.reconstruct({1: shares[0], 2: shares[1], 3: third}, 3) == other


def test_few_or_false_shares_are_refused() -> None:
    shares = dict(enumerate(shamir.split(9, 3, 5, os.urandom), 1))
    with pytest.raises(TooFewError, match="2 shares of a secret arrived; 3 are needed"):
        shamir.reconstruct({1: shares[1], 2: shares[2]}, 3)
    for party in shares:
        with pytest.raises(ProtocolError, match="do not agree"):
            shamir.reconstruct({**shares, party: shares[party] + 1}, 3)
    for secret in (-1, shamir.PRIME):
        with pytest.raises(ArgumentError, match="prime"):
            shamir.split(secret, 2, 3, os.urandom)
    for threshold in (0, 4):
        with pytest.raises(ArgumentError, match="threshold"):
            shamir.split(1, threshold, 3, os.urandom)


def test_elements_are_below_the_prime() -> None:
    draws = iter((b"\xff" * 32, shamir.PRIME.to_bytes(32, "big"), (shamir.PRIME - 1).to_bytes(32, "big")))
    assert shamir.element(lambda size: next(draws)) == shamir.PRIME - 1

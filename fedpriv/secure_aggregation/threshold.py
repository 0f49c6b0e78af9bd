"""How many parties there are, and how many must take part. Settings need it, so it imports nothing."""

from __future__ import annotations

MIN_PARTIES, MAX_PARTIES = 2, 64


def smallest_threshold(parties: int, malicious: bool = True) -> int:
    """The smallest threshold: above 2n/3 for a malicious server, above n/2 for a curious one.

    Two sets of t signers out of n share 2t - n parties. Above 2n/3 these are more than n/3. If at most n/3
    parties help a malicious server, one of them is honest, and it signs one set of survivors only.

    >>> smallest_threshold(9), smallest_threshold(9, malicious=False)
    (7, 5)
    """
    return 2 * parties // 3 + 1 if malicious else parties // 2 + 1

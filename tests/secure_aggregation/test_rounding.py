"""What independently rounded shares of noise add to delta, against exact laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf, ncdf


def rounded_law(scale: float, reach: int) -> list[mpf]:
    """P(round(s Z) = k) for |k| <= reach."""
    edges = [ncdf((k - mpf(1) / 2) / scale) for k in range(-reach, reach + 2)]
    return [upper - lower for lower, upper in itertools.pairwise(edges)]


def convolved(laws: list[list[mpf]]) -> list[mpf]:
    total = [mpf(1)]
    for law in laws:
        out = [mpf(0)] * (len(total) + len(law) - 1)
        for i, a in enumerate(total):
            for j, b in enumerate(law):
                out[i + j] += a * b
        total = out
    return total


@pytest.mark.parametrize(("scale", "parties"), [(0.5, 2), (0.7, 2), (1.0, 2), (1.2, 2), (0.7, 3), (1.0, 3)])
def test_the_sum_of_rounded_shares_is_as_near_to_a_rounded_gaussian_as_is_proved(
    scale: float, parties: int
) -> None:
    """The bound holds, and it is no more than three powers of ten above the distance for two parties.

    Q, the law of the Gaussian mechanism with post-processing, is a Fourier integral in 40 digits.
    """
    with mp.workdps(40):
        reach = math.ceil(13 * scale)
        exact = convolved([rounded_law(scale, reach)] * parties)
        middle = len(exact) // 2

        def density(k: int) -> mpf:
            def value(t: mpf) -> mpf:
                return (mp.exp(-((scale * t) ** 2) / 2) * mp.sinc(t / 2)) ** parties * mp.cos(k * t)

            return mp.quad(value, np.linspace(0, 14 / scale, 9).tolist()) / mp.pi

        width = math.ceil(6 * scale * math.sqrt(parties))
        near = sum(abs(exact[middle + k] - density(k)) for k in range(-width, width + 1)) / 2
        bound = 5 * parties**3 * mpf(scale) ** 2 * mp.exp(-((mp.pi * scale) ** 2))
        assert 0 < near <= bound
        if parties == 2:
            assert bound <= 1000 * near


def test_at_16_steps_the_addition_is_below_every_float() -> None:
    """(1 + e^epsilon) d T TV for the largest values that the page names."""
    with mp.workdps(30):
        for scale in (16.0, 64.0, 2.0**25):
            tv = 5 * mpf(64) ** 3 * mpf(scale) ** 2 * mp.exp(-((mp.pi * scale) ** 2))
            assert (1 + mp.exp(700)) * mpf(10) ** 21 * tv < mpf(10) ** -700

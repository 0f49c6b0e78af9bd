"""The common grid: sums that do not depend on their order, near the sums that they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedpriv.mechanism.grid import noise_step, on_grid
from fedpriv.mechanism.query import SumBlock, Term

BLOCK = SumBlock((Term(clip_norm=0.7),))


def parts(count: int = 60, dimension: int = 40) -> list[torch.Tensor]:
    """Contributions of norm at most 0.7, of very different sizes."""
    generator = np.random.Generator(np.random.Philox(1))
    rows = generator.standard_normal((count, dimension))
    rows *= 0.7 * 10 ** generator.uniform(-9, 0, (count, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return list(torch.from_numpy(rows))


def orders(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sum in three orders."""
    zero = torch.zeros_like(rows[0])
    return [sum(rows, zero), sum(rows[::-1], zero), sum(rows[1::2], zero) + sum(rows[::2], zero)]


def test_sums_on_the_grid_are_the_same_bit_for_bit_in_every_order() -> None:
    one, other, halves = orders(parts())
    assert not torch.equal(one, other)  # what floats do by themselves
    assert not torch.equal(one, halves)
    for std in (0.0, 3.0):
        first, second, third = orders([on_grid(part, BLOCK, std) for part in parts()])
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_rounding_to_the_grid_is_below_what_float32_rounds() -> None:
    for part in parts():
        for std in (0.0, 3.0):
            moved = (on_grid(part, BLOCK, std) - part).abs().max()
            assert float(moved) <= 2.0**-31 * (0.7 + 64 * std)


@pytest.mark.parametrize("clip_norm", [1e-3, 0.7, 1.0, 1000.0])
@pytest.mark.parametrize("z", [0.0, 1e-3, 1.0, 255.0, 257.0, 1e6])
def test_the_step_of_exact_noise_is_a_public_power_of_two_that_costs_little(
    clip_norm: float, z: float
) -> None:
    """2^-26 of the sensitivity, or of 2^-8 of the noise if that is larger, rounded up to a power of two."""
    block = SumBlock((Term(clip_norm=clip_norm),))
    sensitivity, std = block.sensitivity, z * block.sensitivity
    step = noise_step(block, std)
    assert math.frexp(step)[0] == 0.5
    largest = max(sensitivity, std / 256)
    assert largest <= step * 2**26 < 2 * largest
    if z < 256:  # the noise is larger by at most 2^-25 sqrt(d) of itself
        assert step / sensitivity < 2**-25
    units, stds = 2**26, 64  # whole steps that float64 holds: sums of this many units, and noise this far out
    assert units * sensitivity / step + stds * std / step < 2**53

"""The adaptive clip norm moves to the quantile from both sides, and its bit is part of one event."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_rows
from fedpriv.optimizers import (
    Adadp,
    AdaptiveClipping,
    DpSrm,
    ExtraQuery,
    PrivateOptimizer,
    Sgd,
    State,
    dp_sgd,
    scheduled_dp_sgd,
)
from fedpriv.optimizers.schedules import Constant

SLOT = "adaptive_clip_norm"


def after(start: float, quantile: float, steps: int, noise_multiplier: float = 0.0) -> float:
    """C after ``steps`` steps on 400 units whose norms are uniform in 0.5..1.5."""
    generator = np.random.Generator(np.random.Philox(2))
    norms = np.linspace(0.5, 1.5, 400)
    rows = generator.standard_normal((400, 10))
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
    units = torch.as_tensor(rows)
    optimizer = AdaptiveClipping(dp_sgd(1e-9, start), quantile)
    state = optimizer.init(torch.zeros(10, dtype=torch.float64))
    for _ in range(steps):
        query = optimizer.query(state)
        stds = query.noise_stds(noise_multiplier)
        sums = sum_rows([units], query.blocks)
        noisy = tuple(
            (s + std * torch.as_tensor(generator.standard_normal(tuple(s.shape)))) / 400
            for s, std in zip(sums, stds, strict=True)
        )
        state = optimizer.update(state, noisy)
    return float(state.slots[SLOT])


@pytest.mark.parametrize("start", [0.1, 5.0])
@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_it_moves_to_the_quantile_from_both_sides(start: float, quantile: float) -> None:
    assert after(start, quantile, 200) == pytest.approx(0.5 + quantile, abs=0.01)


def test_it_does_so_under_noise() -> None:
    """Noise on the fraction has std 1 / (2 sqrt(.05) 400) = 0.006: C moves by 0.1 % a step."""
    assert after(0.1, 0.5, 200, noise_multiplier=1.0) == pytest.approx(1.0, abs=0.05)


def test_the_bit_is_a_block_of_the_same_event() -> None:
    optimizer = AdaptiveClipping(dp_sgd(0.1, 2.0), share=0.1)
    query = optimizer.query(optimizer.init(torch.zeros(3)))
    assert [block.sensitivity for block in query.blocks] == [2.0, 0.5]
    assert query.noise_stds(1.0)[1] == pytest.approx(0.5 / 0.1**0.5)
    assert len(optimizer.planned(7)) == 7


def test_state_round_trips() -> None:
    optimizer = AdaptiveClipping(dp_sgd(0.1, 2.0, momentum=0.5))
    state = optimizer.update(optimizer.init(torch.zeros(3)), (torch.ones(3), torch.tensor(0.25)))
    again = State.from_tensors(state.tensors(), state.step)
    assert float(again.slots[SLOT]) == pytest.approx(2.0 * np.exp(-0.2 * 0.25))
    assert torch.equal(again.slots["velocity"], torch.ones(3))


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"quantile": 1.0}, "quantile"), ({"share": 0.0}, "share"), ({"step": 0.0}, "step")],
)
def test_bad_values_are_named(settings: dict[str, float], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        AdaptiveClipping(dp_sgd(0.1, 1.0), **settings)


def test_a_step_of_two_releases_is_refused() -> None:
    """C would change between them, and ADADP would compare differently clipped gradients."""
    with pytest.raises(ArgumentError, match="optimizer is 'Adadp'; it must make steps of one release"):
        AdaptiveClipping(Adadp(0.1, 1.0)).init(torch.zeros(3))


@pytest.mark.parametrize(
    "inner",
    [
        DpSrm(Constant(0.5), 1.0, 0.5, gamma=0.5),
        ExtraQuery("rmsprop", Constant(0.5), Constant(0.5), 1.0, 1.0, delay=2),
        AdaptiveClipping(dp_sgd(0.1, 1.0)),
    ],
)
def test_a_question_of_several_terms_is_refused_before_the_first(inner: PrivateOptimizer) -> None:
    """This also holds if only the second query has several terms."""
    with pytest.raises(ArgumentError) as caught:
        AdaptiveClipping(inner).init(torch.zeros(3))
    wanted = "it must ask for one clipped term to be clipped adaptively"
    assert str(caught.value) == f"optimizer is {type(inner).__name__!r}; {wanted}"


def test_schedules_of_one_step_are_accepted() -> None:
    method = AdaptiveClipping(scheduled_dp_sgd(Sgd(), 0.1, [2.0], [1.0]))
    assert method.query(method.init(torch.zeros(3))).blocks[0].sensitivity == 2.0

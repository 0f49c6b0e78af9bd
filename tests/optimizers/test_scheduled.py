"""Schedules around any optimizer: for DP-SGD they are Du's, for others what each term must be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.toys import CountingBooks, RowsEngine, world

from fedpriv._internal.validation import ArgumentError
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, run
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.sampling import FixedSize, Poisson
from fedpriv.optimizers import (
    Adadp,
    Adam,
    AdaptiveClipping,
    Dp2,
    DpSrm,
    PrivateOptimizer,
    Scheduled,
    Sgd,
    dp_adam,
    dp_sgd,
    dynamic_dp_sgd,
)
from fedpriv.optimizers.schedules import Constant, Geometric, Given
from fedpriv.rng import Key

KEY = Key.from_seed(3)
CLIP, NOISE = Geometric(1.0, 1 / 4, 25), Geometric(1.0, 1 / 2, 25)


def trained(optimizer: PrivateOptimizer, budget_gate: CountingBooks) -> torch.Tensor:
    mechanism = Mechanism(optimizer, Poisson(40, 0.3), Central(), 0.8, 25)
    start = torch.zeros(20, dtype=torch.float64)
    end = run(
        mechanism, start, RowsEngine(world(1)), budget_gate, KEY, CohortSampler(mechanism.sampler, KEY, 7)
    ).state.params
    assert tuple(budget_gate.charged) == mechanism.planned_events()
    return end


@pytest.mark.parametrize(
    ("inner", "same"),
    [
        (dp_sgd(0.2, 2.0), dynamic_dp_sgd(Sgd(), 0.2, 2.0, 25, rho_c=4.0, rho_mu=2.0)),
        (dp_adam(0.2, 2.0), dynamic_dp_sgd(Adam(), 0.2, 2.0, 25, rho_c=4.0, rho_mu=2.0)),
    ],
)
def test_around_dp_sgd_and_dp_adam_it_is_dus_method(inner: PrivateOptimizer, same: PrivateOptimizer) -> None:
    mine, dus = CountingBooks(), CountingBooks()
    torch.testing.assert_close(trained(Scheduled(inner, CLIP, NOISE), mine), trained(same, dus))
    for one, other in zip(mine.charged, dus.charged, strict=True):
        assert one.noise_multiplier == pytest.approx(other.noise_multiplier)


@pytest.mark.parametrize(
    "make",
    [
        lambda c: DpSrm(Constant(0.2), c, c / 2, 0.5),
        lambda c: Dp2("rmsprop", Constant(0.2), Constant(0.1), c, 2 * c, 3, 2),
    ],
)
def test_a_constant_factor_is_another_clip_norm(make: Callable[[float], PrivateOptimizer]) -> None:
    half = Scheduled(make(2.0), clip_factor=Constant(0.5))
    torch.testing.assert_close(trained(half, CountingBooks()), trained(make(1.0), CountingBooks()))


def test_the_noise_of_a_first_cohort_is_kept_in_proportion() -> None:
    inner = DpSrm(Constant(0.2), 1.0, 0.5, 0.5, first_cohort=3.0)
    method = Scheduled(inner, relative_noise=Given((2.0, 1.0, 0.5)))
    assert [(p.relative_noise, p.rate_factor) for p in method.planned(3)] == [(6, 3), (1, 1), (0.5, 1)]
    mechanism = Mechanism(method, FixedSize(40, 6), Central(), 1.0, 3)
    budget_gate, cohorts = CountingBooks(), CohortSampler(mechanism.sampler, KEY, 100)
    run(mechanism, torch.zeros(20, dtype=torch.float64), RowsEngine(world(1)), budget_gate, KEY, cohorts)
    assert [event.noise_multiplier for event in budget_gate.charged] == [6, 1, 0.5]


@pytest.mark.parametrize("inner", [Adadp(0.1, 1.0), AdaptiveClipping(dp_sgd(0.1, 1.0))])
def test_what_cannot_be_scheduled_is_refused_before_it_is_asked(inner: PrivateOptimizer) -> None:
    method = Scheduled(inner, CLIP)
    with pytest.raises(ArgumentError, match=f"optimizer is '{type(inner).__name__}'"):
        method.query(method.init(torch.zeros(3)))
    outside = AdaptiveClipping(Scheduled(dp_sgd(0.1, 1.0), relative_noise=NOISE))
    state = outside.init(torch.zeros(3))
    state = outside.update(state, (torch.zeros(3), torch.zeros(())))
    assert outside.query(state).relative_noise == NOISE(1)


@pytest.mark.parametrize("name", ["clip-factor", "relative-noise"])
def test_bad_values_are_named(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        Scheduled(dp_sgd(0.1, 1.0), **{name.replace("-", "_"): Constant(0.0)})

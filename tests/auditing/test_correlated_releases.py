"""Audits of correlated noise: releases are taken apart as their noise was put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.patching import expect_found
from helpers.small import small
from numpy.typing import NDArray

import fedpriv
from fedpriv.auditing import claims
from fedpriv.auditing.auditor import audit
from fedpriv.auditing.correlated_releases import CorrelatedReleases, Rows, Seen
from fedpriv.auditing.finding import Finding
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.mechanism import correlated
from fedpriv.mechanism.correlated import coefficients
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.sampling import CyclicPoisson

RUN: dict[str, Any] = {
    "sampler": "cyclic-poisson", "noise_bands": 4, "sampling_rate": 0.1, "optimizer": "dp-sgd",
    "clients": 2000, "rounds": 12, "epsilon": 4.0, "seed": 0,
}  # fmt: skip
QUERY = Query((torch.zeros(3),), (SumBlock((Term(1.0),)),))
NO_UNITS = np.zeros(0, np.int64)


def found_in(settings: dict[str, Any]) -> Finding:
    return audit(small(**settings))


@pytest.mark.parametrize("bands", [1, 2, 3, 8, 200])
def test_the_audits_own_coefficients_are_those_of_the_noise(bands: int) -> None:
    np.testing.assert_allclose(claims.band_coefficients(bands), coefficients(bands), rtol=1e-12)


def toeplitz(bands: int, size: int) -> NDArray[np.float64]:
    """C, row by row."""
    c = claims.band_coefficients(bands)
    rows = [[c[t - s] if 0 <= t - s < bands else 0.0 for s in range(size)] for t in range(size)]
    return np.array(rows)


@pytest.mark.parametrize(("bands", "rounds"), [(2, 7), (4, 3), (4, 4), (5, 17)])
def test_each_release_is_seen_through_all_rows_that_it_reaches(bands: int, rounds: int) -> None:
    """With the matrix C: row by row C (sums - expected) is added with the weights of a column of C."""
    generator = np.random.default_rng(bands)
    sums, expected = generator.normal(size=(2, rounds, 3))
    releases, seen = CorrelatedReleases(bands), list[Seen]()
    for t in range(rounds):
        units = np.array([t])
        given = Seen(QUERY, t, units, NO_UNITS, [sums[t]], [expected[t]], [2.0], 0.5)
        seen += releases.add(given)
    assert len(seen) == max(0, rounds - bands + 1)
    seen += releases.rest()
    assert [one.release for one in seen] == list(range(rounds))
    c = toeplitz(bands, rounds)
    for t, one in enumerate(seen):
        column = c[:, t]
        others = sums - expected
        others[t] = sums[t]
        np.testing.assert_allclose(one.sums[0], column @ (c @ others) / (column @ column), rtol=1e-9)
        assert one.stds == pytest.approx([2.0 / np.linalg.norm(column)])


def test_a_unit_of_another_group_is_told() -> None:
    plan = make_plan(Config.parse({key.replace("_", "-"): value for key, value in RUN.items()}))
    assert not claims.of_another_group(plan, 5, np.array([1, 5, 13]))
    assert claims.of_another_group(plan, 5, np.array([1, 5, 14]))


def test_residuals_are_made_independent() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(9, 2))
    correlated_noise = np.linalg.solve(toeplitz(3, 9), noise)
    rows = Rows(3)
    found = [rows.following([noise])[0] for noise in correlated_noise]
    np.testing.assert_allclose(found, noise, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.25])
def test_guesses_reach_what_the_ledger_allows(rate: float) -> None:
    """In all rows together a unit shows as in one release: no more and no less. 12 seeds gave 0 +- 0.8 %."""
    found = found_in({**RUN, "clients": 8000, "sampling_rate": rate})
    assert not found.violated, found
    assert abs(found.right / found.canaries - found.allowed) < 5 * 0.5 / np.sqrt(found.canaries)


@pytest.mark.slow
@pytest.mark.parametrize("bands", [2, 4, 0])
def test_a_sound_run_on_own_data_passes(bands: int) -> None:
    settings = {**RUN, "clients": 400, "noise_bands": bands, "model": "logistic", "engine": "in-process"}
    found = fedpriv.audit(**settings, canaries=40, own_data=True)
    assert not found.violated, found


def test_almost_no_noise_tells_the_coins_of_own_units() -> None:
    """Each group is asked whole. What is left is not the noise, but coins of units in other rows, which the
    adversary does not know; without their expected part 20 of 40 guesses are right."""
    settings = {**RUN, "clients": 400, "sampling_rate": 0.25, "epsilon": 1e4, "delta": 1e-5}
    found = fedpriv.audit(**settings, model="logistic", engine="in-process", canaries=40, own_data=True)
    assert found.right >= 36


FAULTS: dict[str, tuple[dict[str, Any], Any, str, Callable[..., Any], str]] = {
    "a group that is asked again too soon": (
        RUN, CyclicPoisson, "at", lambda right, sampler, release: right(sampler, release // 2),
        "of another group",
    ),
    "a cohort with units of other groups": (
        RUN, CyclicPoisson, "draw",
        lambda right, sampler, generator: right(replace(sampler, bands=1, group=0), generator),
        "a unit of another group",
    ),
    "a group accounted at the rate of all units": (
        RUN, CyclicPoisson, "event", lambda right, sampler, z: replace(right(sampler, z), rate=sampler.rate),
        "an event whose sampling rate is too small",
    ),
    "correlated noise that counts for more than it is": (
        RUN, correlated, "norm", lambda right, bands: right(bands) / 1.2,
        "noise that is too small",
    ),
    "correlated noise of the wrong sign": (
        RUN, correlated, "multiples",
        lambda right, bands: (right(bands)[0], *(-q for q in right(bands)[1:])),
        "noise that was used before",
    ),
    "past noise in the wrong order": (
        RUN, correlated, "multiples", lambda right, bands: (right(bands)[0], *right(bands)[:0:-1]),
        "noise that ",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    expect_found(FAULTS[fault], found_in)

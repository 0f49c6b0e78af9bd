"""Faults that change what one unit does to a release are found with few canaries, without statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.patching import EXACT, expect_found, patched, remembering
from helpers.small import small
from scipy import stats

from fedpriv.accounting.events import Relation, Sampling
from fedpriv.auditing import claims
from fedpriv.auditing.auditor import audit
from fedpriv.auditing.canaries import Canaries, canaries_of, nodes_of
from fedpriv.auditing.finding import Finding
from fedpriv.config.plan import make_plan
from fedpriv.federated import loop, worker
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.mechanism import release as releases
from fedpriv.mechanism.placement import AtParties, Central
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.mechanism.sampling import FixedSize, Poisson, TruncatedPoisson
from fedpriv.node import silo
from fedpriv.optimizers.first_order import FirstOrder
from fedpriv.rng import Key
from fedpriv.runs.budget import RunAccountant

UNITS = 300
RUN: dict[str, Any] = {"clients": UNITS, "epsilon": 4.0, "rounds": 4, "sampling_rate": 0.2, "seed": 0}


def _by_examples(
    right: Any, work: Any, task: Any, query: Query, x: Any, y: Any, owner: Any, units: int, **named: Any
) -> Any:
    """Clients' contributions multiplied by their numbers of examples, after clipping."""
    counts = torch.bincount(owner, minlength=units)
    totals = right(work, task, query, x[:0], y[:0], owner[:0], units, **named)
    for count in sorted(set(counts.tolist())):
        own = counts[owner] == count
        sums = right(work, task, query, x[own], y[own], owner[own], units, **named)
        totals = tuple(total + count * part for total, part in zip(totals, sums, strict=True))
    return totals


def _not_finite(right: Any, side: worker.Worker, query: Query, ids: Any, seed: Any) -> Any:
    """One unit's contribution is no number, and is not taken for zero: whoever sees a release knows of it."""
    return tuple(part + (math.nan if 7 in ids else 0.0) for part in right(side, query, ids, seed))


def _terms(query: Query, **changes: Any) -> Query:
    blocks = [
        replace(b, terms=tuple(replace(t, **changes) for t in b.terms))
        for b in query.blocks
        if isinstance(b, SumBlock)
    ]
    return replace(query, blocks=tuple(blocks))


def _preconditioned(right: Any, work: Any, task: Any, query: Query, *given: Any, **named: Any) -> Any:
    """Gradients divided by the cohort's own raw gradient before clipping."""
    (raw,) = right(work, task, _terms(query, clip_norm=1e11), *given, **named)
    return right(work, task, _terms(query, divisor=raw.abs().float() + 1e-3), *given, **named)


def _clipped_mean(right: Any, work: Any, task: Any, query: Query, *given: Any, **named: Any) -> Any:
    """The mean of the cohort clipped in place of each unit's vector."""
    (raw,) = right(work, task, _terms(query, clip_norm=1e11), *given, **named)
    units = given[3]
    mean, clip = raw / units, query.blocks[0].sensitivity
    return (units * mean * min(1.0, clip / max(1e-30, float(mean.norm()))),)


def _actual_cohort(
    right: Any, sums: Any, replies: int, query: Any, z: float, placement: Any, size: float, *rest: Any
) -> Any:
    return right(sums, replies, query, z, placement, float(replies), *rest)


def _unpaid(right: Any, gate: RunAccountant, events: Any) -> None:
    if gate.releases % 2:
        gate._charged += events  # counted, but not written down
    else:
        right(gate, events)


def _too_long(right: Any, side: worker.Worker, query: Query, ids: Any, seed: Any) -> Any:
    """One unit in twenty adds a tenth more than its clipped vector, and none of those that are probed."""
    sums, few = right(side, query, ids, seed), ids[ids % 20 == 19]
    if not len(few):
        return sums
    return tuple(total + 0.1 * part for total, part in zip(sums, right(side, query, few, seed), strict=True))


FAULTS: dict[str, tuple[dict[str, Any], Any, str, Callable[..., Any], str]] = {
    "a few units with vectors that are too long": (
        {**RUN, "sampler": "everyone", "sampling_rate": 1.0}, worker.Worker, "_units_sums", _too_long,
        "a canary that does not add its clipped vector",
    ),
    "weights by number of examples": (RUN, worker, "clipped_sum", _by_examples, "more than its bound"),
    "a preconditioner from raw gradients": (
        {**RUN, "optimizer": "dp-sgd"}, worker, "clipped_sum", _preconditioned, "depends on its cohort",
    ),
    "a clip after averaging": (
        {**RUN, "optimizer": "dp-sgd"}, worker, "clipped_sum", _clipped_mean, "by more than its bound",
    ),
    "an answer divided by the actual cohort": (
        RUN, releases, "release", _actual_cohort, "depends on the cohort by more than its sum",
    ),
    "noise of those who replied, not of the public number": (
        {**RUN, "placement": "distributed"}, AtParties, "server_stds",
        lambda right, *a: tuple(0.0 for _ in right(*a)), "noise that ",
    ),
    "the server's shares by the actual cohort": (
        {**RUN, "placement": "distributed", "sampler": "fixed-size", "min_replies": 20},
        AtParties, "server_stds",
        lambda right, placement, stds, replies: right(placement, stds, placement.shares),
        "noise that depends on the number of parties",
    ),
    "fixed-size cohorts accounted as Poisson": (
        {**RUN, "sampler": "fixed-size"}, FixedSize, "event",
        lambda right, s, z: Poisson(s.population, s.size / s.population).event(z), "of add-remove neighbours",
    ),
    "fixed-size cohorts accounted as Poisson, replaced": (
        {**RUN, "sampler": "fixed-size"}, FixedSize, "event",
        lambda right, s, z: Poisson(s.population, s.size / s.population, Relation.REPLACE_ONE).event(z),
        "a fixed-size cohort that is accounted as poisson",
    ),
    "cut cohorts whose cut is not accounted": (
        {**RUN, "placement": "distributed"}, TruncatedPoisson, "event",
        lambda right, s, z: replace(right(s, z), truncation=0.0), "the truncation of cohorts",
    ),
    "a rate that is accounted as smaller": (
        RUN, Poisson, "event", lambda right, s, z: replace(right(s, z), rate=0.9 * s.rate),
        "rate is too small",
    ),
    "ADADP's second release unpaid": (
        {**RUN, "optimizer": "adadp"}, RunAccountant, "charge", _unpaid,
        "a release that is not in the ledger",
    ),
    "a contribution that is no number": (
        {**RUN, "sampling_rate": 0.5}, worker.Worker, "_units_sums", _not_finite,
        "a release that is not finite",
    ),
    "an update from exact sums": (
        {**RUN, "optimizer": "dp-sgd"}, FirstOrder, "update",
        lambda right, rule, state, answer: right(rule, state, (answer[0] + 1e-3 * EXACT["sum"].float(),)),
        "an update that is computed from data",
    ),
}  # fmt: skip
DEFAULT = ("an answer divided by the actual cohort", "a few units with vectors that are too long")


def found_in(settings: dict[str, Any]) -> Finding:
    return audit(small(**settings))


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in DEFAULT else pytest.mark.slow) for fault in FAULTS]
)
def test_a_fault_is_found_with_few_canaries(fault: str) -> None:
    with patched(worker.Worker, "gather", remembering):
        expect_found(FAULTS[fault], found_in)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_run_without_the_fault_passes(fault: str) -> None:
    assert not audit(small(**FAULTS[fault][0])).violated


# The client level: silos make private steps on their own examples.

SILOS: dict[str, Any] = {
    "level": "client", "unit": "example", "clients": 2, "examples_per_client": 600, "silo_steps": 2,
    "optimizer": "dp-adam", "epsilon": 4.0, "rounds": 2, "sampling_rate": 0.2, "seed": 0,
}  # fmt: skip


@pytest.mark.slow
def test_silos_that_train_apart_pass_the_audit() -> None:
    found = audit(small(**SILOS))
    assert (found.canaries, found.releases, found.violated) == (1200, 4, False), found
    assert found.measured_least <= found.claimed


SILO_FAULTS: dict[str, tuple[dict[str, Any], Any, str, Callable[..., Any], str]] = {
    "less noise inside a silo": (
        SILOS, Central, "server_stds", lambda right, *a: tuple(0.7 * std for std in right(*a)),
        "noise that is too small",
    ),
    "sums that count twice inside a silo": (
        SILOS, releases, "release", lambda right, sums, *a: right([2 * s for s in sums], *a),
        "by more than its sum",
    ),
    "the same cohort every time inside a silo": (
        SILOS, CohortSampler, "draw",
        lambda right, cohorts, release, factor=1.0: right(cohorts, 0, factor), "cohort that was used before",
    ),
    "one noise for all silos": (
        SILOS, silo, "advance",
        lambda right, *given: right(*given[:5], Key.from_seed(5), *given[6:]), "noise that silos share",
    ),
    "one noise for all silos, but for each round's last step": (
        SILOS, loop.releases, "draw_ahead",
        lambda right, query, z, placement, key, index, *more: right(
            query, z, placement, key if index % 2 else Key.from_seed(5), index, *more
        ),
        "noise that silos share",
    ),
    "steps inside a silo that are not charged": (
        SILOS, RunAccountant, "charge", lambda right, *given, **named: None, "that was not charged",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", SILO_FAULTS)
def test_a_fault_inside_a_silo_is_found(fault: str) -> None:
    expect_found(SILO_FAULTS[fault], found_in)


# The audit's own arithmetic against the engine's.


@pytest.mark.parametrize("replaced", [False, True])
def test_contributions_in_closed_form_equal_the_engines(replaced: bool) -> None:
    generator = np.random.default_rng(0)
    there = generator.random(40) < 0.5
    plan = make_plan(small(clients=40, sampler="fixed-size" if replaced else "poisson"))
    units = canaries_of(plan, there)
    assert (units.replaced, units.clients) == (replaced, True)
    points = tuple(torch.from_numpy(generator.normal(0, 0.1, 80)).float() for _ in range(2))
    divisor = torch.from_numpy(generator.uniform(0.5, 2, 80)).float()
    offset = torch.from_numpy(generator.normal(0, 3e5, 80)).float()  # not small beside the gradients
    terms = (
        Term(0.5, 0.25),
        Term(2.0, -0.75, at=(1.0, -1.0)),
        Term(1.0, divisor=divisor),
        Term(3.0, per_layer=True),
        Term(1.5, 0.5, divisor=divisor, offset=offset),
        Term(0.7, offset=offset, per_layer=True),
        Term(0.2, -2.0, divisor=1e3 * divisor, offset=offset, squared=True),
        Term(0.3, gamma=2e5, offset=offset),
    )
    bit = IndicatorBlock(Term(1.0, offset=offset), 2.5e6, 0.25)
    blocks = (SumBlock(terms, 0.5), IndicatorBlock(Term(1.0), 7e5, 0.25), bit)
    query, ids = Query(points, blocks), np.sort(generator.choice(40, 25, replace=False))
    side = replace(nodes_of(plan, units, Key.from_seed(0)), noisy=False)
    got = side.answer(SumRequest(query, 0, (Shard(0, ids, 25),))).sums
    for mine, its in zip(units.total(query, 0, ids), got, strict=True):
        assert np.allclose(mine.ravel(), its.numpy().ravel(), atol=1e-4)


def test_noise_and_denominators_are_those_of_the_run() -> None:
    """The audit's own lines agree with sound code; it takes none of them from that code."""
    for changes in ({}, {"placement": "distributed"}, {"placement": "local", "sampler": "fixed-size"},
                    {"sampler": "fixed-size"}, {"sampler": "everyone", "sampling_rate": 1.0}):  # fmt: skip
        plan = make_plan(small(**changes))
        mechanism = plan.mechanism
        assert claims.denominator(plan) == mechanism.sampler.expected_size
        query = Query(
            (torch.zeros(3),),
            (SumBlock((Term(0.5), Term(1.0, -0.5)), 0.75), IndicatorBlock(Term(1.0), 1.0, 0.25)),
        )
        wanted = mechanism.placement.total_stds(query.noise_stds(1.3))
        assert claims.noise_stds(query, 1.3, claims.surplus(plan)) == pytest.approx(wanted)
        assert claims.mismatch(plan, mechanism.event(1.3), 0) is None


# Samplers' inclusion probabilities, directly. Each test fails with probability 1e-6 in sound code.


@pytest.mark.parametrize(
    ("sampler", "rate"),
    [
        (Poisson(60, 0.1), 0.1),
        (Poisson(5000, 0.004), 0.004),
        (TruncatedPoisson(60, 0.1, cap=40), 0.1),
        (FixedSize(60, 6), 0.1),
        (FixedSize(5000, 20), 0.004),
        (FixedSize(20, 15), 0.75),
    ],
)  # fmt: skip
def test_every_unit_is_drawn_at_the_accounted_rate(sampler: Any, rate: float) -> None:
    draws, generator = 4000, np.random.default_rng(3)
    counts = np.bincount(
        np.concatenate([sampler.draw(generator) for _ in range(draws)]), minlength=sampler.population
    )
    assert sampler.event(1.0).rate == pytest.approx(rate)
    each = 1e-6 / (2 * sampler.population)
    low, high = stats.binom.ppf(each, draws, rate), stats.binom.isf(each, draws, rate)
    assert low <= counts.min()
    assert counts.max() <= high


@pytest.mark.parametrize("sampler", [Poisson(12, 0.3), FixedSize(12, 4)])
def test_pairs_are_drawn_as_often_as_accounted(sampler: Any) -> None:
    """Independently for Poisson cohorts; for a fixed size with probability m (m - 1) / (N (N - 1))."""
    draws, generator, size = 6000, np.random.default_rng(4), 4
    pair = 0.09 if sampler.event(1.0).sampling is Sampling.POISSON else size * (size - 1) / (12 * 11)
    both = np.zeros((12, 12))
    for _ in range(draws):
        cohort = sampler.draw(generator)
        both[np.ix_(cohort, cohort)] += 1
    counts = both[np.triu_indices(12, 1)]
    each = 1e-6 / (2 * len(counts))
    assert stats.binom.ppf(each, draws, pair) <= counts.min()
    assert counts.max() <= stats.binom.isf(each, draws, pair)


def test_a_canary_has_its_examples_and_the_closed_form_counts_them() -> None:
    units = Canaries(np.ones(6, bool), replaced=False, clients=True)
    batch = units.batch(np.array([0, 2, 5]))
    assert torch.bincount(batch.owner).tolist() == [1, 3, 3]
    assert (batch.y[:, 0] + 1).tolist() == [1, 1, 2, 3, 1, 2, 3]

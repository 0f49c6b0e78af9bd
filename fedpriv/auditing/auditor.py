"""An empirical audit: does a run leak more about its units than its ledger claims?

The configured federation runs with a canary in place of every unit. A fair coin decides whether each canary
is present. A canary is an example with a gradient of the maximal norm in its own coordinate, so canaries do
not interfere. Everything else is the run's own code: sampling, clipping, queries, noise, optimizer, ledger.
Then the optimal adversary guesses for each canary whether it was present, by the likelihood ratio of a
sampled Gaussian. It sees all releases and knows everything except the coins, the cohorts and the noise.
Further adversaries do the same under the assumption of less noise. The best adversary counts, at a confidence
that holds for all of them together.

The number of right guesses is used in two ways:

- **Test of the claim.** The ledger's events allow a guess to be right with a probability of at most (1 + A) /
  2, where A is the total-variation distance between the releases of neighbours
  (:func:`fedpriv.accounting.advantage`). If the releases are as claimed, the coordinates are independent and
  the number of right guesses is binomial. A number that is too large, at a given confidence, is a violation.
  The factor on all noise at which the observed number would be exactly the allowed one gives a measured
  epsilon.
- **Lower bound from one run.** For any mechanism, (epsilon, delta)-differential privacy bounds the number of
  right guesses about m coins (:mod:`fedpriv.auditing.one_run`). This gives a lower bound on epsilon that
  needs no assumption on the mechanism but is far from tight.

Such an adversary assumes independent noise and fresh cohorts. The auditor, who knows everything, also
subtracts the exact sums and tests the residuals (:mod:`fedpriv.auditing.noise_tests`). Noise that is too
small, missing, shared or reused, and cohorts that are too large or repeated, are violations, too.

An audit can find a mechanism that protects less than it claims. It cannot prove that a mechanism protects.

>>> from fedpriv.config.schema import Config
>>> settings = {"clients": 2000, "sampler": "everyone", "sampling-rate": 1.0, "rounds": 2, "epsilon": 8.0}
>>> finding = audit(Config.parse({**settings, "seed": 0}))
>>> finding.violated, finding.proved < finding.measured < 2 * finding.claimed
(False, True)
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from fedpriv._internal import validation
from fedpriv.accounting import Event, Ledger, advantage, epsilon, scaled, tally
from fedpriv.accounting.events import ever_drawn
from fedpriv.auditing import claims
from fedpriv.auditing.attack_curve import RATES, AttackCurve
from fedpriv.auditing.audited_units import Floats
from fedpriv.auditing.f_dp import proved_by_curves
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.neighbours import Neighbours
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.one_run import one_run_p_value, proved_epsilon
from fedpriv.auditing.silos import WatchedSilos
from fedpriv.auditing.subject import (
    Subject,
    canaries_plan,
    own_plan,
    require_auditable,
    with_canaries,
    with_own_data,
)
from fedpriv.auditing.trade_off import TradeOff
from fedpriv.auditing.views import AUTO, View, claimed, view_of
from fedpriv.auditing.watched import Watched
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated.loop import Outcome, Progress, run
from fedpriv.federated.stop_reason import StopReason
from fedpriv.node import silo
from fedpriv.rng import Key
from fedpriv.runs.budget import RunAccountant

_PROBED_SILOS = 2  # silos in which steps are repeated on neighbouring data
_MAX_LOG_FACTOR, _LOG_STEP = 7.0, 0.5  # range and step of the search for the log of the factor on all noise


def audit(
    config: Config,
    canaries: int = 0,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
) -> Finding:
    """Audits a configuration: runs it with canaries as units, and evaluates the guesses about them.

    Args:
        config: a run with noise. Its data and model are not used.
        canaries: the number of canaries, at the same sampling rate; 0: the number of the run's units, but at
            most 100,000, 5,000 if clients make local steps, or 2,000 if each message is seen.
        confidence: of the verdict, in (0, 1).
        observe: called after each round with the number of rounds so far.
        view: what the adversary sees (:class:`fedpriv.auditing.views.View`); "auto" is the server's
            view under local noise, and otherwise that of the released models.

    Raises ArgumentError for a run without noise, with public examples, or that claims nothing of this view.
    """
    return audit_plan(canaries_plan(config, canaries, view_of(config, view)), confidence, observe, view)


def audit_plan(
    plan: Plan,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
) -> Finding:
    """Audits a plan, for example one with a custom optimizer, with one canary for each of its units.

    Args:
        plan: with noise.
        confidence, observe, view: as in :func:`audit`.

    An interrupted run is judged by the events in its ledger.

    Raises ArgumentError as :func:`audit` does.
    """
    validation.between("confidence", confidence, 0, 1)
    require_auditable(plan.config)
    subject = with_canaries(plan, view_of(plan.config, view), _key(plan))
    return _finding(subject, confidence, observe)


def audit_own_data(
    config: Config,
    make_engine: Callable[[Config], Any],
    canaries: int = 0,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
    view: str = AUTO,
) -> Finding:
    """Audits a run with its own data, model and engine: a coin leaves out, or replaces, some of its units.

    Args:
        config: a run with noise.
        make_engine: starts the engine that the configuration names.
        canaries: the number of units whose coins are guessed; 0: up to 200, and fewer for large models.
        confidence, observe, view: as in :func:`audit`.

    Raises ArgumentError for a run without noise, on nodes with their own data, or that claims nothing of this
    view; and as :func:`fedpriv.simulate` does.
    """
    validation.between("confidence", confidence, 0, 1)
    seen, plan = view_of(config, view), own_plan(config, canaries)
    subject = with_own_data(plan, seen, _key(plan), canaries, make_engine)
    try:
        return _finding(subject, confidence, observe)
    finally:
        subject.engine.close()


def _key(plan: Plan) -> Key:
    return Key.of(plan.config.asked_seed if plan.config.seed >= 0 else secrets.randbits(128))


def _finding(subject: Subject, confidence: float, observe: Callable[[int], None]) -> Finding:
    """Runs the subject and evaluates the guesses."""
    plan, there, count = subject.plan, subject.there, len(subject.there)
    assert plan.budget is not None
    scores, residuals, charged, stopped = _run(subject, observe)
    events = claimed(subject.view, plan, charged)
    delta, allowed = plan.budget.delta, (1 + advantage(events)) / 2
    claim = epsilon(events, delta).epsilon
    each = 1 - (1 - confidence) / len(scores)
    right = (scores > 0) == there
    correct = int(right.sum(1).max())
    if subject.own_data:  # what one unit adds depends on the others, so that guesses are not independent
        by_chance = one_run_p_value(count, count, correct, claim, delta)
    else:
        by_chance = float(stats.binom.sf(correct - 1, count, allowed))
    point, least, most = _rates(correct, count, each)
    measured = partial(_measured, events, delta)
    surest = np.argsort(-abs(scores), axis=1)
    curve, trade_off = AttackCurve.of(scores[0], there), TradeOff.of(events)
    return Finding(
        view=subject.view,
        own_data=subject.own_data,
        canaries=count,
        releases=sum(event.count for event in charged),
        right=correct,
        allowed=allowed,
        p_value=min(1.0, len(scores) * by_chance),
        noise_p_value=residuals.p_value,
        oddest=residuals.oddest,
        confidence=confidence,
        delta=delta,
        claimed=claim,
        measured=measured(point),
        measured_least=measured(least),
        measured_most=measured(most),
        proved=max(proved_epsilon(one[order], delta, each) for one, order in zip(right, surest, strict=True)),
        proved_by_curves=proved_by_curves(events, right[0][surest[0]], delta, confidence),
        true_rates={rate: (curve.true_rate(rate), trade_off.most_true(rate)) for rate in RATES},
        stopped=stopped,
        curve=curve,
        claim=trade_off,
    )


def _run(
    subject: Subject, observe: Callable[[int], None]
) -> tuple[Floats, Residuals, tuple[Event, ...], StopReason]:
    """Runs the subject: (the adversaries' scores, the auditor's tests, charged events, how the run ended)."""
    plan, start = subject.plan, subject.start
    silos = range(plan.config.clients) if plan.by_silo else (None,)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with Ledger.create(path, {}) as ledger:
            budget_gate = RunAccountant(plan, ledger, path)
            charged = claims.Charged(budget_gate, path)
            watched = [Watched.over(subject, charged, number) for number in silos]
            outcome = _loop(subject, watched, lambda progress: observe(progress.round))
        events = budget_gate.charged_on_disk().events
    if subject.view is View.LAST_MODEL and watched[0].first:
        watched[0].score_change((outcome.state.output.double() - start.double()).cpu().numpy())
    scores, residuals = np.concatenate([one.scores for one in watched], axis=1), watched[0].residuals
    tested = [watched[0].messages]
    if watched[0].protocol is not None:
        watched[0].protocol.probe()
        tested.append(watched[0].protocol.tests)
    for tests in (*tested, *(one.residuals for one in watched[1:])):
        residuals.join(tests)
    if sum(event.count for event in events) < outcome.releases:
        residuals.fault("a release that is not in the ledger")
    for one in watched[:_PROBED_SILOS]:
        _compare_neighbours(subject, one, residuals)
    return scores, residuals, events, outcome.stopped


def _loop(subject: Subject, watched: Sequence[Watched], observe: Callable[[Progress], None]) -> Outcome:
    """The run's own loop with observed optimizers and engines."""
    plan, key, charged = subject.plan, subject.key, watched[0].charged
    if plan.by_silo:
        return silo.run(plan, subject.start, WatchedSilos.of(plan, watched), charged, observe)
    mechanism = replace(plan.mechanism, optimizer=watched[0])
    return run(mechanism, subject.start, watched[0], charged, key, plan.cohorts(key), observe)


def _compare_neighbours(subject: Subject, watched: Watched, residuals: Residuals) -> None:
    """Repeats some steps of the run on neighbouring data."""
    own = subject.key if watched.silo is None else subject.key.child("silo", watched.silo)
    units = subject.units.in_steps()
    neighbours = Neighbours(subject, units, own, watched.inner, watched.silo)
    for kept in watched.kept:
        for found in neighbours.faults(kept.state, kept.releases):
            residuals.fault(found)
        residuals.take(neighbours.few_parties(kept.state, kept.releases))


def _rates(right: int, of: int, confidence: float) -> tuple[float, float, float]:
    """(the rate of right guesses, its one-sided Clopper-Pearson bounds)."""
    least = float(special.betaincinv(right, of - right + 1, 1 - confidence)) if right else 0.0
    most = float(special.betaincinv(right + 1, of - right, confidence)) if right < of else 1.0
    return right / of, least, most


def _measured(events: Sequence[Event], delta: float, rate: float) -> float:
    """Epsilon of the events with their noise scaled by the factor that allows exactly this rate.

    It is infinite if no factor does: canaries that were never sampled cannot be guessed at any noise.
    """

    def excess(log_factor: float) -> float:
        return advantage([scaled(event, math.exp(log_factor)) for event in events]) - (2 * rate - 1)

    if 2 * rate - 1 >= ever_drawn(tally(events)):
        return math.inf
    low, high = 0.0, 0.0
    while excess(low) < 0:
        low -= _LOG_STEP
        if low < -_MAX_LOG_FACTOR:
            return math.inf
    while high < _MAX_LOG_FACTOR and excess(high) > 0:
        high += _LOG_STEP
    factor = high if excess(high) > 0 else optimize.brentq(excess, low, high, xtol=1e-3)
    return epsilon([scaled(event, math.exp(factor)) for event in events], delta).epsilon

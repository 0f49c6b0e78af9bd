"""Evaluates the guesses of an attack: the verdict, the measured epsilon and the lower bounds.

Guesses about coins of one run, or of many runs with one coin each, are compared with what the ledger's events
allow. Guesses of different runs are independent whatever the mechanism does. Those of one run are so if the
units do not interfere, as canaries in a model of their own do not. For other units the test holds for any
mechanism (:mod:`fedpriv.auditing.f_dp`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from fedpriv.accounting import Event, advantage, epsilon, scaled, tally
from fedpriv.accounting.attack_odds import FALSE_POSITIVE_RATES
from fedpriv.accounting.events import ever_drawn
from fedpriv.auditing.attack_curve import AttackCurve
from fedpriv.auditing.audited_units import Floats
from fedpriv.auditing.f_dp import curve_p_value, most_certain, proved_by_curves
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.one_run import proved_epsilon
from fedpriv.auditing.subject import Subject
from fedpriv.auditing.trade_off import TradeOff
from fedpriv.auditing.views import claimed
from fedpriv.federated.stop_reason import StopReason

_MAX_LOG_FACTOR, _LOG_STEP = 7.0, 0.5  # range and step of the search for the log of the factor on all noise


@dataclass(frozen=True)
class Attack:
    """The result of one run, or of many runs with one coin each.

    Attributes:
        scores: each adversary's log likelihood ratios of the coins (a, m).
        there: the coins, bool (m,).
        residuals: the auditor's tests.
        charged: the events in the ledger of one run.
        stopped: how the run ended, or the first that did not end as planned.
        independent: whether guesses about different coins are independent.
        runs: the number of runs.
        lone: whether a run has one score, which tells nothing before it is compared with those of other runs.
    """

    scores: Floats
    there: NDArray[np.bool_]
    residuals: Residuals
    charged: tuple[Event, ...]
    stopped: StopReason
    independent: bool
    runs: int = 1
    lone: bool = False


def joined(attacks: Sequence[Attack]) -> Attack:
    """The attacks on many runs of one configuration, as one attack on independent coins.

    A lone score is compared with the mean of the runs before it. Nothing of a later run enters a guess, so
    that the number of right guesses stays below a binomial one if each run is as claimed.
    """
    first = attacks[0]
    for other in attacks[1:]:
        first.residuals.join(other.residuals)
    # An interrupted run has fewer releases; what the longest one may show bounds them all.
    longest = max(attacks, key=lambda attack: sum(event.count for event in attack.charged))
    scores = np.concatenate([attack.scores for attack in attacks], axis=1)
    if first.lone:
        scores[:, 1:] -= np.cumsum(scores, axis=1)[:, :-1] / np.arange(1, len(attacks))
    return replace(
        first,
        scores=scores,
        there=np.concatenate([attack.there for attack in attacks]),
        charged=longest.charged,
        stopped=next((one.stopped for one in attacks if not one.stopped.complete), first.stopped),
        independent=True,
        runs=len(attacks),
    )


def judged(subject: Subject, attack: Attack, confidence: float) -> Finding:
    """The finding about an attack on the subject, or on subjects like it."""
    plan, there, count, scores = subject.plan, attack.there, len(attack.there), attack.scores
    assert plan.budget is not None
    events = claimed(subject.view, plan, attack.charged)
    delta, allowed = plan.budget.delta, (1 + advantage(events)) / 2
    claim, trade_off = epsilon(events, delta).epsilon, TradeOff.of(events)
    each = 1 - (1 - confidence) / len(scores)
    right, surest = (scores > 0) == there, np.argsort(-abs(scores), axis=1)
    correct = int(right.sum(1).max())
    if attack.independent:
        by_chance = float(stats.binom.sf(correct - 1, count, allowed))
    else:
        by_chance = _by_chance(trade_off, np.take_along_axis(right, surest, axis=1))
    point, least, most = _rates(correct, count, each)
    measured = partial(_measured, events, delta)
    curve = AttackCurve.of(scores[0], there)
    return Finding(
        view=subject.view,
        own_data=subject.own_data,
        planted=plan.config.planted_canaries > 0,
        runs=attack.runs,
        canaries=count,
        releases=sum(event.count for event in attack.charged),
        right=correct,
        allowed=allowed,
        p_value=min(1.0, len(scores) * by_chance),
        noise_p_value=attack.residuals.p_value,
        oddest=attack.residuals.oddest,
        confidence=confidence,
        delta=delta,
        claimed=claim,
        measured=measured(point),
        measured_least=measured(least),
        measured_most=measured(most),
        proved=max(proved_epsilon(one[order], delta, each) for one, order in zip(right, surest, strict=True)),
        proved_by_curves=proved_by_curves(events, right[0][surest[0]], delta, confidence),
        true_rates={
            rate: (curve.true_rate(rate), trade_off.most_true(rate)) for rate in FALSE_POSITIVE_RATES
        },
        stopped=attack.stopped,
        curve=curve,
        claim=trade_off,
    )


def _by_chance(claim: TradeOff, right: NDArray[np.bool_]) -> float:
    """An upper bound of the probability that an adversary's guesses are right so often, for any mechanism
    with the claimed curve: by all of its guesses, or by its most certain ones.

    ``right`` (a, m) has each adversary's guesses by descending certainty.
    """
    coins = right.shape[1]
    counts = (coins, most_certain(coins))
    tests = [curve_p_value(claim, coins, n, int(right[:, :n].sum(1).max())) for n in counts]
    return len(tests) * min(tests)


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

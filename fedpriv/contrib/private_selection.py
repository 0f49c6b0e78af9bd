"""Private selection: a random number of private runs with random settings, of which the best is handed out.

Sources: Liu & Talwar 2019 ("Private selection from private candidates"), algorithm 2, which Koskela & Honkela
2020 (section 5.3) compare ADADP with; Papernot & Steinke 2022 ("Hyperparameter tuning with Renyi differential
privacy"), whose eta = 1 is this algorithm.

    repeat: draw a candidate at random, run it privately, score the result; with probability gamma, stop.
    Hand out the result with the best score.

| paper | here |
|---|---|
| Q(D): a random candidate's (output, score) | ``Selection.run``, the events of ONE run with its score |
| gamma: probability of stopping after a run | ``Selection.gamma``; 1 / gamma runs are expected |
| T: where the repetition ends in any case | ``Selection.most``; None: nowhere |

Only the winner may ever be seen: how many runs there were, the other results and scores, and how long it all
took are NOT protected by what follows (given k runs, the best of them costs up to k epsilon).

What it costs, proved here from first principles, for Q and Q' on neighbours. Let outcomes be ordered by
score, ties by a fresh uniform number, so that no two are equal (which of tied outcomes is taken leaves the
law as it is, since they are alike); F(z) is the probability under Q of an outcome not better than z. With
f(x) = E[x^K] = gamma x / (1 - (1-gamma) x), the winner is at most z with probability f(F(z)), so its
density is Q(z) f'(F(z)) with f'(x) = gamma / (1 - (1-gamma) x)^2.

1. Pure. Where Q, Q' are (e, 0)-indistinguishable, 1 - (1-gamma) F = gamma + (1-gamma) (1 - F) and its twin
   under Q' are within e^e of each other, hence f' within e^(2e), hence the winner within e^(3e). (Liu &
   Talwar 2019, section 3.2.)
2. Approximate. Where Q, Q' are (e, d)-indistinguishable, each has an event of probability 1 - d given which
   they are (e, 0)-indistinguishable (Kairouz, Oh & Viswanath 2015). Runs that are all in their events have
   generating function f((1-d) x), to which 1. applies as it stands, for 1 - (1-gamma)(1-d) F is again a
   constant and a multiple of 1 - F. Some run is not with probability 1 - f(1-d) = d / (gamma + d
   (1-gamma)). So the winner is

       (3 e, d / (gamma + d (1-gamma)))-private,      d = gamma D / (1 - D (1-gamma)) for a wanted delta D.

   Liu & Talwar's own statement has sqrt(d) where this has d; the argument here does not need it.
3. Renyi. Where Q, Q' have divergence at most e(a) at order a, both ways: by 1.'s density, the winner's at
   order a is at most e(a) + log max f'(F) (f'(F)/f'(F'))^(a-1) / (a - 1). f' <= f'(1) = 1/gamma. With p = 1
   - (1-gamma) F, the probability of an event under Q (not "at most z, and a coin"), and p' its twin,
   f'(F)/f'(F') = (p'/p)^2 and p' <= p^(1 - 1/b) e^((1 - 1/b) e(b)) at any order b, where p >= gamma. So, as
   Papernot & Steinke 2022 have it:

       e(a) + 2 (1 - 1/b) e(b) + 2 log(1/gamma) / b + log(1/gamma) / (a - 1)      for every a, b > 1.

A repetition that ends at T in any case differs by (1-gamma)^T in total variation, which adds
(1 + e^epsilon) (1-gamma)^T to delta.

The candidates share one event sequence: each is as private as every other. A score on private data would be
one more release of the run, and belongs in its events; on public test data it is free, and optimistic.

>>> once = Selection((Event(20.0, "none", "add-remove"),), gamma=0.1)
>>> [round(by.epsilon, 3) for by in (once.approximate(1e-5, "pld"), once.renyi(1e-5), once.epsilon(1e-5))]
[0.568, 0.418, 0.418]
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from fedpriv._internal import validation
from fedpriv.accounting import (
    METHODS,
    Budget,
    BudgetExceeded,
    Event,
    PrivacyGuarantee,
    epsilon,
    scaled,
    tally,
)
from fedpriv.accounting.calibration import search
from fedpriv.accounting.methods.rdp import ORDERS, Rdp, RdpProfile
from fedpriv.accounting.methods.registry import with_truncation
from fedpriv.accounting.pld.privacy_loss import Array
from fedpriv.rng import Key

Result = TypeVar("Result")
Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Selection:
    """A private selection as an event of its own: what one run costs, and how many there may be.

    Attributes:
        run: all events of one run, and of its score where that reads private data.
        gamma: probability of stopping after a run, in (0, 1].
        most: T, the most runs, or None.
    """

    run: tuple[Event, ...]
    gamma: float
    most: int | None = None

    def __post_init__(self) -> None:
        if validation.probability("gamma", self.gamma) == 0:
            raise validation.fail("gamma", self.gamma, "be greater than 0")
        if self.most is not None:
            validation.integer("most", self.most, minimum=1)

    @property
    def cut(self) -> float:
        """(1 - gamma)^T: the probability that the repetition is cut off."""
        return 0.0 if self.most is None else float((1 - self.gamma) ** self.most)

    def epsilon(self, delta: float, method: str = "pld") -> PrivacyGuarantee:
        """Epsilon at ``delta`` by 2. (one run by ``method``) or by 3., whichever gives less.

        Raises ArgumentError and UnsupportedEvent as ``accounting.epsilon`` does.
        """
        answers = [self.approximate(delta, method)]
        if all(Rdp().refusal(event) is None and not event.truncation for event in self.run):
            answers.append(self.renyi(delta))
        return min(answers, key=lambda answer: answer.epsilon)

    def approximate(self, delta: float, method: str = "pld") -> PrivacyGuarantee:
        """Epsilon at ``delta`` by 2., one run being accounted for by ``method``. Raises as ``epsilon``."""
        validation.between("delta", delta, 0, 1)
        validation.choice("accounting", method, METHODS)
        value = with_truncation(_Tripled(self, method), delta, self.cut)[0]
        return PrivacyGuarantee(value, None, METHODS[method].kind, f"selection of {method} runs", delta)

    def renyi(self, delta: float) -> PrivacyGuarantee:
        """Epsilon at ``delta`` by 3. Raises as ``epsilon``, also for truncated cohorts."""
        validation.between("delta", delta, 0, 1)
        for event in self.run:
            if event.truncation:
                raise validation.fail("truncation", event.truncation, "be 0 for the bound by orders")
        epsilon(self.run, delta, "rdp")  # refuses what the method does not support
        noisy = {e: n for e, n in tally(self.run).items() if e.rate > 0 and e.noise_multiplier < math.inf}
        if any(event.noise_multiplier == 0 for event in noisy):
            return PrivacyGuarantee(math.inf, None, "bound", "selection of rdp runs", delta)
        one = Rdp().stages([noisy], delta)[0].divergences if noisy else np.zeros(len(ORDERS))
        profile = RdpProfile(selected_divergences(one, self.gamma))
        value = with_truncation(profile, delta, self.cut)[0]
        return PrivacyGuarantee(value, None, "bound", "selection of rdp runs", delta)


@dataclass(frozen=True)
class _Tripled:
    """The winner's privacy curve by 2."""

    selection: Selection
    method: str

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        gamma = self.selection.gamma
        if delta <= 0:
            return math.inf, None
        of_run = epsilon(self.selection.run, delta * gamma / (1 - delta * (1 - gamma)), self.method).epsilon
        return (of_run if gamma == 1 else 3 * of_run), None


def selected_divergences(divergences: Array, gamma: float) -> Array:
    """The winner's divergences at ORDERS, from one run's of the same shape (orders,), by 3."""
    orders, log_runs = np.array(ORDERS), math.log(1 / gamma)
    if gamma == 1:
        return divergences
    with np.errstate(invalid="ignore"):
        ratio = 2 * (1 - 1 / orders) * divergences + 2 * log_runs / orders
    return divergences + float(np.nanmin(ratio)) + log_runs / (orders - 1)


def calibrate(at_scale_one: Selection, budget: Budget) -> Selection:
    """The selection whose runs have all multipliers scaled alike, so that it spends ``budget`` and not more.

    Raises ArgumentError for an infinite budget and where no scale meets it, and as ``Selection.epsilon``.
    """
    validation.finite_positive("epsilon", budget.epsilon)

    def at(log_scale: float) -> Selection:
        run = tuple(scaled(event, math.exp(log_scale)) for event in at_scale_one.run)
        return replace(at_scale_one, run=run)

    def excess(log_scale: float) -> float:
        spent = at(log_scale).epsilon(budget.delta, budget.method).epsilon
        return min(math.log(max(spent, 1e-300) / budget.epsilon), 1e3)

    return at(search(excess, budget, 0.0, -1.5)[0])


def pay(selection: Selection, budget: Budget, path: str | os.PathLike[str] | None = None) -> None:
    """Check that ``budget`` affords the selection and have it on disk, before any of its runs.

    Args:
        selection: what is about to be done.
        budget: for it alone.
        path: a new file of one JSON object, with what was paid for; None where no record is to last.
            It is no ledger: the runs' events do not add up to what a selection costs.

    Raises:
        BudgetExceeded: the selection costs more; nothing is written.
        FileExistsError: the file is there, so a selection was paid for before.
    """
    spent = selection.epsilon(budget.delta, budget.method)
    if spent.epsilon > budget.epsilon:
        raise BudgetExceeded(
            f"a selection with gamma {selection.gamma:g} costs epsilon {spent.epsilon:.4g} at delta "
            f"{budget.delta:g}; the budget is {budget.epsilon:g}"
        )
    if path is None:
        return
    record = {"selection": "Liu & Talwar 2019", "gamma": selection.gamma, "most": selection.most}
    record |= {"epsilon": spent.epsilon, "delta": budget.delta, "method": spent.method}
    with open(path, "x") as file:
        json.dump({**record, "run": [event.to_json() for event in selection.run]}, file)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class Winner(Generic[Candidate, Result]):
    """All that a selection hands out: the best candidate, its result and its score."""

    candidate: Candidate
    result: Result
    score: float


def select(
    selection: Selection,
    budget: Budget,
    run: Callable[[Candidate, Key], Result],
    candidates: Sequence[Candidate],
    score: Callable[[Result], float],
    key: Key,
    record: str | os.PathLike[str] | None = None,
) -> Winner[Candidate, Result]:
    """Algorithm 2: the best of a geometric number of private runs, paid for before the first of them.

    ``run`` and ``score`` must leave no trace but what they return: no files, no logs, no metrics of runs that
    do not win.

    Args:
        selection: the events of one run, gamma and T; the same for every candidate.
        budget: what the whole selection may spend.
        run: a private run of one candidate with the randomness of a key, which charges no more than
            ``selection.run``.
        candidates: settings, drawn uniformly, with replacement.
        score: higher is better; NaN is worst. Of public data, or paid for with the run.
        key: OS entropy, or a seed for a selection that is reproducible and not private.
        record: a new file for what is paid, as in :func:`pay`.

    Raises ArgumentError for no candidates, and as :func:`pay`.
    """
    if not candidates:
        raise validation.fail("candidates", list(candidates), "hold at least one")
    pay(selection, budget, record)
    key.once("selection")
    generator = key.generator("selection")
    runs = int(generator.geometric(selection.gamma))
    best: Winner[Candidate, Result] | None = None
    for number in range(runs if selection.most is None else min(runs, selection.most)):
        candidate = candidates[int(generator.integers(len(candidates)))]
        result = run(candidate, key.child("selected-run", number))
        value = float(score(result))
        value = -math.inf if math.isnan(value) else value
        if best is None or value > best.score:
            best = Winner(candidate, result, value)
    assert best is not None  # there is at least one run
    return best

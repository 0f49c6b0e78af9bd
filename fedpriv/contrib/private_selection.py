"""Private selection: a random number of private runs with random settings, of which only the best is
returned.

Sources: Liu & Talwar 2019 ("Private selection from private candidates"), algorithm 2, with which Koskela &
Honkela 2020 (section 5.3) compare ADADP; Papernot & Steinke 2022 ("Hyperparameter tuning with Renyi
differential privacy"), whose case eta = 1 is this algorithm.

    repeat: draw a candidate at random, run it privately, score the result; with probability gamma, stop.
    Return the result with the best score.

| paper | here |
|---|---|
| Q(D): a random candidate's (output, score) | ``Selection.run``, the events of ONE run with its score |
| gamma: probability of stopping after a run | ``Selection.gamma``; 1 / gamma runs are expected |
| T: the largest number of repetitions | ``Selection.most``; None: unlimited |

Only the winner may be published. The number of runs, the other results and scores, and the running time are
NOT protected by this analysis (given k runs, the best of them costs up to k epsilon).

The cost, proved here from first principles, for Q and Q' on neighbouring data sets. Order outcomes by score,
and ties by a fresh uniform number, so that no two are equal (tied outcomes are exchangeable, so breaking ties
does not change the distribution). F(z) is the probability under Q of an outcome not better than z. With
f(x) = E[x^K] = gamma x / (1 - (1-gamma) x), the winner is at most z with probability f(F(z)), so its density
is Q(z) f'(F(z)) with f'(x) = gamma / (1 - (1-gamma) x)^2.

1. Pure DP. If Q and Q' are (e, 0)-indistinguishable, then 1 - (1-gamma) F = gamma + (1-gamma) (1 - F) and its
   counterpart under Q' are within a factor e^e of each other, hence f' within e^(2e), and the winner within
   e^(3e). (Liu & Talwar 2019, section 3.2.)
2. Approximate DP. If Q and Q' are (e, d)-indistinguishable, each has an event of probability 1 - d,
   conditional on which they are (e, 0)-indistinguishable (Kairouz, Oh & Viswanath 2015). Runs that all lie in
   their events have the generating function f((1-d) x). Step 1 applies to it unchanged, since 1 -
   (1-gamma)(1-d) F is again a constant plus a multiple of 1 - F. Some run lies outside with probability 1 -
   f(1-d) = d / (gamma + d (1-gamma)). So the winner is

       (3 e, d / (gamma + d (1-gamma)))-DP,      d = gamma D / (1 - D (1-gamma)) for a target delta D.

   Liu & Talwar's statement has sqrt(d) in place of d; this argument does not need the square root.
3. Renyi DP. Let Q and Q' have divergence at most e(a) at order a in both directions. By the density in 1, the
   winner's divergence at order a is at most e(a) + log max f'(F) (f'(F)/f'(F'))^(a-1) / (a - 1), and
   f' <= f'(1) = 1/gamma. Let p = 1 - (1-gamma) F, the probability of an event under Q (not "at most z, and a
   coin"), and p' its counterpart under Q'. Then f'(F)/f'(F') = (p'/p)^2, and p' <= p^(1 - 1/b) e^((1 - 1/b)
   e(b)) at any order b, where p >= gamma. So, as in Papernot & Steinke 2022:

       e(a) + 2 (1 - 1/b) e(b) + 2 log(1/gamma) / b + log(1/gamma) / (a - 1)      for every a, b > 1.

A repetition that ends at T differs by (1-gamma)^T in total variation, which adds (1 + e^epsilon) (1-gamma)^T
to delta.

Where candidates' event sequences differ, Q is a mixture of their runs. It is as indistinguishable as the
worst of them at the same delta, and its divergence at an order is at most the largest of theirs. A score
on private data is one more release of the run and must be among its events. A score on public test data
costs nothing but is optimistic.

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
    """The description of a private selection, from which its cost follows.

    Attributes:
        run: all events of one run, including those of a score on private data.
        gamma: the probability of stopping after a run, in (0, 1].
        most: T, the largest number of runs, or None.
        others: the events of runs of candidates that have others than ``run``.
    """

    run: tuple[Event, ...]
    gamma: float
    most: int | None = None
    others: tuple[tuple[Event, ...], ...] = ()

    def __post_init__(self) -> None:
        if validation.probability("gamma", self.gamma) == 0:
            raise validation.fail("gamma", self.gamma, "be greater than 0")
        if self.most is not None:
            validation.integer("most", self.most, minimum=1)

    @property
    def runs(self) -> tuple[tuple[Event, ...], ...]:
        """The events of one run of each kind of candidates."""
        return (self.run, *self.others)

    @property
    def cut(self) -> float:
        """(1 - gamma)^T, the probability that the repetition is truncated."""
        return 0.0 if self.most is None else float((1 - self.gamma) ** self.most)

    def epsilon(self, delta: float, method: str = "pld") -> PrivacyGuarantee:
        """The smaller epsilon at ``delta`` of proofs 2 (one run accounted for by ``method``) and 3.

        Raises ArgumentError and UnsupportedEvent as ``accounting.epsilon`` does.
        """
        answers = [self.approximate(delta, method)]
        every = [event for run in self.runs for event in run]
        if all(Rdp().refusal(event) is None and not event.truncation for event in every):
            answers.append(self.renyi(delta))
        return min(answers, key=lambda answer: answer.epsilon)

    def approximate(self, delta: float, method: str = "pld") -> PrivacyGuarantee:
        """Epsilon at ``delta`` by proof 2; one run is accounted for by ``method``. Raises as ``epsilon``."""
        validation.between("delta", delta, 0, 1)
        validation.choice("accounting", method, METHODS)
        value = with_truncation(_Tripled(self, method), delta, self.cut)[0]
        return PrivacyGuarantee(value, None, METHODS[method].kind, f"selection of {method} runs", delta)

    def renyi(self, delta: float) -> PrivacyGuarantee:
        """Epsilon at ``delta`` by proof 3. Raises as ``epsilon``, and ArgumentError for truncated cohorts."""
        validation.between("delta", delta, 0, 1)
        one = np.zeros(len(ORDERS))
        for run in self.runs:
            for event in run:
                if event.truncation:
                    raise validation.fail("truncation", event.truncation, "be 0 for the Renyi bound")
            epsilon(run, delta, "rdp")  # raises UnsupportedEvent if RDP does not support the events
            noisy = {e: n for e, n in tally(run).items() if e.rate > 0 and e.noise_multiplier < math.inf}
            if any(event.noise_multiplier == 0 for event in noisy):
                return PrivacyGuarantee(math.inf, None, "bound", "selection of rdp runs", delta)
            if noisy:
                one = np.maximum(one, Rdp().stages([noisy], delta)[0].divergences)
        profile = RdpProfile(selected_divergences(one, self.gamma))
        value = with_truncation(profile, delta, self.cut)[0]
        return PrivacyGuarantee(value, None, "bound", "selection of rdp runs", delta)


@dataclass(frozen=True)
class _Tripled:
    """The winner's privacy curve by proof 2."""

    selection: Selection
    method: str

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        gamma = self.selection.gamma
        if delta <= 0:
            return math.inf, None
        each = delta * gamma / (1 - delta * (1 - gamma))
        of_run = max(epsilon(run, each, self.method).epsilon for run in self.selection.runs)
        return (of_run if gamma == 1 else 3 * of_run), None


def selected_divergences(divergences: Array, gamma: float) -> Array:
    """The winner's divergences (orders,) at ORDERS by proof 3, from those of one run (orders,)."""
    orders, log_runs = np.array(ORDERS), math.log(1 / gamma)
    if gamma == 1:
        return divergences
    with np.errstate(invalid="ignore"):
        ratio = 2 * (1 - 1 / orders) * divergences + 2 * log_runs / orders
    return divergences + float(np.nanmin(ratio)) + log_runs / (orders - 1)


def calibrate(at_scale_one: Selection, budget: Budget) -> Selection:
    """The selection with all multipliers of a run scaled by one factor, so that it spends ``budget``.

    It never spends more. Raises ArgumentError for an infinite budget and if no scale meets it, and as
    ``Selection.epsilon``.
    """
    validation.finite_positive("epsilon", budget.epsilon)

    def at(log_scale: float) -> Selection:
        first, *others = (
            tuple(scaled(event, math.exp(log_scale)) for event in run) for run in at_scale_one.runs
        )
        return replace(at_scale_one, run=first, others=tuple(others))

    def excess(log_scale: float) -> float:
        spent = at(log_scale).epsilon(budget.delta, budget.method).epsilon
        return min(math.log(max(spent, 1e-300) / budget.epsilon), 1e3)

    return at(search(excess, budget, 0.0, -1.5)[0])


def pay(selection: Selection, budget: Budget, path: str | os.PathLike[str] | None = None) -> None:
    """Checks that ``budget`` affords the selection and records it on disk. Call it before the first run.

    Args:
        selection: the planned selection.
        budget: the budget for this selection alone.
        path: a new file for one JSON object that describes the charge; None: no record. It is not a ledger,
            since the sum of the runs' events is not the cost of a selection.

    Raises:
        BudgetExceeded: the selection costs more; nothing is written.
        FileExistsError: the file exists, so a selection was charged before.
    """
    spent = selection.epsilon(budget.delta, budget.method)
    if spent.epsilon > budget.epsilon:
        raise BudgetExceeded(
            f"A selection with gamma {selection.gamma:g} costs epsilon {spent.epsilon:.4g} at delta "
            f"{budget.delta:g}, but the budget is {budget.epsilon:g}. Raise the noise or the budget."
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
    """The published outcome of a selection: the best candidate, its result and its score."""

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
    """Algorithm 2: the best of a geometric number of private runs, charged before the first run.

    ``run`` and ``score`` must leave no trace except their return values: no files, logs or metrics of runs
    that do not win.

    Args:
        selection: the events of one run, gamma and T; equal for all candidates.
        budget: the budget of the whole selection.
        run: makes a private run of one candidate with the randomness of a key; it must charge at most
            ``selection.run``.
        candidates: settings, drawn uniformly with replacement.
        score: higher is better; NaN is worst. It uses public data, or its events are in ``selection.run``.
        key: from OS entropy; or from a seed, and then the selection is reproducible and not private.
        record: a new file for the charge, as in :func:`pay`.

    Raises ArgumentError if there are no candidates, and as :func:`pay`.
    """
    if not candidates:
        raise validation.ArgumentError("candidates is empty; a selection needs at least one candidate.")
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

"""An empirical audit: does a run leak more about its units than its ledger says?

The configured federation runs with a canary in place of every unit, each of which is there or not by a
fair coin. A canary is an example whose gradient is as large as can be, in a coordinate of its own, so that
it meets no other; all else is the run's own code: sampling, clipping, queries, noise, optimizer, ledger.
Then the best adversary, who sees all that was released and knows everything but the coins, the cohorts and
the noise, guesses for each canary whether it was there: by the likelihood ratio of a sampled Gaussian. Others
do the same and suspect that there is less noise than is said; whoever guesses best counts, at a confidence
that holds for all of them together.

Two readings of how often that is right:

- **The claim.** What the ledger says allows a guess to be right with a probability of at most (1 + A) / 2,
  A being the total-variation distance of what neighbours release (:func:`fedpriv.accounting.advantage`).
  Where the releases are what they are said to be, coordinates do not depend on each other, and the number
  of right guesses is a binomial one: more than it can be, at a confidence, is a violation. The factor on all
  noise by which that number would be just what is allowed gives a measured epsilon.
- **A proof from one run.** Whatever the mechanism is, (epsilon, delta)-differential privacy bounds how many
  guesses about m coins can be right (:mod:`fedpriv.auditing.one_run`). That makes a lower bound on epsilon
  that assumes nothing, and is far from tight.

Such an adversary trusts that noise is independent and cohorts are new. So the auditor, who knows all, takes
the exact sums away as well and looks at what is left (:mod:`fedpriv.auditing.noise_tests`): noise that is too
small, missing, shared or used before, and cohorts that are too large or the same again, are a violation, too.

An audit can find a mechanism that protects less than it says; that it finds none is no proof of protection.

>>> from fedpriv.config.schema import Config
>>> settings = {"clients": 2000, "sampler": "everyone", "sampling-rate": 1.0, "rounds": 2, "epsilon": 8.0}
>>> finding = audit(Config.parse({**settings, "seed": 0}))
>>> finding.violated, finding.proved < finding.measured < 2 * finding.claimed
(False, True)
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special, stats

from fedpriv._internal import validation
from fedpriv.accounting import Event, Ledger, advantage, epsilon, scaled, tally
from fedpriv.accounting.api import number
from fedpriv.accounting.events import Relation, ever_drawn
from fedpriv.auditing.canaries import LARGEST, SUSPECTED, Canaries, Watched, nodes_of
from fedpriv.auditing.one_run import proved_epsilon
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.loop import run
from fedpriv.federated.stop_reason import StopReason
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.rng import Key
from fedpriv.runs.budget import RunAccountant

MOST = 100_000  # canaries, where nothing else is said
_SLOW = 5_000  # as many with local steps, whose changes are formed for each client
_START = 0.1  # std of the first parameters
_FAR, _STEP = 7.0, 0.5  # of the log of the factor on all noise: how far it is looked for, in what steps


@dataclass(frozen=True)
class Finding:
    """What an audit found.

    Attributes:
        canaries: m, how many units were there or not by a fair coin.
        releases: how many the ledger holds.
        right: how many of the m guesses were right, of the best adversary.
        allowed: the largest probability of a right guess that the ledger allows.
        p_value: how likely at most so many right guesses are, or more, at ``allowed``, of any of the four
            adversaries: the best one's, times their number.
        noise_p_value: how likely at most anything is that is as odd as the oddest about noise and cohorts.
        oddest: what that is.
        confidence: of the verdict, and of each bound below.
        delta: that the epsilons are at.
        claimed: epsilon of the ledger's events, by PLD: an upper bound.
        measured, measured_least, measured_most: epsilon if all noise were larger or smaller by the factor at
            which the best guesses are right as often as these were; and one-sided bounds, for m is finite.
        proved: what epsilon is at least, whatever the mechanism.
        stopped: how the run ended: ROUNDS, BUDGET, INTERRUPTED or UNANSWERED.
    """

    canaries: int
    releases: int
    right: int
    allowed: float
    p_value: float
    noise_p_value: float
    oddest: str
    confidence: float
    delta: float
    claimed: float
    measured: float
    measured_least: float
    measured_most: float
    proved: float
    stopped: StopReason

    @property
    def violated(self) -> bool:
        """Whether the run leaks more than its ledger says, or is not the run that was accounted."""
        return self.leaks or self.odd

    @property
    def leaks(self) -> bool:
        """Whether guesses were right more often than the ledger allows, at this confidence of all tests."""
        return self.p_value < (1 - self.confidence) / 2

    @property
    def odd(self) -> bool:
        """Whether noise or cohorts are not what they should be, at this confidence of all tests."""
        return self.noise_p_value < (1 - self.confidence) / 2

    def json(self) -> dict[str, Any]:
        """The finding as data; an infinite epsilon is the text "infinity"."""
        said = {key: number(v) if isinstance(v, float) else v for key, v in asdict(self).items()}
        return said | {"violated": self.violated}


def audit(
    config: Config,
    canaries: int = 0,
    confidence: float = 0.99,
    observe: Callable[[int], None] = lambda rounds: None,
) -> Finding:
    """Run the configuration with canaries for units, and tell what the best guesses about them find out.

    Args:
        config: of a run with central or distributed noise; its data and model are not looked at.
        canaries: how many of the run's units there are, at the same sampling rate; 0: all, but MOST at most,
            or 5,000 where clients make local steps, which takes longer.
        confidence: of the verdict, in (0, 1).
        observe: called after each round with how many there were.

    Raises ArgumentError for a run without noise, with local noise or of the client level, or one that learns
    from public examples.
    """
    return audit_plan(_plan(config, canaries), confidence, observe)


def audit_plan(
    plan: Plan, confidence: float = 0.99, observe: Callable[[int], None] = lambda rounds: None
) -> Finding:
    """As :func:`audit`, of a plan whose optimizer, say, is your own: a canary for each of its units.

    Args:
        plan: of the aggregation level, with central or distributed noise.
        confidence, observe: as of :func:`audit`.

    An interrupted run is judged by what its ledger holds by then.

    Raises ArgumentError as :func:`audit` does.
    """
    validation.between("confidence", confidence, 0, 1)
    _require_visible(plan.config)
    assert plan.budget is not None
    key = plan.key()
    there = key.generator("canaries").random(plan.units) < 0.5
    watched, events, stopped = _run(plan, key, there, observe)
    delta, allowed = plan.budget.delta, (1 + advantage(events)) / 2
    each = 1 - (1 - confidence) / len(SUSPECTED)
    right = (watched.scores > 0) == there
    correct = int(right.sum(1).max())
    point, least, most = _rates(correct, plan.units, each)
    measured = partial(_measured, events, delta)
    surest = np.argsort(-abs(watched.scores), axis=1)
    return Finding(
        canaries=plan.units,
        releases=sum(event.count for event in events),
        right=correct,
        allowed=allowed,
        p_value=min(1.0, len(SUSPECTED) * float(stats.binom.sf(correct - 1, plan.units, allowed))),
        noise_p_value=watched.residuals.p_value,
        oddest=watched.residuals.oddest,
        confidence=confidence,
        delta=delta,
        claimed=epsilon(events, delta).epsilon,
        measured=measured(point),
        measured_least=measured(least),
        measured_most=measured(most),
        proved=max(proved_epsilon(one[order], delta, each) for one, order in zip(right, surest, strict=True)),
        stopped=stopped,
    )


def _require_visible(config: Config) -> None:
    """Raises ArgumentError where a run's models are not what its noise defends, or need public data."""
    if config.level != "aggregation":
        raise validation.fail("level", config.level, "be aggregation to be audited")
    placement = PLACEMENTS[config.placement]
    if placement.server_view or not placement.adds_noise:
        hint = "under local noise each message would have to be looked at"
        hint = hint if placement.adds_noise else "without noise there is nothing to audit"
        raise validation.fail("placement", config.placement, "be central or distributed to be audited", hint)
    for key in config.method.clip_norms:
        if (clip_norm := float(config.table()[key])) > LARGEST:
            hint = "a run with all clip norms and steps divided by one number is as private"
            raise validation.fail(key, clip_norm, f"be at most {LARGEST:g}", hint)
    if config.public_examples:
        raise validation.fail("optimizer", config.optimizer, "learn from no public examples to be audited")


def _plan(config: Config, canaries: int) -> Plan:
    """The plan of the configuration, with so many units."""
    _require_visible(config)
    config = config.resolved()  # delta, say, is of the run as it is configured
    if validation.integer("canaries", canaries) > config.units:
        hint = "with clients set higher, set delta, too: by default it follows them"
        raise validation.fail("canaries", canaries, f"be at most the run's {config.units} units", hint)
    count = canaries or min(config.units, MOST if config.work == "gradient" else _SLOW)
    changes: dict[str, Any] = {"clients": count, "nodes_own_data": False}
    if config.unit == "example":
        clients = min(config.clients, count)
        changes |= {"clients": clients, "examples_per_client": -(-count // clients)}
    return make_plan(config.changed(**changes))


def _run(
    plan: Plan, key: Key, there: NDArray[np.bool_], observe: Callable[[int], None]
) -> tuple[Watched, tuple[Event, ...], StopReason]:
    """The run, with an adversary watching; what its ledger says afterwards, and how it ended."""
    units = Canaries(there, plan.mechanism.sampler.event(1.0).relation is Relation.REPLACE_ONE)
    side = nodes_of(plan, units)
    watched = Watched(plan, side, units)
    mechanism = replace(plan.mechanism, optimizer=watched)
    params = torch.from_numpy(key.generator("initial-params").normal(0, _START, plan.units)).float()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with Ledger.create(path, {}) as ledger:
            budget_gate = RunAccountant(plan, ledger, path)
            loop = (mechanism, params.to(side.device), watched, budget_gate, key, plan.cohorts(key))
            outcome = run(*loop, lambda progress: observe(progress.round))
        return watched, budget_gate.settle().events, outcome.stopped


def _rates(right: int, of: int, confidence: float) -> tuple[float, float, float]:
    """The rate of right guesses, and one-sided bounds of Clopper and Pearson."""
    least = float(special.betaincinv(right, of - right + 1, 1 - confidence)) if right else 0.0
    most = float(special.betaincinv(right + 1, of - right, confidence)) if right < of else 1.0
    return right / of, least, most


def _measured(events: Sequence[Event], delta: float, rate: float) -> float:
    """Epsilon of the events with their noise larger or smaller by the factor that allows just this rate;
    infinite where none does: who is in no cohort is not seen, whatever the noise."""

    def excess(log_factor: float) -> float:
        return advantage([scaled(event, math.exp(log_factor)) for event in events]) - (2 * rate - 1)

    if 2 * rate - 1 >= ever_drawn(tally(events)):
        return math.inf
    low, high = 0.0, 0.0
    while excess(low) < 0:
        low -= _STEP
        if low < -_FAR:
            return math.inf
    while high < _FAR and excess(high) > 0:
        high += _STEP
    factor = high if excess(high) > 0 else optimize.brentq(excess, low, high, xtol=1e-3)
    return epsilon([scaled(event, math.exp(factor)) for event in events], delta).epsilon

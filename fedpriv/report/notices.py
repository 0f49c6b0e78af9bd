"""Texts for all outputs of a run: the mark of a run that is not private, and warnings before a run.

Warnings concern unusual settings that may still be intended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.sampling import FixedSize

NOT_PRIVATE = "reproducible, not private"
NO_NOISE = "not private: no noise is added"
SIMULATED = "simulated, not private"
SIMULATION_GRADE = "simulation grade: do not publish this model (noise-draws=fast)"

_LARGE_DELTA, _LARGE_EPSILON = 1e-3, 20.0
_DROWNED = 2.0  # noise norm over clip norm, of the mean update: dp-sgd learned nothing at 3.5, most at 1.2
_GUESSING_STDS = 2.0  # how far above the share of the most frequent label an accuracy is still guessing
_RATE_TOLERANCE = 0.1  # a larger relative difference of the actual from the set rate gives a warning
_BUDGET_SETTINGS = ("epsilon", "delta", "accounting")


def remark(config: Config) -> str | None:
    """The mark that every output of a non-private run must carry, with the reason; None for a private run.

    A run with floating-point noise has one, too: its epsilon holds only for the real numbers that the noise
    stands for, and not for the released floats.

    >>> remark(Config.parse({"seed": 7}))
    'reproducible, not private (seed 7)'
    >>> remark(Config.parse({"noise-draws": "fast"}))
    'simulation grade: do not publish this model (noise-draws=fast)'
    """
    notes = unprotected(config)
    if PLACEMENTS[config.placement].adds_noise and not config.exact_noise:
        notes.append(SIMULATION_GRADE)
    if config.seed >= 0:
        notes.append(f"{NOT_PRIVATE} (seed {config.seed})")
    return "; ".join(notes) or None


def unprotected(config: Config) -> list[str]:
    """Why the noise of a run protects nobody, whatever its seed, in texts; empty where it does.

    >>> unprotected(Config.parse({"noise-cohort": 2000, "clients": 1000, "sampling-rate": 0.05}))
    ['simulated, not private: the noise of cohorts of 2,000 of 40,000 clients (noise-cohort)']
    """
    if not PLACEMENTS[config.placement].adds_noise:
        return [NO_NOISE]
    if not config.simulates_noise:
        return []
    return [f"{SIMULATED}: the noise of {noise_cohorts(config)} (noise-cohort)"]


def noise_cohorts(config: Config) -> str:
    """The cohorts that simulated noise is for, in words."""
    return f"cohorts of {config.noise_cohort:,} of {config.noise_units:,} clients"


def noise(placement: str, by_silo: bool = False) -> str:
    """The noise placement as text.

    >>> noise("none"), noise("central"), noise("central", by_silo=True)
    ('no noise', 'central noise', 'central noise in each silo')
    """
    if not PLACEMENTS[placement].adds_noise:
        return "no noise"
    return f"{placement} noise in each silo" if by_silo else f"{placement} noise"


def notes(plan: Plan) -> list[str]:
    """Warnings about unusual settings of a plan that are allowed. They follow from public settings only.

    >>> from fedpriv.config.plan import make_plan
    >>> notes(make_plan(Config.parse({"clients": 50, "sampling-rate": 0.5})))
    ['delta 0.002 is large: publishing the data of one unit in 500 would satisfy it; choose a smaller delta']
    """
    config, sampler = plan.config, plan.mechanism.sampler
    found = []
    if plan.budget is None and (unused := _changed_budget_settings(config)):
        found.append(f"{unused} has no effect: placement=none adds no noise")
    if plan.budget is not None:
        found += weak(plan.budget.epsilon, plan.budget.delta)
    if sampler.expected_size < 1:
        found.append(
            f"the expected cohort size is {sampler.expected_size:.3g}, so many cohorts are empty; raise "
            "sampling-rate"
        )
    rate = config.sampling_rate
    if isinstance(sampler, FixedSize) and abs(sampler.size - rate * sampler.population) > (
        _RATE_TOLERANCE * rate * sampler.population
    ):
        found.append(
            f"the cohort size is rounded to {sampler.size} of {sampler.population} units, so the sampling "
            f"rate is {sampler.size / sampler.population:.3g} instead of {rate:g}"
        )
    return found


def weak(epsilon: float, delta: float) -> list[str]:
    """Warnings about a budget that protects nobody, or allows that some units' data are published.

    >>> weak(3, 1e-5), len(weak(30, 0.01))
    ([], 2)
    """
    found = []
    if epsilon > _LARGE_EPSILON:
        found.append(
            f"epsilon {epsilon:g} gives almost no protection: one unit's data may make an outcome "
            f"e^{epsilon:g} times as likely"
        )
    if delta > _LARGE_DELTA:
        found.append(
            f"delta {delta:.3g} is large: publishing the data of one unit in {1 / delta:.0f} would satisfy "
            "it; choose a smaller delta"
        )
    return found


def drowned(plan: Plan, dimension: int) -> list[str]:
    """A warning where the noise may drown the signal, from public numbers alone (:func:`noise_to_signal`).

    What was tried is in simulations/defaults.

    >>> from fedpriv.config.plan import make_plan
    >>> drowned(make_plan(Config.parse({"model": "logistic"})), 7850)
    []
    """
    ratio = min(noise_to_signal(plan, dimension), default=0.0)
    if ratio <= _DROWNED:
        return []
    return [
        f"the noise may drown the signal: its norm is about {ratio:.3g} times the clip norm in each mean of "
        f"contributions. The run may learn little; more {plan.config.unit}s, a higher sampling-rate, a "
        "larger epsilon, a smaller model or a smaller learning-rate help"
    ]


def noise_to_signal(plan: Plan, dimension: int) -> list[float]:
    """For each planned release, the noise's norm over the largest norm of the mean contribution.

    The noise on the mean of ``dimension`` d parameters has the norm sqrt(d) z C / m on average, the mean of
    the clipped contributions at most C. All of it is public. It is empty without noise, and where silos
    average their own models: there no server adds up contributions.

    >>> from fedpriv.config.plan import make_plan
    >>> few = make_plan(Config.parse({"clients": 10_000, "sampling-rate": 0.01, "rounds": 2}))
    >>> [round(ratio, 1) for ratio in noise_to_signal(few, 7850)]  # its noise falls by a factor sqrt(2)
    [0.6, 0.4]
    """
    if plan.budget is None or plan.by_silo:
        return []
    mechanism = plan.mechanism
    found = []
    for release, event in zip(mechanism.planned, mechanism.planned_events(), strict=True):
        [std] = mechanism.placement.resized(release.rate_factor).total_stds((event.noise_multiplier,))
        expected = mechanism.sampler.resized(release.rate_factor).expected_size
        found.append(math.sqrt(dimension) * std / expected)
    return found


def most_frequent(labels: Sequence[int]) -> float:
    """The share of the most frequent label: the accuracy of guessing it.

    >>> most_frequent([0, 1, 1, 2])
    0.5
    """
    return max(Counter(labels).values()) / len(labels)


def guessing(accuracy: float | None, labels: Sequence[int]) -> list[str]:
    """A note where the last ``accuracy`` on the public test ``labels`` is not above guessing one label.

    >>> guessing(0.5, [0, 1] * 500)[0].split(" (")[0], guessing(0.6, [0, 1] * 500)
    ('the test accuracy 50.00% is that of guessing', [])
    """
    if accuracy is None or not math.isfinite(accuracy) or not len(labels):
        return []
    share = most_frequent(labels)
    if accuracy > share + _GUESSING_STDS * math.sqrt(share * (1 - share) / len(labels)):
        return []
    return [
        f"the test accuracy {accuracy:.2%} is that of guessing (the most frequent label is {share:.2%} of "
        "the public test set): the model has learned nothing. More data, a larger epsilon, more rounds or "
        "another learning-rate may help"
    ]


def _changed_budget_settings(config: Config) -> str:
    """The budget settings that differ from their defaults, as text: "epsilon=1.0, delta=1e-05"."""
    now, defaults, derived = config.table(), Config.parse({}).table(), config.derived()
    changed = [key for key in _BUDGET_SETTINGS if now[key] not in (defaults[key], derived.get(key))]
    return ", ".join(f"{key}={now[key]}" for key in changed)

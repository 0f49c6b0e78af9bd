"""The words that outputs of a run carry: that it is not private, and why, and where its noise is added.

And what is told before a run that is odd, and yet may be meant.
"""

from __future__ import annotations

from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.mechanism.sampling import FixedSize

NOT_PRIVATE = "reproducible, not private"
NO_NOISE = "not private: no noise is added"

_LARGE_DELTA, _LARGE_EPSILON = 1e-3, 20.0
_FAR = 0.1  # how far, as a share of it, the rate of fixed-size cohorts may be from what was asked for
_OF_THE_BUDGET = ("epsilon", "delta", "accounting")


def remark(config: Config) -> str | None:
    """What every output of a run must carry: that it is not private, and why; None where it is.

    >>> remark(Config.parse({"seed": 7}))
    'reproducible, not private (seed 7)'
    """
    notes = []
    if config.placement == "none":
        notes.append(NO_NOISE)
    if config.seed >= 0:
        notes.append(f"{NOT_PRIVATE} (seed {config.seed})")
    return "; ".join(notes) or None


def noise(placement: str) -> str:
    """The placement in words.

    >>> noise("none"), noise("central")
    ('no noise', 'central noise')
    """
    return f"{'no' if placement == 'none' else placement} noise"


def notes(plan: Plan) -> list[str]:
    """What is odd about a plan and not refused: all of it follows from public settings.

    >>> from fedpriv.config.plan import make_plan
    >>> notes(make_plan(Config.parse({"clients": 50, "sampling-rate": 0.5})))
    ['delta 0.002 is large: it would allow one unit in 500 to be published; more units allow a smaller delta']
    """
    config, sampler = plan.config, plan.mechanism.sampler
    found = []
    if plan.budget is None and (unused := _set_of_the_budget(config)):
        found.append(f"{unused} counts for nothing: placement=none adds no noise")
    if plan.budget is not None and plan.budget.epsilon > _LARGE_EPSILON:
        found.append(
            f"epsilon {plan.budget.epsilon:g} promises next to nothing: another unit's data may make what is "
            f"released e^{plan.budget.epsilon:g} times as likely"
        )
    if plan.budget is not None and plan.budget.delta > _LARGE_DELTA:
        found.append(
            f"delta {plan.budget.delta:.3g} is large: it would allow one unit in {1 / plan.budget.delta:.0f} "
            "to be published; more units allow a smaller delta"
        )
    if sampler.expected_size < 1:
        found.append(
            f"a cohort has {sampler.expected_size:.3g} units in expectation: in many rounds nobody takes "
            "part; a higher sampling-rate helps"
        )
    rate = config.sampling_rate
    if isinstance(sampler, FixedSize) and abs(sampler.size - rate * sampler.population) > (
        _FAR * rate * sampler.population
    ):
        found.append(
            f"cohorts are of {sampler.size} of {sampler.population} units, a rate of "
            f"{sampler.size / sampler.population:.3g} and not of sampling-rate {rate:g}"
        )
    return found


def _set_of_the_budget(config: Config) -> str:
    """The settings of a budget that are not as by default, as a person would give them."""
    now, defaults, derived = config.table(), Config.parse({}).table(), config.derived()
    changed = [key for key in _OF_THE_BUDGET if now[key] not in (defaults[key], derived.get(key))]
    return ", ".join(f"{key}={now[key]}" for key in changed)

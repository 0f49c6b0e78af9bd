"""The noise and the epsilons of placements before any run, from public settings alone.

Rows of one budget are the comparison at equal epsilon. The rows central, distributed and secure-aggregation
have about the same noise on the sum, up to what colluding parties know of it: they are the comparison at
equal noise, in which epsilon against the server differs.

>>> import math
>>> from fedpriv.config.schema import Config
>>> config = Config.parse({"model": "logistic", "sampler": "fixed-size", "rounds": 5, "optimizer": "dp-sgd"})
>>> central, local = rows(compare.plans(config, ["central", "local"]))
>>> cohort = config.clients * config.sampling_rate
>>> round(local["noise on the mean"] / local["noise of a message"] * math.sqrt(cohort), 6)
1.0
>>> central["epsilon against the server"] is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.config.plan import Plan
from fedpriv.report.adversaries import server_and_models, views
from fedpriv.report.notices import remark
from fedpriv.simulation import compare
from fedpriv.simulation.compare import MODELS, SERVER

MEAN = "noise on the mean"
_NOISE = ("noise of a message", MEAN)
HEADER = ("placement", "defends against", "neighbours", *_NOISE, SERVER, MODELS)
NOTES = (
    "Noise is the standard deviation of a coordinate at the first release, in clip norms. Training suffers "
    "from the noise on the mean.",
    "central, distributed and secure-aggregation have about equal noise on the mean, and different epsilons "
    "against the server. central and local have equal epsilons, and different noise: whole noise on each of "
    "m messages is divided by sqrt(m) in the mean, central noise by m.",
)


def rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """A row for each plan; None is infinite, or not known where silos average their own models."""
    return [_row(plan) for plan in plans]


def _row(plan: Plan) -> dict[str, Any]:
    name = compare.name(plan)
    found: dict[str, Any] = dict.fromkeys(HEADER)
    found |= {"placement": name, "defends against": compare.AGAINST[name]}
    if plan.budget is None:
        return found | dict.fromkeys(_NOISE, 0.0)
    if plan.config.simulates_noise:
        found["remark"] = remark(plan.config)
    events = plan.events
    found["neighbours"] = events[0].relation.value
    by_silo = {"silo": tuple(events)} if plan.by_silo else None
    found[SERVER], found[MODELS] = server_and_models(views(plan, events, by_silo), plan.config.accounting)
    if not plan.by_silo:
        found |= noise(plan)
    return found


def noise(plan: Plan) -> dict[str, float]:
    """The noise of a message and on the mean, in clip norms, at the first release of a plan.

    The plan has a budget, and its silos do not average models of their own.
    """
    mechanism = plan.mechanism
    stds = (mechanism.planned_events()[0].noise_multiplier,)
    placement = mechanism.placement.resized(mechanism.planned[0].rate_factor)
    expected = mechanism.sampler.resized(mechanism.planned[0].rate_factor).expected_size
    own = placement.party_stds(stds)
    return dict(zip(_NOISE, (own[0] if own else 0.0, placement.total_stds(stds)[0] / expected), strict=True))


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row as text, in the order of ``HEADER``."""
    found = [str(row[key] or "") for key in HEADER[:3]]
    found += ["" if row[key] is None else f"{row[key]:.3g}" for key in _NOISE]
    return [*found, *("infinite" if row[key] is None else f"{row[key]:.3g}" for key in (SERVER, MODELS))]

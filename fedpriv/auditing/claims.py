"""What a run claims, by the audit's own few lines: sensitivities, noise, denominators, and events.

The audit takes z from the ledger, clip norms and weights from the public query, and the rest from the public
settings. It computes everything else here, and not by the code that it audits.

>>> import torch
>>> from fedpriv.mechanism.query import Query, SumBlock, Term
>>> query = Query((torch.zeros(3),), (SumBlock((Term(1.5), Term(0.5, weight=-2.0))),))
>>> sensitivities(query), noise_stds(query, 2.0)
((2.5,), (5.0,))
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from scipy import stats

from fedpriv.accounting.events import Event, Relation
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.data import Indices
from fedpriv.mechanism.placement import PLACEMENTS, AtParties
from fedpriv.mechanism.query import Query, SumBlock
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.runs.budget import RunAccountant

_ROUNDING = 1e-9  # relative differences below it are rounding


def sensitivities(query: Query) -> tuple[float, ...]:
    """S of each block: the largest norm of what one unit may add."""
    return tuple(
        math.fsum(abs(term.weight) * term.clip_norm for term in block.terms if term.weight)
        if isinstance(block, SumBlock)
        else 0.5
        for block in query.blocks
    )


def noise_stds(query: Query, z: float, surplus: float = 1.0) -> tuple[float, ...]:
    """The std of each block's noise, z S / sqrt(share), times the known surplus of parties' noise."""
    pairs = zip(sensitivities(query), query.blocks, strict=True)
    return tuple(surplus * z * bound / math.sqrt(block.share) for bound, block in pairs)


def surplus(plan: Plan, rate_factor: float = 1.0, known: int = 0) -> float:
    """The noise on a released sum as a multiple of the calibrated noise, without ``known`` parties' noise.

    m shares are in a sum: all of the noise each (local), or such that n - c of them have all of it.
    """
    placement = plan.mechanism.placement
    if not isinstance(placement, AtParties):
        return 1.0
    factor = rate_factor if placement.per_unit else 1.0
    return party_share(plan, rate_factor) * math.sqrt(round(placement.shares * factor) - known)


def party_share(plan: Plan, rate_factor: float = 1.0) -> float:
    """The noise of one party as a multiple of the calibrated noise."""
    placement = plan.mechanism.placement
    assert isinstance(placement, AtParties)
    if placement.server_view:
        return 1.0
    factor = rate_factor if placement.per_unit else 1.0
    fewest = max(1, round(placement.min_replies * factor))
    return 1 / math.sqrt(max(fewest - placement.colluders, 1))


def denominator(plan: Plan, rate_factor: float = 1.0) -> float:
    """The public expected size of a cohort.

    A sampler with settings of its own gives its size itself: the audit knows no rule for it.
    """
    config, units = plan.config, plan.mechanism.sampler.population
    kind = SAMPLERS[config.sampler]
    if kind.settings.fields():
        return float(plan.mechanism.sampler.resized(rate_factor).expected_size)
    sampling = kind.sampling
    if not sampling.samples:
        return float(units)
    if sampling.random_size:
        return config.sampling_rate * rate_factor * units
    size = max(1, round(config.sampling_rate * units))
    return float(round(size * rate_factor)) if rate_factor != 1 else float(size)


def replaces(config: Config) -> bool:
    """Whether neighbours replace a unit: as configured, for fixed-size cohorts, and in a party's message."""
    if PLACEMENTS[config.placement].server_view or SAMPLERS[config.sampler].sampling.fixed_size:
        return True
    return config.relation == Relation.REPLACE_ONE.value


@cache
def band_coefficients(bands: int) -> tuple[float, ...]:
    """c_0, ..., c_{b-1} of correlated noise: binomial(2k, k) / 4^k in steps of 2^-16, by their norm."""
    root = [round(2**16 * math.comb(2 * k, k) / 4**k) for k in range(bands)]
    return tuple(value / math.hypot(*root) for value in root)


def of_another_group(plan: Plan, release: int, cohort: Indices) -> bool:
    """Whether a cohort has units that its release must not ask: a unit's group is its number modulo b."""
    bands = plan.mechanism.sampler.bands
    return bool((cohort % bands != release % bands).any())


def mismatch(plan: Plan, event: Event, release: int, rate_factor: float = 1.0) -> str | None:
    """What a charged event says of the cohorts of a release that is not as configured, or None."""
    config, placement = plan.config, plan.mechanism.placement
    sampling = SAMPLERS[config.sampler].sampling
    if (event.relation is Relation.REPLACE_ONE) != replaces(config):
        return f"an event of {event.relation.value} neighbours"
    if placement.server_view:
        return "a message that is accounted as sampled" if event.sampling.samples else None
    if event.sampling is not sampling:
        return f"a {config.sampler} cohort that is accounted as {event.sampling.sampler}"
    size, units = denominator(plan, rate_factor), plan.mechanism.sampler.population
    bands = plan.mechanism.sampler.bands
    if (event.groups, event.group) != (bands, release % bands):
        return "an event of another group"
    if event.rate < bands * size / units * (1 - _ROUNDING):
        return "an event whose sampling rate is too small"
    if isinstance(placement, AtParties) and placement.per_unit and sampling.random_size:
        above = float(stats.binom.sf(placement.shares, units, event.rate))
        if event.truncation < above * (1 - _ROUNDING):
            return "an event that does not account for the truncation of cohorts"
    return None


class Charged:
    """The run's budget gate, observed: what is on disk is what releases claim.

    Attributes:
        events: the events in the ledger's file, in order.
        charges: the number of calls of ``charge``.
    """

    adaptive = False

    def __init__(self, gate: RunAccountant, path: Path) -> None:
        self._gate, self._path, self._read = gate, path, 0
        self.events: list[Event] = []
        self.charges = 0
        self.adaptive = gate.adaptive

    def affords(self, events: Sequence[Event]) -> bool:
        """See :class:`fedpriv.accounting.accountant.BudgetGate`."""
        return self._gate.affords(events)

    def record(self, events: Sequence[Event], silos: Sequence[int], costliest: Sequence[Event]) -> None:
        """See :class:`fedpriv.node.silo.SiloBudgetGate`. An audit has equal silos and does not call it."""
        self._gate.record(events, silos, costliest)

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        """See :class:`fedpriv.accounting.accountant.BudgetGate`. The ledger's file is read afterwards."""
        self._gate.charge(events, *((silos,) if silos else ()))
        self.charges += len(events)
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = [json.loads(line) for line in file.read().splitlines()]
            self._read = file.tell()
        self.events += [Event.from_json(line["event"]) for line in lines if "event" in line]

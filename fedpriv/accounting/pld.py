"""Privacy loss distributions (interim form on dp-accounting).

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(2.0, "none", "replace-one"): 1}
>>> round(Pld().compose(counts, 1e-5).epsilon(1e-5)[0], 2)
4.38
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dp_accounting.pld import privacy_loss_distribution as upstream
from dp_accounting import NeighboringRelation

from fedpriv.accounting import grouping, relations
from fedpriv.accounting.events import Event


class PldProfile:
    def __init__(self, pld: Any) -> None:
        self._pld = pld

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        if delta <= 0:
            return math.inf, None
        return float(self._pld.get_epsilon_for_delta(delta)), None


class Pld:
    name = "pld"
    kind = "bound"

    def refusal(self, event: Event) -> str | None:
        if event.sampling == "without-replacement" and event.rate < 1:
            return "without-replacement sampling"
        return None

    def compose(self, counts: Mapping[Event, int], delta: float) -> PldProfile:
        total = None
        for event, count in grouping.rounded_down(counts, 16).items():
            plain = relations.unsampled(event)
            replace = event.relation == "replace-one" and not plain
            pld = upstream.from_gaussian_mechanism(
                relations.plain_multiplier(event) if plain else event.noise_multiplier,
                value_discretization_interval=1e-3, sampling_prob=1.0 if plain else event.rate,
                neighboring_relation=NeighboringRelation.REPLACE_ONE
                if replace else NeighboringRelation.ADD_OR_REMOVE_ONE,
            ).self_compose(count)
            total = pld if total is None else total.compose(pld)
        return PldProfile(total)

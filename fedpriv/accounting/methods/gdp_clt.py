"""Gaussian differential privacy with Du's extended central limit theorem: an estimate, not a bound.

Du 2021, equation 7: mu_tot = q sqrt(sum_t (exp(mu_t^2) - 1)) with mu_t = 1 / z_t, converted to epsilon by
equation 1. It is the limit of many small steps and can UNDERstate the privacy loss several-fold.

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(0.5, "poisson", "add-remove", rate=0.01): 200}
>>> round(GdpClt().stages([counts], 1e-5)[0].epsilon(1e-5)[0], 2)
4.56
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.accounting.events import Event, Relation
from fedpriv.accounting.methods import gaussian, relations
from fedpriv.accounting.methods.base import Method, register


@dataclass(frozen=True)
class GdpProfile:
    """The privacy curve of mu-GDP.

    Attributes:
        mu: the distance of the two Gaussians.
    """

    mu: float

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, None) at ``delta``."""
        return gaussian.epsilon(self.mu, delta), None


@register
class GdpClt(Method):
    """The extended GDP central limit theorem (Du 2021, corollary 1)."""

    name = "gdp-clt"
    label = "GDP-CLT"
    kind = "estimate"
    summary = "a central limit theorem of Gaussian differential privacy, which can understate several-fold"
    also_called = ("gdp",)
    place = 2
    in_reports = True

    def refusal(self, event: Event) -> str | None:
        """Why ``event`` is not supported, or None.

        Supported are Gaussian releases without sampling, or with Poisson sampling under add/remove, the case
        of the theorem.
        """
        if event.mechanism != "gaussian":
            return relations.not_gaussian(event)
        drawn = event.sampling.random_size and event.relation is Relation.ADD_REMOVE
        if drawn or not event.sampled:
            return None
        return f"{event.sampling} sampling under {event.relation}"

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[GdpProfile]:
        """mu_tot of equation 7 after each stage.

        Events without sampling compose exactly and add their mu^2.
        """
        squares = [math.fsum(n * _squared(event) for event, n in counts.items()) for counts in added]
        return [GdpProfile(math.sqrt(total)) for total in itertools.accumulate(squares)]


def _squared(event: Event) -> float:
    """The event's contribution to mu_tot^2."""
    if not event.sampled:
        return float(relations.plain_multiplier(event) ** -2)
    exponent = event.noise_multiplier**-2
    return event.rate**2 * math.expm1(exponent) if exponent < 700 else math.inf

"""Concentrated differential privacy, zCDP and tCDP: the bounds of the baselines in Du 2021, table 1.

A release is (rho, omega)-tCDP if its Renyi divergence at each order a in (1, omega) is at most rho a;
rho-zCDP is the case omega = infinity (Bun & Steinke 2016; Bun, Dwork, Rothblum & Steinke 2018). Under
composition rho adds up. Both convert to epsilon = min over a of rho a + log(1/delta) / (a - 1), which for
omega = infinity is rho + 2 sqrt(rho log(1/delta)).

- ``zcdp`` (Yu et al. 2019): a Gaussian release costs rho = 1 / (2 z^2). It gives no credit for sampling, so
  it is valid for every sampler (the divergence of mixtures is at most that of their parts) but loose. An
  (e, 0)-DP selection costs e^2 / 2 (Bun & Steinke 2016, proposition 3.3), which is equal for e = 1/z.
- ``tcdp`` (Zhang et al. 2021): a release over a sampled cohort costs 13 q^2 rho up to the order
  log(1/q) / (4 rho), by the amplification theorem of Bun et al. 2018 for rho <= 0.1, q <= 0.1 and
  log(1/q) >= 3 rho (2 + log2(1/rho)). Above that order, or outside those ranges, it costs rho. The theorem is
  stated for cohorts of a fixed size. Its proof compares q A + (1-q) B with q A' + (1-q) B, and Poisson
  sampling under add/remove is the case A' = B.

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(4.0, "poisson", "add-remove", rate=0.01): 1000}
>>> [round(method.stages([counts], 1e-5)[0].epsilon(1e-5)[0], 2) for method in (Zcdp(), Tcdp())]
[69.19, 1.41]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.events import Event
from fedpriv.accounting.methods import relations
from fedpriv.accounting.methods.base import Method, register
from fedpriv.accounting.pld.privacy_loss import Array

# The ranges and the constant of the amplification theorem of Bun et al. 2018.
_MAX_RHO, _MAX_RATE, _AMPLIFICATION = 0.1, 0.1, 13.0


@dataclass(frozen=True)
class ConcentratedProfile:
    """A composition whose Renyi divergence at order a is at most rho_j a for every j with a <= omega_j.

    Attributes:
        rho, omega: shape (k,); omega may be infinite.
    """

    rho: Array
    omega: Array

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, None), where epsilon is the minimum over all orders."""
        if delta <= 0:
            return math.inf, None
        target = -math.log(delta)
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.minimum(1 + np.sqrt(target / self.rho), self.omega)
            values = np.where(self.rho > 0, self.rho * order + target / (order - 1), 0.0)
        return float(values.min()), None


@register
class Zcdp(Method):
    """Zero-concentrated differential privacy, without credit for sampling."""

    name = "zcdp"
    label = "zCDP"
    kind = "bound"
    summary = "zero-concentrated differential privacy, a loose bound without credit for sampling"
    place = 4

    def refusal(self, event: Event) -> str | None:
        """None: every event is supported."""
        return None

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[ConcentratedProfile]:
        """The sum of the events' rho after each stage."""
        costs = np.cumsum([math.fsum(n * rho(event) for event, n in counts.items()) for counts in added])
        return [ConcentratedProfile(cost[None], np.array([math.inf])) for cost in costs]


@register
class Tcdp(Method):
    """Truncated concentrated differential privacy, amplified by sampling."""

    name = "tcdp"
    label = "tCDP"
    kind = "bound"
    summary = "truncated concentrated differential privacy, a loose bound"
    place = 3

    def refusal(self, event: Event) -> str | None:
        """Why ``event`` is not supported, or None.

        Supported are all Gaussian releases except Poisson sampling under replace-one, which the theorem does
        not cover.
        """
        return relations.not_gaussian(event) or relations.replaced_poisson(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[ConcentratedProfile]:
        """The profile after each stage. At order a, an event is amplified if its omega is at least a."""
        events = list(dict.fromkeys(event for counts in added for event in counts))
        counts = np.array([[stage.get(event, 0) for event in events] for stage in added], dtype=float)
        plain = np.array([rho(event) for event in events])
        sampled, omega = np.array([_amplified(event) for event in events]).T
        order = np.argsort(omega)
        counts, plain, sampled, omega = counts[:, order], plain[order], sampled[order], omega[order]
        totals = np.cumsum(counts, axis=0)
        # rho up to omega_j: events before j (sorted by omega) cost their plain rho, all others the amplified
        # rho.
        beyond = np.cumsum(totals * plain, axis=1)
        within = np.cumsum((totals * sampled)[:, ::-1], axis=1)[:, ::-1]
        none = np.zeros((len(added), 1))
        values = np.hstack([none, beyond]) + np.hstack([within, none])
        ends = np.append(omega, math.inf)
        # Orders start at 1, so events that are not amplified (omega = 0) need no separate entry.
        return [ConcentratedProfile(row[ends > 1], ends[ends > 1]) for row in values]


def rho(event: Event) -> float:
    """rho of one release without credit for sampling: half the squared distance over the noise variance.

    The distance is 2 S under replace-one for every sampler, since mixtures are compared part by part.
    """
    return 0.5 / relations.plain_multiplier(event) ** 2


def _amplified(event: Event) -> tuple[float, float]:
    """(rho, omega) of a release over a sampled cohort; (its plain rho, 0) if the theorem does not apply."""
    plain, rate = rho(event), event.rate
    if (
        not event.sampled
        or plain > _MAX_RHO
        or rate > _MAX_RATE
        or -math.log(rate) < 3 * plain * (2 - math.log2(plain))
    ):
        return plain, 0.0
    return _AMPLIFICATION * rate**2 * plain, -math.log(rate) / (4 * plain)

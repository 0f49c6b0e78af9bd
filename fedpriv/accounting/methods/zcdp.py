"""Concentrated differential privacy, zCDP and tCDP: the bounds of Du's Table 1 baselines.

A release is (rho, omega)-tCDP where its Renyi divergence at each order a in (1, omega) is at most rho a;
rho-zCDP is the case without an end (Bun & Steinke 2016; Bun, Dwork, Rothblum & Steinke 2018). Both add up,
and both become epsilon = min over a of rho a + log(1/delta) / (a - 1), which without an end is
rho + 2 sqrt(rho log(1/delta)).

- ``zcdp`` (Yu et al. 2019): a Gaussian release costs rho = 1 / (2 z^2). Sampling is NOT credited, which is
  true for every sampler (divergences of mixtures are no larger than those of their parts), and loose. An
  (e, 0)-private choice costs e^2 / 2 (Bun & Steinke 2016, proposition 3.3), which with e = 1/z is the same.
- ``tcdp`` (Zhang et al. 2021): a release over a sampled cohort costs 13 q^2 rho up to the order
  log(1/q) / (4 rho), by the amplification theorem of Bun et al. 2018 for rho <= 0.1, q <= 0.1 and
  log(1/q) >= 3 rho (2 + log2(1/rho)); and rho beyond that order or outside those ranges. The theorem is
  about cohorts of a fixed size; its proof compares q A + (1-q) B with q A' + (1-q) B, and Poisson sampling
  under add/remove is A' = B.

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(4.0, "poisson", "add-remove", rate=0.01): 1000}
>>> [round(method.stages([counts], 1e-5)[0].epsilon(1e-5)[0], 2) for method in (Zcdp(), Tcdp())]
[69.19, 1.41]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.accounting.events import Event
from fedpriv.accounting.methods import relations
from fedpriv.accounting.pld.privacy_loss import Array

# The amplification theorem of Bun et al. 2018: its ranges and its constant.
_LARGEST_RHO, _LARGEST_RATE, _CONSTANT = 0.1, 0.1, 13.0


@dataclass(frozen=True)
class ConcentratedProfile:
    """A composition whose Renyi divergence at order a is at most rho_j a wherever a <= omega_j.

    Attributes:
        rho, omega: shape (k,); omega may be infinite.
    """

    rho: Array
    omega: Array

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, None): the least over all orders."""
        if delta <= 0:
            return math.inf, None
        target = -math.log(delta)
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.minimum(1 + np.sqrt(target / self.rho), self.omega)
            values = np.where(self.rho > 0, self.rho * order + target / (order - 1), 0.0)
        return float(values.min()), None


class Zcdp:
    """Zero-concentrated differential privacy, without credit for sampling."""

    name = "zcdp"
    label = "zCDP"
    kind = "bound"

    def refusal(self, event: Event) -> str | None:
        """None: every event is supported."""
        return None

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[ConcentratedProfile]:
        """Sums of the events' rho."""
        costs = np.cumsum([math.fsum(n * rho(event) for event, n in counts.items()) for counts in added])
        return [ConcentratedProfile(cost[None], np.array([math.inf])) for cost in costs]


class Tcdp:
    """Truncated concentrated differential privacy, amplified by sampling."""

    name = "tcdp"
    label = "tCDP"
    kind = "bound"

    def refusal(self, event: Event) -> str | None:
        """All Gaussian releases but Poisson samples under replace-one, which the theorem is not about."""
        return relations.not_gaussian(event) or relations.replaced_poisson(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[ConcentratedProfile]:
        """At each order, every event is amplified whose own omega reaches it."""
        events = list(dict.fromkeys(event for counts in added for event in counts))
        counts = np.array([[stage.get(event, 0) for event in events] for stage in added], dtype=float)
        plain = np.array([rho(event) for event in events])
        sampled, omega = np.array([_amplified(event) for event in events]).T
        order = np.argsort(omega)
        counts, plain, sampled, omega = counts[:, order], plain[order], sampled[order], omega[order]
        totals = np.cumsum(counts, axis=0)
        # rho up to omega_j: events before j in this order cost their plain rho, all others the amplified one.
        beyond = np.cumsum(totals * plain, axis=1)
        within = np.cumsum((totals * sampled)[:, ::-1], axis=1)[:, ::-1]
        none = np.zeros((len(added), 1))
        values = np.hstack([none, beyond]) + np.hstack([within, none])
        ends = np.append(omega, math.inf)
        # Orders start at 1, so what is not amplified at all has no end of its own.
        return [ConcentratedProfile(row[ends > 1], ends[ends > 1]) for row in values]


def rho(event: Event) -> float:
    """rho of one release as if nobody were sampled: half the squared distance over the noise variance.

    That distance is 2 S under replace-one whatever the sampler, since mixtures are compared part by part.
    """
    return 0.5 / relations.plain_multiplier(event) ** 2


def _amplified(event: Event) -> tuple[float, float]:
    """(rho, omega) of a release over a sampled cohort; (its plain rho, 0) where the theorem is silent."""
    plain, rate = rho(event), event.rate
    if (
        relations.unsampled(event)
        or plain > _LARGEST_RHO
        or rate > _LARGEST_RATE
        or -math.log(rate) < 3 * plain * (2 - math.log2(plain))
    ):
        return plain, 0.0
    return _CONSTANT * rate**2 * plain, -math.log(rate) / (4 * plain)

"""Advanced composition for unequal releases, and Wu's closed form for the noise.

Wu 2021, lemma 2.2: releases that are (eps_i, delta_i)-DP compose to

    eps = sqrt(2 log(1/d) sum eps_i^2) + sum eps_i (e^eps_i - 1) / (e^eps_i + 1),
    delta = 1 - prod (1 - delta_i) + d  for every d in (0, 1),

or to the sum of the eps_i. Kairouz, Oh & Viswanath 2017 (theorem 3.5) prove both without the condition
eps_i < 1. Here every release gets an equal part of delta. Its eps_i is the exact epsilon of the Gaussian
mechanism instead of that of lemma 2.1, which needs eps_i < 1. Sampling a cohort turns (eps, delta) into
(log(1 + q (e^eps - 1)), q delta) (Balle, Barthe & Gaboardi 2018, theorems 8 and 9).

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(4.0, "poisson", "add-remove", rate=0.01): 1000}
>>> round(Advanced().stages([counts], 1e-5)[0].epsilon(1e-5)[0], 2)
3.29
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.methods import gaussian, quantisation, relations
from fedpriv.accounting.methods.base import Method, register

# Shares of delta that are tried for d above; the best one is used.
_PARTS = (0.1, 0.5, 0.9)
# One epsilon takes about 0.1 ms. If there are more distinct multipliers than this, they are rounded down.
DISTINCT = 128


@dataclass(frozen=True)
class AdvancedProfile:
    """Releases (1/multiplier, sampling rate, count) that share delta equally.

    Attributes:
        releases: one triple for each distinct (1/multiplier, sampling rate).
    """

    releases: tuple[tuple[float, float, int], ...]

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, None), where epsilon is the minimum over a few splits of ``delta``."""
        if delta <= 0:
            return math.inf, None
        return min(self._composed(part * delta, (1 - part) * delta) for part in _PARTS), None

    def _composed(self, composition: float, shared: float) -> float:
        total = sum(count for _, _, count in self.releases)
        counts = np.array([count for _, _, count in self.releases])
        each = np.array([_sampled(mu, rate, shared / total) for mu, rate, _ in self.releases])
        if not np.isfinite(each).all():
            return math.inf
        spread = math.sqrt(-2 * math.log(composition) * float(counts @ each**2))
        return min(float(counts @ each), spread + float(counts @ (each * np.tanh(each / 2))))


@register
class Advanced(Method):
    """Extended advanced composition (Wu 2021, lemma 2.2)."""

    name = "advanced"
    label = "advanced composition"
    kind = "bound"
    summary = "advanced composition, a loose bound"
    place = 5
    holds_budgets = False

    def refusal(self, event: Event) -> str | None:
        """Why ``event`` is not supported, or None.

        Supported are all Gaussian releases except Poisson sampling under replace-one, which the amplification
        theorem above does not cover.
        """
        return relations.not_gaussian(event) or relations.replaced_poisson(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[AdvancedProfile]:
        """The profile after each stage. Above ``DISTINCT`` multipliers, close ones are rounded down."""
        floors = quantisation.floors([event for counts in added for event in counts], DISTINCT)
        total: dict[tuple[float, float], int] = {}
        profiles = []
        for counts in added:
            for event, count in counts.items():
                kind = (1 / relations.plain_multiplier(floors[event]), event.rate)
                total[kind] = total.get(kind, 0) + count
            profiles.append(AdvancedProfile(tuple((*kind, n) for kind, n in sorted(total.items()))))
        return profiles


def _sampled(mu: float, rate: float, delta: float) -> float:
    """Epsilon at ``delta`` of one mu-GDP release over a cohort sampled with ``rate``."""
    plain = gaussian.epsilon(mu, delta / rate)
    if plain > 500:  # avoids overflow of e^eps
        return plain + math.log(rate)
    return math.log1p(rate * math.expm1(plain))


def theorem_scale(events: Sequence[Event], epsilon: float, delta: float) -> float:
    """The scale s for which noise multipliers s z make the events (epsilon, delta)-DP by Wu's theorem.

    Source: Wu 2021, theorem 4.1, equation 6. One example of n is drawn at each of T steps, and its gradient
    has norm at most G. Noise of standard deviation sigma alpha_t on it suffices if

        sigma^2 = (16 G)^2 / (n epsilon)^2 log(16 T / (n delta)) log(1.25 / delta) sum_t 1 / alpha_t^2.

    Here alpha_t is the events' relative noise, s = sigma / G and n = 1 / rate. The proof needs lemma 2.1 for
    every release, which requires every eps_i < 1. Otherwise the formula can understate epsilon several-fold
    (n = 1,000, T = 2,000, alpha_t = (1 + t)^(1/4): "epsilon 4" costs 9.8), so such an epsilon is refused.

    >>> steps = [Event((1 + t) ** 0.25, "without-replacement", "replace-one", 1e-3) for t in range(2000)]
    >>> round(theorem_scale(steps, 0.1, 1e-5), 1)
    19.9

    Raises ArgumentError if the events do not share one sampling rate below 1, for too few events (16 T must
    exceed n delta), and for an epsilon that the proof does not cover.
    """
    validation.finite_positive("epsilon", epsilon)
    validation.between("delta", delta, 0, 1)
    counts = tally(events)
    rates = {event.rate for event in counts}
    if len(rates) != 1 or not 0 < max(rates) < 1:
        raise validation.ArgumentError(
            f"Wu's theorem 4.1 needs one sampling rate between 0 and 1 for all events, not {sorted(rates)}."
        )
    rate, steps = rates.pop(), sum(counts.values())
    if 16 * steps * rate <= delta:
        raise validation.ArgumentError(
            f"Wu's theorem 4.1 needs more than delta / (16 q) steps, not {steps}. Calibrate by the method "
            "'advanced' instead."
        )
    least = min(validation.finite_positive("noise-multiplier", event.noise_multiplier) for event in counts)
    logs = math.log(16 * steps * rate / delta) * math.log(1.25 / delta)
    squares = math.fsum(n / event.noise_multiplier**2 for event, n in counts.items())
    scale = 16 * rate / epsilon * math.sqrt(logs * squares)
    # Lemma 2.1 at the distance 2 G of a replaced gradient and at delta_i = n delta / (16 T).
    largest = 2 / (scale * least) * math.sqrt(2 * math.log(20 * steps * rate / delta))
    if largest >= 1:
        raise validation.ArgumentError(
            f"epsilon={epsilon:g} is outside the range of Wu's theorem 4.1, whose proof holds below "
            f"{epsilon / largest:.3g} here. Lower epsilon, or calibrate by the method 'pld'."
        )
    return scale

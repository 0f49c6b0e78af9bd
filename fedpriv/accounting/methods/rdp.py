"""Renyi differential privacy: a bound, computed with Google's dp-accounting.

Poisson sampling under add/remove follows Mironov, Talwar & Zhang 2019. Fixed-size sampling under replace-one
follows Wang, Balle & Kasiviswanathan 2019 (theorem 27). The conversion to epsilon is that of Canonne, Kamath
& Steinke 2020 (proposition 12). dp-accounting 0.6 does not double the sensitivity under replace-one, so the
halved multiplier is passed to it, unless the installed version is found to do that itself. dp-accounting is
imported on first use, since the import takes about a second in every process of a federation.

>>> from fedpriv.accounting.events import Event
>>> counts = {Event(2.0, "none", "replace-one"): 1}
>>> round(Rdp().stages([counts], 1e-5)[0].epsilon(1e-5)[0], 2)
4.73
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.events import Event, Sampling
from fedpriv.accounting.methods import quantisation, relations
from fedpriv.accounting.methods.base import Method, register

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

ORDERS = (
    *(1 + x / 10 for x in range(1, 40)),
    *(5 + x / 2 for x in range(12)),
    *range(11, 32),
    *range(32, 64, 2),
    *range(64, 128, 8),
    128,
    160,
    192,
    256,
    384,
    512,
    768,
    1024,
)
# One multiplier takes dp-accounting about 20 ms. If there are more distinct ones, they are rounded down.
DISTINCT = 48
_MOST_FIXED = 1e6  # the largest multiplier of a fixed-size release


@dataclass(frozen=True)
class RdpProfile:
    """The Renyi divergences of a composition.

    Attributes:
        divergences: shape (orders,), at ``ORDERS``.
    """

    divergences: np.ndarray[Any, Any]

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, None): the minimum over the orders by Canonne et al. 2020, proposition 12."""
        if delta <= 0:
            return math.inf, None
        orders = np.array(ORDERS)
        with np.errstate(invalid="ignore"):
            values = self.divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        return max(0.0, float(np.min(np.nan_to_num(values, nan=math.inf)))), None


@register
class Rdp(Method):
    """Renyi accounting."""

    name = "rdp"
    label = "RDP"
    kind = "bound"
    summary = "Renyi differential privacy, by Google's dp-accounting"
    also_called = ("moments", "moments-accountant")
    place = 1
    in_reports = True

    def refusal(self, event: Event) -> str | None:
        """Why ``event`` is not supported, or None.

        Supported are all Gaussian releases except Poisson sampling under replace-one, for which no theorem is
        implemented.
        """
        return relations.not_gaussian(event) or relations.replaced_poisson(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[RdpProfile]:
        """The sum of the events' divergences after each stage.

        Above ``DISTINCT`` multipliers, close ones are rounded down to a common one, which can only raise the
        divergences.
        """
        floors = quantisation.floors([event for counts in added for event in counts], DISTINCT)
        total = np.zeros(len(ORDERS))
        profiles = []
        for counts in added:
            for event, count in counts.items():
                total = total + count * _divergences(
                    event.sampling, event.rate, relations.plain_multiplier(floors[event])
                )
            profiles.append(RdpProfile(total))
        return profiles


@functools.lru_cache(maxsize=4096)
def _divergences(sampling: Sampling, rate: float, multiplier: float) -> np.ndarray[Any, Any]:
    """The divergences at ORDERS of one event whose multiplier is already converted for its relation."""
    if rate == 1 or not sampling.samples:
        return np.array(ORDERS) / 2 / multiplier**2
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

    if sampling.random_size:
        return _upstream(
            PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)),
            NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    # Above it dp-accounting takes the log of 0; a smaller multiplier only raises the divergences.
    passed = min(multiplier, _MOST_FIXED) * (2 if upstream_halves() else 1)
    return _upstream(_fixed_size(rate, passed), NeighboringRelation.REPLACE_ONE)


def _fixed_size(rate: float, multiplier: float) -> DpEvent:
    """dp-accounting's event of a fixed-size cohort with the given rate."""
    from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent

    # dp-accounting requires integer sizes but uses only their ratio. Rounding up never understates the rate.
    size = 2**40
    return SampledWithoutReplacementDpEvent(size, math.ceil(rate * size), GaussianDpEvent(multiplier))


def _upstream(event: DpEvent, relation: NeighboringRelation) -> np.ndarray[Any, Any]:
    """The divergences at ORDERS by dp-accounting."""
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS, relation)
    with _without_warnings():
        accountant.compose(event)
    return np.array(accountant._rdp, dtype=float)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppresses this thread's absl warnings within the block. Other threads' logs are not affected.

    dp-accounting warns of each order whose series does not converge, and correctly ignores that order.
    """
    logger, own = logging.getLogger("absl"), threading.get_ident()
    # If the root logger has no handler, absl installs one permanently, which would print other packages'
    # logs.
    handler = logging.NullHandler()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != own or record.levelno > logging.WARNING

    logger.addFilter(passes)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        logger.removeFilter(passes)


@functools.cache
def upstream_halves() -> bool:
    """Whether dp-accounting itself doubles the sensitivity of fixed-size sampling under replace-one.

    It is tested on a cohort of all units, a Gaussian release without sampling, whose divergence is
    order / (2 z^2), or four times that if the sensitivity is doubled.
    """
    from dp_accounting import NeighboringRelation

    divergences = _upstream(_fixed_size(1.0, 1.0), NeighboringRelation.REPLACE_ONE)
    return bool(divergences[-1] > ORDERS[-1])

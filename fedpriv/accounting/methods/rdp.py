"""Renyi differential privacy: a bound, on Google's dp-accounting.

Poisson sampling under add/remove by Mironov, Talwar & Zhang 2019, fixed-size sampling under replace-one
by Wang, Balle & Kasiviswanathan 2019 (theorem 27), converted to epsilon by Canonne, Kamath & Steinke
2020 (proposition 12). dp-accounting 0.6 takes a multiplier over the add/remove sensitivity but adds up
replace-one as if nothing moved by more than that; the halved multiplier is passed to it, unless a newer
one is found to halve it itself. It is imported when first needed, since that takes about a second, which
every process of a federation would pay.

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

import numpy as np

from fedpriv.accounting.events import Event
from fedpriv.accounting.methods import quantisation, relations

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
# dp-accounting takes about 20 ms for one multiplier; more distinct ones than this are rounded down.
DISTINCT = 48


@dataclass(frozen=True)
class RdpProfile:
    """Renyi divergences of a composition.

    Attributes:
        divergences: shape (orders,), at ``ORDERS``.
    """

    divergences: np.ndarray[Any, Any]

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, None): the least over the orders of Canonne et al. 2020, proposition 12."""
        if delta <= 0:
            return math.inf, None
        orders = np.array(ORDERS)
        with np.errstate(invalid="ignore"):
            values = self.divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        return max(0.0, float(np.min(np.nan_to_num(values, nan=math.inf)))), None


class Rdp:
    """Renyi accounting."""

    name = "rdp"
    label = "RDP"
    kind = "bound"

    def refusal(self, event: Event) -> str | None:
        """All Gaussian releases but Poisson sampling under replace-one, for which no theorem is at hand."""
        return relations.not_gaussian(event) or relations.replaced_poisson(event)

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> list[RdpProfile]:
        """Sums of the events' divergences. Beyond ``DISTINCT`` multipliers, close ones are rounded down
        to a common one, which can only raise them."""
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
def _divergences(sampling: str, rate: float, multiplier: float) -> np.ndarray[Any, Any]:
    """Divergences at ORDERS of one event with an already converted multiplier."""
    if sampling == "none" or rate == 1:
        return np.array(ORDERS) / 2 / multiplier**2
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

    if sampling == "poisson":
        return _upstream(
            PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)),
            NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
    given = multiplier * (2 if upstream_halves() else 1)
    return _upstream(_fixed_size(rate, given), NeighboringRelation.REPLACE_ONE)


def _fixed_size(rate: float, multiplier: float) -> DpEvent:
    from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent

    # dp-accounting wants whole sizes but uses their ratio only; rounding up is on the safe side.
    size = 2**40
    return SampledWithoutReplacementDpEvent(size, math.ceil(rate * size), GaussianDpEvent(multiplier))


def _upstream(event: DpEvent, relation: NeighboringRelation) -> np.ndarray[Any, Any]:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS, relation)
    with _without_warnings():
        accountant.compose(event)
    return np.array(accountant._rdp, dtype=float)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Drops what this thread logs through absl meanwhile; nobody else's, and no setting changes.

    dp-accounting warns of each order whose series does not converge, and leaves it out, as it should.
    """
    logger, own = logging.getLogger("absl"), threading.get_ident()
    # Where the root has no handler, absl gives it one for good, which other packages' logs then go to.
    handler = logging.NullHandler()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != own or record.levelno > logging.WARNING

    logger.addFilter(others)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        logger.removeFilter(others)


@functools.cache
def upstream_halves() -> bool:
    """Whether dp-accounting doubles the sensitivity of fixed-size sampling under replace-one itself.

    Read off a cohort of everyone, which is the plain Gaussian: order / (2 z^2), or four times it.
    """
    from dp_accounting import NeighboringRelation

    divergences = _upstream(_fixed_size(1.0, 1.0), NeighboringRelation.REPLACE_ONE)
    return bool(divergences[-1] > ORDERS[-1])

"""Privacy filters: budgets for adaptively chosen events.

An :class:`Accountant` composes events that are fixed in advance. If the next noise multiplier or sampling
rate depends on earlier releases (as in DP-AGD), ordinary composition does not apply in general, because the
choice of events itself depends on the data. A filter is valid for adaptive events: it adds up one number
and stops at a fixed limit.

- ``rdp``: the Renyi divergence at ONE order that is fixed before the first charge (Feldman & Zrnic 2021,
  without their accounting for each individual).
- ``zcdp``: rho, which bounds all orders at once (Rogers et al. 2016 define filters; Whitehouse et al. 2023
  prove this one).

Only the whole budget is guaranteed. An epsilon computed before the end from adaptive events is not a valid
guarantee (that needs a privacy odometer). Therefore a filter has no ``spent()``, only ``used``, the share of
the budget that is used.

>>> budget_gate = Filter(Budget(2.0, 1e-5, "zcdp"))
>>> budget_gate.charge([Event(8.0, "none", "add-remove")])
>>> round(budget_gate.used, 3), budget_gate.affords([Event(1.0, "none", "add-remove")])
(0.098, False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.accounting.accountant import Budget, BudgetExceeded
from fedpriv.accounting.events import Event, Relation, tally
from fedpriv.accounting.ledger import Ledger
from fedpriv.accounting.methods import relations, zcdp
from fedpriv.accounting.methods.base import METHODS, UnsupportedEvent
from fedpriv.accounting.methods.rdp import ORDERS, Rdp
from fedpriv.accounting.pld.privacy_loss import Array

FILTERS = ("rdp", "zcdp")


class Filter:
    """Charges adaptively chosen events. A charge is accepted completely or not at all.

    Events with groups are of one division of the units: a unit has the same group in all of them.

    Attributes:
        adaptive: true. See :class:`fedpriv.accounting.accountant.BudgetGate`.
    """

    adaptive = True

    def __init__(self, budget: Budget, typical: Event | None = None, ledger: Ledger | None = None) -> None:
        """A filter that has charged nothing.

        Args:
            budget: finite, with method ``rdp`` or ``zcdp``.
            typical: for ``rdp``, an event typical of those expected, fixed before the run. The order is the
                one that affords most such events. Default: the best order for Gaussian noise without
                sampling.
            ledger: if given, ``charge`` writes each event to it before it returns.

        Raises ArgumentError for an infinite budget, for a method without a filter, and if no order of
        ``rdp`` meets the budget.
        """
        validation.choice("accounting", budget.method, FILTERS, "the other methods have no privacy filter")
        validation.finite_positive("epsilon", budget.epsilon)
        self.budget = budget
        self._ledger = ledger
        self._relation: Relation | None = None
        # {number of groups: {group: its charges}}; groups compose in parallel
        self._spent: dict[int, dict[int, float]] = {}
        self._order = 0
        self._limit = _largest_rho(budget)
        if budget.method == "rdp":
            self._order, self._limit = _best_order(budget, typical)

    @property
    def limit(self) -> float:
        """The limit of the sum of all charges: of rho, or for ``rdp`` of the divergence at the fixed
        order.
        """
        return self._limit

    @property
    def used(self) -> float:
        """The used share of the budget, in [0, 1]."""
        return self._costliest(self._spent) / self._limit

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted. Charges nothing.

        Raises UnsupportedEvent for events that the budget's method cannot account for, for truncated
        cohorts, and for a relation that differs from that of earlier charges.
        """
        return self._costliest(self._with(events)) <= self._limit

    def charge(self, events: Sequence[Event]) -> None:
        """Charges all ``events`` or none, and writes them to the ledger before it returns.

        Raises BudgetExceeded if they would exceed the budget, and UnsupportedEvent as ``affords`` does.
        """
        spent = self._with(events)
        if self._costliest(spent) > self._limit:
            raise BudgetExceeded(
                f"{sum(event.count for event in events)} more release(s) would exceed epsilon "
                f"{self.budget.epsilon:g} at delta {self.budget.delta:g} by the {self.budget.method} filter; "
                "nothing was charged"
            )
        if self._ledger is not None:
            self._ledger.record(events)
        self._spent = spent
        if events:
            self._relation = events[0].relation

    @staticmethod
    def _costliest(spent: Mapping[int, Mapping[int, float]]) -> float:
        """The most that a unit can have been charged, which is in one group of each division."""
        return math.fsum(max(groups.values()) for groups in spent.values())

    def _with(self, events: Sequence[Event]) -> dict[int, dict[int, float]]:
        """The charges of each group with ``events``."""
        counts = tally(events)
        earlier = {self._relation} if self._relation else set()
        relations.require_one({event.relation for event in counts} | earlier)
        for event in counts:
            reason = METHODS[self.budget.method].refusal(event)
            if reason is None and event.truncation:
                reason = "truncated cohorts"
            if reason is not None:
                raise UnsupportedEvent(f"the {self.budget.method} filter does not support {reason}")
        spent = {number: dict(groups) for number, groups in self._spent.items()}
        for event, n in counts.items():
            groups = spent.setdefault(event.groups, {})
            groups[event.group] = groups.get(event.group, 0.0) + n * self._single(event)
        return spent

    def _single(self, event: Event) -> float:
        if event.rate == 0 or math.isinf(event.noise_multiplier):
            return 0.0
        if event.noise_multiplier == 0:
            return math.inf
        if self.budget.method == "zcdp":
            return zcdp.rho(event)
        return float(_divergences(event)[self._order])


def _largest_rho(budget: Budget) -> float:
    """The rho with rho + 2 sqrt(rho log(1/delta)) = epsilon."""
    target = -math.log(budget.delta)
    # sqrt(target + epsilon) - sqrt(target), without cancellation; rounded down.
    root = budget.epsilon / (math.sqrt(target + budget.epsilon) + math.sqrt(target))
    return root**2 * (1 - 1e-12)


def _best_order(budget: Budget, typical: Event | None) -> tuple[int, float]:
    """(index in ORDERS, limit of the divergence at it) of the order that affords most ``typical`` events."""
    orders = np.array(ORDERS)
    # Canonne et al. 2020, proposition 12, solved for the divergence; rounded down.
    limits = budget.epsilon - np.log1p(-1 / orders) + np.log(budget.delta * orders) / (orders - 1)
    limits *= 1 - 1e-12
    costs = orders / 2
    if typical is not None:
        validation.finite_positive("typical event's noise-multiplier", typical.noise_multiplier)
        validation.positive("typical event's sampling-rate", typical.rate)
        costs = _divergences(typical)
    index = int(np.argmax(np.where(limits > 0, limits / costs, -math.inf)))
    if limits[index] <= 0:
        raise validation.ArgumentError(
            f"epsilon={budget.epsilon:g} at delta={budget.delta:g} is too small for the rdp filter: no order "
            "meets it. Use accounting=zcdp."
        )
    return index, float(limits[index])


def _divergences(event: Event) -> Array:
    """The divergences of one event at ORDERS.

    At a fractional order dp-accounting's series for a sampled release may not converge. Renyi divergences do
    not fall with the order, so that the least one at any larger order is a bound there.
    """
    found = np.nan_to_num(Rdp().stages([{event: 1}], 0.5)[0].divergences, nan=math.inf, posinf=math.inf)
    return np.minimum.accumulate(found[::-1])[::-1]

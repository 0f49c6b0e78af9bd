"""The budget, and the accountant that holds a run to it.

>>> release = Event(2.0, "none", "add-remove")
>>> accountant = Accountant(Budget(3.0, 1e-5))
>>> accountant.charge([release])
>>> round(accountant.spent().epsilon, 2), accountant.affords([release] * 3)
(1.99, False)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedpriv import _check
from fedpriv.accounting.base import Answer
from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.ledger import Ledger
from fedpriv.accounting.methods import METHODS, epsilon


class BudgetExceeded(RuntimeError):
    """A charge would pass the budget; nothing was charged."""


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes:
        epsilon: in (0, inf]; infinite for a run that is only accounted.
        delta: in (0, 1).
        method: ``pld``, ``rdp`` or ``gdp-clt`` (an estimate: it may let a run spend more than it says).
    """

    epsilon: float
    delta: float
    method: str = "pld"

    def __post_init__(self) -> None:
        _check.positive("epsilon", self.epsilon)
        _check.between("delta", self.delta, 0, 1)
        _check.choice("accounting", self.method, METHODS)


class Accountant:
    """Charges events against a budget, whole or not at all.

    A ``plan`` that fits the budget is verified once; charging any part of it afterwards is a matter of
    counting, since dropping events never raises the privacy loss. Other events are verified when they
    come, together with as many repetitions as the run is long, so that a constant schedule of T rounds
    takes O(log T) evaluations.
    """

    def __init__(
        self,
        budget: Budget,
        plan: Sequence[Event] = (),
        ledger: Ledger | None = None,
        charged: Iterable[Event] = (),
    ) -> None:
        """An accountant that has spent ``charged`` (a replayed ledger) and expects ``plan`` in all.

        A plan that does not fit is no error: its events are then verified one charge at a time.
        Raises UnsupportedEvent where the budget's method cannot account for the plan.
        """
        self.budget = budget
        self._ledger = ledger
        self._spent = tally(charged)
        self._verified: dict[Event, int] = {}
        self._answers: dict[int, Answer] = {}
        if plan and self._fits(tally(plan)):
            self._verified = tally(plan)

    @property
    def releases(self) -> int:
        """How many releases were charged."""
        return sum(self._spent.values())

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted; changes nothing that is charged."""
        return self._admits(tally(events))

    def charge(self, events: Sequence[Event]) -> None:
        """Charges all ``events`` or none, and has them in the ledger before it returns.

        Raises:
            BudgetExceeded: where they would pass the budget.
            UnsupportedEvent: where the budget's method cannot account for them.
        """
        added = tally(events)
        if not self._admits(added):
            raise BudgetExceeded(
                f"{sum(added.values())} more release(s) would pass epsilon {self.budget.epsilon:g} "
                f"at delta {self.budget.delta:g} by {self.budget.method}"
            )
        if self._ledger is not None:
            self._ledger.record(events)
        self._spent = _joined(self._spent, added)

    def spent(self) -> Answer:
        """The privacy loss of everything charged so far. Computed when first asked for."""
        releases = self.releases
        if releases not in self._answers:
            events = _listed(self._spent)
            self._answers[releases] = epsilon(events, self.budget.delta, self.budget.method)
        return self._answers[releases]

    def _admits(self, added: Mapping[Event, int]) -> bool:
        wanted = _joined(self._spent, added)
        if all(n <= self._verified.get(event, 0) for event, n in wanted.items()):
            return True
        # Verify ahead: doubling what was spent on these events, then no more than what is asked.
        ahead = max(1, self.releases // max(1, sum(added.values())))
        for copies in sorted({ahead, 1}, reverse=True):
            candidate = _joined(self._spent, {event: n * copies for event, n in added.items()})
            if self._fits(candidate):
                self._verified = candidate
                return True
        return False

    def _fits(self, counts: Mapping[Event, int]) -> bool:
        answer = epsilon(_listed(counts), self.budget.delta, self.budget.method)
        return answer.epsilon <= self.budget.epsilon or math.isinf(self.budget.epsilon)


def _joined(one: Mapping[Event, int], other: Mapping[Event, int]) -> dict[Event, int]:
    total = dict(one)
    for event, n in other.items():
        total[event] = total.get(event, 0) + n
    return total


def _listed(counts: Mapping[Event, int]) -> list[Event]:
    from dataclasses import replace

    return [replace(event, count=n) for event, n in counts.items()]

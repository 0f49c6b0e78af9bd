"""The budget, and the accountant that holds a run to it.

>>> release = Event(2.0, "none", "add-remove")
>>> accountant = Accountant(Budget(3.0, 1e-5))
>>> accountant.charge([release])
>>> round(accountant.spent().epsilon, 2), accountant.affords([release] * 3)
(1.99, False)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fedpriv._internal import validation
from fedpriv.accounting.events import Event, equal_parts, tally
from fedpriv.accounting.ledger import Ledger
from fedpriv.accounting.methods.base import PrivacyGuarantee
from fedpriv.accounting.methods.registry import METHODS, epsilon, epsilons, rising

CHECKPOINTS = 64


class BudgetExceeded(validation.FedprivError, RuntimeError):  # noqa: N818
    """A charge would pass the budget; nothing was charged."""


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes:
        epsilon: in (0, inf]; infinite for a run that is only accounted.
        delta: in (0, 1).
        method: one of METHODS; ``gdp-clt`` is an estimate, which may let a run spend more than it says.
    """

    epsilon: float
    delta: float
    method: str = "pld"

    def __post_init__(self) -> None:
        validation.positive("epsilon", self.epsilon)
        validation.between("delta", self.delta, 0, 1)
        validation.choice("accounting", self.method, METHODS)


class BudgetGate(Protocol):
    """What decides whether a release may be made, and records it first.

    :class:`Accountant` and :class:`fedpriv.accounting.Filter` are budget gates, with or without a ledger.
    """

    @property
    def adaptive(self) -> bool:
        """Whether events may be chosen from earlier answers.

        Only a privacy filter bounds the sum of such events. An accountant bounds what was fixed in advance.
        """

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted; charges nothing."""

    def charge(self, events: Sequence[Event]) -> None:
        """Charge all ``events`` or none. Where there is a ledger, they are on disk before this returns."""


class Accountant:
    """Charges events against a budget, whole or not at all.

    A ``plan`` that fits the budget is verified once; charging any part of it afterwards is a matter of
    counting, since dropping events never raises the privacy loss. Other events are verified when they
    come, together with as many repetitions as the run is long, or half, a quarter, ... of that where it
    would not fit, so that a constant schedule of T rounds takes O(log^2 T) evaluations.

    Attributes:
        adaptive: false. See :class:`BudgetGate`.
    """

    adaptive = False

    def __init__(
        self,
        budget: Budget,
        plan: Sequence[Event] = (),
        ledger: Ledger | None = None,
        charged: Sequence[Event] = (),
        checkpoints: Sequence[int] = (),
    ) -> None:
        """An accountant that has spent ``charged`` (a replayed ledger) and expects ``plan`` in all.

        ``checkpoints`` are the numbers of the plan's events after which ``progress`` is read; by default
        CHECKPOINTS equal parts.
        A plan that does not fit is no error: its events are then verified as they are charged.
        Raises UnsupportedEvent where the budget's method cannot account for the plan.
        """
        self.budget = budget
        self._ledger = ledger
        self._plan = tuple(plan)
        self._spent: dict[Event, int] = {}
        self._followed: int | None = 0
        self._releases = 0
        self._answer: PrivacyGuarantee | None = None
        self._curve: dict[int, float] | None = None
        total = len(self._plan)
        ends = checkpoints or equal_parts(total, CHECKPOINTS)
        self._ends = sorted({total, *(end for end in ends if 0 < end < total)})
        planned = tally(plan)
        self._verified = planned if plan and self._fits(planned) else {}
        self._covered = True  # whether all that was spent lies within what was verified
        self._book(charged)

    @property
    def releases(self) -> int:
        """How many releases were charged."""
        return self._releases

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted; charges nothing.

        Raises UnsupportedEvent where the budget's method cannot account for the events.
        """
        added = tally(events)
        if self._covered and self._covers(added):
            return True
        copies = max(1, self._releases // max(1, sum(added.values())))
        while copies:
            candidate = _joined(self._spent, {event: n * copies for event, n in added.items()})
            if self._fits(candidate):
                self._verified, self._covered = candidate, True
                return True
            copies //= 2
        return False

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        """Charges all ``events`` or none, and has them in the ledger before it returns.

        ``silos`` are the numbers of the disjoint silos that each make these releases; the ledger names them.
        They compose in parallel: all of them together cost what one does.

        Raises:
            BudgetExceeded: where they would pass the budget.
            UnsupportedEvent: where the budget's method cannot account for them.
        """
        if not self.affords(events):
            raise BudgetExceeded(
                f"{sum(event.count for event in events)} more release(s) would pass epsilon "
                f"{self.budget.epsilon:g} at delta {self.budget.delta:g} by {self.budget.method}"
            )
        if self._ledger is not None:
            self._ledger.record(events, **({"silos": list(silos)} if silos else {}))
        self._book(events)

    def spent(self) -> PrivacyGuarantee:
        """The privacy loss of everything charged so far, computed when first asked for."""
        if self._answer is None:
            events = _listed(self._spent)
            self._answer = epsilon(events, self.budget.delta, self.budget.method)
        return self._answer

    def progress(self) -> float:
        """No less than the epsilon spent so far, at a cost that every round can bear.

        While the plan is followed it is read off a curve of its checkpoints, rounded up to the next one; else
        it is ``spent().epsilon``.
        """
        if not self._releases:
            return 0.0
        if self._followed is None or not self._verified:
            return self.spent().epsilon
        if self._curve is None:
            self._curve = self._checkpoints()
        return self._curve[min(at for at in self._curve if at >= self._followed)]

    def _checkpoints(self) -> dict[int, float]:
        """Epsilon after so many events of the plan."""
        parts = [self._plan[i:j] for i, j in itertools.pairwise([0, *self._ends])]
        answers = epsilons(parts, self.budget.delta, self.budget.method, lower=False)
        return dict(zip(self._ends, rising(answers), strict=True))

    def _book(self, events: Sequence[Event]) -> None:
        for event in events:
            follows = self._followed is not None and self._followed < len(self._plan)
            if follows and self._plan[self._followed or 0] == event:
                self._followed = (self._followed or 0) + 1
            else:
                self._followed = None
        added = tally(events)
        self._covered = self._covered and self._covers(added)
        for event, n in added.items():  # in place: a run may have tens of thousands of distinct events
            self._spent[event] = self._spent.get(event, 0) + n
        self._releases += sum(event.count for event in events)
        self._answer = None

    def _covers(self, added: Mapping[Event, int]) -> bool:
        """Whether these events lie within what was verified, on top of what was spent of each."""
        return all(self._spent.get(e, 0) + n <= self._verified.get(e, 0) for e, n in added.items())

    def _fits(self, counts: Mapping[Event, int]) -> bool:
        if math.isinf(self.budget.epsilon):
            return True
        stages = [_listed(counts)]
        answer = epsilons(stages, self.budget.delta, self.budget.method, lower=False)[0]
        return answer.epsilon <= self.budget.epsilon


def _joined(one: Mapping[Event, int], other: Mapping[Event, int]) -> dict[Event, int]:
    total = dict(one)
    for event, n in other.items():
        total[event] = total.get(event, 0) + n
    return total


def _listed(counts: Mapping[Event, int]) -> list[Event]:
    return [replace(event, count=n) for event, n in counts.items()]

"""The privacy budget, and the accountant that enforces it.

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
from fedpriv.accounting.methods.base import METHODS, PrivacyGuarantee
from fedpriv.accounting.methods.registry import epsilon, epsilons, non_decreasing

CHECKPOINTS = 64


class BudgetExceeded(validation.FedprivError, RuntimeError):  # noqa: N818
    """A charge would exceed the budget; nothing was charged."""


@dataclass(frozen=True)
class Budget:
    """The privacy loss that a run may spend.

    Attributes:
        epsilon: in (0, inf]; infinite if the run is accounted for but not limited.
        delta: in (0, 1).
        method: one of METHODS. ``gdp-clt`` is an estimate: it can understate the true epsilon, so a run may
            spend more than the budget.
    """

    epsilon: float
    delta: float
    method: str = "pld"

    def __post_init__(self) -> None:
        validation.positive("epsilon", self.epsilon)
        validation.between("delta", self.delta, 0, 1)
        validation.choice("accounting", self.method, METHODS)


class BudgetGate(Protocol):
    """Decides whether a release may be made, and records it before it is made.

    :class:`Accountant` and :class:`fedpriv.accounting.Filter` are budget gates, with or without a ledger.
    """

    @property
    def adaptive(self) -> bool:
        """Whether events may be chosen from earlier answers.

        Only a privacy filter bounds the sum of such events. An accountant bounds events fixed in advance.
        """

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted. Charges nothing."""

    def charge(self, events: Sequence[Event]) -> None:
        """Charges all ``events`` or none. With a ledger, they are on disk before this returns."""


class Accountant:
    """Charges events against a budget. A charge is accepted completely or not at all.

    A ``plan`` that fits the budget is verified once. Charging a part of it only needs counting, since
    dropping events never raises the privacy loss. Other events are verified when they are charged, together
    with as many repetitions as there were releases so far (or half, a quarter, ... of that number if they do
    not fit). A constant schedule of T rounds thus takes O(log^2 T) evaluations.

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
        """Creates an accountant.

        Args:
            budget: the limit.
            plan: all events that the run intends to charge. A plan that exceeds the budget is no error; its
                events are then verified one by one as they are charged.
            ledger: if given, ``charge`` writes each event to it before it returns.
            charged: events that are already spent, such as those of a replayed ledger.
            checkpoints: numbers of plan events after which ``progress`` evaluates epsilon; by default
                CHECKPOINTS equal parts.

        Raises UnsupportedEvent if the budget's method cannot account for the plan.
        """
        self.budget = budget
        self._ledger = ledger
        self._plan = tuple(plan)
        self._spent: dict[Event, int] = {}
        self._followed: int | None = 0
        self._releases = 0
        self._guarantee: PrivacyGuarantee | None = None
        self._curve: dict[int, float] | None = None
        total = len(self._plan)
        ends = checkpoints or equal_parts(total, CHECKPOINTS)
        self._ends = sorted({total, *(end for end in ends if 0 < end < total)})
        planned = tally(plan)
        self._verified = planned if plan and self._fits(planned) else {}
        self._covered = True  # whether all spent events are among the verified ones
        self._book(charged)

    @property
    def releases(self) -> int:
        """The number of releases charged so far."""
        return self._releases

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted. Charges nothing.

        Raises UnsupportedEvent if the budget's method cannot account for the events.
        """
        added = tally(events)
        if self._covered and self._covers(added):
            return True
        copies = max(1, self._releases // max(1, sum(added.values())))
        while copies:
            candidate = _combined(self._spent, {event: n * copies for event, n in added.items()})
            if self._fits(candidate):
                self._verified, self._covered = candidate, True
                return True
            copies //= 2
        return False

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        """Charges all ``events`` or none, and writes them to the ledger before it returns.

        ``silos`` are the numbers of the disjoint silos that each make these releases; the ledger names them.
        Silos compose in parallel, so the charge does not depend on their number.

        Raises:
            BudgetExceeded: if they would exceed the budget.
            UnsupportedEvent: if the budget's method cannot account for them.
        """
        if not self.affords(events):
            raise BudgetExceeded(
                f"{sum(event.count for event in events)} more release(s) would exceed epsilon "
                f"{self.budget.epsilon:g} at delta {self.budget.delta:g} by {self.budget.method}; nothing "
                "was charged"
            )
        if self._ledger is not None:
            self._ledger.record(events, **({"silos": list(silos)} if silos else {}))
        self._book(events)

    def spent(self) -> PrivacyGuarantee:
        """The privacy loss of all events charged so far. It is computed on the first call after a charge."""
        if self._guarantee is None:
            events = _as_events(self._spent)
            self._guarantee = epsilon(events, self.budget.delta, self.budget.method)
        return self._guarantee

    def progress(self) -> float:
        """An upper bound of ``spent().epsilon`` that is cheap enough to compute every round.

        While the charges follow the plan, it is the epsilon at the plan's next checkpoint. Otherwise it is
        ``spent().epsilon``.
        """
        if not self._releases:
            return 0.0
        if self._followed is None or not self._verified:
            return self.spent().epsilon
        if self._curve is None:
            self._curve = self._checkpoints()
        return self._curve[min(at for at in self._curve if at >= self._followed)]

    def _checkpoints(self) -> dict[int, float]:
        """{number of plan events: epsilon after them} at the checkpoints."""
        parts = [self._plan[i:j] for i, j in itertools.pairwise([0, *self._ends])]
        answers = epsilons(parts, self.budget.delta, self.budget.method, lower=False)
        return dict(zip(self._ends, non_decreasing(answers), strict=True))

    def _book(self, events: Sequence[Event]) -> None:
        for event in events:
            follows = self._followed is not None and self._followed < len(self._plan)
            if follows and self._plan[self._followed or 0] == event:
                self._followed = (self._followed or 0) + 1
            else:
                self._followed = None
        added = tally(events)
        self._covered = self._covered and self._covers(added)
        for event, n in added.items():  # in place, since a run may have tens of thousands of distinct events
            self._spent[event] = self._spent.get(event, 0) + n
        self._releases += sum(event.count for event in events)
        self._guarantee = None

    def _covers(self, added: Mapping[Event, int]) -> bool:
        """Whether the spent events and ``added`` together stay within the verified counts."""
        return all(self._spent.get(e, 0) + n <= self._verified.get(e, 0) for e, n in added.items())

    def _fits(self, counts: Mapping[Event, int]) -> bool:
        if math.isinf(self.budget.epsilon):
            return True
        stages = [_as_events(counts)]
        answer = epsilons(stages, self.budget.delta, self.budget.method, lower=False)[0]
        return answer.epsilon <= self.budget.epsilon


def _combined(one: Mapping[Event, int], other: Mapping[Event, int]) -> dict[Event, int]:
    total = dict(one)
    for event, n in other.items():
        total[event] = total.get(event, 0) + n
    return total


def _as_events(counts: Mapping[Event, int]) -> list[Event]:
    return [replace(event, count=n) for event, n in counts.items()]

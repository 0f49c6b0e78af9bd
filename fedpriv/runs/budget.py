"""What a run has charged: the accountant of the view that gates the budget, and the ledger, disk first.

>>> import tempfile, pathlib
>>> from fedpriv.accounting import Ledger
>>> from fedpriv.config.schema import Config
>>> from fedpriv.config.plan import make_plan
>>> plan = make_plan(Config.parse({"rounds": 4}))
>>> path = pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl"
>>> with Ledger.create(path, {}) as ledger:
...     budget_gate = RunAccountant(plan, ledger, path)
...     for event in plan.mechanism.planned_events():
...         assert budget_gate.affords([event])
...         budget_gate.charge([event])
...     0.98 * 3 < budget_gate.spent() <= 3
True
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from fedpriv.accounting import Accountant, Ledger, epsilon
from fedpriv.accounting.accountant import CHECKPOINTS
from fedpriv.accounting.events import Event, equal_parts
from fedpriv.accounting.head import Head
from fedpriv.accounting.parallel_composition import costs_no_more
from fedpriv.accounting.record import Record, parse, require_reaches
from fedpriv.config.plan import Plan


class RunAccountant:
    """The accountant of the gate's view and its ledger, charged together, disk first.

    Args:
        plan: the run; its gate events are all afforded when the plan is followed.
        ledger: open.
        path: of the ledger's file.
        charged: the gate's events that are in it already, of a resumed run.
        step: how many of the plan's releases that run goes on after: those that it still has the answers of,
            or that it goes on without.

    Attributes:
        adaptive: false. See :class:`fedpriv.accounting.accountant.BudgetGate`.
    """

    adaptive = False

    def __init__(
        self, plan: Plan, ledger: Ledger, path: Path, charged: Sequence[Event] = (), step: int = 0
    ) -> None:
        self._plan, self._ledger, self._path = plan, ledger, path
        self._charged = list(charged)
        self._planned = _what_is_left(plan, charged, step)
        self._follows = True
        self._stages: dict[int, float] = {}
        # Under a participation cap nobody loses by all releases, so events are not simply added up.
        self._accountant = None
        if plan.budget is not None and not plan.capped:
            stops = _stops(plan, len(self._planned), max(0, len(charged) - step))
            self._accountant = Accountant(plan.budget, self._planned, charged=charged, checkpoints=stops)

    def affords(self, events: Sequence[Event]) -> bool:
        """Whether ``charge(events)`` would be accepted; charges nothing."""
        if self._plan.budget is None:
            return True
        if self._accountant is not None:
            return self._accountant.affords(events)
        if len(events) == 1 and self._is_next(events[0]):
            # Release by release, what the client who lost most gave to a part of the plan costs no more
            # than what it gives to the whole.
            wanted = self._at(len(self._planned))
        else:
            wanted = self._epsilon([*self._charged, *events])
        return wanted <= self._plan.budget.epsilon

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        """Record the events on disk, then in the accountant.

        ``silos`` are the numbers of the silos that each make these releases (the client level). The
        accountant holds the schedule of one of them: all are asked in every round, and compose in parallel.
        """
        self._ledger.record(events, **({"silos": list(silos)} if silos else {}))
        for event in events:
            self._book(event)

    def record(self, events: Sequence[Event], silos: Sequence[int], costliest: Sequence[Event]) -> None:
        """Record the events of other silos on disk. ``costliest`` are those that the accountant is charged
        with for the same releases.

        Raises ValueError, and records nothing, if a silo loses more by these events than by ``costliest``.
        """
        if not costs_no_more(events, costliest):
            raise ValueError("the accountant would hold less than the costliest silo loses")
        self._ledger.record(events, silos=list(silos))

    def _book(self, event: Event) -> None:
        self._follows = self._is_next(event)
        self._charged.append(event)
        if self._accountant is not None:
            self._accountant.charge([event])

    def spent(self) -> float:
        """Epsilon spent so far, for the adversary that gates the budget; infinite without noise.

        Without a cap it is ``progress``, which has a point at each evaluation: a composition for each of them
        would take longer than training does. A report's epsilon is computed by itself.
        """
        if self._plan.budget is None:
            return float("inf") if self._charged else 0.0
        if self._accountant is not None:
            return self._accountant.progress()
        return self._epsilon(self._charged)

    def progress(self) -> float:
        """No less than the epsilon spent so far, at a cost that every round can bear."""
        if self._accountant is not None:
            return self._accountant.progress()
        if self._plan.budget is None or not self._charged or not self._follows:
            return self.spent()
        step = -(-len(self._planned) // CHECKPOINTS)
        return self._at(min(len(self._planned), -(-len(self._charged) // step) * step))

    @property
    def releases(self) -> int:
        """How many releases were charged so far; at the client level to each silo."""
        return len(self._charged)

    @property
    def head(self) -> Head:
        """Where the ledger ends; at the client level it has the events of all silos."""
        return self._ledger.head

    def content(self) -> bytes:
        """The ledger's file as it is on disk."""
        return self._path.read_bytes()

    def charged_on_disk(self) -> Record:
        """The gate's events as they are on disk, with their silos where they have any.

        A Ctrl-C while the last charge was written leaves it on disk and nowhere else, and it counts.
        """
        record = parse(self.content(), str(self._path))
        require_reaches(record, self._ledger.head, self._path, "the run that writes it")
        return record

    def _is_next(self, event: Event) -> bool:
        """Whether the plan has been followed and goes on with this event."""
        done = len(self._charged)
        return self._follows and done < len(self._planned) and self._planned[done] == event

    def _at(self, releases: int) -> float:
        """Epsilon after so many releases of the plan, under the cap."""
        if releases not in self._stages:
            self._stages[releases] = self._epsilon(self._planned[:releases])
        return self._stages[releases]

    def _epsilon(self, events: Sequence[Event]) -> float:
        budget = self._plan.budget
        assert budget is not None
        return float(epsilon(self._plan.of_worst_client(events), budget.delta, budget.method).epsilon)


def _stops(plan: Plan, total: int, before: int) -> list[int]:
    """After how many of ``total`` releases progress is wanted: each where they are CHECKPOINTS at most, else
    one, as many parts, and each evaluation where these are no more. ``before`` were charged and lost.

    Fewer would cost a second less, and show plateaus and jumps that only rounding up makes.
    """
    if total <= CHECKPOINTS:
        return list(range(1, total + 1))
    each = plan.config.evaluate_every * plan.config.silo_steps
    evaluations = range(before + each, total, each)
    shown = evaluations if len(evaluations) <= CHECKPOINTS else ()
    return [1, *equal_parts(total, CHECKPOINTS), *shown]


def _what_is_left(plan: Plan, charged: Sequence[Event], step: int) -> tuple[Event, ...]:
    """What was charged and the plan's releases from ``step`` on, as many of them as the budget affords."""
    lost = len(charged) - step
    planned = plan.mechanism.planned_events(lost=lost) if lost > 0 else plan.events
    whole = (*charged, *planned[step:])
    budget = plan.budget
    if budget is None or tuple(charged) == plan.events[:step]:
        return whole

    def fits(left_out: int) -> bool:
        events = whole[: len(whole) - left_out]
        return float(epsilon(events, budget.delta, budget.method).epsilon) <= budget.epsilon

    most, tried = len(whole) - len(charged), 0  # about as many are left out as were lost
    while tried < most and not fits(tried):
        tried = min(most, 2 * tried + 1)
    counts = range(tried // 2, tried + 1)
    return whole[: len(whole) - counts[bisect_left(counts[:-1], True, key=fits)]]

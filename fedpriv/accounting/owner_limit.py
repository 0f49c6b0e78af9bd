"""What all runs on some data may spend together, where each is chosen by whoever saw the earlier answers.

>>> limit, event = Budget(2.0, 1e-5), Event(8.0, "none", "add-remove")
>>> round(share(limit, [event] * 2), 3), share(limit, [event] * 20)
(0.154, inf)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpriv.accounting.accountant import Budget, BudgetExceeded
from fedpriv.accounting.events import RELATIONS, Event
from fedpriv.accounting.filters import Filter
from fedpriv.accounting.methods import relations


def share(limit: Budget, events: Sequence[Event]) -> float:
    """The share of an owner's limit that these events take, each chosen by whoever has seen the answers
    before it; infinity where they pass it. It never falls as events are added, whatever they are.

    Half of delta is for the Renyi filter at the order that suits the limit, the other half for how far
    truncated cohorts are from whole ones: moving every release by its distance in total variation moves the
    divergence by (1 + e^epsilon) times their sum at most.

    The neighbours of a limit are examples (or clients) added or removed, those of its events whichever they
    are: who chooses the runs would else choose the neighbours. A replaced example is one removed and one
    added. Only a cohort of fixed size, whose size neighbours share, is taken under replace-one: there an
    example removed is one replaced by an empty place, which adds nothing, so that its divergence is a bound
    here too, and adds up with the others' at their order.

    Raises UnsupportedEvent where events are of a kind that the filter does not know.
    """
    moved = math.fsum(event.count * event.truncation for event in events)
    taken = moved * (1 + math.exp(min(limit.epsilon, 700.0))) / (limit.delta / 2)
    whole = [replace(relations.added_or_removed(event), truncation=0.0) for event in events]
    used = 0.0
    for relation in RELATIONS:
        budget_gate = Filter(
            Budget(limit.epsilon, limit.delta / 2, "rdp")
        )  # of one order, which the limit decides
        try:
            budget_gate.charge([event for event in whole if event.relation == relation])
        except BudgetExceeded:
            return math.inf
        used += budget_gate.used
    taken = max(taken, used)
    return taken if taken <= 1 else math.inf

"""A data owner's limit: the total budget of all runs on its data, where runs are chosen adaptively.

>>> limit, event = Budget(2.0, 1e-5), Event(8.0, "none", "add-remove")
>>> round(share(limit, [event] * 2), 3), share(limit, [event] * 20)
(0.154, inf)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpriv.accounting.accountant import Budget, BudgetExceeded
from fedpriv.accounting.events import RELATIONS, Event, tally
from fedpriv.accounting.filters import Filter
from fedpriv.accounting.methods import relations


def share(limit: Budget, events: Sequence[Event]) -> float:
    """The share of an owner's limit that these events use; infinity if they exceed the limit.

    The events may be chosen adaptively: each by somebody who has seen all earlier answers. The share never
    falls when events are added.

    Half of delta is for the Renyi filter, at an order that depends only on the limit. The other half is for
    truncated cohorts: if each release moves by its total-variation distance, the divergence moves by at most
    (1 + e^epsilon) times the sum of these distances.

    Groups of cyclic cohorts do not compose in parallel here: a unit may be in another group of each run.

    The limit always holds for one example (or client) added or removed, whatever the relation of the events.
    Otherwise whoever chooses the runs would also choose the neighbours. A replaced example is one removed and
    one added. Only events with a fixed cohort size keep replace-one, since neighbours share that size.
    There a removed example is an example replaced by an empty one that adds nothing, so the replace-one
    divergence is also a bound here, and it adds up with the other events' divergences at the same order.

    Raises UnsupportedEvent for events that the filter does not support.
    """
    events = [replace(event, count=count, groups=1, group=0) for event, count in tally(events).items()]
    distance = math.fsum(event.count * event.truncation for event in events)
    truncation_share = distance * (1 + math.exp(min(limit.epsilon, 700.0))) / (limit.delta / 2)
    untruncated = [replace(relations.added_or_removed(event), truncation=0.0) for event in events]
    used = 0.0
    for relation in RELATIONS:
        # Both filters have the same order, since it depends on the limit alone.
        budget_gate = Filter(Budget(limit.epsilon, limit.delta / 2, "rdp"))
        try:
            budget_gate.charge([event for event in untruncated if event.relation == relation])
        except BudgetExceeded:
            return math.inf
        used += budget_gate.used
    total = max(truncation_share, used)
    return total if total <= 1 else math.inf

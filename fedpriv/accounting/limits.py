"""What all runs on some data may spend together, where each is chosen by whoever saw the earlier answers.

>>> limit, event = Budget(2.0, 1e-5), Event(8.0, "none", "add-remove")
>>> round(share(limit, [event] * 2), 3), share(limit, [event] * 20)
(0.154, inf)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpriv.accounting import relations
from fedpriv.accounting.accountant import Budget, BudgetExceeded
from fedpriv.accounting.events import Event
from fedpriv.accounting.filters import Filter


def share(limit: Budget, events: Sequence[Event]) -> float:
    """The share of an owner's limit that these events take, each chosen by whoever has seen the answers
    before it; infinity where they pass it.

    Half of delta is for the Renyi filter at the order that suits the limit, the other half for how far
    truncated cohorts are from whole ones: moving every release by its distance in total variation moves the
    divergence by (1 + e^epsilon) times their sum at most. Poisson sampling under replace-one, for which the
    filter has no theorem, gets no credit. Where runs have different neighbours, those of the limit are
    examples (or clients) added or removed.

    Raises UnsupportedEvent where events do not add up: two relations, or a kind that the filter does not
    know.
    """
    whole = [
        replace(event, rate=1.0 if relations.replaced_poisson(event) else event.rate, truncation=0.0)
        for event in relations.alike(events)
    ]
    moved = math.fsum(event.count * event.truncation for event in events)
    cut = moved * (1 + math.exp(min(limit.epsilon, 700.0))) / (limit.delta / 2)
    books = Filter(Budget(limit.epsilon, limit.delta / 2, "rdp"))
    try:
        books.charge(whole)
    except BudgetExceeded:
        return math.inf
    return max(books.used, cut) if cut <= 1 else math.inf

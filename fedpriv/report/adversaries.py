"""Who is a run's adversary, and what its charged events tell them: the epsilons of a report.

All from public configuration and charged events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpriv.accounting import PrivacyGuarantee, UnsupportedEvent, api, epsilon
from fedpriv.accounting.events import Event
from fedpriv.accounting.parallel_composition import compose
from fedpriv.config.plan import Plan

METHODS = ("pld", "rdp", "gdp-clt")

Table = dict[str, dict[str, Any]]


def all_methods(events: Sequence[Event], delta: float, held: str) -> Table:
    """Epsilon of the events at ``delta`` by every method, ``held`` among them, or why one does not answer."""
    return _table(lambda method: epsilon(events, delta, method), held)


def _table(by: Callable[[str], PrivacyGuarantee], held: str) -> Table:
    table: Table = {}
    for method in dict.fromkeys((*METHODS, held)):
        try:
            answer = by(method)
        except UnsupportedEvent as error:
            table[method] = {"error": str(error)}
            continue
        table[method] = {"epsilon": api.number(answer.epsilon), "kind": answer.kind}
        if answer.epsilon_lower is not None:
            table[method]["epsilon_lower"] = api.number(answer.epsilon_lower)
    return table


def observer_events(plan: Plan, events: Sequence[Event]) -> list[Event]:
    """The charged events as who sees only the models has them."""
    # By multiplier, not by number: a release that failed was charged and asked again.
    planned = plan.mechanism.optimizer.planned(plan.mechanism.rounds)
    factors: dict[float, float] = {}
    for p in planned:
        multiplier = plan.mechanism.scale * p.relative_noise
        factors[multiplier] = max(p.rate_factor, factors.get(multiplier, 0.0))
    seen = [
        plan.mechanism.observer_event(event.noise_multiplier, factors.get(event.noise_multiplier, 1.0))
        for event in events
    ]
    if not plan.capped or all(event.sampling == "poisson" for event in seen):
        return seen
    # Whom the cap leaves out follows from earlier cohorts, and those of a fixed size tie clients together:
    # later releases tell of earlier cohorts then, so sampling is given no credit. Poisson cohorts do not:
    # given all that was released, a client still gives data with probability q at most.
    plain = [replace(event, sampling="none", rate=1.0, cohort=None) for event in seen]
    return list(plan.of_worst_client(plain))


def views(
    plan: Plan, events: Sequence[Event], silos: Mapping[str, Sequence[Event]] | None = None
) -> list[dict[str, Any]]:
    """What the gate's ``events`` tell each adversary; ``silos`` are each silo's own, at the client level."""
    if plan.budget is None or not events:
        return []
    delta, held, cap = plan.budget.delta, plan.budget.method, plan.max_participations
    if silos is not None:
        return _of_silos(silos, delta, held, events[0].relation)
    models = {
        "against": "who sees the released models",
        "gates the budget": cap is None,
        "delta": delta,
        "epsilon": all_methods(observer_events(plan, events) if cap else events, delta, held),
    }
    if cap is None:
        return [models]
    server = {
        "against": "the server, for the unit that lost most",
        "gates the budget": True,
        "delta": delta,
        "epsilon": all_methods(plan.of_worst_client(events), delta, held),
    }
    return [server, models]


def _of_silos(
    silos: Mapping[str, Sequence[Event]], delta: float, held: str, relation: str
) -> list[dict[str, Any]]:
    """Disjoint silos compose in parallel, or two of them together where a replacement may move."""

    def view(against: str, stays: bool) -> dict[str, Any]:
        table = _table(lambda method: compose(silos, delta, method, stays), held)
        return {"against": against, "gates the budget": stays, "delta": delta, "epsilon": table}

    found = [view("everyone but an example's own silo, for the silo that lost most", stays=True)]
    if relation == "replace-one" and len(silos) > 1:
        found.append(view("the same, if an example may be replaced by one of another silo", stays=False))
    return found

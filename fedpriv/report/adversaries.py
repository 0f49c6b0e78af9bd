"""The adversaries of a run and the epsilon against each of them, for its report.

Everything is computed from public configuration and charged events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpriv.accounting import METHODS, PrivacyGuarantee, api, epsilon
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.accounting.parallel_composition import compose, of_each
from fedpriv.config.plan import Plan

Table = dict[str, dict[str, Any]]

# The values of "against" in report.json. Reports of different versions are compared by them, so they stay.
_MODELS = "who sees the released models"
_SERVER = "the server, for the unit that lost most"
_MESSAGES = "the server, if it sees each message"
_SUM = "the server, which sees the sum alone"
_OUTSIDERS = "outsiders who read the network"
_PEERS = "peers, as many as colluding-parties"
_OTHER_SILOS = "everyone but an example's own silo, for the silo that lost most"
_MOVED = "the same, if an example may be replaced by one of another silo"

_DESCRIPTIONS = {
    _MODELS: "anyone who sees the released models",
    _SERVER: "the server, for the {unit} with the largest privacy loss",
    _MESSAGES: "the server, which sees each message with its own share of the noise; no credit for sampling",
    _SUM: "the server, which sees sums alone (secure aggregation); no credit for sampling",
    _OUTSIDERS: "outsiders who read the network and see the sums alone (secure aggregation)",
    _PEERS: "other silos, as many as colluding-parties, with the noise that they added",
    _OTHER_SILOS: "everyone except an example's own silo, for the silo with the largest privacy loss",
    _MOVED: "the same adversary, if an example may be replaced by one in another silo",
}


def described(against: str, unit: str) -> str:
    """The adversary of a report's values ``against`` and ``unit``, for readers.

    >>> described("the server, for the unit that lost most", "example: one example of one silo")
    'the server, for the example with the largest privacy loss'
    """
    return _DESCRIPTIONS.get(against, against).replace("{unit}", unit.partition(":")[0])


def by_method(view: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """A view's epsilon by this method, or by the first that supports this view."""
    cells: Mapping[str, Mapping[str, Any]] = view["epsilon"]
    own = cells.get(method, {})
    return own if "epsilon" in own else next(cell for cell in cells.values() if "epsilon" in cell)


def server_and_models(views: Sequence[Mapping[str, Any]], method: str) -> tuple[float | None, float | None]:
    """Epsilon against the server and against who sees the models; None where there is no such view."""
    found = {view["against"]: float(by_method(view, method)["epsilon"]) for view in views}
    if _OTHER_SILOS in found:  # against all of them at once
        return found[_OTHER_SILOS], found[_OTHER_SILOS]
    server = next((found[against] for against in (_SERVER, _MESSAGES, _SUM) if against in found), None)
    return server, found.get(_MODELS)


def all_methods(events: Sequence[Event], delta: float, enforced: str) -> Table:
    """Epsilon of the events at ``delta`` by each reported method and ``enforced``, or why it refuses them."""
    return _table(lambda method: epsilon(events, delta, method), enforced)


def _table(by: Callable[[str], PrivacyGuarantee], enforced: str) -> Table:
    methods = dict.fromkeys((*METHODS.only(lambda method: method.in_reports), enforced))
    return api.table(list(methods), by)


def observer_events(plan: Plan, events: Sequence[Event]) -> list[Event]:
    """The charged events in the view of an adversary who sees only the models."""
    factors = _rate_factors(plan)
    seen = [
        replace(
            plan.mechanism.observer_event(event.noise_multiplier, factors.get(event.noise_multiplier, 1.0)),
            groups=event.groups,
            group=event.group,
        )
        for event in events
    ]
    if not plan.capped or all(event.sampling.random_size for event in seen):
        return seen
    # The cap excludes clients by their earlier participations, and in cohorts of fixed size the clients
    # depend on each other. Then later releases reveal information about earlier cohorts, so sampling gets no
    # credit. Poisson cohorts do not have this problem: given all releases, a client takes part with
    # probability <= q.
    plain = [replace(event, sampling=Sampling.NONE, rate=1.0, cohort=None) for event in seen]
    return list(plan.of_worst_client(plain))


def message_events(plan: Plan, events: Sequence[Event]) -> list[Event]:
    """The charged events in the server's view (:meth:`Placement.message_event`), for a unit in every release.

    It is empty if the placement adds no noise to messages, or if the budget limits this view already.
    """
    factors = _rate_factors(plan)
    seen = (
        plan.mechanism.message_event(event.noise_multiplier, factors.get(event.noise_multiplier, 1.0))
        for event in events
    )
    return [event for event in seen if event is not None]


def _rate_factors(plan: Plan) -> dict[float, float]:
    """{noise multiplier: the factor of its cohort that costs most, if several releases share it}."""
    # Matched by multiplier and not by position: a failed release was charged and then repeated.
    factors: dict[float, float] = {}
    for p in plan.mechanism.optimizer.planned(plan.mechanism.rounds):
        multiplier = plan.mechanism.scale * p.relative_noise
        factors[multiplier] = max(p.rate_factor, factors.get(multiplier, 0.0))
    return factors


def views(
    plan: Plan, events: Sequence[Event], silos: Mapping[str, Sequence[Event]] | None = None
) -> list[dict[str, Any]]:
    """Epsilon against each adversary, as the entries of "views" in report.json.

    Args:
        plan: the run's plan.
        events: the events that the enforced guarantee charged.
        silos: each silo's own events, if silos take private steps.
    """
    if plan.budget is None or not events:
        return []
    delta, enforced, cap = plan.budget.delta, plan.budget.method, plan.max_participations
    if silos is not None:
        return _of_silos(silos, delta, enforced, events[0].relation)
    models = {
        "against": _MODELS,
        "gates the budget": cap is None,
        "delta": delta,
        "epsilon": all_methods(observer_events(plan, events) if cap else events, delta, enforced),
    }
    if cap is None:
        return [models, *_of_messages(plan, events)]
    server = {
        "against": _SERVER,
        "gates the budget": True,
        "delta": delta,
        "epsilon": all_methods(plan.of_worst_client(events), delta, enforced),
    }
    return [server, models]


def _of_messages(plan: Plan, events: Sequence[Event]) -> list[dict[str, Any]]:
    """The views of who sees more than the models, if messages have noise that the budget does not limit."""
    seen = message_events(plan, events)
    if not seen or plan.budget is None:
        return []
    view = {
        "gates the budget": False,
        "delta": plan.budget.delta,
        "relation": seen[0].relation.value,
        "epsilon": all_methods(seen, plan.budget.delta, plan.budget.method),
    }
    # Shares of colluders are not counted as noise, so that peers and outsiders learn no more than the server.
    whom = (_SUM, _PEERS, _OUTSIDERS) if plan.config.aggregates_securely else (_MESSAGES,)
    return [{"against": against, **view} for against in whom]


def _of_silos(
    silos: Mapping[str, Sequence[Event]], delta: float, enforced: str, relation: Relation
) -> list[dict[str, Any]]:
    """The views for disjoint silos: parallel composition, or two silos together if a replacement may move."""

    def view(against: str, stays: bool) -> dict[str, Any]:
        table = _table(lambda method: compose(silos, delta, method, stays), enforced)
        return {"against": against, "gates the budget": stays, "delta": delta, "epsilon": table}

    found = [view(_OTHER_SILOS, stays=True)]
    if relation is Relation.REPLACE_ONE and len(silos) > 1:
        found.append(view(_MOVED, stays=False))
    return found


def each_silo(plan: Plan, silos: Mapping[str, Sequence[Event]]) -> list[dict[str, Any]]:
    """Each silo's own epsilon by the budget's method: silos with similar sampling rates are together.

    Sizes and rates are public numbers. For several silos the epsilon is a bound for each of them.
    """
    if plan.budget is None:
        return []
    sizes, found = plan.config.silo_sizes, []
    for names, guarantee in of_each(silos, plan.budget.delta, plan.budget.method):
        own = sizes[[int(name) for name in names]]
        rates = [silos[name][0].rate for name in names]
        found.append(
            {
                "silos": [int(name) for name in names],
                "examples": [int(own.min()), int(own.max())],
                "rate": [min(rates), max(rates)],
                "epsilon": api.number(guarantee.epsilon),
                "kind": guarantee.kind,
            }
        )
    return found

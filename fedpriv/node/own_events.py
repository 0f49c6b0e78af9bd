"""What a node charges for its answers: the noise that its own plan has it add, and no more credit than that.

A node takes the noise from its own plan, and refuses requests that are not in it (:func:`enforce_plan`). It
charges what its own message reveals to anyone who sees it, given only the noise that the node itself added
(:func:`answered`). It gives no credit for what it cannot verify: the noise of other parties under distributed
noise, of which there may be fewer than the run says (unless the node aggregates securely with pinned peers),
and sampling, since the server draws the cohorts. Only at the client level a silo draws its own cohorts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpriv.accounting.events import Event, Sampling
from fedpriv.config.plan import Plan
from fedpriv.federated.engine import SumRequest
from fedpriv.node.policy import RefusedError
from fedpriv.optimizers import PlannedRelease

TOLERANCE = 1e-6  # the largest relative difference between two machines' calibrations of one plan


def same_events(events: Sequence[Event], planned: Sequence[Event]) -> bool:
    """Whether these are the planned events, up to the accuracy of calibration."""
    if len(events) != len(planned):
        return False
    pairs = list(zip(events, planned, strict=True))
    return all(
        event == own
        or (
            math.isclose(event.noise_multiplier, own.noise_multiplier, rel_tol=TOLERANCE)
            and replace(event, noise_multiplier=own.noise_multiplier) == own
        )
        for event, own in pairs
    )


def enforce_plan(plan: Plan, request: SumRequest, colluders: int = 0) -> tuple[SumRequest, Event]:
    """(the request with this party's noise according to the plan, the event of answering it).

    ``colluders`` is as for :func:`answered`.

    Raises RefusedError if the plan has no such release, or if the request names another noise.
    """
    query, mechanism = request.query, plan.mechanism
    if plan.by_silo or not mechanism.placement.at_parties:
        raise RefusedError("in this run the parties add no noise to the sums that the server requests")
    wanted = (query.relative_noise, query.rate_factor)
    for planned in mechanism.planned:
        own = (planned.relative_noise, planned.rate_factor)
        if all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(wanted, own, strict=True)):
            break
    else:
        raise RefusedError("the plan has no release with this relative noise and cohort")
    multiplier = mechanism.scale * planned.relative_noise
    stds = mechanism.placement.resized(planned.rate_factor).party_stds(query.noise_stds(multiplier))
    assert stds is not None
    asked = request.party_stds or ()
    if len(asked) != len(stds) or not all(
        math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(asked, stds, strict=True)
    ):
        raise RefusedError("the request's noise differs from the noise that the plan has this party add")
    return replace(request, party_stds=stds), answered(plan, planned, colluders)


def answered(plan: Plan, planned: PlannedRelease, colluders: int = 0) -> Event:
    """The event that a node charges for answering a planned release: its own noise, without sampling.

    There is no credit for sampling. A node that is a sampled unit does not know about the releases without
    it, on which amplification relies. In a silo the server names the examples of a release.

    With secure aggregation the server sees the sum of at least the threshold of nodes, whose keys the owner
    has pinned. Then the shares of the others count too, but for those of ``colluders`` of them, or of as many
    as the run assumes, if these are more.
    """
    mechanism, factor = plan.mechanism, planned.rate_factor
    placement = mechanism.placement.resized(factor)
    own = placement.party_stds((mechanism.scale * planned.relative_noise,))
    assert own is not None
    multiplier = own[0]
    if plan.config.aggregates_securely:
        honest = placement.min_replies - max(colluders, plan.config.colluding_parties)
        if honest <= plan.config.clients - placement.min_replies:
            honest = 1  # so many colluders can have two sets of survivors signed, which unmasks a message
        multiplier *= math.sqrt(honest)
    event = mechanism.event(multiplier, factor)
    return replace(event, sampling=Sampling.NONE, rate=1.0, cohort=None, truncation=0.0)


def adds_noise(plan: Plan) -> bool:
    """Whether the node adds its own noise to what it sends in this run, in shares or completely."""
    return plan.budget is not None and (plan.by_silo or plan.mechanism.placement.at_parties)


def own_events(plan: Plan, colluders: int = 0) -> tuple[Event, ...]:
    """The events of the whole run for a node that answers in every release.

    ``colluders`` is as for :func:`answered`.
    """
    if plan.by_silo or not plan.mechanism.placement.at_parties:
        return plan.events
    made = {planned: answered(plan, planned, colluders) for planned in set(plan.mechanism.planned)}
    return tuple(made[planned] for planned in plan.mechanism.planned)

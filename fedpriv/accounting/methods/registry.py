"""``epsilon``, the entry point to all accounting methods.

>>> from fedpriv.accounting.events import Event
>>> release = Event(2.0, "none", "add-remove")
>>> round(epsilon([release], 1e-5).epsilon, 2)
1.99
>>> epsilon([release], 1e-5, "gdp-clt").kind
'estimate'
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedpriv._internal import validation
from fedpriv._internal.registry import import_modules
from fedpriv.accounting import methods
from fedpriv.accounting.events import Event, ever_drawn, log_never_drawn, of_costliest_group, tally
from fedpriv.accounting.methods import relations
from fedpriv.accounting.methods.base import METHODS, Method, PrivacyGuarantee, Profile, UnsupportedEvent
from fedpriv.accounting.pld.method import JoinedProfile, PlainProfile, Pld, PldProfile

import_modules(methods.__name__, methods.__path__)  # each registers its methods

_ADVANTAGE_DELTA = 1e-2  # the order of magnitude of a membership advantage


def epsilon(events: Iterable[Event], delta: float, method: str = "pld") -> PrivacyGuarantee:
    """The privacy loss of all ``events`` together at ``delta``. Their order does not matter.

    Groups that are asked in turn compose in parallel: it is the loss of the costliest group.

    Events with rate 0 or infinite z cost nothing; a release without noise costs an infinite epsilon.
    Truncated Poisson cohorts add (1 + e^epsilon) times their total-variation distance to delta (Chua et
    al. 2024).

    Raises:
        ArgumentError: for a delta outside (0, 1) or an unknown method.
        UnsupportedEvent: if the method does not support an event, or if relations are mixed.
    """
    return epsilons([events], delta, method)[0]


def epsilons(
    added: Sequence[Iterable[Event]], delta: float, method: str = "pld", lower: bool = True
) -> list[PrivacyGuarantee]:
    """``epsilon`` after each stage of a run, computed together; stage i adds the events ``added[i]``.

    Without ``lower`` the lower bounds are None, which halves the time. Raises as ``epsilon`` does.
    """
    validation.between("delta", delta, 0, 1)
    validation.choice("accounting", method, METHODS)
    tallies = [tally(events) for events in added]
    # The costliest group of several kinds of groups may be that of no unit: no lower bound then.
    kinds = {replace(event, group=0) for stage in tallies for event in stage if event.groups > 1}
    lower = lower and len(kinds) <= 1
    stages = of_costliest_group(tallies)
    return list(_epsilons(tuple(tuple(stage.items()) for stage in stages), delta, method, lower))


# A run asks for the same values in its plan, its progress and its report, and so do runs of one plan. Only a
# few are kept: the key of a long run with changing noise has an entry for each release.
@functools.lru_cache(maxsize=32)
def _epsilons(
    added: tuple[tuple[tuple[Event, int], ...], ...], delta: float, method: str, lower: bool
) -> tuple[PrivacyGuarantee, ...]:
    """``epsilons`` of stages that are given as (event, count)."""
    chosen, counts = METHODS[method], [dict(stage) for stage in added]
    _refuse({event for stage in counts for event in stage}, chosen)
    costly_events = [{event: n for event, n in stage.items() if _costs(event)} for stage in counts]
    noisy = [{event: n for event, n in stage.items() if event.noise_multiplier} for stage in costly_events]
    profiles: Sequence[Profile] = [_NOTHING] * len(added)
    if any(noisy):
        profiles = chosen.stages(noisy, delta, lower)
    answers, distance, hidden = [], 0.0, 0.0
    for profile, stage, costly in zip(profiles, counts, costly_events, strict=True):
        distance += math.fsum(event.truncation * n for event, n in stage.items())
        hidden += log_never_drawn({event: n for event, n in costly.items() if event.noise_multiplier == 0})
        upper, low = with_truncation(profile, delta, distance)
        if hidden < 0:
            # A release without noise: the upper bound is infinite, and so is the lower bound if the unit is
            # sampled by one with a probability above delta.
            upper, low = math.inf, math.inf if -math.expm1(hidden) > delta + distance else low
        keeps = lower and chosen.bounds_below
        answers.append(PrivacyGuarantee(upper, low if keeps else None, chosen.kind, method, delta))
    return tuple(answers)


def non_decreasing(answers: Sequence[PrivacyGuarantee]) -> list[float]:
    """The epsilon of each stage of a run, where no stage is above a later one.

    The values of all stages are certified on a lattice chosen for the last stage, so the bound of an earlier
    stage can come out above that of a later one. The later bound holds for the earlier stage, too.
    """
    return list(itertools.accumulate((answer.epsilon for answer in reversed(answers)), min))[::-1]


def advantage(events: Iterable[Event]) -> float:
    """A certified upper bound of any adversary's membership advantage, by PLD.

    The membership advantage is the true positive rate minus the false positive rate (Yeom et al. 2018,
    "Privacy risk in machine learning"). It is at most delta at epsilon 0, the total-variation distance of the
    releases on neighbouring data. If a unit is a member with probability 1/2, a guess is right with a
    probability of at most (1 + advantage) / 2.

    Raises UnsupportedEvent as ``epsilon`` does.

    >>> round(advantage([Event(2.0, "none", "add-remove")]), 4)  # 2 Phi(1/4) - 1
    0.1974
    """
    [counts] = of_costliest_group([tally(events)])
    _refuse(set(counts), Pld())
    costly_events = {event: n for event, n in counts.items() if _costs(event)}
    if any(event.noise_multiplier == 0 for event in costly_events):
        return 1.0
    bound = _composed(tuple(costly_events.items())).advantage if costly_events else 0.0
    # A unit that is never sampled leaves no trace, whatever the noise.
    bound = min(bound, ever_drawn(costly_events))
    return min(1.0, bound + 2 * math.fsum(event.truncation * n for event, n in counts.items()))


@functools.lru_cache(maxsize=2)  # a report asks for the advantage and for the curve of the same releases
def _composed(costly: tuple[tuple[Event, int], ...]) -> PldProfile | PlainProfile | JoinedProfile:
    return Pld().stages([dict(costly)], _ADVANTAGE_DELTA, lower=False)[0]


def certified_curve(events: Iterable[Event], deltas: Sequence[float]) -> list[float]:
    """Certified upper bounds of epsilon at several deltas, from one composition by PLD.

    They are the tightest at deltas as large as those of useful attacks; use :func:`epsilon` for a budget's
    delta. Raises UnsupportedEvent as ``epsilon`` does.

    >>> [round(bound, 2) for bound in certified_curve([Event(2.0, "none", "add-remove")], [0.1, 0.01])]
    [0.29, 0.92]
    """
    [counts] = of_costliest_group([tally(events)])
    _refuse(set(counts), Pld())
    costly = {event: n for event, n in counts.items() if _costs(event)}
    if any(event.noise_multiplier == 0 for event in costly):
        return [math.inf for _ in deltas]
    profile: Profile = _composed(tuple(costly.items())) if costly else _NOTHING
    distance = math.fsum(event.truncation * n for event, n in counts.items())
    return [with_truncation(profile, delta, distance)[0] for delta in deltas]


def with_truncation(profile: Profile, delta: float, distance: float) -> tuple[float, float | None]:
    """(epsilon, its lower bound or None) with truncated cohorts.

    Epsilon is the smallest with delta(epsilon) + (1 + e^epsilon) distance <= delta.

    Args:
        profile: the privacy curve without truncation.
        delta: the delta at which epsilon is evaluated.
        distance: total-variation distance of all truncated cohorts together from the untruncated ones.

    Source: Chua et al. 2024 ("Scalable DP-SGD: Shuffling vs. Poisson Subsampling", truncated Poisson
    batches): moving both neighbours' distributions by tau in total variation moves their hockey-stick
    divergence by at most (1 + e^epsilon) tau.
    """
    upper, lower = profile.epsilon(delta - 2 * distance)
    if distance == 0:
        return upper, lower
    if lower is not None and math.isinf(upper):
        return upper, 0.0
    # Each turn raises epsilon to the value that the last turn needs, plus a growing margin. Without the
    # margin the loop would not end if the two sides nearly touch or never meet.
    margin = 1e-7 * max(upper, 1e-3)
    while math.isfinite(upper):
        # math.exp overflows above 709, where no positive delta is left.
        cost = (1 + math.exp(min(upper, 700.0))) * distance
        needed = profile.epsilon(delta - cost)[0]
        if needed <= upper:
            break
        upper = needed + margin
        margin *= 2
    if lower is not None:
        cost = (1 + math.exp(min(upper, 700.0))) * distance
        lower = profile.epsilon(delta + cost)[1] if delta + cost < 1 else 0.0
    return upper, lower


def _refuse(events: set[Event], method: Method) -> None:
    relations.require_one(event.relation for event in events)
    for event in events:
        reason = method.refusal(event)
        if reason is not None:
            names = [name for name, other in METHODS.items() if other.refusal(event) is None]
            raise UnsupportedEvent(
                f"accounting by {method.name} does not support {reason}; use {' or '.join(names)}"
            )


def _costs(event: Event) -> bool:
    return event.rate > 0 and event.noise_multiplier < math.inf


class _Nothing:
    """The privacy curve of an empty composition."""

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        return (0.0 if delta >= 0 else math.inf), 0.0


_NOTHING = _Nothing()

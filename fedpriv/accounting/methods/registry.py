"""The accounting methods by name, and the one function that asks them.

>>> from fedpriv.accounting.events import Event
>>> release = Event(2.0, "none", "add-remove")
>>> round(epsilon([release], 1e-5).epsilon, 2)
1.99
>>> epsilon([release], 1e-5, "gdp-clt").kind
'estimate'
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from fedpriv._internal import validation
from fedpriv.accounting.events import Event, ever_drawn, log_never_drawn, tally
from fedpriv.accounting.methods.advanced_composition import Advanced
from fedpriv.accounting.methods.base import Method, PrivacyGuarantee, Profile, UnsupportedEvent
from fedpriv.accounting.methods.gdp_clt import GdpClt
from fedpriv.accounting.methods.rdp import Rdp
from fedpriv.accounting.methods.zcdp import Tcdp, Zcdp
from fedpriv.accounting.pld.method import Pld

METHODS: dict[str, Method] = {
    method.name: method for method in (Pld(), Rdp(), GdpClt(), Tcdp(), Zcdp(), Advanced())
}

_LARGE = 1e-2  # a delta, near which advantages lie


def epsilon(events: Iterable[Event], delta: float, method: str = "pld") -> PrivacyGuarantee:
    """The privacy loss of all ``events`` together, in whatever order, at ``delta``.

    Events that touch nobody (rate 0) or drown in noise (z infinite) cost nothing; a release without noise
    costs everything. Truncated Poisson cohorts add (1 + e^epsilon) times their total-variation distance
    to delta (Chua et al. 2024).

    Raises:
        ArgumentError: for a delta outside (0, 1) or an unknown method.
        UnsupportedEvent: where the method cannot account for an event, or relations are mixed.
    """
    return epsilons([events], delta, method)[0]


def epsilons(
    added: Sequence[Iterable[Event]], delta: float, method: str = "pld", lower: bool = True
) -> list[PrivacyGuarantee]:
    """``epsilon`` after each stage of a run that adds ``added``, one after the other, in one go.

    Without ``lower`` the lower bounds are None, for half the work. Raises as ``epsilon`` does.
    """
    validation.between("delta", delta, 0, 1)
    chosen = METHODS[validation.choice("accounting", method, METHODS)]
    counts = [tally(events) for events in added]
    _refuse({event for stage in counts for event in stage}, chosen)
    live = [{event: n for event, n in stage.items() if _costs(event)} for stage in counts]
    noisy = [{event: n for event, n in stage.items() if event.noise_multiplier} for stage in live]
    profiles: Sequence[Profile] = [_NOTHING] * len(added)
    if any(noisy):
        profiles = chosen.stages(noisy, delta, lower)
    answers, distance, hidden = [], 0.0, 0.0
    for profile, stage, costly in zip(profiles, counts, live, strict=True):
        distance += math.fsum(event.truncation * n for event, n in stage.items())
        hidden += log_never_drawn({event: n for event, n in costly.items() if event.noise_multiplier == 0})
        upper, low = with_truncation(profile, delta, distance)
        if hidden < 0:
            # Noise-free releases: infinite, surely so once one likely shows whether a unit is there.
            upper, low = math.inf, math.inf if -math.expm1(hidden) > delta + distance else low
        keeps = lower and method == "pld"
        answers.append(PrivacyGuarantee(upper, low if keeps else None, chosen.kind, method, delta))
    return answers


def rising(answers: Sequence[PrivacyGuarantee]) -> list[float]:
    """The epsilon of each stage of a run, none above a later one's.

    Each stage is certified, but all are read on a lattice that is made for the last: an earlier one that came
    out above a later one may be read as the later one.
    """
    return list(itertools.accumulate((answer.epsilon for answer in reversed(answers)), min))[::-1]


def advantage(events: Iterable[Event]) -> float:
    """The most that any guess whether a unit is there can be right more often than wrong, certified by PLD.

    It is delta at epsilon 0, the total-variation distance of what neighbours release, and bounds the
    membership advantage (true less false positive rate) of Yeom et al. 2018 ("Privacy risk in machine
    learning"): who guesses a fair coin is right with a probability of at most (1 + advantage) / 2.

    Raises UnsupportedEvent as ``epsilon`` does.

    >>> round(advantage([Event(2.0, "none", "add-remove")]), 4)  # 2 Phi(1/4) - 1
    0.1974
    """
    counts, chosen = tally(events), Pld()
    _refuse(set(counts), chosen)
    live = {event: n for event, n in counts.items() if _costs(event)}
    if any(event.noise_multiplier == 0 for event in live):
        return 1.0
    seen = chosen.stages([live], _LARGE, lower=False)[0].advantage if live else 0.0
    # Who is in no cohort is not seen, whatever the noise.
    seen = min(seen, ever_drawn(live))
    return min(1.0, seen + 2 * math.fsum(event.truncation * n for event, n in counts.items()))


def with_truncation(profile: Profile, delta: float, distance: float) -> tuple[float, float | None]:
    """(epsilon, its lower bound or None) where all cohorts are ``distance`` in total variation from
    those that ``profile`` has: the least epsilon with delta(epsilon) + (1 + e^epsilon) distance <= delta.

    Source: Chua et al. 2024 ("Scalable DP-SGD: Shuffling vs. Poisson Subsampling", truncated Poisson
    batches): moving both neighbours' distributions by tau in total variation moves their hockey-stick
    divergence by at most (1 + e^epsilon) tau.
    """
    upper, lower = profile.epsilon(delta - 2 * distance)
    if distance == 0:
        return upper, lower
    if lower is not None and math.isinf(upper):
        return upper, 0.0
    # Each turn raises epsilon to what the last one needs, and a little further each time: where the two
    # sides nearly touch, or never do, it would else take for ever.
    margin = 1e-7 * max(upper, 1e-3)
    while math.isfinite(upper):
        # math.exp overflows past 709, where no positive delta is left anyway.
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
    if len({event.relation for event in events}) > 1:
        raise UnsupportedEvent("events under add-remove and replace-one do not add up to one epsilon")
    for event in events:
        reason = method.refusal(event)
        if reason is not None:
            names = [name for name, other in METHODS.items() if other.refusal(event) is None]
            raise UnsupportedEvent(
                f"accounting by {method.name} does not support {reason} (use {' or '.join(names)})"
            )


def _costs(event: Event) -> bool:
    return event.rate > 0 and event.noise_multiplier < math.inf


class _Nothing:
    """The privacy curve of no release at all."""

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        return (0.0 if delta >= 0 else math.inf), 0.0


_NOTHING = _Nothing()

"""The accounting methods by name, and the one function that asks them.

>>> from fedpriv.accounting.events import Event
>>> release = Event(2.0, "none", "add-remove")
>>> round(epsilon([release], 1e-5).epsilon, 2)
1.99
>>> epsilon([release], 1e-5, "gdp-clt").kind
'estimate'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedpriv import _check
from fedpriv.accounting.base import Answer, Method, Profile, UnsupportedEvent
from fedpriv.accounting.events import Event, tally
from fedpriv.accounting.gdp import GdpClt
from fedpriv.accounting.pld import Pld
from fedpriv.accounting.rdp import Rdp

METHODS: dict[str, Method] = {method.name: method for method in (Pld(), Rdp(), GdpClt())}


def epsilon(events: Iterable[Event], delta: float, method: str = "pld") -> Answer:
    """The privacy loss of all ``events`` together, in whatever order, at ``delta``.

    Events that touch nobody (rate 0) or drown in noise (z infinite) cost nothing; a release without noise
    costs everything. Truncated Poisson cohorts add (1 + e^epsilon) times their total-variation distance
    to delta (Chua et al. 2024).

    Raises:
        ArgumentError: for a delta outside (0, 1) or an unknown method.
        UnsupportedEvent: where the method cannot account for an event, or relations are mixed.
    """
    _check.between("delta", delta, 0, 1)
    chosen = METHODS[_check.choice("accounting", method, METHODS)]
    counts = tally(events)
    _refuse(counts, chosen)
    live = {event: n for event, n in counts.items() if event.rate and event.noise_multiplier < math.inf}
    distance = sum(event.truncation * n for event, n in counts.items())
    if any(event.noise_multiplier == 0 for event in live):
        upper, lower = math.inf, _bare(live, delta, distance) if method == "pld" else None
    else:
        profile = chosen.compose(live, delta) if live else _Nothing(method == "pld")
        upper, lower = with_truncation(profile, delta, distance)
    return Answer(upper, lower, chosen.kind, method, delta)


def with_truncation(profile: Profile, delta: float, distance: float) -> tuple[float, float | None]:
    """(epsilon, its lower bound or None) where all cohorts are ``distance`` in total variation from
    those that ``profile`` has: the least epsilon with delta(epsilon) + (1 + e^epsilon) distance <= delta.

    Source: Chua et al. 2024 ("Scalable DP-SGD: shuffling vs. Poisson subsampling"), theorem 3.3's
    argument: changing both neighbours' distributions by tau moves the hockey-stick divergence by at
    most (1 + e^epsilon) tau.
    """
    upper, lower = profile.epsilon(delta - 2 * distance)
    if distance == 0:
        return upper, lower
    while math.isfinite(upper):
        # math.exp overflows past 709, where no positive delta is left anyway.
        cost = (1 + math.exp(min(upper, 700.0))) * distance
        needed = profile.epsilon(delta - cost)[0]
        if needed <= upper:
            break
        upper = needed + 1e-9 * max(needed, 1e-3)
    if lower is not None:
        cost = (1 + math.exp(min(upper, 700.0))) * distance
        lower = profile.epsilon(delta + cost)[1] if delta + cost < 1 else 0.0
    return upper, lower


def _refuse(counts: Mapping[Event, int], method: Method) -> None:
    if len({event.relation for event in counts}) > 1:
        raise UnsupportedEvent("events under add-remove and replace-one do not add up to one epsilon")
    for event in counts:
        reason = method.refusal(event)
        if reason is not None:
            names = [name for name, other in METHODS.items() if other.refusal(event) is None]
            raise UnsupportedEvent(
                f"accounting by {method.name} does not support {reason} (use {' or '.join(names)})"
            )


def _bare(counts: Mapping[Event, int], delta: float, distance: float) -> float:
    """A lower bound on epsilon where some release has no noise: infinite once it likely shows a unit."""
    hidden = math.fsum(
        n * math.log1p(-event.rate) if event.rate < 1 else -math.inf
        for event, n in counts.items()
        if event.noise_multiplier == 0
    )
    return math.inf if -math.expm1(hidden) > delta and not distance else 0.0


class _Nothing:
    """The privacy curve of no release at all."""

    def __init__(self, bounded: bool) -> None:
        self._lower = 0.0 if bounded else None

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        return (0.0 if delta >= 0 else math.inf), self._lower

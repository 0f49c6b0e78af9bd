"""Epsilon against the number of releases, by accounting method (the plots of Du 2021, figures 2 and 4).

>>> points = curves([Event(1.0, "poisson", "add-remove", 0.1)] * 40, 1e-5, ["pld", "rdp"], points=4)
>>> points.steps, [round(value, 1) for value in points.epsilon["pld"]]
((10, 20, 30, 40), [2.9, 3.6, 4.2, 4.7])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpriv._internal import plotting
from fedpriv.accounting.events import Event, equal_parts
from fedpriv.accounting.methods.base import METHODS, UnsupportedEvent
from fedpriv.accounting.methods.registry import epsilons, non_decreasing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 40  # of a plotted curve


@dataclass(frozen=True)
class Curves:
    """Epsilon as a function of the number of releases.

    Attributes:
        delta: the delta of all values.
        steps: numbers of releases, ascending.
        epsilon: per method, one value per step; infinite if there is no privacy guarantee.
        lower: lower bounds of the same shape, for the methods that have them.
        errors: for each method without a curve, the reason.
    """

    delta: float
    steps: tuple[int, ...]
    epsilon: Mapping[str, tuple[float, ...]]
    lower: Mapping[str, tuple[float, ...]]
    errors: Mapping[str, str]

    def until(self, step: int) -> Curves:
        """The same, level from the last step on until this one."""
        if step <= self.steps[-1]:
            return self
        epsilon, lower = (
            {method: (*values, values[-1]) for method, values in table.items()}
            for table in (self.epsilon, self.lower)
        )
        return replace(self, steps=(*self.steps, step), epsilon=epsilon, lower=lower)


def curves(
    events: Sequence[Event], delta: float, methods: Sequence[str] = tuple(METHODS), points: int = POINTS
) -> Curves:
    """Epsilon after each of at most ``points`` equal parts of the run, in the order of its events.

    Methods that cannot account for the events appear in ``errors``. Raises ArgumentError as ``epsilon`` does.
    """
    parts = _parts(events, points)
    steps = tuple(itertools.accumulate(sum(event.count for event in part) for part in parts))
    values: dict[str, tuple[float, ...]] = {}
    lower: dict[str, tuple[float, ...]] = {}
    errors: dict[str, str] = {}
    for method in methods:
        try:
            answers = epsilons(parts, delta, method)
        except UnsupportedEvent as error:
            errors[method] = str(error)
            continue
        values[method] = tuple(non_decreasing(answers))
        bounds = [a.epsilon_lower for a in answers if a.epsilon_lower is not None]
        if answers and len(bounds) == len(answers):
            lower[method] = tuple(itertools.accumulate(bounds, max))
    return Curves(delta, steps, values, lower, errors)


def _parts(events: Sequence[Event], points: int) -> list[list[Event]]:
    """The run cut into at most ``points`` parts with nearly equal numbers of releases."""
    total = sum(event.count for event in events)
    ends = equal_parts(total, points)
    parts: list[list[Event]] = [[] for _ in ends]
    at = part = 0
    for event in events:
        left = event.count
        while left:
            taken = min(left, ends[part] - at)
            parts[part].append(Event(**{**vars(event), "count": taken}))
            at, left = at + taken, left - taken
            part += at == ends[part]
    return parts


def _equal_curves(epsilon: Mapping[str, tuple[float, ...]]) -> list[list[str]]:
    """Groups of methods of one kind whose curves agree to 0.1 %, so that one line shows them all."""
    groups: list[list[str]] = []
    for method, values in epsilon.items():
        for group in groups:
            pairs = zip(epsilon[group[0]], values, strict=True)
            same_kind = METHODS[group[0]].kind == METHODS[method].kind
            if same_kind and all(math.isclose(one, other, rel_tol=1e-3) for one, other in pairs):
                group.append(method)
                break
        else:
            groups.append([method])
    return groups


def draw(found: Curves, title: str = "") -> bytes:
    """A PNG of the curves, by :func:`draw_on`."""
    figure, [axes] = plotting.panels(8.5, 4.5)
    draw_on(axes, found, found.steps)
    axes.set(xlabel="releases", title=title)
    if found.epsilon:
        figure.legend(loc="outside right upper")
    return plotting.png(figure, dpi=110)


def draw_on(axes: Axes, found: Curves, at: Sequence[float]) -> None:
    """Draw the curves into a panel, with ``at`` as their horizontal places, one for each step.

    Bounds have full lines or dashes of their own; estimates are dotted and labelled as estimates. The epsilon
    axis is logarithmic if one loose method would flatten all other curves.
    """
    finite = [v for values in found.epsilon.values() for v in values if 0 < v < math.inf]
    if finite and max(finite) > 20 * min(values[-1] for values in found.epsilon.values()):
        axes.set_yscale("log")
    for methods, (color, dashes, _) in zip(_equal_curves(found.epsilon), plotting.STYLES, strict=False):
        values = found.epsilon[methods[0]]
        estimate = METHODS[methods[0]].kind == "estimate"
        label = f"{', '.join(methods)} ({'an estimate' if estimate else 'upper bound'})"
        shown = [value if math.isfinite(value) else math.nan for value in values]
        ends = sum(map(math.isfinite, values))
        if ends < len(values):
            label += f", infinite from {at[ends]:g} on" if ends else ", infinite"
        axes.plot(at, shown, color=color, linestyle=":" if estimate else dashes, label=label)
        for method in found.lower.keys() & set(methods):
            axes.fill_between(at, found.lower[method], values, color=color, alpha=0.3)
    axes.set_ylabel(f"epsilon at delta {found.delta:.3g}")
    plotting.rule(axes)

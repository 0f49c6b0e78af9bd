"""The interface of accounting methods, their result type and their registry.

Each file of this package registers the methods that it holds; nothing else lists them.

>>> PrivacyGuarantee(1.5, 1.49, "bound", "pld", 1e-5).epsilon
1.5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fedpriv._internal.registry import Registry
from fedpriv._internal.validation import FedprivError
from fedpriv.accounting.events import Event


class UnsupportedEvent(FedprivError, ValueError):  # noqa: N818
    """An accounting method does not support an event; the message names both."""

    __module__ = "fedpriv.accounting"


@dataclass(frozen=True)
class PrivacyGuarantee:
    """The privacy loss of a sequence of events.

    Attributes:
        epsilon: epsilon at ``delta``; infinite if there is no privacy guarantee.
        epsilon_lower: a lower bound of the true epsilon, which no analysis can go below; None if the method
            computes none.
        kind: ``bound`` (epsilon is a certified upper bound) or ``estimate`` (epsilon may be understated).
        method: the name of the accounting method.
        delta: the delta of both values.
    """

    epsilon: float
    epsilon_lower: float | None
    kind: str
    method: str
    delta: float


class Profile(Protocol):
    """The privacy curve of one composition, which can be evaluated at any delta."""

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, its lower bound or None) at ``delta``. Epsilon is infinite if ``delta`` <= 0."""
        ...


class Method(Protocol):
    """An accounting method. Its events must share one relation and have 0 < z < inf and rate > 0.

    Attributes:
        name: the value of the setting ``accounting``.
        label: the name in reports and plots.
        kind: ``bound`` or ``estimate``, as in :class:`PrivacyGuarantee`.
        summary: what it is, in a few words, for help.
        also_called: its names in other libraries and in papers.
        place: its place in tables; the methods to prefer come first.
        holds_budgets: whether it may hold the budget of a run.
        in_reports: whether reports have it beside the method that holds the budget.
        bounds_below: whether its curves give certified lower bounds, too.
    """

    name: str
    label: str
    kind: str
    summary: str
    also_called: tuple[str, ...] = ()
    place: int = 10
    holds_budgets: bool = True
    in_reports: bool = False
    bounds_below: bool = False

    def refusal(self, event: Event) -> str | None:
        """Why this method does not support ``event``, or None if it does."""
        ...

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> Sequence[Profile]:
        """The privacy curve after each stage of a run.

        Args:
            added: for each stage, the events that it adds and their counts.
            delta: curves are most accurate near it.
            lower: whether lower bounds are needed; without them a method may save time.

        The events' truncation is ignored here; the caller accounts for it.
        """
        ...


METHODS = Registry[Method]("accounting", order=lambda method: method.place)

_Kind = TypeVar("_Kind", bound=type[Method])


def register(kind: _Kind) -> _Kind:
    """Class decorator: add a method, made without arguments, to METHODS."""
    method = kind()
    METHODS.add(method.name, method, method.also_called)
    return kind

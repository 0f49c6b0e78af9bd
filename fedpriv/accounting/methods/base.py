"""The interface of accounting methods and their result type.

>>> PrivacyGuarantee(1.5, 1.49, "bound", "pld", 1e-5).epsilon
1.5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """

    name: str
    label: str
    kind: str

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

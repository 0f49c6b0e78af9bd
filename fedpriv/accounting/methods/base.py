"""What an accounting method is, and what it answers.

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
    """A method was asked about events that it cannot account for; the message names both."""


@dataclass(frozen=True)
class PrivacyGuarantee:
    """The privacy loss of a sequence of events.

    Attributes:
        epsilon: at ``delta``; infinite where nothing protects the units.
        epsilon_lower: what no analysis can go below, or None where the method has no lower bound.
        kind: ``bound`` (epsilon is certified) or ``estimate`` (it may understate).
        method: which method answers.
        delta: the delta that it was asked at.
    """

    epsilon: float
    epsilon_lower: float | None
    kind: str
    method: str
    delta: float


class Profile(Protocol):
    """The privacy curve of one composition, read at as many deltas as wanted."""

    def epsilon(self, delta: float) -> tuple[float, float | None]:
        """(epsilon, its lower bound or None) at ``delta``; infinite where ``delta`` is 0 or less."""
        ...


class Method(Protocol):
    """One way of accounting. The events it gets share one relation and have 0 < z < inf, rate > 0.

    Attributes:
        name: as settings have it.
        label: as texts have it.
        kind: of its answers.
    """

    name: str
    label: str
    kind: str

    def refusal(self, event: Event) -> str | None:
        """Why this method cannot account for ``event``, or None where it can."""
        ...

    def stages(
        self, added: Sequence[Mapping[Event, int]], delta: float, lower: bool = True
    ) -> Sequence[Profile]:
        """The privacy curve after each stage of a run that adds ``added``, one after the other.

        Curves are most accurate near ``delta``. Without ``lower`` the lower bound may be left out to save
        time. Truncation is not the method's business: the caller adds it.
        """
        ...

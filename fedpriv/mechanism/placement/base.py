"""The interface of placements, the context they are built from, and their registry.

A party is a client or a silo. A placement defines who adds how much noise, and the adversary against whom the
budget's epsilon holds.

| placement | each party adds | the server adds | noise on the sum |
|---|---|---|---|
| ``none`` | nothing | nothing | 0: not private |
| ``central`` | nothing | std | std |
| ``local`` | std | std for each missing party of m | sqrt(m) std |
| ``distributed`` | std / sqrt(n) | such a share for each missing party of m | sqrt(m / n) std >= std |

m is public: the size of a fixed-size cohort, the cap of a truncated Poisson cohort, or the number of silos.
The server adds the missing shares of m, so the noise on the sum does not depend on who took part or replied.
With fewer than n_min replies there is no release, and the charge remains. Noise beyond the calibrated std is
not credited. A party knows the noise that it added itself: n = n_min - c (at least 1) is the number of shares
that c colluding parties do not know (Kairouz et al. 2021, section 4). c = 0 protects only against adversaries
who are not parties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from fedpriv._internal import validation
from fedpriv._internal.registry import Registry
from fedpriv._internal.settings import Settings
from fedpriv.accounting.events import Event
from fedpriv.mechanism.sampling import Sampler


@dataclass(frozen=True)
class PlacementContext:
    """The public settings from which a run's placement is built.

    Attributes:
        sampler: samples the units of a release.
        silos: the number of silos if units are the examples of silos; None if units are clients.
        min_replies: the setting ``min-replies``.
        colluders: the number of parties that may collude.
        exact: whether noise is exact.
        rounds: the rounds that the run is planned for.
        nodes_own_data: whether each party is a node that has its own data.
        own: the placement's own settings, of the type that it registers.
    """

    sampler: Sampler
    silos: int | None = None
    min_replies: int = 0
    colluders: int = 0
    exact: bool = False
    rounds: int = 1
    nodes_own_data: bool = False
    own: Any = field(default_factory=Settings)


@dataclass(frozen=True, kw_only=True)
class Placement(ABC):
    """Who adds the noise, with the public numbers for it.

    Attributes:
        name: its name in settings, reports and messages.
        also_called: its names in other libraries and in papers.
        summary: who adds the noise, in a few words, for help.
        against: the adversary against whom the budget's epsilon holds.
        trust: whom the units trust, and against whom they are protected; {party} is a client or a silo.
        adds_noise: whether anyone adds noise.
        at_parties: whether parties add noise to their own messages.
        server_view: whether the budget limits the server's view: per client, without amplification.
        settings: the type of its own settings, which several placements may share.
        place: its place in lists and tables.
        exact: whether noise is exact, so that sums and noise are multiples of one step; otherwise it is
            floating-point.
    """

    name: ClassVar[str]
    also_called: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str]
    against: ClassVar[str]
    trust: ClassVar[str]
    adds_noise: ClassVar[bool] = True
    at_parties: ClassVar[bool] = False
    server_view: ClassVar[bool] = False
    settings: ClassVar[type[Settings]] = Settings
    place: ClassVar[int] = 50

    exact: bool = False

    @classmethod
    def configured(cls, context: PlacementContext) -> Self:
        """The placement of a run. Raises ArgumentError for settings that it does not support."""
        if context.min_replies:
            raise validation.fail("min-replies", context.min_replies, "be 0 unless clients add the noise")
        return cls(exact=context.exact)

    @property
    def min_replies(self) -> int:
        """n_min: with fewer replies there is no release."""
        return 0

    def participations(self, rounds: int) -> int | None:
        """K, the releases of a run of ``rounds`` to which one client contributes data at most; None where the
        budget limits all releases together."""
        return rounds if self.server_view else None

    def resized(self, factor: float) -> Self:
        """The placement for a release over ``factor`` times the usual cohort."""
        return self

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...] | None:
        """The noise std of one party per block, given the calibrated stds; None if it adds none."""
        return None

    @abstractmethod
    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The noise std of the server per block after ``replies`` replies, given the calibrated stds."""

    @abstractmethod
    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The noise std of the released sum per block: a public constant, independent of who took part."""

    def releases(self, replies: int) -> bool:
        """Whether ``replies`` are enough for a release."""
        return replies >= self.min_replies

    def enforced_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """The event of a release for the adversary against whom the budget's epsilon holds."""
        return sampler.event(noise_multiplier)

    def observer_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """The event of a release for an adversary who sees only the models; sampling amplifies it.

        The relation is that of ``enforced_event``, so that all epsilons of a report have the same relation.
        """
        return sampler.event(noise_multiplier)

    def message_event(self, sampler: Sampler, noise_multiplier: float) -> Event | None:
        """The event of one party's message for a server that sees it; None where it adds no noise, or where
        ``enforced_event`` is this event already."""
        return None


PLACEMENTS = Registry[type[Placement]]("placement", order=lambda kind: kind.place)
_Kind = TypeVar("_Kind", bound=type[Placement])


def register(kind: _Kind) -> _Kind:
    """Class decorator: add a placement to PLACEMENTS."""
    PLACEMENTS.add(kind.name, kind, kind.also_called)
    return kind

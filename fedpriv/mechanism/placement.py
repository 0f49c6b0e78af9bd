"""Who adds the noise: nobody, the server, or the parties, completely or in shares.

A party is a client or a silo. A placement defines who adds how much noise, and the adversary against whom the
budget's epsilon holds.

| placement | each party adds | the server adds | noise on the sum |
|---|---|---|---|
| :class:`NoNoise` | nothing | nothing | 0: not private |
| :class:`Central` | nothing | std | std |
| :class:`Local` | std | std for each missing party of m | sqrt(m) std |
| :class:`Distributed` | std / sqrt(n) | such a share for each missing party of m | sqrt(m / n) std >= std |

m is public: the size of a fixed-size cohort, the cap of a truncated Poisson cohort, or the number of silos.
The server adds the missing shares of m, so the noise on the sum does not depend on who took part or replied.
With fewer than n_min replies there is no release, and the charge remains. Noise beyond the calibrated std is
not credited. A party knows the noise that it added itself: n = n_min - c (at least 1) is the number of shares
that c colluding parties do not know (Kairouz et al. 2021, section 4). c = 0 protects only against adversaries
who are not parties.

>>> Distributed(shares=9, min_replies=4).party_stds((2.0,))
(1.0,)
>>> sorted(PLACEMENTS), PLACEMENTS["local"].against
(['central', 'distributed', 'local', 'none'], 'the server')
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

from fedpriv._internal import validation
from fedpriv._internal.registry import Registry
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.sampling import Sampler, TruncatedPoisson


@dataclass(frozen=True)
class PlacementContext:
    """The public settings from which a run's placement is built.

    Attributes:
        sampler: samples the units of a release.
        silos: the number of silos if units are the examples of silos; None if units are clients.
        min_replies: the setting ``min-replies``.
        colluders: the number of parties that may collude.
        exact: whether noise is exact.
    """

    sampler: Sampler
    silos: int | None
    min_replies: int
    colluders: int
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Placement(ABC):
    """Who adds the noise, with the public numbers for it.

    Attributes:
        name: its name in settings, reports and messages.
        also_called: its names in other libraries and in papers.
        summary: who adds the noise, in a few words, for help.
        against: the adversary against whom the budget's epsilon holds.
        trust: whom the units trust, and against whom they are protected.
        adds_noise: whether anyone adds noise.
        at_parties: whether parties add noise to their own messages.
        server_view: whether the budget limits the server's view: per client, without amplification.
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


PLACEMENTS = Registry[type[Placement]]("placement")
_Kind = TypeVar("_Kind", bound=type[Placement])


def register(kind: _Kind) -> _Kind:
    """Class decorator: add a placement to PLACEMENTS."""
    PLACEMENTS.add(kind.name, kind, kind.also_called)
    return kind


@register
class NoNoise(Placement):
    """Nobody adds noise: not private."""

    name = "none"
    also_called = ("off",)
    summary = "nobody adds noise"
    against = "nobody"
    trust = "There is no protection: no noise is added."
    adds_noise = False

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """Zeros."""
        return self.total_stds(stds)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """Zeros."""
        return tuple(0.0 for _ in stds)


@register
class Central(Placement):
    """The server adds all of the noise to the sum."""

    name = "central"
    also_called = ("cdp", "global", "server")
    summary = "the server adds it"
    against = "who sees the models"
    trust = (
        "Clients trust the server, which sees their exact contributions, and the channel to it. The "
        "guarantee holds against everyone who sees the released models of all rounds."
    )

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The calibrated stds, for any number of replies."""
        return tuple(stds)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The calibrated stds."""
        return tuple(stds)


@dataclass(frozen=True)
class AtParties(Placement):
    """Parties add noise to their own messages, and the server adds the missing shares of m.

    Attributes:
        shares: m, the number of shares of noise in a released sum.
        min_replies: n_min: with fewer replies there is no release. It also sets the share of
            :class:`Distributed`.
        per_unit: whether the parties are the sampled units (clients), not silos, which always take part.
        colluders: c, the number of parties that may share the noise they added.
    """

    at_parties = True
    fewest_replies: ClassVar[int] = 0

    shares: int
    min_replies: int = 0
    per_unit: bool = True
    colluders: int = 0

    def __post_init__(self) -> None:
        validation.integer("shares", self.shares, minimum=1)
        validation.integer("colluders", self.colluders)
        if not self.fewest_replies <= self.min_replies <= self.shares:
            allowed = f"lie in [{self.fewest_replies}, {self.shares}]"
            raise validation.fail("min-replies", self.min_replies, allowed)

    @classmethod
    def configured(cls, context: PlacementContext) -> Self:
        """The placement of a run, with its public numbers m and n_min.

        Raises ArgumentError if cohorts can be smaller than n_min.
        """
        sampler, replies = context.sampler, context.min_replies
        if context.silos is not None:
            shares = floor = context.silos
        elif isinstance(sampler, TruncatedPoisson):
            shares, floor = sampler.cap, sampler.floor
            if floor < cls.fewest_replies:
                allowed = f"give cohorts that are practically never empty under {cls.name} noise"
                hint = "use more clients, a higher rate, or sampler fixed-size"
                raise validation.fail("sampling-rate", sampler.rate, allowed, hint)
            if replies > floor:
                allowed = f"be at most {floor}, the smallest size of the Poisson cohorts"
                raise validation.fail("min-replies", replies, allowed)
        else:
            shares = floor = round(sampler.expected_size)
        replies = replies or (floor if cls.fewest_replies else 0)
        return cls(shares, replies, context.silos is None, context.colluders, exact=context.exact)

    def resized(self, factor: float) -> Self:
        """The placement for a release over ``factor`` times the usual cohort, with scaled m and n_min."""
        if factor == 1 or not self.per_unit:
            return self
        replies = max(self.fewest_replies, round(self.min_replies * factor))
        return replace(self, shares=round(self.shares * factor), min_replies=replies)

    @abstractmethod
    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The noise std of one party per block, given the calibrated stds."""

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The std of the missing shares of m. Raises ArgumentError for more replies than shares."""
        if replies > self.shares:
            # The number of replies is private, so the error leaves it out.
            raise validation.fail("replies", "...", f"be at most the public {self.shares} shares")
        return tuple(std * math.sqrt(self.shares - replies) for std in self.party_stds(stds))

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """sqrt(m) times the std of one party."""
        return tuple(std * math.sqrt(self.shares) for std in self.party_stds(stds))


@register
class Distributed(AtParties):
    """Each party adds a share of the noise; n shares have the calibrated std. More noise is not credited."""

    name = "distributed"
    also_called = ("secure-aggregation",)
    summary = "clients add shares of it"
    against = "who sees the models"
    trust = (
        "Clients trust that at least n_min of them add their share of the noise. The guarantee holds against "
        "everyone who sees the released models of all rounds. Against the server it holds ONLY if the server "
        "sees nothing but the sum, as under secure aggregation, which this run does not provide, AND every "
        "unit takes part in every release: the server draws the cohorts, so sampling hides nobody from it."
    )
    fewest_replies = 1

    @property
    def secret_shares(self) -> int:
        """n, the smallest number of shares in a released sum that no colluder knows."""
        return max(self.min_replies - self.colluders, 1)

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """std / sqrt(n)."""
        return tuple(std / math.sqrt(self.secret_shares) for std in stds)


@register
class Local(AtParties):
    """Each party adds all of the noise: z is calibrated for the server's view of one party's message."""

    name = "local"
    also_called = ("client", "ldp")
    summary = "each client adds all of it to its own message"
    against = "the server"
    trust = (
        "Each client adds all of the noise to its own message, so it need not trust the server with its "
        "data. The guarantee holds against the server and everyone else while the client's device runs this "
        "code. A node without its own epsilon-limit accepts the epsilon that a run states."
    )
    server_view = True

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The calibrated stds."""
        return tuple(stds)

    def enforced_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """One message of a client, which the server sees: no amplification, and replace-one."""
        population = sampler.population
        return Event(noise_multiplier, Sampling.NONE, Relation.REPLACE_ONE, population=population)

    def observer_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """With the noise of the whole sum, sqrt(m) z; sqrt(m - c) z if c parties collude."""
        secret = max(self.shares - self.colluders, 1)
        event = sampler.event(noise_multiplier * secret**0.5)
        return replace(event, relation=Relation.REPLACE_ONE)

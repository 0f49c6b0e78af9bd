"""Where the noise enters: nowhere, at the server, or at the parties, whole or in shares.

A party is a client, or a silo. Each placement says who adds how much noise, and which adversary the budget's
epsilon is read against.

| placement | each party adds | the server adds | noise on the sum |
|---|---|---|---|
| :class:`NoNoise` | nothing | nothing | 0: not private |
| :class:`Central` | nothing | one whole noise | std |
| :class:`Local` | one whole noise | the missing of m whole noises | sqrt(m) std |
| :class:`Distributed` | std / sqrt(n) | the missing of m such shares | sqrt(m / n) std >= std |

m is public: the size of a fixed-size cohort, the cap of a truncated Poisson one, or the number of silos.
The server tops up to exactly m shares, so the noise on the sum never depends on who took part or
replied. Fewer than n_min replies: no release, and the charge stands. Surplus noise is never credited.
A party that looks at the released models knows the share that it added itself: n = n_min - c (at least 1)
counts the shares that c colluding parties do not know (Kairouz et al. 2021, section 4). c = 0 protects
against those who are no party alone.

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
    """What a placement may know of the run that it is built for; all of it is public.

    Attributes:
        sampler: how the units of a release are drawn.
        silos: the number of silos, where units are the examples of silos; None where units are clients.
        min_replies: the setting ``min-replies``.
        colluders: how many parties may pool what they know.
        exact: whether noise is exact.
    """

    sampler: Sampler
    silos: int | None
    min_replies: int
    colluders: int
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Placement(ABC):
    """Where the noise enters, and the public numbers that this needs.

    Attributes:
        name: what settings, reports and messages call it.
        also_called: its names in other libraries and in papers.
        summary: who adds the noise, in a few words, for help.
        against: the adversary that the budget's epsilon is read against.
        trust: whom the units trust, and against whom they are protected.
        adds_noise: whether anyone adds noise.
        at_parties: whether parties add noise to their own messages.
        server_view: whether the server's view is what the budget limits: per client, without amplification.
        exact: whether noise is exact, and sums and noise are multiples of one step; else it is
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
        """The placement of a run. Raises ArgumentError for settings that it cannot honour."""
        if context.min_replies:
            raise validation.fail("min-replies", context.min_replies, "be 0 unless clients add the noise")
        return cls(exact=context.exact)

    @property
    def min_replies(self) -> int:
        """n_min; fewer replies release nothing."""
        return 0

    def resized(self, factor: float) -> Self:
        """The placement of a release over ``factor`` times the usual cohort."""
        return self

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...] | None:
        """What one party adds, per block, given the stds owed to the sum; None where it adds nothing."""
        return None

    @abstractmethod
    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """What the server adds, per block, once ``replies`` parties have answered."""

    @abstractmethod
    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The std on the released sum, per block: a public constant, whoever took part."""

    def releases(self, replies: int) -> bool:
        """Whether as many replies are enough for a release."""
        return replies >= self.min_replies

    def enforced_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """The event of a release as the adversary has it whom the budget's epsilon is read against."""
        return sampler.event(noise_multiplier)

    def observer_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """The event of a release as who sees only the models has it, amplified by sampling.

        Neighbours are those of ``enforced_event``, so that one report's epsilons are about the same ones.
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
    """The server adds one whole noise to the sum."""

    name = "central"
    also_called = ("cdp", "global", "server")
    summary = "the server adds it"
    against = "who sees the models"
    trust = (
        "Clients trust the server, which sees their exact contributions, and the channel to it. The "
        "guarantee holds against everyone who sees the released models of all rounds."
    )

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The stds owed, whoever replied."""
        return tuple(stds)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The stds owed."""
        return tuple(stds)


@dataclass(frozen=True)
class AtParties(Placement):
    """Parties add noise to their own messages, and the server adds what is missing of m shares.

    Attributes:
        shares: m, how many parties' noises a released sum carries.
        min_replies: n_min; fewer replies release nothing. For :class:`Distributed` it also sets the share.
        per_unit: whether the parties are the sampled units (clients), not silos that answer every time.
        colluders: c, how many parties may pool what they know of their own noise.
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
        """The placement of a run, with its public numbers m and n_min. Raises ArgumentError where cohorts can
        be smaller than n_min."""
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
                allowed = f"be at most {floor}, what a Poisson cohort always has"
                raise validation.fail("min-replies", replies, allowed)
        else:
            shares = floor = round(sampler.expected_size)
        replies = replies or (floor if cls.fewest_replies else 0)
        return cls(shares, replies, context.silos is None, context.colluders, exact=context.exact)

    def resized(self, factor: float) -> Self:
        """The placement of a release over ``factor`` times the usual cohort: m and n_min follow it."""
        if factor == 1 or not self.per_unit:
            return self
        replies = max(self.fewest_replies, round(self.min_replies * factor))
        return replace(self, shares=round(self.shares * factor), min_replies=replies)

    @abstractmethod
    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """What one party adds, per block, given the stds owed to the sum."""

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The shares that are missing of m. Raises ArgumentError for more replies than shares."""
        if replies > self.shares:
            # How many there are is private, so no error says it.
            raise validation.fail("replies", "...", f"be at most the public {self.shares} shares")
        return tuple(std * math.sqrt(self.shares - replies) for std in self.party_stds(stds))

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """sqrt(m) times what one party adds."""
        return tuple(std * math.sqrt(self.shares) for std in self.party_stds(stds))


@register
class Distributed(AtParties):
    """Each party adds a share, of which n_min make a whole noise. Surplus noise is not credited."""

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
        """n, how many parties' noises a released sum carries at least that no colluder knows."""
        return max(self.min_replies - self.colluders, 1)

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """std / sqrt(n)."""
        return tuple(std / math.sqrt(self.secret_shares) for std in stds)


@register
class Local(AtParties):
    """Each party adds a whole noise: z is calibrated to what the server sees of one party's message."""

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
        """The stds owed."""
        return tuple(stds)

    def enforced_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """A message of a client that the server asked: unamplified, and a neighbour's replaces it."""
        population = sampler.population
        return Event(noise_multiplier, Sampling.NONE, Relation.REPLACE_ONE, population=population)

    def observer_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """On the constant summed noise of sqrt(m) z, or sqrt(m - c) z where c parties know their own."""
        secret = max(self.shares - self.colluders, 1)
        event = sampler.event(noise_multiplier * secret**0.5)
        return replace(event, relation=Relation.REPLACE_ONE)

"""Local noise: each party adds all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from fedpriv._internal import validation
from fedpriv._internal.settings import Settings, setting
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.placement.at_parties import AtParties
from fedpriv.mechanism.placement.base import PlacementContext, register
from fedpriv.mechanism.sampling import Sampler


class LocalSettings(Settings):
    """Local noise's own settings."""

    max_participations: int = setting(
        0,
        "local placement: releases to which a client contributes data, kept by the server's own loop; 0: no "
        "limit",
        ge=0,
    )


@register
@dataclass(frozen=True)
class Local(AtParties):
    """Each party adds all of the noise: z is calibrated for the server's view of one party's message.

    Attributes:
        max_participations: K, the releases to which a client contributes data at most; 0: no limit.
    """

    name = "local"
    also_called = ("client", "ldp")
    place = 30
    summary = "each client adds all of it to its own message"
    against = "the server"
    trust = (
        "Each {party} adds all of the noise to its own message, so it need not trust the server with its "
        "data. The guarantee holds against the server and everyone else while the {party} runs this "
        "code. A node without its own epsilon-limit accepts the epsilon that a run states."
    )
    server_view = True
    settings = LocalSettings

    max_participations: int = field(default=0, kw_only=True)

    @classmethod
    def configured(cls, context: PlacementContext) -> Self:
        """The placement of a run. Raises ArgumentError for a cap that it cannot keep."""
        cap = context.own.max_participations
        if cap and context.nodes_own_data:
            # A cap protects against the server only where clients count for themselves, which deployed nodes
            # do not do yet.
            raise validation.fail("max-participations", cap, "be 0 with nodes-own-data")
        if cap > context.rounds:
            raise validation.fail("max-participations", cap, "be at most rounds")
        return replace(super().configured(context), max_participations=cap)

    def participations(self, rounds: int) -> int:
        """The cap, or all rounds."""
        return self.max_participations or rounds

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

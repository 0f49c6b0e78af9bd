"""Distributed noise: each party adds a share of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.placement.at_parties import AtParties
from fedpriv.mechanism.placement.base import register
from fedpriv.mechanism.sampling import Sampler


@register
class Distributed(AtParties):
    """Each party adds a share of the noise; n shares have the calibrated std. More noise is not credited."""

    name = "distributed"
    also_called = ("secure-aggregation",)
    place = 20
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

    def message_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """One message with its own share of the noise, without amplification: the server draws the cohorts.

        The server sees which clients reply, so a client can only be replaced. It does not see which examples
        a silo has, so examples keep the relation of the run.
        """
        (share,) = self.party_stds((noise_multiplier,))
        relation = Relation.REPLACE_ONE if self.per_unit else sampler.event(noise_multiplier).relation
        return Event(share, Sampling.NONE, relation, population=sampler.population)

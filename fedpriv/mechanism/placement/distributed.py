"""Distributed noise: each party adds a share of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from fedpriv._internal import validation
from fedpriv._internal.settings import Settings, setting
from fedpriv.accounting.events import Event, Relation, Sampling
from fedpriv.mechanism.placement.at_parties import AtParties
from fedpriv.mechanism.placement.base import PlacementContext, register
from fedpriv.mechanism.sampling import Everyone, Sampler
from fedpriv.secure_aggregation.threshold import MAX_PARTIES, MIN_PARTIES, smallest_threshold

SECURE = "secure-aggregation"


class DistributedSettings(Settings):
    """Distributed noise's own settings."""

    secure_aggregation: bool = setting(
        False,
        "distributed placement: the server learns the noisy sum of 2 to 64 silos and no message; sampler "
        "everyone",
    )


@register
@dataclass(frozen=True)
class Distributed(AtParties):
    """Each party adds a share of the noise; n shares have the calibrated std. More noise is not credited.

    Attributes:
        secure: whether the server sees the sum alone (:mod:`fedpriv.secure_aggregation`).
    """

    name = "distributed"
    also_called = (SECURE,)
    place = 20
    summary = "clients add shares of it"
    against = "who sees the models"
    trust = (
        "Each {party} trusts that at least n_min of them add their share of the noise. The guarantee holds "
        "against everyone who sees the released models of all rounds. Against the server it holds ONLY if "
        "the server sees nothing but the sum, as under secure aggregation, which is not part of distributed "
        "noise, AND every unit takes part in every release: the server draws the cohorts, so sampling hides "
        "nobody from it."
    )
    fewest_replies = 1
    settings = DistributedSettings

    secure: bool = field(default=False, kw_only=True)

    @classmethod
    def configured(cls, context: PlacementContext) -> Self:
        """The placement of a run. Raises ArgumentError for what secure aggregation does not support."""
        if not context.own.secure_aggregation:
            return super().configured(context)
        _check_secure(context)
        silos = context.silos or 0
        threshold = context.min_replies or smallest_threshold(silos)
        return replace(super().configured(replace(context, min_replies=threshold)), secure=True)

    @property
    def secret_shares(self) -> int:
        """n, the smallest number of shares in a released sum that no colluder knows."""
        return max(self.min_replies - self.colluders, 1)

    def party_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """std / sqrt(n)."""
        return tuple(std / math.sqrt(self.secret_shares) for std in stds)

    def message_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """What the server sees of a release, without amplification, since it draws the cohorts.

        That is the sum under secure aggregation, and otherwise one message with its own share of the noise.
        The server sees which clients reply, so a client can only be replaced. It does not see which examples
        a silo has, so examples keep the relation of the run.
        """
        (share,) = self.party_stds((noise_multiplier,))
        seen = noise_multiplier if self.secure else share
        relation = Relation.REPLACE_ONE if self.per_unit else sampler.event(noise_multiplier).relation
        return Event(seen, Sampling.NONE, relation, population=sampler.population)


def _check_secure(context: PlacementContext) -> None:
    """Raises ArgumentError for what secure aggregation does not support."""
    if context.silos is None:
        raise validation.fail(SECURE, True, "be false unless unit is example", "its parties are silos")
    if not MIN_PARTIES <= context.silos <= MAX_PARTIES:
        raise validation.fail(
            "clients", context.silos, f"lie in [{MIN_PARTIES}, {MAX_PARTIES}] with {SECURE}"
        )
    if not isinstance(context.sampler, Everyone):
        hint = "the server draws the cohorts, so sampling hides nobody from it"
        raise validation.fail(SECURE, True, "be false unless sampler is everyone", hint)
    if not context.exact:
        raise validation.fail(
            SECURE, True, "be false unless noise-draws is exact", "messages are whole steps"
        )
    smallest = smallest_threshold(context.silos)
    threshold = context.min_replies or smallest
    if threshold < smallest:
        allowed = f"be 0 or at least {smallest}, more than two thirds of the silos, with {SECURE}"
        raise validation.fail("min-replies", threshold, allowed)
    most = 2 * threshold - context.silos - 1
    if context.colluders > most:
        allowed = f"be at most {most} with min-replies {threshold} of {context.silos} and {SECURE}"
        raise validation.fail("colluding-parties", context.colluders, allowed)

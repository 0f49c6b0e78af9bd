"""Placements: who adds noise, what is charged, and the adversary of the budget's epsilon."""

from __future__ import annotations

import pytest

from fedpriv.mechanism.placement import (
    PLACEMENTS,
    Central,
    Distributed,
    Local,
    NoNoise,
    Placement,
    PlacementContext,
)
from fedpriv.mechanism.sampling import Everyone, FixedSize, Poisson

STDS = (2.0, 6.0)


def made(name: str) -> Placement:
    kind = PLACEMENTS[name]
    return kind.configured(
        PlacementContext(FixedSize(400, 9), min_replies=4 if kind.at_parties else 0, own=kind.settings())
    )


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("replies", [4, 7, 9])
def test_the_noise_on_the_sum_does_not_depend_on_who_replied(name: str, replies: int) -> None:
    placement = made(name)
    party = placement.party_stds(STDS) or (0.0, 0.0)
    server = placement.server_stds(STDS, replies)
    total = [(replies * p**2 + s**2) ** 0.5 for p, s in zip(party, server, strict=True)]
    assert total == pytest.approx(placement.total_stds(STDS))
    assert (placement.party_stds(STDS) is not None) == placement.at_parties
    assert any(total) == placement.adds_noise


def test_only_local_noise_is_charged_for_the_servers_view() -> None:
    sampler = FixedSize(400, 9)
    amplified = sampler.event(2.0)
    for placement in (NoNoise(), Central(), Distributed(9, 4)):
        assert placement.enforced_event(sampler, 2.0) == placement.observer_event(sampler, 2.0) == amplified
    local = Local(9, colluders=5)
    charged, observed = local.enforced_event(sampler, 2.0), local.observer_event(sampler, 2.0)
    assert (charged.sampling, charged.relation, charged.noise_multiplier) == ("none", "replace-one", 2.0)
    assert (observed.cohort, observed.noise_multiplier) == (9, 4.0)
    assert Local(9).observer_event(Poisson(400, 0.1), 2.0).relation == "replace-one"


def test_m_and_n_min_follow_a_larger_cohort_only_for_clients() -> None:
    assert Distributed(6, 4).resized(3.0) == Distributed(18, 12)
    assert Distributed(6, 4, per_unit=False).resized(3.0) == Distributed(6, 4, per_unit=False)
    assert Distributed(6, 1).resized(0.1).min_replies == 1
    assert Local(6, 1).resized(0.1).min_replies == 0
    assert Central().resized(3.0) == Central()


def test_placements_of_the_same_numbers_are_not_the_same() -> None:
    assert Local(9, 4) != Distributed(9, 4)
    assert NoNoise() != Central()
    assert Everyone(9).event(1.0) == Central().enforced_event(Everyone(9), 1.0)

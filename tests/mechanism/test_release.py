"""Noise: who adds it, its std on the sum, and its independence of who took part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.mechanism.grid import noise_step, rounded
from fedpriv.mechanism.placement import Central, Distributed, Local, NoNoise, Placement
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.mechanism.release import MARGIN, add_party_noise, release
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.rng import Key

D, Z, CLIP = 20_000, 1.3, 0.7
TERM = Term(clip_norm=CLIP)
QUERY = Query((torch.zeros(D),), (SumBlock((TERM,)),))
KEY = Key.from_seed(5)
# D draws pin a std to 1 / sqrt(2 D) = 0.5 %; within 2.5 % is 5 std: flake rate 6e-7, seed fixed.
TOLERANCE = 0.025


def released(placement: Placement, replies: int, index: int = 0, z: float = Z) -> torch.Tensor | None:
    """The noise on the sum of ``replies`` parties whose vectors are zero."""
    sums: tuple[torch.Tensor, ...] = (torch.zeros(D),)
    stds = placement.party_stds(QUERY.noise_stds(z))
    if stds is not None:
        sums = add_party_noise(
            sums, stds, replies, KEY, index, 0, exact=QUERY.blocks if placement.exact else ()
        )
    answer = release(sums, replies, QUERY, z, placement, 1.0, KEY, index)
    return None if answer is None else answer[0]


def has_std(noise: torch.Tensor | None, std: float) -> bool:
    assert noise is not None
    return abs(float(noise.std()) / std - 1) < TOLERANCE and abs(float(noise.mean())) < 5 * std / D**0.5


PLACEMENTS = [
    (Central(), Z * CLIP),
    (Local(shares=9), 3 * Z * CLIP),
    (Distributed(shares=9, min_replies=4), 1.5 * Z * CLIP),
    (Distributed(shares=9, min_replies=9), Z * CLIP),
]
PLACEMENTS += [(replace(placement, exact=True), std) for placement, std in PLACEMENTS]


@pytest.mark.parametrize(("placement", "std"), PLACEMENTS)
def test_noise_on_the_sum_has_its_std(placement: Placement, std: float) -> None:
    noise = released(placement, replies=9)
    assert has_std(noise, std)
    assert not has_std(noise, std * 1.5)
    assert not has_std(noise, std * 2 / 3)
    assert noise is not None
    assert stats.kstest(noise.numpy() / std, "norm").pvalue > 1e-6


@pytest.mark.parametrize(("placement", "std"), PLACEMENTS[:3] + PLACEMENTS[4:7])
@pytest.mark.parametrize("replies", [4, 5, 9])
def test_noise_on_the_sum_does_not_depend_on_replies(placement: Placement, std: float, replies: int) -> None:
    assert has_std(released(placement, replies, index=replies), std)
    assert placement.total_stds((Z * CLIP,))[0] == pytest.approx(std)


def test_dropouts_never_shrink_the_noise_and_too_few_release_nothing() -> None:
    placement = Distributed(shares=9, min_replies=4)
    assert released(placement, 3) is None
    assert has_std(released(Local(shares=9), 0), 3 * Z * CLIP)


def test_an_empty_central_cohort_is_a_noise_only_release() -> None:
    assert has_std(released(Central(), 0), Z * CLIP)


def test_no_placement_no_noise() -> None:
    noise = released(NoNoise(), 9)
    assert noise is not None
    assert float(noise.abs().max()) == 0


@pytest.mark.parametrize("parties", [1, 16])
def test_one_draw_for_k_parties_is_distributed_as_k_draws(parties: int) -> None:
    """KS two-sample on 20,000 coordinates; rejects a std off by 5 %."""
    std = (0.5,)
    one = add_party_noise((torch.zeros(D),), std, parties, KEY, 1, 0)[0].numpy()
    many = sum(
        add_party_noise((torch.zeros(D),), std, 1, KEY, 2, shard)[0].numpy() for shard in range(parties)
    )
    assert stats.ks_2samp(one, many).pvalue > 1e-6
    assert stats.ks_2samp(1.5 * one, many).pvalue < 1e-6


def test_two_blocks_get_noise_by_their_shares() -> None:
    term = Term(clip_norm=2.0)
    query = Query((torch.zeros(2),), (SumBlock((term,), 0.9), IndicatorBlock(term, 2.0, 0.1)))
    key = KEY
    bits = []
    for index in range(2000):
        answer = release((torch.zeros(2), torch.zeros(())), 0, query, Z, Central(), 1.0, key, index)
        assert answer is not None
        bits.append(float(answer[1]))
    assert np.std(bits) == pytest.approx(Z * 0.5 / math.sqrt(0.1), rel=0.1)


@pytest.mark.parametrize("colluders", [0, 1, 3, 8, 20])
def test_the_shares_that_no_colluder_knows_have_the_calibrated_std(colluders: int) -> None:
    """Among nine shares, or n_min without the server's, at least one is unknown to the colluders."""
    placement = Distributed(shares=9, min_replies=4, colluders=colluders)
    [share] = placement.party_stds((2.0,)) or ()
    for carried in (4, 9):
        assert math.sqrt(max(carried - colluders, 1)) * share >= 2.0 * (1 - 1e-12)
    assert placement.total_stds((2.0,))[0] == pytest.approx(3 * share)
    assert share == pytest.approx(2.0 / math.sqrt(max(4 - colluders, 1)))


def test_the_noisy_sum_is_rounded_and_not_the_sum() -> None:
    """Otherwise one more unit could change a large sum by zero or by two units before noise is added."""
    large = torch.full((D,), 2.0**25, dtype=torch.float64)
    first, more = (release((sums,), 0, QUERY, 20.0, Central(), 1.0, KEY, 0) for sums in (large, large + 1))
    assert first is not None
    assert more is not None
    assert first[0].dtype == torch.float32  # in steps of four there
    assert float((more[0] - first[0]).mean()) == pytest.approx(1.0, abs=0.1)


def test_the_denominator_is_the_public_one() -> None:
    answer = release((torch.ones(D),), 3, QUERY, 0.0, NoNoise(), 250.0, KEY, 0)
    assert answer is not None
    assert torch.allclose(answer[0], torch.full((D,), 1 / 250))


def test_no_two_releases_share_noise_and_a_seed_repeats_them() -> None:
    first, second = released(Central(), 0, 0), released(Central(), 0, 1)
    assert first is not None
    assert second is not None
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / D**0.5
    again = released(Central(), 0, 0)
    assert again is not None
    assert torch.equal(first, again)


def test_more_replies_than_shares_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"replies is '\.\.\.'; it must be at most"):
        released(Local(shares=9), 10)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Local(shares=0), "shares"),
        (lambda: Distributed(shares=5, min_replies=0), "min-replies"),
        (lambda: Distributed(shares=5, min_replies=6), "min-replies"),
    ],
)
def test_bad_values_are_named(call: Callable[[], object], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        call()


# Exact noise: of the sum there is in the release what whole steps hold, and nothing else.

EXACT = [placement for placement, _ in PLACEMENTS if placement.exact][:3]


def noisy_sum(placement: Placement, sums: torch.Tensor, replies: int, index: int = 0) -> torch.Tensor:
    """The release for ``replies`` parties before it is divided and rounded to float32."""
    query = replace(QUERY, points=(QUERY.points[0].double(),))
    parts: tuple[torch.Tensor, ...] = (sums,)
    stds = placement.party_stds(query.noise_stds(Z))
    if stds is not None:
        blocks = query.blocks if placement.exact else ()
        parts = add_party_noise(parts, stds, replies, KEY, index, 0, blocks)
    answer = release(parts, replies, query, Z, placement, 1.0, KEY, index)
    assert answer is not None
    return answer[0]


@pytest.mark.parametrize("placement", EXACT, ids=lambda placement: placement.name)
@pytest.mark.parametrize("replies", [4, 8, 9])
def test_exact_releases_are_whole_steps_however_many_replied(placement: Placement, replies: int) -> None:
    """The step follows from public numbers; floating-point noise is not a multiple of it."""
    owed = QUERY.noise_stds(Z)
    [std] = placement.party_stds(owed) or owed
    step = noise_step(QUERY.blocks[0], std)
    sums = torch.rand(D, generator=torch.Generator().manual_seed(1))
    released = noisy_sum(placement, sums, replies)
    assert torch.equal(released / step, (released / step).round())
    assert len((released / step % 2**12).unique()) > 0.9 * 2**12  # the last bits are all there
    fast = noisy_sum(replace(placement, exact=False), sums.double(), replies)
    assert not torch.equal(fast / step, (fast / step).round())
    assert step < CLIP * 2**-24


@pytest.mark.parametrize("placement", EXACT, ids=lambda placement: placement.name)
def test_equal_rounded_sums_give_equal_releases(placement: Placement) -> None:
    """The release depends on the rounded sum only: a change below one step has no effect."""
    owed = QUERY.noise_stds(Z)
    [std] = placement.party_stds(owed) or owed
    step = noise_step(QUERY.blocks[0], std)
    sums = step * torch.arange(D, dtype=torch.float64)
    one = noisy_sum(placement, sums, 9)
    assert torch.equal(one, noisy_sum(placement, sums + 0.4 * step, 9))
    assert torch.equal(one + step, noisy_sum(placement, sums + step, 9))
    fast = replace(placement, exact=False)
    assert not torch.equal(noisy_sum(fast, sums, 9), noisy_sum(fast, sums + 0.4 * step, 9))


@pytest.mark.parametrize("z", [1e-3, 1.0, 300.0, 1e5])
def test_exact_noise_is_increased_to_compensate_for_rounding(z: float) -> None:
    """The same normal numbers, with a std increased by the largest extra distance of two rounded sums."""
    zeros = torch.zeros(D, dtype=torch.float64)
    step, std = noise_step(QUERY.blocks[0], z * CLIP), z * CLIP
    [whole] = Rounded(KEY, ("server-noise", 3), [zeros], [std / step]).take()
    exact = Central(exact=True)
    query = replace(QUERY, points=(zeros,))
    answer = release((zeros,), 0, query, z, exact, 1.0, KEY, 3)
    assert answer is not None
    more = float(answer[0].norm() / (whole * step).norm()) - 1
    far = torch.full((D,), 0.5 * step, dtype=torch.float64)  # neighbours that are rounded up, and down
    assert more > float((rounded(1.001 * far, step) - rounded(0.999 * far, step)).norm()) / CLIP
    assert more == pytest.approx(MARGIN + step * math.sqrt(D) / CLIP, rel=1e-2)

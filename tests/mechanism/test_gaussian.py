"""Normals are normal, independent, and the same for every order and number of threads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from fedpriv.mechanism.gaussian import PIECE, Normals
from fedpriv.mechanism.placement import Central, Distributed, Local, NoNoise
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.release import PARTY, SERVER, draw_ahead, release
from fedpriv.rng import Key

KEY = Key.from_seed(11)
LONG = 3 * PIECE + 7


def draw(
    label: tuple[str, *tuple[int, ...]], *sizes: int, dtype: torch.dtype = torch.float32
) -> list[npt.NDArray[np.float64]]:
    return [z.numpy() for z in Normals(KEY, label, [torch.zeros(n, dtype=dtype) for n in sizes]).take()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_standard_normal_across_pieces(dtype: torch.dtype) -> None:
    """Seeds are fixed, so these cannot flake; each would fail for a std that is off by 5 %."""
    [sample] = draw((SERVER, 0), LONG, dtype=dtype)
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * sample, "norm").pvalue < 1e-6
    assert abs(float(np.mean(sample**4)) - 3) < 0.1
    assert np.abs(sample).max() > 4  # the tail is there: one in 16,000 lies beyond


def test_pieces_blocks_labels_and_keys_share_nothing() -> None:
    one, two = draw((SERVER, 1), LONG, PIECE)
    pieces = [one[:PIECE], one[PIECE : 2 * PIECE], two, *draw((SERVER, 2), PIECE), *draw((PARTY, 1), PIECE)]
    pieces += [z.numpy() for z in Normals(Key.from_seed(12), (SERVER, 1), [torch.zeros(PIECE)]).take()]
    correlations = np.corrcoef(np.stack(pieces)) - np.eye(len(pieces))
    assert np.abs(correlations).max() < 6 / PIECE**0.5
    lagged = np.corrcoef(one[:-1], one[1:])[0, 1]
    assert abs(lagged) < 6 / LONG**0.5


def test_a_seed_repeats_them_and_a_shorter_draw_is_a_prefix() -> None:
    [one], [again], [shorter] = (draw((SERVER, 4), size) for size in (LONG, LONG, PIECE + 5))
    assert np.array_equal(one, again)
    assert np.array_equal(one[: PIECE + 5], shorter)


@pytest.mark.parametrize("exact", [True, False])
def test_noise_drawn_ahead_is_the_noise_that_is_released(exact: bool) -> None:
    query = Query((torch.zeros(LONG),), (SumBlock((Term(clip_norm=2.0),)),))
    sums, central = (torch.ones(LONG),), Central(exact=exact)
    ahead = draw_ahead(query, 1.5, central, KEY, 3)
    assert ahead is not None
    one = release(sums, 0, query, 1.5, central, 4.0, KEY, 3, ahead)
    two = release(sums, 0, query, 1.5, central, 4.0, KEY, 3)
    assert one is not None
    assert two is not None
    assert torch.equal(one[0], two[0])
    if not exact:
        [sample] = draw((SERVER, 3), LONG)
        np.testing.assert_allclose(one[0].numpy(), (1 + 3 * sample) / 4, rtol=1e-5, atol=1e-6)
    for taken in (2, 4):
        with pytest.raises(ValueError, match="cannot serve"):
            release(sums, 5, query, 1.5, central, 10.0, KEY, taken, ahead)


def test_exact_noise_drawn_ahead_with_another_std_is_refused() -> None:
    query, central = Query((torch.zeros(8),), (SumBlock((Term(clip_norm=2.0),)),)), Central(exact=True)
    ahead = draw_ahead(query, 1.0, central, KEY, 3)
    with pytest.raises(ValueError, match="another std"):
        release((torch.zeros(8),), 0, query, 1.5, central, 10.0, KEY, 3, ahead)


def test_noise_that_depends_on_replies_is_not_drawn_ahead() -> None:
    query = Query((torch.zeros(8),), (SumBlock((Term(clip_norm=2.0),)),))
    for placement in (NoNoise(), Distributed(shares=4, min_replies=2), Local(shares=4)):
        assert draw_ahead(query, 1.5, placement, KEY, 3) is None

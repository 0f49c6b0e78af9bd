"""Rounded normal numbers have the exact distribution: closed forms, published bits, mpmath's digits."""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from fedpriv.mechanism import rounded_gaussian
from fedpriv.mechanism.gaussian import PIECE
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.rng import Key

KEY = Key.from_seed(11)
LONG = 3 * PIECE + 7


def draw(
    index: int, scale: float, *sizes: int, shift: torch.Tensor | None = None
) -> list[npt.NDArray[np.float64]]:
    like, shifts = [torch.zeros(n) for n in sizes], None if shift is None else [shift]
    draws = Rounded(KEY, ("noise", index), like, [scale] * len(sizes), shifts)
    return [whole.numpy() for whole in draws.take()]


def shift_of(count: int) -> torch.Tensor:
    """Multiples of 2**-20 in [-1/2, 1/2], both ends among them."""
    return (torch.arange(count, dtype=torch.float64) * 987654321 % (2**20 + 1)) / 2**20 - 0.5


def integers(piece: rounded_gaussian._Piece, scale: float) -> list[float]:
    """The numbers of a piece of two."""
    out = np.empty(2)
    piece.fill(scale, out)
    return [float(whole) for whole in out]


def p_value(sample: npt.NDArray[np.float64], scale: float, shift: float = 0.0) -> float:
    """The p-value of a chi-square test that the sample is round(scale Z + shift)."""
    most = int(np.ceil(3.5 * scale)) + 1
    edges = np.arange(-most, most) + 0.5
    chances = np.diff(stats.norm.cdf((np.array([-np.inf, *edges, np.inf]) - shift) / scale))
    counts = np.bincount(np.clip(sample, -most, most).astype(int) + most, minlength=2 * most + 1)
    return float(stats.chisquare(counts, chances * len(sample)).pvalue)


@pytest.mark.parametrize("scale", [0.5, 2.0, 7.3])
def test_integers_have_the_probabilities_of_the_rounded_distribution(scale: float) -> None:
    """The seed is fixed, so this cannot flake; it fails for a scale off by 2 %, and for another rounding."""
    [sample] = draw(0, scale, LONG)
    assert np.array_equal(sample, np.rint(sample))
    assert p_value(sample, scale) > 1e-6
    assert p_value(sample, 1.02 * scale) < 1e-6
    assert p_value(np.floor(sample), scale, shift=-0.5) < 1e-6


@pytest.mark.parametrize("shift", [0.5, -0.3])
def test_a_shift_is_added_before_rounding(shift: float) -> None:
    [sample] = draw(12, 2.0, LONG, shift=torch.full((LONG,), shift, dtype=torch.float64))
    assert p_value(sample, 2.0, shift) > 1e-6
    assert p_value(sample, 2.0) < 1e-6


def test_large_scales_give_the_normal_distribution_across_pieces() -> None:
    [sample] = draw(1, 2.0**31, LONG)
    assert np.array_equal(sample, np.rint(sample))
    assert stats.kstest(sample / 2.0**31, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * sample / 2.0**31, "norm").pvalue < 1e-6
    assert np.abs(sample).max() > 4 * 2.0**31  # the tail is there: one in 16,000 lies beyond
    assert len(np.unique(sample % 2**10)) == 2**10  # and so are the last bits


def test_pieces_blocks_labels_and_keys_share_nothing() -> None:
    one, two = draw(2, 1e6, LONG, PIECE)
    other = Rounded(Key.from_seed(12), ("noise", 2), [torch.zeros(PIECE)], [1e6]).take()[0].numpy()
    pieces = [one[:PIECE], one[PIECE : 2 * PIECE], two, *draw(3, 1e6, PIECE), other]
    correlations = np.corrcoef(np.stack(pieces)) - np.eye(len(pieces))
    assert np.abs(correlations).max() < 6 / PIECE**0.5
    half = PIECE // 2  # the two numbers of a pair
    for lag in (1, half):
        assert abs(np.corrcoef(one[: PIECE - lag], one[lag:PIECE])[0, 1]) < 6 / half**0.5
    assert abs(np.corrcoef(one[:half] ** 2, one[half:PIECE] ** 2)[0, 1]) < 6 / half**0.5


def test_a_seed_repeats_them() -> None:
    [one], [again] = draw(4, 1e9, 1001), draw(4, 1e9, 1001)
    assert np.array_equal(one, again)
    [scalar] = Rounded(KEY, ("noise", 4), [torch.zeros(())], [8.0]).take()
    assert scalar.shape == ()


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("scale", [3.0, 2.0**31, 2.0**40])
def test_mpmath_and_float64_give_the_same_integers(
    scale: float, shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a much larger error bound, mpmath computes many more numbers; none changes."""
    shift = shift_of(301) if shifted else None
    [known] = draw(5, scale, 301, shift=shift)
    results = []
    exact = rounded_gaussian._round
    monkeypatch.setattr(rounded_gaussian, "_round", lambda *a: results.append(exact(*a)) or results[-1])
    monkeypatch.setattr(rounded_gaussian, "_ERROR", 0.005)
    [again] = draw(5, scale, 301, shift=shift)
    assert np.array_equal(known, again)
    assert len(results) > (3 if scale == 3.0 else 300)


@pytest.mark.parametrize("by_torch", [False, True])
def test_float64_is_within_half_of_the_error_that_is_assumed(by_torch: bool) -> None:
    first, second = (rounded_gaussian._bits(KEY, ("noise", 6, part), 1500) for part in (0, 1))
    if by_torch:
        words = (torch.from_numpy(word.view(np.int64).copy()) for word in (first, second))
        radii, *normals = (found.numpy() for found in rounded_gaussian._normals_by_torch(*words))
    else:
        radii, *normals = rounded_gaussian._normals(first, second)
    with mpmath.workdps(60):
        for pair in range(1500):
            u, v = ((mpmath.mpf(int(word[pair])) + 0.5) / 2**64 for word in (first, second))
            radius = mpmath.sqrt(-2 * mpmath.log(u))
            assumed = float(rounded_gaussian._error(radii[pair : pair + 1])[0])
            assert assumed == pytest.approx(2**-48 * float(radius + 1 / radius))
            for of, numbers in zip((mpmath.cos, mpmath.sin), normals, strict=True):
                error = abs(radius * of(2 * mpmath.pi * v) - mpmath.mpf(float(numbers[pair])))
                assert error < assumed / 2


@pytest.mark.parametrize("scale", [0.0, 0.7, 2.0**26, 2.0**39])
@pytest.mark.parametrize("count", [1, 2, 1001, PIECE, LONG])
@pytest.mark.parametrize("shifted", [False, True])
def test_a_device_draws_the_same_integers(
    count: int, scale: float, shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The computation of a GPU, here on the CPU; at 2**39 mpmath decides some thousands."""
    monkeypatch.setattr(rounded_gaussian, "_TOGETHER", 2)
    shift = shift_of(count) if shifted else None
    [known], there = draw(10, scale, count, shift=shift), torch.empty(count, dtype=torch.float64)
    rounded_gaussian.fill_on_device(KEY, ("noise", 10, 0), scale, there, shift)
    assert np.array_equal(known, there.numpy())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_integers() -> None:
    sizes, scale = [(1001,), (LONG,), (), (64, 1000)], 2.0**40
    here, there = (
        Rounded(
            KEY, ("noise", 11), [torch.zeros(size, device=device) for size in sizes], [scale] * len(sizes)
        )
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here.take(), there.take(), strict=True):
        assert other.is_cuda
        assert torch.equal(one, other.cpu())


def test_cosines_and_sines_are_within_their_bound() -> None:
    """At edges of arcs and within: 2.9 units of 2**-53, the missing bits of the angle included."""
    rest = np.uint64(64 - rounded_gaussian._ARCS)
    arcs = np.arange(0, 2**rounded_gaussian._ARCS, 3, dtype=np.uint64) << rest
    inside = rounded_gaussian._bits(KEY, ("inside",), len(arcs)) >> np.uint64(rounded_gaussian._ARCS)
    second = np.concatenate([arcs, arcs + (np.uint64(1) << rest) - np.uint64(1), arcs + inside])
    cosine, sine = rounded_gaussian._turns(second)
    with mpmath.workdps(40):
        for word, c, s in zip(second, cosine, sine, strict=True):
            for bits in (2 * int(word), 2 * int(word) + 2):  # the least and the largest V with these bits
                turn = mpmath.mpf(bits) / 2**64  # in half turns
                assert abs(mpmath.cospi(turn) - mpmath.mpf(float(c))) < 2.9 * 2**-53
                assert abs(mpmath.sinpi(turn) - mpmath.mpf(float(s))) < 2.9 * 2**-53


def test_a_scale_of_zero_makes_zeros_also_of_the_far_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([1], np.uint64), np.array([2**61], np.uint64)  # whose error is infinite
    monkeypatch.setattr(rounded_gaussian._Piece, "_words", lambda piece: words)
    assert integers(rounded_gaussian._Piece(KEY, ("noise", 8, 0, 0), 2), 0.0) == [0.0, 0.0]


@pytest.mark.parametrize("least", [0, 1, 2**45, 2**46 - 1])
def test_the_far_tail_is_drawn_with_more_bits(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For radii of 5 and more, 64 bits are too few for U, and further bits are used."""
    monkeypatch.setattr(
        rounded_gaussian._Piece,
        "_words",
        lambda piece: (np.array([least], np.uint64), np.array([2**61], np.uint64)),
    )
    piece, scale = rounded_gaussian._Piece(KEY, ("noise", 7, 0, 0), 2), 2.0**31
    more = rounded_gaussian._bits(KEY, ("noise-more", 7, 0, 0, 0), 2 * rounded_gaussian._EXTRA_WORDS)
    with mpmath.workdps(90):
        u = (least + sum(mpmath.mpf(int(w)) / 2 ** (64 * (i + 1)) for i, w in enumerate(more[0::2]))) / 2**64
        v = (2**61 + sum(mpmath.mpf(int(w)) / 2 ** (64 * (i + 1)) for i, w in enumerate(more[1::2]))) / 2**64
        radius, turn = mpmath.sqrt(-2 * mpmath.log(u)), 2 * mpmath.pi * v
        wanted = [int(mpmath.nint(scale * radius * of(turn))) for of in (mpmath.cos, mpmath.sin)]
    assert integers(piece, scale) == wanted
    assert radius > 4.9
    words = torch.tensor([[least, 2**61]])
    monkeypatch.setattr(rounded_gaussian, "key_streams", lambda keys, count, device: words)
    there = torch.empty(2, dtype=torch.float64)
    rounded_gaussian.fill_on_device(KEY, ("noise", 7, 0), scale, there)
    assert there.tolist() == wanted


def test_more_bits_extend_fewer_bits() -> None:
    """A number at a half, as far as its bits go, is undecided until there are more bits."""
    half = (1 << 319) // 4 * 3  # a V of 3/8 is a cosine of -sqrt(1/2)
    with mpmath.workdps(200):
        radius = mpmath.sqrt(mpmath.mpf(1) / 2) * 3  # so that Z = -1.5
        top = int(mpmath.exp(-(radius**2) / 2) * 2**320)
    assert rounded_gaussian._round(1.0, top, half, 320, sine=False) is None
    for rest, whole in ((0, -2), (2**320 - 1, -1)):
        assert rounded_gaussian._round(1.0, top * 2**320 + rest, half * 2**320, 640, sine=False) == whole
    assert rounded_gaussian._round(1.0, 0, half, 320, sine=False) is None


@dataclass(frozen=True)
class Zeros:
    """A key whose streams all have the key of RFC 8439's first test vector."""

    def secret(self, *_: object) -> bytes:
        return bytes(32)


def test_bits_are_those_of_chacha20() -> None:
    """RFC 8439, appendix A.1, test vectors 1 and 2: blocks 0 and 1 of key and nonce zero."""
    bits = rounded_gaussian._bits(Zeros(), ("noise",), 16).astype("<u8").tobytes()  # type: ignore[arg-type]
    assert bits[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert bits[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"


@pytest.mark.parametrize("scale", [-1.0, 2.0**49, float("nan")])
def test_scales_without_room_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="must lie"):
        Rounded(KEY, ("noise", 9), [torch.zeros(2)], [scale])

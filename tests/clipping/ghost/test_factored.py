"""Forms of per-example gradients: each is compared with its gradients, formed in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.clipping.ghost.factored import Rows, Split, combine, restored
from fedpriv.clipping.ghost.outer_product import Outer, add_up, outer

CONVOLUTION = (0, 2, 3, 1)  # (out, in, height, width), kept as (out, height, width, in)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def outers(draw, n=6, seed=0):
    """A form of random groups, places and order, and its factors."""
    groups, places = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 5, 30]))
    outs, ins, sides = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.sampled_from([(), (2, 3)]))
    delta = noise(n, groups, places, outs, seed=2 * seed)
    a = noise(n, groups, places, ins * math.prod(sides), seed=2 * seed + 1)
    order = CONVOLUTION if sides else ()
    return outer(delta, a, (groups * outs, ins, *sides), order)


def cast(form, dtype):
    return replace(form, pairs=tuple((delta.to(dtype), a.to(dtype)) for delta, a in form.pairs))


def moved(form, step):
    """The form at a close point: its factors, each with a little noise."""
    pairs = [(d + step * noise(*d.shape, seed=5), a + step * noise(*a.shape, seed=6)) for d, a in form.pairs]
    return replace(form, pairs=tuple(pairs))


def formed(form):
    """The gradients (n, *shape), place by place."""
    total = 0
    for delta, a in form.pairs:
        for place in range(delta.shape[2]):
            total = total + delta[:, :, place, :, None] * a[:, :, place, None, :]
    shape = [form.shape[axis] for axis in form.order or range(len(form.shape))]
    return restored(total.reshape(len(total), *shape), form.order)


def summands(form):
    """Upper bounds of the sums over places of norm(delta_l) norm(a_l), for each example."""
    pairs = [(d.double(), a.double()) for d, a in form.pairs]
    return sum(across(d) * across(a) for d, a in pairs)


def across(part):
    """A factor's norm over all but the examples."""
    return part.flatten(1).norm(dim=1)


def assert_stands_for(form, gradients, tolerance=1e-10):
    """Norms, divided norms, sums and rows of the form are those of the gradients (n, *shape)."""
    divisor = noise(*gradients.shape[1:], seed=8).abs().to(gradients) + 0.1
    factors = noise(len(gradients), seed=9).to(gradients)
    wanted = gradients.double()
    close = {"rtol": tolerance, "atol": tolerance * float(wanted.abs().max())}
    for by in (None, divisor):
        divided = (wanted if by is None else wanted / by.double()).flatten(1)
        squares = form.squares(by)
        assert squares.dtype == torch.float64
        known = ~squares.isnan()
        expected = divided.square().sum(1)
        torch.testing.assert_close(squares[known], expected[known], rtol=tolerance, atol=0.0)
        if not known.all():  # allowed where places cancel, and only there
            assert isinstance(form, Outer)
            least = 1.0 if by is None else float(by.min())
            assert bool((expected.sqrt() < 0.011 * summands(form) / least)[~known].all())
    torch.testing.assert_close(form.rows().double(), wanted, **close)
    summed = torch.einsum("n,n...->...", factors.double(), wanted)
    torch.testing.assert_close(form.total(factors).double(), summed, rtol=0, atol=50 * close["atol"])


@settings(max_examples=60)
@given(outers(), st.sampled_from([torch.float32, torch.float64]))
def test_outer_products_equal_their_sums(form, dtype):
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    form = cast(form, dtype)
    exact = cast(form, torch.float64)
    for same in (form, form.simplified(), Rows(form.rows())):
        assert_stands_for(same, formed(exact).to(dtype), 10 * tolerance)


@settings(max_examples=40)
@given(st.data(), outers())
def test_combinations_and_groups_equal_their_sums(data, form):
    other = moved(form, 0.1)
    one, two = formed(form), formed(other)
    by_rows = data.draw(st.booleans(), label="one of them as rows")
    both = combine([form.simplified() if by_rows else form, other], (1.0, -0.5))
    assert_stands_for(both, one - 0.5 * two)
    assert_stands_for(combine([form, other, form], (2.0, 1.0, -1.0)), one + two)
    merged = combine([form, other], (1.0, 1.0)).grouped(3)
    assert_stands_for(merged, (one + two).unflatten(0, (2, 3)).sum(1))


@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize("step", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_difference_of_two_close_points_is_accurate(places, step, dtype):
    """Rounding is relative to the difference, not to the gradients that cancel."""
    form = outer(noise(5, places, 90), noise(5, places, 80, seed=1), (90, 80))
    one, two = cast(form, dtype), cast(moved(form, step), dtype)
    wanted = formed(cast(one, torch.float64)) - formed(cast(two, torch.float64))
    difference = combine([one, two], (1.0, -1.0))
    assert isinstance(difference, Outer)
    tolerance = 1e-14 / step if dtype == torch.float64 else 1e-6  # the accuracy of the reference itself
    norms = wanted.flatten(1).norm(dim=1)
    torch.testing.assert_close(difference.squares().sqrt(), norms, rtol=tolerance, atol=0.0)
    factors = noise(5, seed=9)
    summed = torch.einsum("n,n...->...", factors, wanted)
    lost = difference.total(factors.to(dtype)).double() - summed
    assert float(lost.norm()) <= tolerance * float(summed.norm())


def test_factors_of_very_different_sizes_are_not_merged():
    """1e6 a + a' 1e6 with a, a' near 1e-6: merging them would add and subtract 1e12."""
    delta, a = torch.full((2, 3), 1e-6), torch.full((2, 4), 1e6)
    one, two = outer(delta, a, (3, 4)), outer(1e6 + delta, 1e-6 * a / 1e6, (3, 4))
    exact = 1e-6 * 1e6 + (1e6 + 1e-6) * 1e-6
    summed = combine([one, two], (1.0, 1.0)).total(torch.ones(2))
    torch.testing.assert_close(summed, torch.full((3, 4), 2 * exact), rtol=1e-6, atol=0)


def test_forms_of_one_input_take_one_product():
    delta, other, a = noise(5, 3), noise(5, 3, seed=1), noise(5, 4, seed=2)
    forms = [outer(delta, a, (3, 4)), outer(other, a, (3, 4)), outer(other, a.clone(), (3, 4))]
    factors = [noise(5, seed=3 + i) for i in range(3)]
    want = sum(form.total(each) for form, each in zip(forms, factors, strict=True))
    mixed = [Rows(forms[0].rows()), *forms[1:]]
    for several in (forms, mixed):
        place = noise(3, 4, seed=9)
        add_up(list(zip(several, factors, strict=True)), place)
        torch.testing.assert_close(place, want)
    assert len(combine(forms[:2], (1.0, -1.0)).pairs) == 1


@pytest.mark.parametrize("order", [(), (2, 0, 1)])
def test_split_gradients_equal_whole_ones(order):
    """Squares, divided squares, sums and groups of split gradients, with equal and other splits."""
    formed, divisor, factors = noise(6, 5, 4, 3), noise(5, 4, 3, seed=1).abs() + 0.1, noise(6, seed=2)

    def part(start, stop):
        rows = formed[:, :, start:stop]
        return Rows(rows.permute(0, *(1 + axis for axis in order)) if order else rows, order)

    cut, otherwise = Split((part(0, 1), part(1, 4)), 1), Split((part(0, 2), part(2, 4)), 1)
    whole = Rows(formed)
    for form, want in (
        (cut, whole),
        (cut.scaled(-2.0), whole.scaled(-2.0)),
        (cut.plus(cut), whole.plus(whole)),
        (cut.plus(otherwise), whole.plus(whole)),
        (cut.grouped(3), whole.grouped(3)),
    ):
        torch.testing.assert_close(form.rows(), want.rows())
        torch.testing.assert_close(form.squares(), want.squares())
        torch.testing.assert_close(form.squares(divisor), want.squares(divisor))
        some = factors[: len(want.rows())]
        torch.testing.assert_close(form.total(some), want.total(some))


@pytest.mark.parametrize("size", [1e-22, 1e-8, 1.0, 1e8, 1e22])
@pytest.mark.parametrize("cosine", [1.0, 0.5, 0.0, -0.5, -0.99, -0.999999])
def test_norms_of_two_products_are_right_at_every_angle(size, cosine):
    """From parallel to nearly opposite, and where their products are outside float32's range."""
    delta, a, turned = noise(7, 30), noise(7, 50, seed=1), noise(7, 30, seed=2)
    turned -= delta * (turned * delta).sum(1, keepdim=True) / delta.square().sum(1, keepdim=True)
    turned *= delta.norm(dim=1, keepdim=True) / turned.norm(dim=1, keepdim=True)
    delta_ = cosine * delta + math.sqrt(1 - cosine**2) * turned
    pairs = [((d * size).float(), (b / size).float()) for d, b in ((delta, a), (delta_, a * 1.1))]
    formed = sum(d.double()[:, :, None] * b.double()[:, None] for d, b in pairs)
    form = Outer(tuple((d[:, None, None], b[:, None, None]) for d, b in pairs), (30, 50))
    squares, want = form.squares(), formed.flatten(1).square().sum(1)
    known = ~squares.isnan()
    torch.testing.assert_close(squares[known], want[known], rtol=2e-6, atol=0.0)
    assert bool(known.all()) or cosine < -0.9 or max(size, 1 / size) > 1e18


LAID = {
    "in rows": lambda part: part,
    "in columns": lambda part: part.t().contiguous().t(),
    "expanded": lambda part: part[:, :1].expand(part.shape),
}


@pytest.mark.parametrize("laid", LAID.values(), ids=LAID)
@pytest.mark.parametrize("length", [784, 2000, 2048])
def test_norms_of_long_constant_vectors_are_accurate(length, laid):
    """Rounding in the same direction accumulates, unless the sums are short or in float64."""
    even = torch.linspace(0.5, 1.5, 8, dtype=torch.float64)[:, None].expand(8, length).float()
    steep = torch.cat([even[:, : length // 2], -0.3 * even[:, length // 2 :]], 1)
    few = noise(8, 3, seed=1).float()
    one, other = ((few[:, None, None], laid(part)[:, None, None]) for part in (even, steep))
    for form in (Outer((one,), (3, length)), Outer((one, other), (3, length)), Rows(laid(steep))):
        want = form.rows().double().flatten(1).square().sum(1)
        torch.testing.assert_close(form.squares(), want, rtol=5e-7, atol=0.0)


def test_norms_of_millions_of_constant_entries_are_accurate():
    rows = torch.full((1, 2**22), 0.7)
    torch.testing.assert_close(Rows(rows).squares(), rows.double().square().sum(1), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("shape", [(3, 20_000), (20_000, 3), (100, 50_000)])
def test_divided_norms_of_long_constant_vectors_are_accurate(shape):
    delta, a = (torch.linspace(0.5, 1.5, 4)[:, None].expand(4, size).contiguous() for size in shape)
    want = delta.double().square().sum(1) * a.double().square().sum(1)
    got = outer(delta, a, shape).squares(torch.ones(shape))
    # float32 would round after each square: 1.2e-5 on some processors.
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("size", [1e-30, 1e-16, 1e16, 1e30])
@pytest.mark.parametrize("divided", [False, True])
def test_norms_of_extreme_factors_are_right_or_unknown(size, divided):
    """Squares outside float32's range must never give a smaller norm."""
    delta, a = (noise(4, 3) * size).float(), (noise(4, 5, seed=1) / size).float()
    delta[3] = a[3] = 0.0
    divisor = noise(3, 5, seed=2).abs().float() + 0.1 if divided else None
    rows = delta.double()[:, :, None] * a.double()[:, None]
    want = (rows / divisor.double() if divided else rows).flatten(1).square().sum(1)
    got = outer(delta, a, (3, 5)).squares(divisor)
    known = ~got.isnan()
    torch.testing.assert_close(got[known], want[known], rtol=1e-5, atol=0.0)
    assert known.all() or divided or max(size, 1 / size) > 1e18  # norms of such factors are unknown
    assert got[3] == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("outs", "ins"), [(7, 40), (40, 7), (3, 1000)])
def test_uneven_divisors_and_factors_are_exact(seed: int, outs: int, ins: int) -> None:
    """Factors' entries down to 1e-22 of norms from 1e-3 to 1e3, weights over 24 orders of magnitude."""
    generator = np.random.default_rng(seed)

    def uneven(*shape: int) -> torch.Tensor:
        drawn = 10 ** generator.uniform(-22, 0, shape) * generator.choice([-1, 1], shape)
        norms = 10 ** generator.uniform(-2.9, 2.9, (shape[0], 1))
        return torch.as_tensor(drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * norms).float()

    delta, a = uneven(300, outs), uneven(300, ins)
    divisor = torch.as_tensor(10 ** generator.uniform(-5.9, 5.9, (outs, ins))).float()
    form = outer(delta, a, (outs, ins))
    want = torch.einsum("ij,jk,ik->i", delta.double() ** 2, divisor.double() ** -2, a.double() ** 2)
    torch.testing.assert_close(form.squares(divisor), want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("spread", [1e6, 1e11, 1e13, 1e25])
def test_divisors_of_any_spread_are_exact(spread):
    """The only nonzero entry has the largest divisor."""
    delta, a = torch.tensor([[0.0, 3.0]]), torch.tensor([[0.0, 0.0, 2.0]])
    divisor = torch.logspace(0, math.log10(spread), 6).view(2, 3)
    (got,) = outer(delta, a, (2, 3)).squares(divisor)
    assert float(got) == pytest.approx((6 / float(divisor[1, 2])) ** 2, rel=1e-5, abs=0)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("places", [1, 2, 40])
def test_the_norm_of_an_example_that_is_not_finite_is_unknown(broken, places):
    delta, a = noise(3, places, 4), noise(3, places, 5, seed=1)
    a[1, 0, 0] = broken
    for form in (outer(delta, a, (4, 5)), outer(delta, a, (4, 5)).simplified()):
        for by in (None, torch.ones(4, 5).double()):
            known = form.squares(by) < 1e18
            assert known.tolist() == [True, False, True]


@pytest.mark.parametrize("divided", [False, True])
def test_the_norm_of_a_cancelling_sum_is_at_least_its_rounding_or_unknown(divided):
    """The first two of three examples cancel over their places, one of them up to its last bit."""
    outs, ins, places = 30, 40, 3
    delta, a = noise(3, 1, places, outs, seed=1), noise(3, 1, 1, ins, seed=2).expand(3, 1, places, ins)
    delta[:2, :, -1] = -delta[:2, :, :-1].sum(2)
    delta[1, 0, -1] *= 1 + 1e-7
    form = cast(outer(delta, 1e8 * a, (outs, ins)), torch.float32)
    divisor = noise(outs, ins, seed=3).abs().float() + 0.1 if divided else None
    squares = form.squares(divisor)
    assert squares.isnan().tolist() == [True, True, False]
    assert 2 * places * (outs + ins) < outs * ins  # so that the gradients are not formed
    assert form.simplified() is form


@pytest.mark.parametrize("places", [1, 2])
def test_norms_of_deltas_that_a_weight_would_overflow_are_unknown(places):
    """Their gradients are small because the inputs are; but 3 times delta is infinite."""
    delta, a = torch.full((2, places, 2), 2e38), torch.full((2, places, 3), 1e-38)
    delta[1], a[1] = 1.0, 1.0
    for divisor in (None, torch.ones(2, 3)):
        known = outer(delta, a, (2, 3)).squares(divisor).isfinite()
        assert known.tolist() == [False, True]


@pytest.mark.parametrize("width", [3, 3000, 2**18])
def test_float64_totals_of_float32_rows_are_those_of_wider_copies(width: int) -> None:
    """Rows are widened in strips; the last strip may be shorter, and a row may be longer than a strip."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(51 if width < 2**18 else 3, width, generator=generator)
    factors = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    total = Rows(rows).total(factors)
    assert total.dtype == torch.float64
    torch.testing.assert_close(total, factors @ rows.double(), rtol=1e-12, atol=1e-12)

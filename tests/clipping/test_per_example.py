"""Bounded sums of gradients: book-keeping, rows and the plain loop agree."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from helpers.clipping_paths import assert_all_ways_agree, noise, one_point_query, two_point_query
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from torch import nn

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import gradients_loop, per_example, sum_gradients, sum_gradients_loop, sum_rows
from fedpriv.clipping.ghost import outer_product
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers import convolutional
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.tasks.task import Task


@st.composite
def convolutions(draw):
    """A convolution in 1, 2 or 3 dimensions with random settings, and a valid input shape."""
    sides, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    kernel, dilation = draw(st.tuples(*[st.integers(1, 3)] * sides)), draw(st.integers(1, 2))
    padding = draw(st.sampled_from(["valid", "same", *[(0, 1, 2)[:sides]] * 2]))
    stride = 1 if padding == "same" else draw(st.tuples(*[st.integers(1, 3)] * sides))
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[sides - 1](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 3)),
        kernel,
        stride,
        padding,
        dilation,
        groups,
        draw(st.booleans()),
        draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    return layer, (layer.in_channels, *draw(st.tuples(*[st.integers(5, 7)] * sides)))


@st.composite
def networks(draw):
    """A convolution, perhaps a linear layer on a sequence of places, then a linear layer."""
    convolution, shape = draw(convolutions())
    parts = [convolution, nn.ReLU(inplace=draw(st.booleans())), nn.Flatten(2)]
    places = nn.Sequential(*parts)(torch.zeros(1, *shape)).shape[2]
    if draw(st.booleans()):
        parts += [nn.Linear(places, 5, bias=draw(st.booleans())), nn.Tanh()]
        places = 5
    parts += [nn.Flatten(), nn.Linear(places * convolution.out_channels, 3, bias=draw(st.booleans()))]
    return nn.Sequential(*parts), shape


pads = pytest.mark.filterwarnings("ignore:Using padding='same' with even")


@pads
@settings(max_examples=25)
@given(networks(), st.integers(2, 9), st.sampled_from([torch.float32, torch.float64]))
def test_random_networks_are_summed_exactly(network, n, dtype):
    module, shape = network
    task = Task(module)
    x, y = noise(n, *shape, seed=1).to(dtype), torch.arange(n) % 3
    query = one_point_query(task, x, y, dtype)
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


@pads
@settings(max_examples=25)
@given(networks(), st.integers(2, 7))
@pytest.mark.slow
def test_random_networks_are_summed_exactly_at_two_points_and_divided(network, n):
    module, shape = network
    task = Task(module)
    x, y = noise(n, *shape, seed=1), torch.arange(n) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-9)


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_the_named_models_are_summed_exactly(name):
    x, y = noise(8, 1, 28, 28).abs(), torch.arange(8)
    for asked, tolerance in ((one_point_query, 1e-10), (two_point_query, 1e-9)):
        task = Task(name)
        assert_all_ways_agree(task, asked(task, x, y, scale=0.1), x, y, tolerance)


@pytest.mark.parametrize("bias", [True, False])
def test_grams_are_used_where_they_are_cheaper_and_are_exact(bias, monkeypatch):
    forms = []
    simplified = outer_product.Outer.simplified
    monkeypatch.setattr(
        outer_product.Outer, "simplified", lambda form: forms.append(simplified(form)) or forms[-1]
    )
    convolution = nn.Conv2d(32, 64, 3, stride=2, groups=2, bias=bias)
    task = Task(nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(256, 3)))
    x, y = noise(4, 32, 5, 5), torch.arange(4) % 3
    assert_all_ways_agree(task, one_point_query(task, x, y), x, y, 1e-10)
    assert any(isinstance(form, outer_product.Outer) and form.shape == (64, 16, 3, 3) for form in forms)


class Shared(nn.Module):
    """A layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Beside(Shared):
    """A weight that is used outside its layer, where no hook point is."""

    def forward(self, x):
        return self.layer(x) + F.linear(x, self.layer.weight.T)


class Transposed(Shared):
    """A layer whose input does not have the examples along the first axis."""

    def forward(self, x):
        return self.layer(x.unsqueeze(0).expand(2, -1, -1)).sum(0)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Overwritten(nn.Module):
    """An activation that overwrites the previous layer's output."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu_(self.second(torch.tanh(self.first(x))))


def partly_frozen():
    layer = nn.Linear(4, 4)
    layer.bias.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    "module",
    [
        Shared(),
        Tied(),
        partly_frozen(),
        Overwritten(),
        nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1, padding="same"), nn.Flatten()),
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.slow
def test_weights_with_several_uses_and_partly_frozen_layers_are_summed_exactly(module):
    x, y = noise(6, 4), torch.arange(6) % 4
    for asked in (one_point_query, two_point_query):
        task = Task(module)
        assert_all_ways_agree(task, asked(task, x, y), x, y, 1e-10)


@pytest.mark.parametrize(
    "module",
    [
        Beside(),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_models_without_book_keeping_are_summed_as_rows(module):
    task = Task(module)
    x, y = noise(6, 4), torch.arange(6) % 4
    query = one_point_query(task, x, y)
    assert not clipper_of(task).coverage(task, query.points[0], x, y)
    assert_all_ways_agree(task, query, x, y, 1e-10, fast=False)
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10, fast=False)


def test_a_layer_whose_input_has_places_first_is_summed_exactly():
    task, x, y = Task(Transposed()), noise(6, 4), torch.arange(6) % 4
    for asked in (one_point_query, two_point_query):
        assert_all_ways_agree(task, asked(task, x, y), x, y, 1e-10, fast=False)


def test_a_trial_with_zero_gradients_proves_nothing():
    class Dead(Beside):
        def forward(self, x):
            return 0 * self.layer(x)

    task = Task(Dead())
    assert not clipper_of(task).coverage(task, torch.ones(20), torch.ones(2, 4), torch.tensor([0, 1]))


@pytest.mark.parametrize(("size", "clip_norm"), [(1e-14, 1e-12), (math.nan, 1.0)])
def test_models_with_gradients_beyond_every_clip_norm_are_summed_as_rows(size, clip_norm):
    class Sized(Shared):
        def forward(self, x):
            return size * self.layer(x)

    task = Task(Sized())
    x, y = noise(3, 4).double(), torch.arange(3)
    query = Query((torch.ones(task.dimension, dtype=torch.float64),), (SumBlock((Term(clip_norm),)),))
    assert not clipper_of(task).coverage(task, query.points[0], x, y)
    [got], [want] = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    assert float((got - want).norm()) <= 1e-10 * float(want.norm())


def test_a_single_coefficient_is_applied():
    task = Task(nn.Linear(4, 3))
    x, y = noise(5, 4), torch.arange(5) % 3
    query = Query((noise(15, seed=2),), (SumBlock((Term(0.4, at=(0.5,)), Term(0.4))),))
    assert_all_ways_agree(task, query, x, y, 1e-10)


def test_units_without_examples_are_refused():
    task = Task(nn.Linear(4, 3))
    query = Query((torch.zeros(15),), (SumBlock((Term(1.0),)),))
    with pytest.raises(ArgumentError, match=r"weights .* have at least one example per unit"):
        sum_gradients(task, query, torch.ones(2, 0, 4), torch.ones(2, 0).long(), weights=torch.ones(2, 0))


def test_frozen_layers_do_not_prevent_book_keeping():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    task = Task(module)
    x, y = noise(6, 4), torch.arange(6) % 4
    assert_all_ways_agree(task, one_point_query(task, x, y), x, y, 1e-10)


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e30, 1e19])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.slow
def test_an_example_that_is_not_finite_spoils_no_other(broken, name):
    task = Task(name)
    x, y = noise(6, 1, 28, 28).float(), torch.arange(6)
    x[2, 0, 3, 3] = broken
    query = one_point_query(task, x[:2], y[:2], torch.float32, scale=0.05)
    rows = sum_rows([task.gradients(query.points[0], x, y)], query.blocks)
    got = sum_gradients(task, query, x, y)
    blocks = [0, 2] if broken in (1e30, 1e19) else [0, 1, 2]  # unclipped, a huge example is the sum
    for block in blocks:
        assert bool(got[block].isfinite().all())
        torch.testing.assert_close(got[block].float(), rows[block], rtol=1e-4, atol=1e-6)
    if not math.isfinite(broken):
        rest = sum_gradients(task, query, x[[0, 1, 3, 4, 5]], y[[0, 1, 3, 4, 5]])
        torch.testing.assert_close(got[0].float(), rest[0], rtol=1e-5, atol=1e-7)
        assert float(got[2]) == float(rest[2]) - 0.5


def test_inputs_whose_squares_underflow_are_still_clipped():
    """An input of 1e-25 under an error of 1e18: its square is zero in float32, the gradient is not."""
    task = Task(nn.Linear(2, 1, bias=False), loss="squared-error")
    x, y = torch.tensor([[1e-25, 0.0]]), torch.tensor([[1e18]])
    query = Query((torch.zeros(2),), (SumBlock((Term(1e-9),)),))
    (total,) = sum_gradients(task, query, x, y)
    torch.testing.assert_close(total, torch.tensor([-1e-9, 0.0]), rtol=1e-5, atol=0.0)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.01, 0.5, 3.0]))
def test_one_example_never_adds_more_than_the_clip_norm(seed, clip_norm):
    task = Task(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)))
    params = noise(task.dimension, seed=seed).float()
    x, y = noise(1, 1, 6, 6, seed=seed + 1).float() * 5, torch.tensor([seed % 3])
    (total,) = sum_gradients(task, Query((params,), (SumBlock((Term(clip_norm),)),)), x, y)
    assert float(total.double().norm()) <= clip_norm * (1 + 2e-6)


def test_the_fast_path_forms_no_rows(monkeypatch):
    task = Task("mlp")
    x, y = noise(4, 1, 28, 28).float(), torch.arange(4)
    query = one_point_query(task, x, y, torch.float32, scale=0.05)
    sum_gradients(task, query, x, y)  # runs the trial, which forms rows
    monkeypatch.setattr(task, "gradients", lambda *a: pytest.fail("rows were formed"))
    sum_gradients(task, query, x, y)


def test_the_global_generator_and_the_module_are_unchanged():
    task = Task("cnn")
    state = torch.get_rng_state()
    x, y = noise(2, 1, 28, 28).float(), torch.arange(2)
    query = one_point_query(task, x, y, torch.float32)
    sum_gradients(task, query, x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(layer._forward_hooks for layer in task.module.modules())


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("weights", [None, 1.0])
def test_an_examples_contribution_does_not_depend_on_the_batch_size(fast, weights, monkeypatch):
    """Small batches use other matrix kernels; huge inputs and nearly equal logits amplify their rounding."""
    task = Task(nn.Linear(20, 2))
    params = noise(task.dimension, seed=3).float()
    difference = (params[:20] - params[20:40]).double()
    x = 1e8 * noise(20, seed=4)
    x = (x - difference * (x @ difference) / difference.square().sum()).float()
    query = Query((params,), (SumBlock((Term(1.0),)),))
    if not fast:
        monkeypatch.setattr(clipper_of(task), "coverage", lambda *a, **_: None)

    def total(n):
        given = x.repeat(n, 1), torch.zeros(n).long()
        if weights:
            given = tuple(part[:, None] for part in given)
        return sum_gradients(task, query, *given, weights=weights and torch.full((n, 1), weights))[0].double()

    before = torch.zeros(task.dimension, dtype=torch.float64)
    for n in range(1, 70):
        after = total(n)
        assert float((after - before).norm()) == pytest.approx(1.0, abs=1e-4)
        before = after


def test_chunks_are_added_in_float64():
    """A float32 sum of so many units loses one more."""
    parts = [(torch.tensor([2.0**25]),), (torch.ones(1),), (torch.ones(1),)]
    assert per_example.added(parts)[0].tolist() == [2.0**25 + 2]
    assert per_example.added(parts[:1])[0] is parts[0][0]
    assert per_example.added([]) == ()


@pytest.mark.parametrize("fast", [True, False])
def test_chunks_have_each_unit_once(fast):
    """Three chunks; the bits of adaptive clipping count the units exactly."""
    task, count = Task(nn.Linear(4, 3) if fast else Beside()), 2 * per_example._MIN_ROWS + 7
    x, y, term = noise(count, 4, seed=1), torch.arange(count) % 3, Term(0.3)
    blocks = (SumBlock((term,), share=0.9), IndicatorBlock(term, 1.0, share=0.1))
    query = Query((0.5 * noise(task.dimension),), blocks)
    assert bool(clipper_of(task).coverage(task, query.points[0], x, y)) is fast
    (total, bits), (whole, counted) = (
        sum_gradients(task, query, x, y, 1),
        sum_gradients_loop(task, query, x, y),
    )
    torch.testing.assert_close(total, whole, rtol=1e-4, atol=1e-5, check_dtype=False)
    assert float(bits) == float(counted)


@pytest.mark.parametrize("broken", [0, 4])
def test_padding_with_copies_of_a_unit_of_unknown_norm_is_not_counted(broken):
    task, x, y = Task(nn.Linear(4, 3)), noise(5, 4), torch.arange(5) % 3
    query = one_point_query(task, x, y)
    x[broken] = math.nan
    wanted = sum_rows([gradients_loop(task, query.points[0], x, y)], query.blocks)
    for got, want in zip(sum_gradients(task, query, x, y), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_no_examples_give_zero():
    task = Task("logistic")
    query = Query((torch.zeros(7850),), (SumBlock((Term(1.0),), 0.5), IndicatorBlock(Term(1.0), 1.0, 0.5)))
    for summed in (sum_gradients, sum_gradients_loop):
        total, bits = summed(task, query, torch.zeros(0, 1, 28, 28), torch.zeros(0).long())
        assert torch.equal(total, torch.zeros(7850))
        assert float(bits) == 0.0


def test_errors_do_not_reveal_the_number_of_examples():
    task = Task("logistic")
    query = Query((torch.zeros(7850),), (SumBlock((Term(1.0),)),))
    with pytest.raises(ArgumentError, match="labels") as error:
        sum_gradients(task, query, torch.zeros(977, 1, 28, 28), torch.zeros(976).long())
    assert "97" not in str(error.value)
    with pytest.raises(ArgumentError, match="point"):
        sum_gradients(
            task, Query((torch.zeros(5),), query.blocks), torch.zeros(1, 784), torch.zeros(1).long()
        )


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
@pytest.mark.slow
def test_a_cohort_of_examples_that_are_not_finite_adds_zero(name):
    task = Task(name)
    x, y = torch.full((3, 1, 28, 28), math.nan), torch.zeros(3).long()
    params = noise(task.dimension).float()
    blocks = (SumBlock((Term(1.0),), 0.5), IndicatorBlock(Term(1.0), 1.0, 0.5))
    total, bits = sum_gradients(task, Query((params,), blocks), x, y)
    assert not total.any()
    assert float(bits) == -1.5


def test_norms_that_overflow_in_a_convolution_are_clipped_not_zeroed():
    """Gradients of about 1e20: finite in float32, their squares not."""
    task = Task(nn.Sequential(nn.Conv2d(1, 1, 4), nn.Flatten()), loss="squared-error")
    x, y = 1e10 * noise(2, 1, 4, 4).float(), torch.zeros(2, 1)
    params = noise(task.dimension, seed=1).float()
    query = Query((params,), (SumBlock((Term(1.0),)),))
    assert clipper_of(task).coverage(task, params, x, y)
    (total,) = sum_gradients(task, query, x, y)
    torch.testing.assert_close(total, sum_gradients_loop(task, query, x, y)[0])
    assert float(total.norm()) > 0.1


@pytest.mark.parametrize("share", [0.26, 0.51, 0.99])
def test_an_output_gradient_too_small_to_be_scaled_is_not_rounded_up(share):
    """The least float times a factor of a half or more rounds to itself; a huge input amplifies that."""
    task = Task(nn.Linear(10_000, 1, bias=False), loss="squared-error")
    x, y = torch.full((1, 10_000), 3e38), torch.full((1, 1), 1.4e-45)
    params = torch.zeros(10_000)
    norm = float(task.gradients(params, x, y).double().norm())
    query = Query((params,), (SumBlock((Term(share * norm),)),))
    (total,) = sum_gradients(task, query, x, y)
    assert float(total.double().norm()) <= share * norm * (1 + 2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [1, 5, 16, 10**6])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 3, 4, stride=3, padding=2, dilation=2),
        nn.Conv1d(4, 6, 5, stride=2, groups=2),
        nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 2, 3, padding="same", dilation=2, bias=False),
        nn.Conv2d(2, 4, (5, 3), stride=(2, 3), groups=2),
        nn.Conv3d(1, 2, 3, stride=2),
    ],
    ids=str,
)
@pytest.mark.slow
def test_sums_of_kernels_do_not_depend_on_the_rows_copied_per_patch(layer, dtype, wide, monkeypatch):
    """From one row to whole patches; the last product may have fewer rows."""
    monkeypatch.setattr(convolutional, "_WIDE", wide)
    monkeypatch.setattr(convolutional, "worth_forming", lambda *sizes: True)
    x = noise(5, layer.in_channels, *[9] * len(layer.kernel_size), seed=1).to(dtype)
    head = nn.Linear(layer(x.float()).flatten(1).shape[1], 3)
    y = torch.arange(5) % 3
    task = Task(nn.Sequential(copy.deepcopy(layer), nn.Tanh(), nn.Flatten(), head))
    near = one_point_query(task, x, y, dtype).points[0]
    block = SumBlock((Term(0.5, 0.3), Term(0.01, 0.7, (1.0, -1.0))))
    query = Query((near, near + 1e-4 * noise(task.dimension, seed=9).to(dtype)), (block,))
    assert clipper_of(task).coverage(task, near, x, y)
    (total,) = sum_gradients(task, query, x, y)
    wanted = sum_gradients_loop(task, replace_points(query, torch.float64), x.double(), y)[0]
    assert (total - wanted).norm() <= (1e-4 if dtype == torch.float32 else 1e-9) * wanted.norm()


def test_kernels_shared_by_different_convolutions_and_inputs_are_summed_exactly(monkeypatch):
    """One weight with strides 1 and 2 and inputs of two sizes: its uses are split differently."""
    monkeypatch.setattr(convolutional, "_WIDE", 1)

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.far = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, stride=2)
            self.far.weight = self.near.weight
            self.classes = nn.Linear(10, 3)

        def forward(self, x):
            seen = [self.near(x), self.near(x[..., 2:]), self.far(x)]
            seen += [seen[0] ** 2, seen[2] ** 2]
            return self.classes(torch.cat([part.sum((2, 3)) for part in seen], 1))

    task = Task(Shared())
    x, y = noise(6, 2, 7, 7).float(), torch.arange(6) % 3
    params = noise(task.dimension, seed=2).float() / 3
    query = Query((params,), (SumBlock((Term(1.0),)),))
    assert clipper_of(task).coverage(task, params, x, y)
    (total,) = sum_gradients(task, query, x, y)
    torch.testing.assert_close(total, sum_gradients_loop(task, query, x, y)[0], rtol=1e-4, atol=1e-5)


def replace_points(query, dtype):
    return Query(tuple(point.to(dtype) for point in query.points), query.blocks)


# Models that mix examples: clipping by layer inputs does not bound the influence of one example.


class Mixed(nn.Module):
    """A linear model after a function of the whole batch."""

    def __init__(self, mix):
        super().__init__()
        self.last, self.mix = nn.Linear(20, 2), mix

    def forward(self, x):
        return self.last(self.mix(x))


MIXES = {
    "attention over examples": lambda x: torch.softmax(x @ x.mT, -1) @ x,
    "their mean": lambda x: x - x.mean(0),
    "a running sum": lambda x: x.cumsum(0),
    "the batch's largest": lambda x: x / x.abs().amax().clamp(min=1),
    "large batches only": lambda x: x - x.mean(0) if len(x) > 8 else x,
    "a neighbour": lambda x: x + 0.1 * x.roll(1, 0),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0])
def test_one_example_changes_the_sum_by_at_most_its_bound_when_the_model_mixes_examples(mix, scale):
    generator = torch.Generator().manual_seed(0)
    x = scale * torch.randn(40, 20, generator=generator)
    y = torch.randint(2, (40,), generator=generator)
    task = Task(Mixed(MIXES[mix]))
    query = Query((torch.randn(task.dimension, generator=generator),), (SumBlock((Term(0.1),)),))
    (whole,) = sum_gradients(task, query, x, y)
    for left_out in (0, 20, 39):
        kept = torch.arange(40) != left_out
        (less,) = sum_gradients(task, query, x[kept], y[kept])
        assert (whole - less).norm() <= 0.1 * (1 + 1e-4)


def test_a_loss_that_weights_by_the_labels_of_the_batch_is_found():
    def balanced(outputs, y):
        counts = (y[:, None] == torch.arange(3)).float().sum(0)
        weights = len(y) / ((counts > 0).sum() * counts.clamp(min=1))
        return weights[y] * torch.nn.functional.cross_entropy(outputs, y, reduction="none")

    generator = torch.Generator().manual_seed(0)
    task, x = Task(nn.Linear(5, 3), balanced), 0.1 * torch.randn(300, 5, generator=generator)
    y = torch.randint(2, (300,), generator=generator)
    task._untried = False  # skip the trial, as if it had not found the mixing
    query = Query((torch.zeros(task.dimension),), (SumBlock((Term(0.1),)),))
    (whole,) = sum_gradients(task, query, x, y)
    (more,) = sum_gradients(task, query, torch.cat([x, x[:1]]), torch.cat([y, torch.tensor([2])]))
    assert (whole - more).norm() <= 0.1 * (1 + 1e-4)
    assert not any(clipper_of(task)._tried.values())


class Crowd(nn.Module):
    """Scales by the largest token of the batch."""

    def __init__(self):
        super().__init__()
        self.table, self.line = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.line(self.table(x).mean(1) / (1 + x.max() / 10))


class Columns(nn.Module):
    """Takes the mean over the places that any example of the batch uses."""

    def __init__(self):
        super().__init__()
        self.table, self.line = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, x):
        used = (x != 0).any(0).float()
        return self.line((self.table(x) * used[:, None]).sum(1) / used.sum().clamp(min=1))


@pytest.mark.parametrize("model", [Crowd, Columns])
def test_models_that_mix_large_or_rare_tokens_are_found(model):
    generator = torch.Generator().manual_seed(0)
    task, x = Task(model()), torch.randint(2, 4, (200, 12), generator=generator)
    x[:, 6:] = 0
    y = torch.randint(2, (200,), generator=generator)
    query = Query((task.initial(default_rng(1)),), (SumBlock((Term(0.5),)),))
    (whole,) = sum_gradients(task, query, x, y)
    for odd in (3, 49):
        one = torch.full((1, 12), odd)
        (more,) = sum_gradients(task, query, torch.cat([x, one]), torch.cat([y, y[:1]]))
        assert (whole - more).norm() <= 0.5 * (1 + 1e-4)
    assert not any(clipper_of(task)._tried.values())


def test_models_that_read_tokens_of_other_examples_are_found():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 2)

        def forward(self, x):
            rows = self.table(x).mean(1)
            return rows * (1 + x.double().mean()).float()

    task, x, y = Task(Bag()), torch.randint(4, (9, 3)), torch.zeros(9, dtype=torch.int64)
    assert not clipper_of(task).coverage(task, torch.ones(task.dimension), x, y)

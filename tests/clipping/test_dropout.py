"""Dropout: an example's mask does not depend on the rest of its batch, and is the same at all points."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.plain_loop import clipped_sum_loop
from torch import Tensor, nn

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping.dropout import SeededDropout, example_seeds
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.preparation import prepare
from fedpriv.config import schema
from fedpriv.federated.client_update import LocalSteps, OneGradient, clipped_sum
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.federated.worker import _seeds
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.factory import make_worker
from fedpriv.simulation import run
from fedpriv.tasks.task import Task

WIDTH = 400


def net(rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(rate), nn.Linear(32, 3))


class Bare(nn.Module):
    """A layer without a layer rule."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.first, self.drop = nn.Parameter(torch.ones(6, 8)), nn.Dropout(rate)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.drop(torch.tanh(x @ self.first)))
        return outputs


class Levels(nn.Module):
    """An LSTM that drops between its levels."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 8, 3, dropout=rate, batch_first=True, bidirectional=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.lstm(x.view(-1, 3, 2))[0][:, -1])
        return outputs


class Attends(nn.Module):
    """An attention whose weights are dropped; with or without them as a second output."""

    def __init__(self, rate: float = 0.5, weights: bool = False) -> None:
        super().__init__()
        self.first, self.weights = nn.Linear(2, 8), weights
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
        self.last = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.view(-1, 3, 2))
        found, _ = self.attention(x, x, x, need_weights=self.weights)
        outputs: Tensor = self.last(found.flatten(1))
        return outputs


def attends_and_shows(rate: float = 0.5) -> nn.Module:
    return Attends(rate, weights=True)


def encoder(rate: float = 0.5) -> nn.Module:
    layer = nn.TransformerEncoderLayer(2, 1, 8, dropout=rate, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (3, 2)), layer, nn.Flatten(), nn.Linear(6, 3))


class Shown(nn.Module):
    """A model whose gradient is the dropout mask (rate 0.5), times two."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.line = nn.Dropout(0.5), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.line(self.drop(x))
        return outputs


def a_query(task: Task, *at: float, clip: float = 0.3) -> Query:
    point = task.initial(np.random.default_rng(0))
    return Query((point,) * len(at), (SumBlock((Term(clip, at=at),)),))


def examples(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=generator), torch.arange(count) % 3


def masks(count: int, **how: object) -> Tensor:
    """For dropout of rate 0.5 and ``count`` units: the number of units that kept each entry, (WIDTH,)."""
    task = Task(Shown(), lambda outputs, y: outputs[:, 0])
    query = a_query(task, 1.0, clip=float("inf"))
    examples = torch.ones(count, WIDTH), torch.zeros(count).long()
    (total,) = clipped_sum(OneGradient(), task, query, *examples, **how)
    return total / 2


BUILT_IN = (Levels, Attends, attends_and_shows, encoder)
AGAIN = [pytest.mark.slow, pytest.mark.exhaustive]
MODELS = pytest.mark.parametrize(
    "model", [net, Bare, *(pytest.param(model, marks=AGAIN) for model in BUILT_IN)]
)
WORKS = pytest.mark.parametrize("work", [OneGradient(), LocalSteps(3, 0.1, 3)], ids=["gradient", "steps"])
OWNERS = pytest.mark.parametrize(
    "owner", [None, torch.repeat_interleave(torch.arange(10), torch.tensor([4, 1, 7, 4, 4, 4, 4, 4, 4, 4]))]
)


@MODELS
@WORKS
@OWNERS
@pytest.mark.parametrize("shard", [None, 3])
@pytest.mark.slow
def test_sums_equal_the_loop_with_the_same_seeds(model, work, owner, shard):
    task, (x, y) = Task(model()), examples()
    query, units = a_query(task, 1.0), None if owner is None else 10
    seeds = example_seeds(5, torch.arange(40))
    (total,) = clipped_sum(work, task, query, x, y, owner, units, shard, seeds=seeds)
    (wanted,) = clipped_sum_loop(work, task, query, x, y, owner, units, seeds)
    assert (total - wanted).norm() <= 1e-5 * wanted.norm()
    (still,) = clipped_sum_loop(work, Task(model(0.0)), query, x, y, owner, units)
    assert (still - wanted).norm() > 0.05 * wanted.norm()


@pytest.mark.parametrize("model", [net, *BUILT_IN])
@pytest.mark.slow
def test_models_with_dropout_have_book_keeping(model):
    task, (x, y), seeds = Task(model()), examples(), example_seeds(5, torch.arange(40))
    query = a_query(task, 1.0)
    (total,) = clipped_sum(OneGradient(), task, query, x, y, seeds=seeds)
    assert clipper_of(task).layers
    assert all(clipper_of(task)._tried.values())
    (wanted,) = clipped_sum_loop(OneGradient(), task, query, x, y, None, None, seeds)
    assert (total - wanted).norm() <= 1e-5 * wanted.norm()
    (still,) = clipped_sum(OneGradient(), task, query, x, y)
    assert (still - wanted).norm() > 0.05 * wanted.norm()


class Called(nn.Module):
    """A layer in a model that calls it in its own way."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """The module's outputs for examples with seeds."""
    module, dropout = prepare(module)
    with torch.no_grad(), dropout.seeded(example_seeds(3, torch.arange(len(x)))), dropout.forward_pass():
        outputs: Tensor = module(x)
        return outputs


def test_recurrent_layers_drop_between_levels_as_torchs_do():
    class Apart(nn.Module):
        def __init__(self, layer: nn.LSTM) -> None:
            super().__init__()
            self.one, self.drop = nn.LSTM(2, 8, batch_first=True), nn.Dropout(0.5)
            self.other = nn.LSTM(8, 8, batch_first=True)
            for mine, level in ((self.one, 0), (self.other, 1)):
                for name, tensor in mine.named_parameters():
                    tensor.data = getattr(layer, name.replace("l0", f"l{level}")).data

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.other(self.drop(self.one(x)[0]))[0]
            return outputs

    def first(layer: nn.Module, x: Tensor) -> Tensor:
        outputs: Tensor = layer(x)[0]
        return outputs

    layer, x = nn.LSTM(2, 8, 2, dropout=0.5, batch_first=True), torch.randn(20, 5, 2)
    dropped = outputs_of(Called(layer, first), x)
    torch.testing.assert_close(dropped, outputs_of(Apart(layer), x))
    assert (dropped - layer.eval()(x)[0]).abs().max() > 0.01


@pytest.mark.parametrize("weights", [False, True])
def test_attention_drops_entries_of_its_weights_as_torchs_does(weights):
    class Written(nn.Module):
        """Attention of one head, as in Vaswani et al. 2017, with the dropout that torch has."""

        def __init__(self, layer: nn.MultiheadAttention) -> None:
            super().__init__()
            self.layer, self.drop = layer, nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (x @ self.layer.in_proj_weight.T + self.layer.in_proj_bias).chunk(3, -1)
            scores = q[:, None] @ k[:, None].mT / 2 + torch.full((4, 4), -torch.inf).triu(1)
            found: Tensor = self.layer.out_proj((self.drop(scores.softmax(-1)) @ v[:, None])[:, 0])
            return found

    def causally(layer: nn.Module, x: Tensor) -> Tensor:
        causal = torch.ones(4, 4).triu(1).bool()
        return layer(x, x, x, attn_mask=causal, is_causal=not weights, need_weights=weights)[0]

    layer, x = nn.MultiheadAttention(4, 1, dropout=0.5, batch_first=True), torch.randn(20, 4, 4)
    dropped = outputs_of(Called(layer, causally), x)
    torch.testing.assert_close(dropped, outputs_of(Written(layer), x))
    assert (dropped - Called(layer.eval(), causally)(x)).abs().max() > 0.01


@MODELS
@WORKS
def test_another_unit_does_not_change_the_masks_of_others(model, work):
    task, (x, y) = Task(model()), examples()
    query, ids = a_query(task, 1.0), torch.arange(40)
    seeds = example_seeds(9, ids)
    (whole,) = clipped_sum(work, task, query, x, y, ids, 40, seeds=seeds)
    for gone in (0, 17):
        left = ids != gone
        (rest,) = clipped_sum(work, task, query, x[left], y[left], torch.arange(39), 39, seeds=seeds[left])
        assert float((whole - rest).norm()) <= 0.3 * (1 + 1e-5)


def test_a_unit_of_unknown_norm_does_not_change_the_masks_of_others():
    task, (x, y) = Task(net()), examples()
    query, seeds = a_query(task, 1.0), example_seeds(9, torch.arange(40))
    (whole,) = clipped_sum(OneGradient(), task, query, x, y, seeds=seeds)
    for odd in (1e30, float("inf"), float("nan")):
        broken = x.clone()
        broken[3] = odd
        (other,) = clipped_sum(OneGradient(), task, query, broken, y, seeds=seeds)
        assert float((whole - other).norm()) <= 2 * 0.3 * (1 + 1e-5)


@pytest.mark.parametrize("how", [{}, {"chunk": 1}, {"chunk": 3}], ids=str)
def test_each_example_has_its_own_mask(how):
    both = masks(2, **how)
    assert set(both.tolist()) == {0.0, 1.0, 2.0}
    assert abs((both == 1).double().mean() - 0.5) < 5 * 0.5 / WIDTH**0.5  # independent: half of them differ
    many = masks(64, **how)
    assert abs(many.mean() - 32) < 5 * (16 / WIDTH) ** 0.5
    assert abs(many.var() - 16) < 5 * 16 * (2 / WIDTH) ** 0.5  # 1,024 with one mask for all


def test_each_query_has_its_own_masks():
    one, other = masks(1), masks(1)
    assert 0.3 < (one != other).double().mean() < 0.7
    one, other = (masks(1, seeds=torch.tensor([seed])) for seed in (1, 1 + 2**32))
    assert 0.3 < (one != other).double().mean() < 0.7


@MODELS
@WORKS
@OWNERS
@pytest.mark.slow
def test_an_example_has_one_mask_at_both_points(model, work, owner):
    task, (x, y) = Task(model()), examples()
    units = None if owner is None else 10
    (difference,) = clipped_sum(work, task, a_query(task, 1.0, -1.0), x, y, owner, units)
    (one,) = clipped_sum(work, task, a_query(task, 1.0), x, y, owner, units)
    assert float(difference.norm()) <= 1e-5 * float(one.norm())


def test_each_local_step_has_new_masks():
    task = Task(Shown(), lambda outputs, y: outputs[:, 0])
    query = a_query(task, 1.0, clip=float("inf"))
    x, y, owner = torch.ones(1, WIDTH), torch.zeros(1).long(), torch.zeros(1).long()
    (total,) = clipped_sum(LocalSteps(2, 1.0), task, query, x, y, owner, 1)
    steps = (total / 2).round(decimals=3)
    assert set(steps.tolist()) == {0.0, 1.0, 2.0}


def test_calls_of_a_layer_have_their_own_masks_and_a_new_pass_repeats_them():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.line = nn.Dropout(0.5), nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.drop(x), self.drop(x)], 1)

    task = Task(Twice())
    params, x = torch.zeros(task.dimension), torch.ones(3, WIDTH)
    with task.dropout.seeded(torch.arange(3)):
        both, again = task.outputs(params, x), task.outputs(params, x)
    assert torch.equal(both, again)
    assert 0.4 < (both[:, 0] != both[:, 1]).double().mean() < 0.6


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
def test_layers_have_the_distributions_of_torchs(kind, rate):
    dims = {nn.Dropout1d: 1, nn.Dropout3d: 3}.get(kind, 2)
    layer = kind(rate)
    own = nn.Sequential(copy.deepcopy(layer))
    dropout = SeededDropout(own)
    torch.manual_seed(0)
    x = 0.5 + torch.randn(60, 200, *[3] * dims)
    with dropout.seeded(example_seeds(1, torch.arange(60))):
        dropout.begin()
        got = own(x)
    wanted = layer.train()(x)
    assert got.shape == wanted.shape
    moments = [(part.double().mean(), part.double().var()) for part in (got, wanted)]
    for one, other in zip(*moments, strict=True):
        assert abs(one - other) <= 0.05 + 0.1 * abs(other)
    channels = [(part.flatten(2).abs() == part.flatten(2).abs()[:, :, :1]).all(2) for part in (got, wanted)]
    for dropped in channels:  # whole ones, or hardly any
        whole = kind not in (nn.Dropout, nn.AlphaDropout) or rate == 1
        assert abs(float(dropped.double().mean()) - whole * rate) < 0.03 or (not whole and rate >= 0.9)
    if rate == 1:
        assert torch.equal(got, wanted)
    assert torch.equal(own(x), x)


def test_masks_look_independent():
    seeds = example_seeds(3, torch.arange(64))
    dropout = SeededDropout(nn.Sequential(nn.Dropout(0.5)))
    with dropout.seeded(seeds):
        kept = dropout.kept(0.5, (64, 4096)).double() - 0.5
    assert len(set(seeds.tolist())) == 64
    correlation = (kept @ kept.T) / (0.25 * 4096)
    correlation.fill_diagonal_(0)
    assert float(correlation.abs().max()) < 6 / 4096**0.5
    assert abs(float(kept.mean())) < 6 * 0.5 / (64 * 4096) ** 0.5
    shifted = (kept[:, 1:] * kept[:, :-1]).mean() / 0.25
    assert abs(float(shifted)) < 6 / (64 * 4096) ** 0.5


def test_a_shared_layer_has_a_mask_per_call():
    drop = nn.Dropout(0.5)
    module = nn.Sequential(drop, nn.Linear(WIDTH, WIDTH), drop)
    task = Task(module)
    assert [type(layer).__name__ for layer in task.module] == ["SeededLayer", "Linear", "SeededLayer"]
    params, x = torch.zeros(task.dimension), torch.ones(1, WIDTH)
    params[-WIDTH:] = 1  # the bias
    with task.dropout.seeded(torch.arange(1)):
        last = task.outputs(params, x)[0]
        first = task.module[0](x)[0]  # the third call
    assert set(last.tolist()) == set(first.tolist()) == {0.0, 2.0}
    assert not torch.equal(last, first)


def test_dropout_layers_with_another_forward_are_refused():
    class Louder(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    with pytest.raises(ArgumentError, match=r"layer 1 is Louder.*; it must be one of torch's dropout"):
        Task(nn.Sequential(nn.Linear(3, 3), Louder(0.5)))


def test_evaluation_drops_nothing():
    task, (x, y) = Task(net()), examples()
    params, plain = task.initial(np.random.default_rng(0)), Task(net(0.0))
    before = torch.get_rng_state()
    clipped_sum(OneGradient(), task, a_query(task, 1.0), x, y)
    assert torch.equal(before, torch.get_rng_state())
    assert task.evaluate(params, x, y) == plain.evaluate(params, x, y)
    assert torch.equal(task.gradients(params, x, y), plain.gradients(params, x, y))


def test_the_users_module_keeps_its_layers():
    module = net()
    task = Task(module)
    assert isinstance(module[2], nn.Dropout)
    assert task.dropout.draws
    assert not Task(net(0.0)).dropout.draws
    assert not Task("cnn").dropout.draws


class Overridden(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        outputs: Tensor = super().forward(x)[0]
        return outputs


def test_built_in_dropout_that_cannot_have_seeds_is_refused():
    message = r"dropout of layer .* is 0\.5; it must be 0"
    for layer in (
        nn.MultiheadAttention(4, 2, dropout=0.5, add_bias_kv=True),
        nn.MultiheadAttention(4, 2, dropout=0.5, add_zero_attn=True),
        Overridden(4, 4, 2, dropout=0.5),
    ):
        with pytest.raises(ArgumentError, match=message):
            Task(layer)


def dropping(inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.line(nn.functional.dropout(x.flatten(1), 0.5, self.training))
        return outputs


def functional(inputs):
    return Functional()


OWN = {"dataset": "infinite-digits", "clients": 2000, "sampling-rate": 0.05, "rounds": 4, "epsilon": 8.0}


def test_functional_dropout_is_refused_before_a_run():
    values = {**OWN, "model": f"{__name__}:functional"}
    with pytest.raises(ArgumentError, match=r"draw by nn\.Dropout layers alone"):
        run.check(schema.Config.parse(values))


def a_side(seed: int):
    return make_worker({**OWN, "model": f"{__name__}:dropping", "seed": seed, "engine": "in-process"})


def test_seeded_sums_do_not_depend_on_the_sharding():
    one, other = a_side(5), a_side(5)
    point = one.task.initial(np.random.default_rng(0))
    query = Query((point,), (SumBlock((Term(1.0),)),))

    def shards(size: int) -> tuple[Shard, ...]:
        return tuple(Shard(i, np.arange(size * i, size * i + size), parties=size) for i in range(60 // size))

    (whole,) = one.answer(SumRequest(query, 2, shards(20))).sums
    (first,) = other.answer(SumRequest(query, 2, shards(20)[:2])).sums
    (last,) = other.answer(SumRequest(query, 2, shards(20)[2:])).sums
    assert torch.equal(whole, first + last)
    (small,) = one.answer(SumRequest(query, 2, shards(5))).sums
    assert (small - whole).norm() <= 1e-6 * whole.norm()
    (later,) = one.answer(SumRequest(query, 3, shards(20))).sums
    (unlike,) = a_side(6).answer(SumRequest(query, 2, shards(20))).sums
    for drawn in (later, unlike):
        assert (drawn - whole).norm() > 0.01 * whole.norm()


def test_examples_of_a_client_have_their_own_masks():
    seeds = _seeds(7, np.array([5, 9]), torch.tensor([0, 0, 0, 1, 1]))
    assert len(set(seeds.tolist())) == 5
    alone = _seeds(7, np.array([9]), torch.tensor([0, 0]))
    assert torch.equal(seeds[3:], alone)


@pytest.mark.slow
def test_a_run_with_dropout_learns_and_repeats():
    values = {**OWN, "model": f"{__name__}:dropping", "engine": "in-process", "seed": 3, "epsilon": 30.0}
    values |= {"rounds": 30, "sampling-rate": 0.1, "evaluate-every": 30, "learning-rate": 1.0}
    one, again = (run.simulate(schema.Config.parse(values)) for _ in range(2))
    assert torch.equal(one.params, again.params)
    assert one.metrics[-1]["accuracy"] > 0.3


class Positions(nn.Module):
    """Drops entries of a table that all examples share."""

    def __init__(self):
        super().__init__()
        self.table, self.drop, self.head = nn.Parameter(torch.ones(5, 4)), nn.Dropout(0.3), nn.Linear(20, 3)

    def forward(self, x):
        return self.head((x + self.drop(self.table)).flatten(1))


def test_dropout_of_a_tensor_without_examples_is_refused_in_a_sentence():
    task = Task(Positions())
    query = Query((0.1 * torch.ones(task.dimension),), (SumBlock((Term(0.5),)),))
    x, y, owner = torch.ones(12, 5, 4), torch.zeros(12, dtype=torch.int64), torch.arange(12) // 3
    with pytest.raises(ArgumentError, match="first axis is not that of the examples; apply it after adding"):
        clipped_sum(OneGradient(), task, query, x, y, owner, 4)

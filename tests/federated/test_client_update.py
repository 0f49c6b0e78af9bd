"""The vectors of virtual clients, many at once, compared with plain loops."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from helpers.plain_loop import clipped_sum_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from torch import nn

from fedpriv import models
from fedpriv._internal.memory import Allocations
from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import per_example, sum_gradients
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.federated import client_update, own_kernels
from fedpriv.federated.client_update import LocalSteps, OneGradient, clipped_sum
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.tasks.task import Task

WORKS = [OneGradient(), LocalSteps(1, 0.5), LocalSteps(4, 0.1), LocalSteps(3, 0.2, batch_size=2)]
SIZES = [3, 0, 1, 5, 2, 0, 3]


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3))


def federation(sizes=SIZES, clip_norm=0.5, points=1):
    """A task, a query at random points, and the examples of clients of these sizes."""
    task = Task(network())
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
    x, y = noise(len(owner), 1, 4, 4, seed=1), torch.arange(len(owner)) % 3
    at = (1.0, -1.0) if points == 2 else (1.0,)
    blocks = (
        SumBlock((Term(clip_norm), Term(clip_norm / 3, -0.5, at)), 0.5),
        IndicatorBlock(Term(1.0), clip_norm, 0.5),
    )
    starts = tuple(noise(task.dimension, seed=2 + i) * 0.3 for i in range(points))
    return task, Query(starts, blocks), x, y, owner


def assert_equal(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize("work", WORKS, ids=str)
def test_all_clients_at_once_equal_the_plain_loop(work, points):
    task, query, x, y, owner = federation(points=points)
    want = clipped_sum_loop(work, task, query, x, y, owner, len(SIZES))
    for chunk in (None, 1, 2):
        assert_equal(clipped_sum(work, task, query, x, y, owner, len(SIZES), chunk), want)


PLACED = {
    "network": (lambda: nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 2)), (13,)),
    "softmax": (lambda: nn.Linear(10, 3), (10,)),
    "convolutions": (network, (1, 4, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("several", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
@pytest.mark.parametrize("work", WORKS[1:], ids=str)
@pytest.mark.parametrize("kind", PLACED)
def test_what_a_client_adds_by_local_steps_depends_on_no_other_client(kind, work, several):
    """Bit by bit: what is left of a sum without a client, and of the client alone, is rounding of float64.

    All clients are clipped, so bits of float32 that change with the place would be 1e-7 of the clip norm.
    """
    build, shape = PLACED[kind]
    torch.manual_seed(0)
    task, clients, clip_norm = Task(build()), 41, 1e-3
    owner = torch.arange(clients * several) // several
    x, y = noise(len(owner), *shape, seed=1).float(), torch.arange(len(owner)) % 2
    start = (0.3 * noise(task.dimension, seed=2)).float()
    query = Query((start,), (SumBlock((Term(clip_norm),)),))

    def total(kept, chunk=None):
        own = kept[owner]
        renumbered = (torch.cumsum(kept, 0) - 1)[owner[own]]
        more = {"chunk": chunk, "exact": True}
        return clipped_sum(work, task, query, x[own], y[own], renumbered, int(kept.sum()), **more)[0]

    everyone = torch.ones(clients, dtype=torch.bool)
    total(everyone), total(everyone)  # other sizes of batches are used from the second time on
    for gone in (0, 1, 17, 40):
        alone = torch.zeros_like(everyone)
        alone[gone] = True
        own = total(alone)
        assert float(own.norm()) == pytest.approx(clip_norm, rel=1e-5)
        for chunk in (None, 7):
            left = total(everyone, chunk) - total(everyone & ~alone) - own
            assert float(left.norm()) <= 1e-11 * clip_norm


class Scaled(nn.Module):
    """A layer whose outputs have one trained factor, a tensor without dimensions."""

    def __init__(self):
        super().__init__()
        self.factor, self.inner = nn.Parameter(torch.tensor(1.3)), nn.Linear(16, 3)

    def forward(self, x):
        return self.factor * self.inner(x.flatten(1))


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_a_parameter_without_dimensions_is_trained_too(work):
    task, (_, _, x, y, owner) = Task(Scaled()), federation()
    query = Query((noise(task.dimension, seed=2) * 0.3,), (SumBlock((Term(0.5),)),))
    want = clipped_sum_loop(work, task, query, x, y, owner, len(SIZES))
    assert_equal(clipped_sum(work, task, query, x, y, owner, len(SIZES)), want)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.sampled_from(WORKS))
def test_clients_of_any_sizes_equal_the_plain_loop(sizes, work):
    task, query, x, y, owner = federation(sizes)
    got = clipped_sum(work, task, query, x, y, owner, len(sizes))
    assert_equal(got, clipped_sum_loop(work, task, query, x, y, owner, len(sizes)))


def test_clients_of_several_examples_are_summed_without_forming_their_gradients(monkeypatch):
    task, query, x, y, owner = federation(points=2)
    want = clipped_sum_loop(OneGradient(), task, query, x, y, owner, len(SIZES))
    assert clipper_of(task).coverage(task, query.points[0], x, y)  # tried out, with rows
    monkeypatch.setattr(per_example, "_by_rows", lambda *a, **k: pytest.fail("rows were formed"))
    assert_equal(clipped_sum(OneGradient(), task, query, x, y, owner, len(SIZES)), want)


def test_models_that_book_keeping_does_not_know_are_summed_by_rows():
    task, query, x, y, owner = federation(points=2)
    clipper_of(task).layers = {}
    want = clipped_sum_loop(OneGradient(), task, query, x, y, owner, len(SIZES))
    assert_equal(clipped_sum(OneGradient(), task, query, x, y, owner, len(SIZES)), want)


def test_local_steps_are_torchs_own_gradient_descent():
    """One client of five examples, K = 4 steps on batches of 2: 01, 23, 40, 12."""
    task, query, x, y, owner = federation([5], clip_norm=1e9)
    module = copy.deepcopy(task.module).double().requires_grad_(True)
    with torch.no_grad():
        for name, tensor in task.layout.split(query.points[0]).items():
            module.get_parameter(name).copy_(tensor)
    descent = torch.optim.SGD(module.parameters(), lr=0.2)
    for batch in ([0, 1], [2, 3], [4, 0], [1, 2]):
        descent.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        descent.step()
    final = task.layout.join(dict(module.named_parameters())).detach()
    query = Query(query.points, (SumBlock((Term(1e9),)),))
    for summed in (clipped_sum, clipped_sum_loop):
        (total,) = summed(LocalSteps(4, 0.2, batch_size=2), task, query, x, y, owner)
        torch.testing.assert_close(total, query.points[0] - final, rtol=1e-10, atol=1e-12)


def test_one_local_step_is_one_gradient_times_the_step_size():
    task, query, x, y, owner = federation()
    free = Query(query.points, (SumBlock((Term(math.inf),)),))
    (step,) = clipped_sum(LocalSteps(1, 0.25), task, free, x, y, owner, len(SIZES))
    (gradient,) = clipped_sum(OneGradient(), task, free, x, y, owner, len(SIZES))
    torch.testing.assert_close(step, 0.25 * gradient)


def test_with_one_example_per_client_both_levels_are_equal():
    task, query, x, y, owner = federation([1] * 6)
    by_example = sum_gradients(task, query, x, y)
    assert_equal(clipped_sum(OneGradient(), task, query, x, y, owner, 6), by_example)
    assert_equal(clipped_sum(OneGradient(), task, query, x, y), by_example)


def test_a_clients_weight_does_not_depend_on_its_number_of_examples():
    task, query, x, y, _ = federation([1])
    query = Query(query.points, (SumBlock((Term(1e9),)),))
    (once,) = clipped_sum(OneGradient(), task, query, x, y, torch.tensor([0]))
    many = [0] * 7
    (often,) = clipped_sum(OneGradient(), task, query, x[many], y[many], torch.tensor(many))
    torch.testing.assert_close(once, often)


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_clients_without_examples_add_nothing(work):
    task, query, x, y, owner = federation([2, 1])
    whole = clipped_sum(work, task, query, x, y, owner, 2)
    more = clipped_sum(work, task, query, x, y, owner, 5)
    assert all(torch.equal(a, b) for a, b in zip(whole, more, strict=True))
    none = clipped_sum(work, task, query, x[:0], y[:0], owner[:0], 3)
    assert not any(total.any() for total in none)


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_a_client_that_is_not_finite_adds_zero_and_counts_below(work):
    task, query, x, y, owner = federation([2, 2, 3])
    spoiled = x.clone()
    spoiled[2] = math.nan
    without = owner != 1
    total, bit = clipped_sum(work, task, query, x[without], y[without], owner[without], 3)
    assert_equal(clipped_sum(work, task, query, spoiled, y, owner, 3), (total, bit - 0.5))


def test_a_local_run_that_explodes_adds_nothing():
    task, query, x, y, owner = federation([2, 2])
    query = Query(tuple(p.float() for p in query.points), query.blocks)
    got = clipped_sum(LocalSteps(9, 3e38), task, query, x.float(), y, owner, 2)
    assert not got[0].any()
    assert float(got[1]) == -1.0


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_one_client_changes_the_sums_by_at_most_the_sensitivity(work):
    task, query, x, y, owner = federation(clip_norm=0.01)
    whole = clipped_sum(work, task, query, x, y, owner, len(SIZES))
    for client in range(len(SIZES)):
        kept = owner != client
        less = clipped_sum(work, task, query, x[kept], y[kept], owner[kept], len(SIZES))
        for block, one, other in zip(query.blocks, whole, less, strict=True):
            assert float((one - other).norm()) <= block.sensitivity * (1 + 1e-9)


def test_large_clients_are_computed_a_few_at_a_time(monkeypatch):
    task, query, x, y, owner = federation([4] * 6)
    sizes = []
    changes = client_update._changes
    monkeypatch.setattr(client_update, "_changes", lambda *a: sizes.append(len(a[5])) or changes(*a))
    want = clipped_sum(LocalSteps(2, 0.1), task, query, x, y, owner, 6)
    client, example = client_update._cost(LocalSteps(2, 0.1), task, query, x, y)
    sizes.clear()
    memory = 2 * (client + 4 * example)
    assert_equal(clipped_sum(LocalSteps(2, 0.1), task, query, x, y, owner, 6, memory=memory), want)
    one = client + 4 * example
    assert_equal(clipped_sum(LocalSteps(2, 0.1), task, query, x, y, owner, 6, memory=one), want)
    assert sizes == [2, 2, 2]  # and then each one in parts: alone it would be computed twice


@pytest.mark.parametrize("work", [OneGradient(), LocalSteps(2, 0.1), LocalSteps(3, 0.1, 7)], ids=str)
@pytest.mark.parametrize("model", [None, "dropout"])
def test_a_client_that_is_larger_than_the_memory_is_computed_in_parts(work, model, monkeypatch):
    task, query, x, y, owner = federation([9, 30, 2])
    if model:
        *layers, last = network()
        task = Task(nn.Sequential(*layers, nn.Dropout(0.5), last))
    seeds, passes, losses = torch.arange(len(x)), [], task.losses
    _, example = client_update._cost(work, task, query, x, y, seeds if model else None)
    arguments = (work, task, query, x, y, owner, 3)
    want = clipped_sum(*arguments, seeds=seeds)
    monkeypatch.setattr(task, "losses", lambda p, x, y: passes.append(len(x)) or losses(p, x, y))
    assert_equal(clipped_sum(*arguments, memory=4 * example, seeds=seeds), want)
    alone = [n for n in passes if n != 32]  # the smallest client is computed beside copies
    assert max(alone) == 4


@pytest.mark.parametrize(
    ("work", "each"), [(OneGradient(), 3), (LocalSteps(1, 0.1), 1), (LocalSteps(1, 0.1), 4)]
)
def test_the_clients_computed_at_once_stay_within_the_memory_limit(work, each, monkeypatch):
    """Measured as all allocations of one chunk; synthetic examples need as much as real ones."""
    task, query, x, y, owner = federation([each] * 50)
    client, example = client_update._cost(work, task, query, x, y)
    memory, pieces, compute = 16 * (client + each * example), [], client_update._sum_at_once

    clipped_sum(work, task, query, x, y, owner, 50, memory=memory)  # runs the trials

    def counted(*arguments, **named):
        with Allocations() as allocations:
            sums = compute(*arguments, **named)
        pieces.append(allocations.bytes)
        return sums

    monkeypatch.setattr(client_update, "_sum_at_once", counted)
    clipped_sum(work, task, query, x, y, owner, 50, memory=memory)
    assert len(pieces) == 4
    # What does not grow with clients is not in the cost, nor is the padding of so small a model's products.
    assert 0.5 * memory < max(pieces) < 1.75 * memory


def test_examples_as_units_are_computed_as_memory_allows(monkeypatch):
    task, query, x, y, _ = federation([1] * 50)
    client, example = client_update._cost(OneGradient(), task, query, x, y)
    asked = []
    watched = lambda *a, **named: asked.append(a[-1]) or sum_gradients(*a, **named)  # noqa: E731
    monkeypatch.setattr(client_update, "sum_gradients", watched)
    for memory, chunk in ((7 * (client + example), None), (1, None), (2**40, 9)):
        clipped_sum(OneGradient(), task, query, x, y, chunk=chunk, memory=memory)
    assert asked == [7, 1, 9]


@pytest.mark.parametrize(
    ("owner", "units"), [([0, 2, 1], 3), ([0, 1, 3], 3), ([-1, 0, 1], 3), ([0, 1], 3), (None, 3)]
)
def test_owners_that_do_not_fit_are_refused(owner, units):
    task, query, x, y, _ = federation([3])
    with pytest.raises(ArgumentError):
        clipped_sum(OneGradient(), task, query, x, y, None if owner is None else torch.tensor(owner), units)


@pytest.mark.parametrize("steps", [(0, 0.1, None), (1, 0.0, None), (1, math.inf, None), (1, 0.1, 0)])
def test_impossible_local_steps_are_refused(steps):
    with pytest.raises(ArgumentError):
        LocalSteps(*steps)


@pytest.mark.parametrize("last_bit", [0.0, 1e-7])
def test_examples_that_cancel_leave_no_more_than_the_clip_norm(last_bit):
    """Two examples of huge inputs whose gradients nearly cancel: their rounding would be 300 clip norms."""
    task = Task(nn.Linear(300, 200), "squared-error")
    query = Query((torch.zeros(task.dimension),), (SumBlock((Term(1.0),)),))
    x = (1e8 * noise(1, 300)).float().repeat(2, 1)
    y = noise(1, 200, seed=1).float() * torch.tensor([[1.0], [-1.0 - last_bit]])
    owner = torch.zeros(2, dtype=torch.int64)
    (total,) = clipped_sum(OneGradient(), task, query, x, y, owner, 1)
    assert float(total.norm()) <= 1 + 1e-5


@pytest.mark.parametrize("name", ["lstm", "mlp-text"])
@pytest.mark.parametrize("count", [0, 1, 200])
@pytest.mark.slow
def test_sequences_are_summed_without_their_padding(name, count, monkeypatch):
    task = Task(models.build(name, (20,), 3, (9,)))
    generator = torch.Generator().manual_seed(0)
    reach = torch.randint(0, 12, (count, 1), generator=generator)  # some have no token at all
    tokens = torch.randint(1, 9, (count, 20), generator=generator) * (torch.arange(20) < reach)
    y = torch.arange(count) % 3
    query = Query((noise(task.dimension) * 0.3,), (SumBlock((Term(0.05),)),))
    want = sum_gradients(task, query, tokens, y)
    widths = []
    monkeypatch.setattr(
        client_update,
        "sum_gradients",
        lambda *a, **named: widths.append(a[2].shape[1]) or sum_gradients(*a, **named),
    )
    assert_equal(clipped_sum(OneGradient(), task, query, tokens, y), want)
    assert max(widths) <= 15
    assert count < 200 or {5, 10, 15} <= set(widths)


def test_groups_of_similar_length_lose_no_token():
    tokens = torch.randint(0, 2, (333, 15), generator=torch.Generator().manual_seed(0))
    tokens *= torch.arange(15) < torch.arange(333)[:, None] % 16  # also zeros inside, which are no padding
    groups = list(client_update.by_length(tokens))
    ends = {int(i): end for own, end in groups for i in own}
    for start in (0, 100):  # a sequence's length follows from itself alone
        few = {int(i) + start: end for own, end in client_update.by_length(tokens[start:]) for i in own}
        assert all(ends[i] == end for i, end in few.items())
    assert torch.cat([own for own, _ in groups]).sort().values.equal(torch.arange(333))
    assert all(not tokens[own, end:].any() for own, end in groups)
    assert len({end for _, end in groups}) > 1


def test_ids_are_never_taken_for_padding():
    assert not Task(models.build("factors", (2,), 1, (3, 4))).right_padded


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "cnn, client by client"])
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.slow
def test_a_clients_vector_does_not_depend_on_its_batch_bit_for_bit(name, batch, monkeypatch):
    """Many local steps amplify a difference in the last bit."""
    name, _, small = name.partition(", ")
    if small:
        monkeypatch.setattr(own_kernels, "_MULTIPLICATIONS", 0)
        monkeypatch.setattr(own_kernels, "_BYTES", 0)
    task, rows = Task(name), []
    summed = client_update.sum_rows
    monkeypatch.setattr(
        client_update, "sum_rows", lambda given, *a: rows.append(given[0]) or summed(given, *a)
    )
    sizes = [1, 15, 15, 16, 17, 18, 18, 3, 40, 37]
    data = [(noise(n, 1, 28, 28, seed=i).float(), torch.arange(n) % 10) for i, n in enumerate(sizes)]
    query = Query((task.initial(default_rng(0)),), (SumBlock((Term(1.0),)),))

    def vectors(who):
        rows.clear()
        x, y = (torch.cat([data[i][part] for i in who]) for part in (0, 1))
        owner = torch.repeat_interleave(torch.arange(len(who)), torch.tensor([sizes[i] for i in who]))
        clipped_sum(LocalSteps(5, 0.3, batch), task, query, x, y, owner, len(who))
        return {tuple(row.tolist()[-9:]): row for own in rows for row in own}

    vectors([0])  # what a client takes is tried out, on made-up ones
    alone = [next(iter(vectors([i]).values())) for i in range(len(sizes))]
    for who in (range(10), range(9, -1, -1), [1, 3, 5], [2, 4, 8], [1, 2, 2, 2, 2, 1, 1]):
        found = vectors(who)
        for i in who:
            assert torch.equal(found[tuple(alone[i].tolist()[-9:])], alone[i])


@pytest.fixture
def one_by_one(monkeypatch):
    """Convolutions of any size are computed client by client; the fixture counts the clients."""
    monkeypatch.setattr(own_kernels, "_MULTIPLICATIONS", 0)
    monkeypatch.setattr(own_kernels, "_BYTES", 0)
    computed, convolved = [], own_kernels._Options.convolved

    def counted(options, x, weight, bias):
        computed.append(x.shape)
        return convolved(options, x, weight, bias)

    monkeypatch.setattr(own_kernels._Options, "convolved", counted)
    return computed


def chain(*layers):
    """The layers, then the labels."""
    return lambda: nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)).double()


CONVOLUTIONS = {
    "stride and padding": ((2, 6, 6), chain(nn.Conv2d(2, 3, 3, 2, 1), nn.ReLU(), nn.Conv2d(3, 2, 2))),
    "groups and dilation": ((4, 6, 6), chain(nn.Conv2d(4, 6, 2, dilation=2, groups=2), nn.Tanh())),
    "without bias": ((1, 5, 4), chain(nn.Conv2d(1, 2, (2, 3), (1, 2), bias=False), nn.AvgPool2d((2, 1)))),
    "one axis": ((2, 7), chain(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 2, 2, 2))),
    "three axes": ((1, 3, 4, 3), chain(nn.Conv3d(1, 2, 2), nn.Tanh())),
}


def assert_changes_are_those_of_each_alone(module, shape):
    """Not through sums, whose trials would have a client with another's kernels computed alone."""
    task, work = Task(module), LocalSteps(3, 0.2, batch_size=2)
    point = noise(task.dimension, seed=2) * 0.3
    x, y = noise(4, 5, *shape, seed=1), torch.arange(20).reshape(4, 5) % 3
    counts = torch.tensor([5, 1, 2, 4])
    for row, own in enumerate(counts.tolist()):  # padded with the client's own
        x[row], y[row] = x[row, torch.arange(5) % own], y[row, torch.arange(5) % own]
    got = client_update._changes(work, task, point, x, y, counts, None)
    alone = [
        client_update._vector_of_one(work, task, point, x[row, :own], y[row, :own], None)
        for row, own in enumerate(counts.tolist())
    ]
    assert_equal(got, alone)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_client_by_client_are_those_of_each_alone(name, one_by_one):
    shape, make = CONVOLUTIONS[name]
    module = make()
    module(torch.zeros(1, *shape, dtype=torch.float64))  # the last layer's size
    assert_changes_are_those_of_each_alone(module, shape)
    assert one_by_one


def test_a_layer_that_is_frozen_stays_as_it_is_client_by_client(one_by_one):
    module = network().double()
    module[0].requires_grad_(False)
    assert_changes_are_those_of_each_alone(module, (1, 4, 4))
    assert one_by_one


def test_large_convolutions_are_computed_client_by_client():
    """CIFAR-10's images with the built-in network, and those of MNIST in groups."""
    counts = []
    for shape in ((3, 32, 32), (1, 28, 28)):
        module = models.build("cnn", shape)
        with torch.no_grad(), own_kernels.own_kernels(module, torch.device("cpu")):
            x, weight = torch.zeros(4, *shape), module[0].weight
            out = torch.func.vmap(lambda w, x=x: F.conv2d(x, w, stride=2, padding=3))(
                weight.expand(2, *weight.shape)
            )
        assert out.shape[:2] == (2, 4)
        counts.append(own_kernels._Options.of(2, x, weight, None, 2, 3) is not None)
    assert counts == [True, False]


def test_clients_of_at_least_a_batch_of_examples_are_computed_together():
    sizes = torch.tensor([25, 3, 1000, 0, 10, 3])
    rows = client_update._rows(LocalSteps(5, 0.1, 10), Task(network()), sizes)
    chunks = [(p.tolist(), c.tolist()) for p, c in client_update._chunks(sizes, rows, 1, 1, 64, 2**40)]
    (small, threes), (large, others) = chunks
    assert threes == [3, 3]
    assert small == [[25, 26, 27], [1038, 1039, 1040]]
    assert others == [10, 25, 50]  # five steps of ten do not reach the other 950
    assert [row[0] for row in large] == [1028, 0, 28]
    assert large[2] == [*range(28, 78), 28, 29]
    assert large[0] == [*range(1028, 1038)] * 5 + [1028, 1029]


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 2.0])
def test_clients_of_one_padded_length_have_at_most_an_eighth_of_padding(spread):
    sizes = (20 * torch.from_numpy(default_rng(3).lognormal(0, spread, 400))).long()
    lengths = {}
    rows = client_update._rows(LocalSteps(3, 0.1), Task(network()), sizes)
    for positions, counts in client_update._chunks(sizes, rows, 1000, 1000, 64, 2**40):
        for own, count in zip(positions, counts.tolist(), strict=True):
            assert own.unique().tolist() == list(range(int(own[0]), int(own[0]) + count))
            assert len(own) <= 1.125 * count
            assert lengths.setdefault(count, len(own)) == len(own)  # of its own number alone
    assert sum(int((sizes == count).sum()) for count in lengths) == int((sizes > 0).sum())

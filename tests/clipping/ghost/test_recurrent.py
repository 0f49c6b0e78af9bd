"""Recurrent layers: outputs equal torch's, and book-keeping, rows, the plain loop and Opacus agree."""

import math

import pytest
import torch
from helpers.clipping_paths import (
    assert_all_ways_agree,
    assert_opacus_agrees,
    noise,
    one_point_query,
    two_point_query,
)
from helpers.plain_loop import clipped_sum_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_gradients, sum_gradients_loop
from fedpriv.clipping.ghost import outer_product
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers import recurrent
from fedpriv.federated.client_update import LocalSteps, clipped_sum
from fedpriv.tasks.task import Task

KINDS = [nn.RNN, nn.LSTM, nn.GRU]
CELLS = [nn.RNNCell, nn.LSTMCell, nn.GRUCell]


class Reader(nn.Module):
    """Sequences (n, L, in) -> 3 outputs, from all states and the last ones.

    Args:
        layer: the recurrent layer.
        start: whether the model computes the initial state from the sequence.
    """

    def __init__(self, layer, start=False):
        super().__init__()
        self.layer, self.start = layer, start
        ways = 2 if layer.bidirectional else 1
        self.levels = layer.num_layers * ways
        self.out = nn.Linear(2 * ways * (layer.proj_size or layer.hidden_size), 3)

    def forward(self, x):
        x = torch.tanh(x)
        given = x if self.layer.batch_first else x.transpose(0, 1)
        states, ends = self.layer(given, hx=self.first(x)) if self.start else self.layer(given)
        states = states if self.layer.batch_first else states.transpose(0, 1)
        ends = torch.cat(ends if isinstance(ends, tuple) else [ends], 2)
        seen = torch.cat([states.tanh().mean(1), states[:, -1]], 1)
        return self.out(seen) * ends.square().mean((0, 2))[:, None]

    def first(self, x):
        h, c = (x.mean((1, 2))[:, None].expand(self.levels, -1, self.width(i)) for i in (0, 1))
        return (h, 2 * c) if isinstance(self.layer, nn.LSTM) else h

    def width(self, state):
        return self.layer.hidden_size if state else self.layer.proj_size or self.layer.hidden_size


@st.composite
def layers(draw, projections=False):
    kind = draw(st.sampled_from(KINDS))
    options = {"nonlinearity": draw(st.sampled_from(["tanh", "relu"]))} if kind is nn.RNN else {}
    if projections and kind is nn.LSTM:
        options["proj_size"] = draw(st.integers(0, 2))
    return kind(
        draw(st.integers(1, 3)),
        draw(st.integers(3, 4)),
        num_layers=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        **options,
    )


@settings(max_examples=15)
@given(layers(projections=True), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_the_output_equals_torchs(layer, length, n, start):
    layer.double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data = noise(*parameter.shape, seed=seed)
    x = noise(n, length, layer.input_size, seed=9)
    given = (x if layer.batch_first else x.transpose(0, 1), Reader(layer).first(x) if start else None)
    wanted, last = layer(*given)
    got, ends = recurrent.run(layer, *given)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(ends, last)


@settings(max_examples=15)
@given(
    layers(),
    st.integers(1, 5),
    st.integers(2, 6),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
@pytest.mark.slow
def test_random_layers_are_summed_exactly(layer, length, n, start, dtype):
    task = Task(Reader(layer, start))
    x, y = noise(n, length, layer.input_size, seed=1).to(dtype), torch.arange(n) % 3
    query = one_point_query(task, x, y, dtype)
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 40])  # more steps than entries, and fewer
@pytest.mark.slow
def test_two_points_divisors_and_clients_are_summed_exactly(kind, length):
    task = Task(Reader(kind(2, 4, batch_first=True)))
    x, y = noise(6, length, 2), torch.arange(6) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


def test_divided_norms_do_not_depend_on_how_many_gradients_are_formed_at_once(monkeypatch):
    monkeypatch.setattr(outer_product, "_FORMED_ON_CPU", 700)  # two of 36 x 9
    task = Task(Reader(nn.LSTM(6, 9)))
    x, y = noise(7, 2, 6), torch.arange(7) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_is_not_finite_spoils_no_other(kind):
    task = Task(Reader(kind(2, 3, batch_first=True)))
    x, y = noise(6, 4, 2), torch.arange(6) % 3
    query = one_point_query(task, x, y)
    x[2, 1, 0] = math.nan
    wanted = sum_gradients_loop(task, query, x, y)
    for got, want in zip(sum_gradients(task, query, x, y), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        assert bool(want.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_layer_called_twice_is_summed_exactly(kind):
    class Twice(Reader):
        def forward(self, x):
            return super().forward(torch.tanh(self.layer(x)[0]))

    task = Task(Twice(kind(3, 3, batch_first=True)))
    x, y = noise(6, 4, 3), torch.arange(6) % 3
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


@pytest.mark.parametrize(("kind", "theirs"), [(nn.RNN, DPRNN), (nn.LSTM, DPLSTM), (nn.GRU, DPGRU)])
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_norms_are_those_of_opacus(kind, theirs):
    def model(kind):
        return Reader(kind(2, 4, num_layers=2, bidirectional=True, batch_first=True))

    assert_opacus_agrees(model(kind), noise(6, 5, 2), torch.arange(6) % 3, model(theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_clients_take_local_steps_with_recurrent_models(kind):
    task = Task(Reader(kind(2, 3, batch_first=True)))
    x, y, owner = noise(5, 4, 2), torch.arange(5) % 3, torch.tensor([0, 0, 0, 1, 1])
    query, work = one_point_query(task, x, y), LocalSteps(2, 0.5, 2)
    for got, want in zip(
        clipped_sum(work, task, query, x, y, owner),
        clipped_sum_loop(work, task, query, x, y, owner),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


class Stepping(nn.Module):
    """Sequences (n, L, in) -> 3 outputs, by a cell in the model's own loop."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.out = nn.Linear(cell.hidden_size, 3)

    def forward(self, x):
        state = None
        for step in torch.tanh(x).unbind(1):
            state = self.cell(step, hx=state)
        return self.out(
            torch.cat(state, 0).unflatten(0, (2, -1)).sum(0) if isinstance(state, tuple) else state
        )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_equal_torchs_and_are_summed_exactly(kind, bias):
    model = Stepping(kind(2, 4, bias=bias)).double()
    task = Task(model)
    x, y = noise(6, 5, 2), torch.arange(6) % 3
    torch.testing.assert_close(task.outputs(task.layout.join(dict(model.named_parameters())), x), model(x))
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-10)


def test_projections_are_summed_as_rows():
    task = Task(Reader(nn.LSTM(2, 4, proj_size=3, bidirectional=True)))
    x, y = noise(6, 5, 2), torch.arange(6) % 3
    query = one_point_query(task, x, y)
    assert not clipper_of(task).coverage(task, query.points[0], x, y)
    assert_all_ways_agree(task, query, x, y, 1e-10, fast=False)


def test_the_users_module_is_unchanged():
    module = Reader(nn.LSTM(2, 4))
    Task(module)
    assert type(module.layer) is nn.LSTM


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_and_single_ones_are_refused(kind):
    packed = pack_padded_sequence(noise(3, 2, 2), torch.tensor([3, 1]))
    for x in (packed, noise(4, 2)):
        with pytest.raises(ArgumentError, match="recurrent"):
            recurrent.run(kind(2, 3), x)


@pytest.mark.parametrize("kind", CELLS)
def test_cells_refuse_inputs_without_an_axis_for_the_examples(kind):
    with pytest.raises(ArgumentError, match="recurrent"):
        recurrent.run_cell(kind(2, 3), noise(2))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_between_levels(kind):
    assert Task(Reader(kind(2, 3, num_layers=2, dropout=0.1))).dropout.draws
    with pytest.warns(UserWarning, match="num_layers=1"):  # of torch, which does not drop there, either
        assert not Task(Reader(kind(2, 3, dropout=0.1))).dropout.draws

"""Random models of all kinds of layers: called several times, with shared tensors, partly frozen."""

import pytest
import torch
from helpers.clipping_paths import assert_all_ways_agree, noise, one_point_query, two_point_query
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpriv.tasks.task import Task

WIDTH, PLACES, TOKENS = 4, 3, 5


class Places(nn.Module):
    """A layer on (n, places, width), also where the wrapped layer needs another order of axes."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer


class Channels(Places):
    """A layer whose input is (n, width, places)."""

    def forward(self, h):
        return self.layer(h.transpose(1, 2)).transpose(1, 2)


class States(Places):
    """A layer that also returns its last states."""

    def forward(self, h):
        return self.layer(h)[0]


class Attention(Places):
    """A layer that needs keys and values."""

    def forward(self, h):
        return self.layer(h, h, h, need_weights=False)[0]


class Cell(Places):
    """A cell that takes one step per place."""

    def forward(self, h):
        state, out = None, []
        for place in h.unbind(1):
            state = self.layer(place, state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(out, 1)


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "convolution": lambda: Channels(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "grouped convolution": lambda: Channels(nn.Conv1d(WIDTH, WIDTH, 1, groups=2)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: Channels(nn.GroupNorm(2, WIDTH)),
    "slopes": lambda: Channels(nn.PReLU(WIDTH)),
    "attention": lambda: Attention(nn.MultiheadAttention(WIDTH, 2, batch_first=True)),
    "rnn": lambda: States(nn.RNN(WIDTH, WIDTH, batch_first=True)),
    "gru": lambda: States(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "lstm": lambda: States(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "rnn cell": lambda: Cell(nn.RNNCell(WIDTH, WIDTH)),
    "gru cell": lambda: Cell(nn.GRUCell(WIDTH, WIDTH)),
    "lstm cell": lambda: Cell(nn.LSTMCell(WIDTH, WIDTH)),
}


class Sharing(nn.Module):
    """Numbers (n, places, width), or tokens (n, places), through layers in the order of ``calls``."""

    def __init__(self, layers, calls, tokens):
        super().__init__()
        self.layers, self.calls = nn.ModuleList(layers), calls
        self.table = nn.Embedding(TOKENS, WIDTH) if tokens else nn.Identity()
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, x):
        h = self.table(x)
        for call in self.calls:
            h = torch.tanh(0.5 * h + self.layers[call](h))
        return self.out(h.mean(1))

    def extra_repr(self):
        """The order of calls, and the shared and frozen tensors, for failure reports."""
        own = dict(self.named_parameters())
        every = self.named_parameters(remove_duplicate=False)
        first = {id(parameter): name for name, parameter in reversed(own.items())}
        shared = {name: first[id(parameter)] for name, parameter in every if name not in own}
        frozen = [name for name, parameter in own.items() if not parameter.requires_grad]
        return f"calls={self.calls}, {shared=}, {frozen=}"


@st.composite
def models(draw):
    """Up to three layers in up to five calls; a tensor may be shared with an earlier one, or frozen."""
    names = draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3))
    again = draw(st.lists(st.integers(0, len(names) - 1), max_size=2))
    model = Sharing([LAYERS[name]() for name in names], [*range(len(names)), *again], draw(st.booleans()))
    seen: dict[torch.Size, list[nn.Parameter]] = {}
    for layer in model.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            before = seen.setdefault(parameter.shape, [])
            tied = draw(st.integers(-1, len(before) - 1)) if before else -1
            if tied >= 0:
                setattr(layer, name, before[tied])
                continue
            before.append(parameter)
            parameter.requires_grad_(draw(st.integers(0, 5)) > 0)
    model.out.weight.requires_grad_(True)
    return model


def given_to(model, n):
    x = noise(n, PLACES, WIDTH, seed=1)
    if isinstance(model.table, nn.Embedding):
        x = (2 * x[..., 0]).abs().long() % TOKENS
    return x, torch.arange(n) % TOKENS


@settings(max_examples=40)
@given(models(), st.integers(2, 7), st.sampled_from([torch.float32, torch.float64]))
@pytest.mark.slow
def test_random_models_that_share_are_summed_exactly(model, n, dtype):
    x, y = given_to(model, n)
    x, task = x if x.dtype == torch.long else x.to(dtype), Task(model)
    query = one_point_query(task, x, y, dtype)
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.slow
@settings(max_examples=25)
@given(models(), st.integers(2, 7))
def test_random_models_that_share_are_summed_exactly_at_two_points_and_divided(model, n):
    x, y = given_to(model, n)
    task = Task(model)
    assert_all_ways_agree(task, two_point_query(task, x, y), x, y, 1e-9)

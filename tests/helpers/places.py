"""Attacks on sums whose bits depend on a unit's place in the batch, and models of every layer kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.clipping import sum_gradients
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

TINY = 1e-10  # a clip norm that the rounding of a difference of gradients reaches


def softmax_by_place(count: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A softmax of 10 features and 3 classes, its parameters, and ``count`` examples that are made to flip.

    Two huge logits of an example are equal but for their rounding. Where a product rounds a row by its place,
    the example is right at its own place (its gradient is zero) and wrong at the next one (it is huge).
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 10, generator=generator)
    weight[2] = 0
    x = torch.randn(4000, 10, generator=generator, dtype=torch.float64)
    apart = (weight[0] - weight[1]).double()
    x -= (x @ apart)[:, None] * apart / apart.square().sum()
    x *= torch.sign(x @ weight[0].double())[:, None]  # the third class is never the largest
    return _placed(weight, (1e8 * x).float(), count, lambda logits: logits.argmax(1))


def gates_by_place(count: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A 13-8-2 network with ReLU and ``count`` examples whose first gate is open at their own place only."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(8, 13, generator=generator)
    first[1:] = 0
    x = torch.randn(4000, 13, generator=generator, dtype=torch.float64)
    own = first[0].double()
    x = (1e6 * (x - (x @ own)[:, None] * own / own.square().sum())).float()
    _, _, kept, _ = _placed(first, x, count, lambda outputs: (outputs[:, 0] > 0).long(), wanted=1)
    second = torch.zeros(2, 8)
    second[0, 0] = 1.0
    model = nn.Sequential(nn.Linear(13, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    params = torch.cat([first.flatten(), second.flatten()])
    return model, params, kept, torch.ones(len(kept), dtype=torch.int64)


def _placed(
    weight: Tensor, x: Tensor, count: int, answer: Callable[[Tensor], Tensor], wanted: int | None = None
) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """Examples in an order in which each one's answer changes at the next place, where products allow it."""
    places = torch.stack([answer(F.linear(x.roll(shift, 0), weight)).roll(-shift, 0) for shift in range(8)])
    chosen, left = [], set(range(len(x)))
    for place in range(count):
        at = torch.arange(len(x)) % 8  # the answer of example i at place p is places[(p - i) % 8, i]
        here, there = (places[(place + later - at) % 8, torch.arange(len(x))] for later in (0, 1))
        flips = here != there if wanted is None else (here == wanted) & (there != wanted)
        able = [i for i in torch.nonzero(flips).flatten().tolist() if i in left] or sorted(left)
        left.discard(able[0])
        chosen.append(able[0])
    x = x[chosen]
    labels = answer(F.linear(x, weight))
    return nn.Linear(weight.shape[1], weight.shape[0], bias=False), weight.flatten(), x, labels


def moved_by_one(
    model: nn.Module, params: Tensor, x: Tensor, y: Tensor, clip_norm: float = 1.0, **how: Any
) -> float:
    """How far one more unit before all others moves their sum, in clip norms."""
    task, query = Task(model), Query((params,), (SumBlock((Term(clip_norm),)),))
    more_x, more_y = torch.cat([x[:1], x]), torch.cat([y[:1], y])
    sums = [sum_gradients(task, query, *given, **how)[0] for given in ((x, y), (more_x, more_y))]
    return float((sums[1].double() - sums[0].double()).norm()) / clip_norm


def balanced(outputs: Tensor, y: Tensor) -> Tensor:
    """Weights the examples of label 1 to balance the others, where the batch has enough of them."""
    weight = (y == 0).sum().clamp(min=1) / (y == 1).sum().clamp(min=1) if len(y) > 4 else y.new_ones(())
    return F.cross_entropy(outputs, y, reduction="none") * torch.where(y == 1, weight, 1.0)


class Sequence(nn.Module):
    """Tokens -> embedding -> a recurrent layer -> the classes."""

    def __init__(self, layer: Callable[..., nn.Module], **how: Any) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 5), layer(5, 7, batch_first=True, **how)
        self.out = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, 3)."""
        outputs: Tensor = self.out(self.layer(self.table(x))[0][:, -1])
        return outputs


class Attention(nn.Module):
    """Tokens -> embedding -> attention -> the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 6), nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, 3)."""
        z = self.table(x)
        outputs: Tensor = self.out(self.layer(z, z, z)[0].mean(1))
        return outputs


class Products(nn.Module):
    """A product that belongs to no layer."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.out, self.product = nn.Parameter(torch.randn(13, 8)), nn.Linear(8, 3), product

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, 3)."""
        outputs: Tensor = self.out(torch.relu(self.product(x, self.weight)))
        return outputs


def _with_head(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


class Cell(nn.Module):
    """Tokens -> embedding -> a recurrent cell, step by step -> the classes."""

    def __init__(self, cell: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(7, 5), cell(5, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, 3)."""
        state: Any = None
        for step in self.table(x).unbind(1):
            state = self.cell(step, state)
        outputs: Tensor = self.out(state[0] if isinstance(state, tuple) else state)
        return outputs


def _frozen_norm() -> nn.Module:
    """A convolution, a frozen BatchNorm and the classes."""
    norm = nn.BatchNorm2d(3).eval().requires_grad_(False)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return _with_head(nn.Conv2d(1, 3, 3), norm, nn.ReLU(), width=48)


TOKENS = (5,)
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(10, 3), (10,)),
    "network": (lambda: nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 2)), (13,)),
    "one output": (lambda: nn.Sequential(nn.Linear(33, 9), nn.Tanh(), nn.Linear(9, 2)), (33,)),
    "conv1d": (lambda: _with_head(nn.Conv1d(3, 5, 3), nn.ReLU(), width=35), (3, 9)),
    "conv2d": (lambda: _with_head(nn.Conv2d(2, 6, 3, groups=2), nn.ReLU(), width=96), (2, 6, 6)),
    "conv3d": (lambda: _with_head(nn.Conv3d(1, 3, 2), nn.ReLU(), width=81), (1, 4, 4, 4)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(13, 7), nn.LayerNorm(7), nn.Linear(7, 3)), (13,)),
    "group norm": (
        lambda: _with_head(nn.Conv2d(1, 6, 3), nn.GroupNorm(3, 6), nn.PReLU(6), width=96),
        (1, 6, 6),
    ),
    "rms norm": (lambda: nn.Sequential(nn.Linear(13, 7), nn.RMSNorm(7), nn.Linear(7, 3)), (13,)),
    "instance norm 1d": (
        lambda: _with_head(nn.Conv1d(3, 5, 3), nn.InstanceNorm1d(5, affine=True), width=35),
        (3, 9),
    ),
    "instance norm 2d": (
        lambda: _with_head(nn.Conv2d(1, 5, 3), nn.InstanceNorm2d(5, affine=True), width=80),
        (1, 6, 6),
    ),
    "instance norm 3d": (
        lambda: _with_head(nn.Conv3d(1, 3, 2), nn.InstanceNorm3d(3, affine=True), width=81),
        (1, 4, 4, 4),
    ),
    "frozen batch norm": (_frozen_norm, (1, 6, 6)),
    "embedding": (lambda: _with_head(nn.Embedding(7, 5), width=25), TOKENS),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(7, 5), nn.Linear(5, 3)), TOKENS),
    "rnn": (lambda: Sequence(nn.RNN), TOKENS),
    "lstm": (lambda: Sequence(nn.LSTM), TOKENS),
    "gru": (lambda: Sequence(nn.GRU), TOKENS),
    "deep lstm": (lambda: Sequence(nn.LSTM, num_layers=2), TOKENS),
    "rnn cell": (lambda: Cell(nn.RNNCell), TOKENS),
    "lstm cell": (lambda: Cell(nn.LSTMCell), TOKENS),
    "gru cell": (lambda: Cell(nn.GRUCell), TOKENS),
    "attention": (Attention, TOKENS),
    "encoder": (
        lambda: _with_head(
            nn.Embedding(7, 6), nn.TransformerEncoderLayer(6, 2, 9, 0.0, batch_first=True), width=30
        ),
        TOKENS,
    ),
    "own product": (lambda: Products(torch.matmul), (13,)),
    "einsum": (lambda: Products(lambda x, weight: torch.einsum("ni,ij->nj", x, weight)), (13,)),
    "weight norm": (
        lambda: _with_head(nn.utils.parametrizations.weight_norm(nn.Linear(13, 8)), nn.ReLU(), width=8),
        (13,),
    ),
}


def rounding_moved(
    task: Task,
    shape: tuple[int, ...],
    count: int = 61,
    path: str = "any",
    tokens: tuple[int, ...] = (),
    values: bool = False,
) -> float:
    """The most that leaving out one unit moves a sum of mere rounding, in clip norms.

    The query is the difference of the gradients at two points that are equal but for their last bits. It is
    rounding, and larger than the clip norm: a unit whose bits change adds something else altogether.

    Args:
        path: "any", or "pairs" for units of two examples.
        tokens: the numbers of ids, if examples are ids of these.
        values: whether the model predicts values and not classes.
    """
    generator = torch.Generator().manual_seed(1)
    if tokens:
        columns = [torch.randint(1, most, (count, shape[0]), generator=generator) for most in tokens]
        x = torch.stack([column[:, i] for i, column in enumerate(columns)], 1) if tokens[1:] else columns[0]
    elif shape == TOKENS:
        x = torch.randint(0, 7, (count, *shape), generator=generator)
    else:
        x = torch.randn(count, *shape, generator=generator)
    y = torch.randint(0, 2, (count,), generator=generator)
    if values:
        y = y.float()
    point = 0.2 * torch.randn(task.dimension, generator=generator)
    points = point, torch.nextafter(point, 2 * point)
    query = Query(points, (SumBlock((Term(TINY, 1.0, (1.0, -1.0)),)),))

    def total(first: int, chunk: int | None = None) -> Tensor:
        if path == "pairs":
            own = slice(first, count // 2 * 2)
            ours = x[own].view(-1, 2, *shape), y[own].view(-1, 2)
            weights = torch.full((len(ours[0]), 2), 0.5)
            return sum_gradients(task, query, *ours, chunk, weights, exact=True)[0]
        return sum_gradients(task, query, x[first:], y[first:], chunk, exact=True)[0]

    everyone, unit = total(0), 2 if path == "pairs" else 1
    total(0)  # the second time, another batch size may be used
    moved = [everyone - total(unit), everyone - total(unit, 32), total(0, 40) - total(unit)]
    return max(float(each.norm()) for each in moved) / TINY

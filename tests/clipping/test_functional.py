"""Clipped sums for a module and a batch, in one call."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.clipping import clipped_sum
from fedpriv.clipping.functional import FunctionalModel
from fedpriv.clipping.per_example import sum_gradients
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.parameters import layout_of

LOSS = nn.CrossEntropyLoss(reduction="none")


def plain(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
    """The same sum, by one backward pass per example."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in trained))
    for i in range(len(x)):
        gradients = torch.autograd.grad(LOSS(model(x[i : i + 1]), y[i : i + 1]).sum(), trained)
        row = torch.cat([g.reshape(-1) for g in gradients])
        total += row * min(1.0, clip_norm / float(row.norm()))
    return total


class Scaled(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(6, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.layer(x)


MODELS = {
    "layers": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "frozen": lambda: nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3)),
    "own parameter": Scaled,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_the_sum_of_clipped_gradients(name: str, clip_norm: float) -> None:
    generator = torch.Generator().manual_seed(1)
    model = MODELS[name]()
    x, y = torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator)
    before = [p.detach().clone() for p in model.parameters()]
    total = clipped_sum(model.train(), LOSS, x, y, clip_norm=clip_norm)
    assert model.training
    assert all(p.grad is None and torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    torch.testing.assert_close(total, plain(model.eval(), x, y, clip_norm), rtol=1e-4, atol=1e-5)
    assert total.dtype == torch.float32
    parts = layout_of(model).split(total)
    assert list(parts) == [n for n, p in model.named_parameters() if p.requires_grad]


def test_an_empty_batch_gives_zero() -> None:
    total = clipped_sum(nn.Linear(6, 3), LOSS, torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(total, torch.zeros(21))


def test_arrays_and_lists_go_where_tensors_go() -> None:
    model, x, y = nn.Linear(6, 3), torch.randn(40, 6), torch.randint(3, (40,))
    expected = clipped_sum(model, LOSS, x, y)
    forms = [(x.numpy(), y.numpy()), (x.tolist(), y.tolist()), (x.double(), y), (x, y.tolist())]
    for inputs, labels in forms:
        torch.testing.assert_close(clipped_sum(model, LOSS, inputs, labels), expected)
    for inputs in ("x", [[1.0], [2.0, 3.0]], None):
        with pytest.raises(
            fedpriv.ArgumentError, match=r"^x is a (str|list|NoneType) that is no array of num"
        ):
            clipped_sum(model, LOSS, inputs, y)


@pytest.mark.parametrize(
    ("model", "loss", "clip_norm", "said"),
    [
        (nn.Linear(6, 3), nn.CrossEntropyLoss(), 1.0, r"loss shape is '\(\)'; .* reduction='none'"),
        (nn.Linear(6, 3), LOSS, -1.0, "clip_norm is -1"),
        (nn.Linear(6, 3), None, 1.0, "loss is None; it must be a function"),
        (3, LOSS, 1.0, "model is 3; it must be a torch.nn.Module"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), LOSS, 1.0, "BatchNorm"),
    ],
)
def test_models_that_cannot_be_clipped_are_refused(
    model: nn.Module, loss: nn.Module, clip_norm: float, said: str
) -> None:
    with pytest.raises(fedpriv.ArgumentError, match=said):
        clipped_sum(model, loss, torch.ones(4, 6), torch.zeros(4, dtype=torch.int64), clip_norm=clip_norm)


class Peak(nn.Linear):
    """Scales its inputs by the largest value that it has met, in a buffer."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("peak", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().max()) > float(self.peak):
            self.peak.fill_(float(x.abs().max()))
        return super().forward(x / self.peak)


class Counting(nn.Linear):
    """Turns its outputs around in every second call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (-1) ** self.calls


class Last(nn.Linear):
    """Adds what it was given before."""

    last: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach().clone()
        return super().forward(x + before)


class Cached(nn.Linear):
    """Computes a constant when it is first needed."""

    scale: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((6,), 2.0)
        return super().forward(x * self.scale)


@pytest.mark.parametrize(("kind", "name"), [(Peak, "peak"), (Counting, "calls"), (Last, "last")])
def test_a_model_that_keeps_something_from_call_to_call_is_refused(kind: type, name: str) -> None:
    """One example would move the gradients of others: the clip norm would bound nothing."""
    x, y = torch.randn(40, 6), torch.randint(3, (40,))
    with pytest.raises(fedpriv.ArgumentError, match=f"keep nothing from call to call.*{name} changes"):
        clipped_sum(kind(6, 3) if kind is not Peak else kind(), LOSS, x, y, clip_norm=0.5)


def test_a_constant_of_the_first_call_is_allowed() -> None:
    model, x, y = Cached(6, 3), torch.randn(40, 6), torch.randint(3, (40,))
    torch.testing.assert_close(clipped_sum(model, LOSS, x, y, 0.5), plain(model, x, y, 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """One of 1,000 units adds at most its clip norm; in 8 bits, rounding alone was four times as much."""
    generator, clip_norm = torch.Generator().manual_seed(0), 0.1
    model = nn.Linear(3, 2).to(dtype)
    x, y = 1 + 0.3 * torch.randn(1000, 3, generator=generator), torch.zeros(1000, dtype=torch.int64)
    sums = [clipped_sum(model, LOSS, x[k:], y[k:], clip_norm) for k in range(20)]
    assert sums[0].dtype == torch.float32
    moves = [float((one.double() - other.double()).norm()) for one, other in itertools.pairwise(sums)]
    assert max(moves) <= clip_norm * 1.001


def test_points_of_half_precision_are_refused() -> None:
    task = FunctionalModel(nn.Linear(6, 3), LOSS)
    query = Query((torch.zeros(21, dtype=torch.bfloat16),), (SumBlock((Term(1.0),)),))
    with pytest.raises(fedpriv.ArgumentError, match=r"point dtype is torch.bfloat16; it must be float32 or"):
        sum_gradients(task, query, torch.ones(4, 6), torch.zeros(4, dtype=torch.int64))

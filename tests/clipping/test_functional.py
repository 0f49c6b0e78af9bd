"""Clipped sums for a module and a batch, in one call."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.clipping import clipped_sum
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

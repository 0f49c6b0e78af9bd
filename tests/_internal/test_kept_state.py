"""Losses of one's own that keep examples between calls are refused, and those that keep constants are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedpriv
from fedpriv._internal.kept_state import changed, reachable
from fedpriv._internal.validation import ArgumentError

SEEN: list[Tensor] = []
BY_NAME: dict[str, Any] = {"last": None}
WEIGHTS: dict[str, Tensor] = {}
SHAPES: list[tuple[int, ...]] = []
BUFFER = torch.zeros(100)


def plain(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def appends(outputs: Tensor, y: Tensor) -> Tensor:
    SEEN.append(outputs)
    return plain(outputs, y)


def appends_by_another(outputs: Tensor, y: Tensor) -> Tensor:
    return appends(outputs, y)


def remembers_the_last(outputs: Tensor, y: Tensor) -> Tensor:
    BY_NAME["last"] = outputs.detach()
    return plain(outputs, y)


def writes_to_a_tensor(outputs: Tensor, y: Tensor) -> Tensor:
    BUFFER[: len(y)] = y.float()
    return plain(outputs, y)


def in_a_default(outputs: Tensor, y: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006
    seen.append(y)
    return plain(outputs, y)


def in_a_closure() -> Callable[[Tensor, Tensor], Tensor]:
    seen: list[Tensor] = []

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return plain(outputs, y)

    return loss


class InAnObject:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        self.seen.append(y)
        return plain(outputs, y)

    def method(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self(outputs, y)


def with_a_constant(outputs: Tensor, y: Tensor) -> Tensor:
    if "weights" not in WEIGHTS:
        WEIGHTS["weights"] = torch.ones(outputs.shape[1])
    return F.cross_entropy(outputs, y, WEIGHTS["weights"], reduction="none")


KEEPING = [
    appends, appends_by_another, remembers_the_last, writes_to_a_tensor, in_a_default, in_a_closure(),
    InAnObject(), InAnObject().method, partial(appends),
]  # fmt: skip


def with_a_count(outputs: Tensor, y: Tensor) -> Tensor:
    SHAPES.append(tuple(outputs.shape))
    return plain(outputs, y)


SOUND = [
    plain,
    with_a_count,
    with_a_constant,
    F.nll_loss,
    nn.CrossEntropyLoss(reduction="none"),
    partial(plain),
]


def kept(loss: Any) -> str | None:
    """What changes in the second call."""
    outputs, y = torch.zeros(2, 3), torch.tensor([0, 1])
    loss(outputs, y)
    before = reachable(loss)
    loss(outputs + 1, y)
    return changed(before, reachable(loss))


@pytest.mark.parametrize("loss", KEEPING)
def test_examples_that_are_kept_are_found(loss: Any) -> None:
    assert kept(loss) is not None


@pytest.mark.parametrize("loss", SOUND)
def test_constants_and_counts_may_be_kept(loss: Any) -> None:
    assert kept(loss) is None


@pytest.mark.parametrize("name", ["appends", "remembers_the_last"])
def test_a_run_with_such_a_loss_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kept_losses", sys.modules[__name__])
    variable = {"appends": "SEEN", "remembers_the_last": "BY_NAME"}[name]
    with pytest.raises(ArgumentError, match=f"it must keep no tensors from call to call .here {variable} "):
        fedpriv.simulate(
            loss=f"kept_losses:{name}", model="logistic", clients=20, rounds=1, engine="in-process"
        )
    with pytest.raises(ArgumentError, match="it must keep no tensors"):
        fedpriv.simulate(loss=globals()[name], model="logistic", clients=20, rounds=1)

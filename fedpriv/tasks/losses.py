"""Losses of one example each, the metrics that go with them, and the trial of your own loss.

>>> outputs, y = torch.zeros(3, 10), torch.tensor([4, 0, 1])
>>> cross_entropy(outputs, y)
tensor([2.3026, 2.3026, 2.3026])
>>> try_loss(lambda outputs, y: cross_entropy(outputs, y) - cross_entropy(outputs, y).mean(), outputs, y)
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: loss is '<lambda>'; it must be of each example alone (here \
it changes with the others beside it, as a mean over the batch does)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv._internal import validation

Loss = Callable[[Tensor, Tensor], Tensor]

_TRIED = ((0, 0, 0), (1, 1, 1), (0, 1, 0))  # what y is made up of where a loss is tried


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log p(y) at the labels y (n,), shape (n,).

    p is the softmax of the outputs (n, classes); a single output (n, 1) is the logit of class 1 of two.
    """
    if outputs.shape[1:] == (1,):
        return F.softplus(torch.where(y[:, None] > 0, -outputs, outputs))[:, 0]
    return F.cross_entropy(outputs, y, reduction="none")


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance of outputs (n, ...) from y of the same size, shape (n,)."""
    return 0.5 * _squared_distance(outputs, y)


def tag_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The binary cross-entropies of logits (n, tags) and y (n, tags) in {0, 1}, SUMMED over tags: (n,).

    It is -log of the probability of the set of tags, each independent of the others.
    """
    return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(1)


def _squared_distance(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y.view_as(outputs)).square().reshape(outputs.shape[0], -1).sum(1)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "squared-error": squared_error,
    "tag-entropy": tag_entropy,
}
TARGETS = {"label": "cross-entropy", "value": "squared-error", "tags": "tag-entropy"}

# Name -> what adds up over test examples, and what the sum is divided by, each (n,).
Scores = dict[str, tuple[Tensor, Tensor]]


def _label_scores(outputs: Tensor, y: Tensor) -> Scores:
    guess = (outputs[:, 0] > 0).long() if outputs.shape[1:] == (1,) else outputs.argmax(1)
    return {"accuracy": (guess == y, torch.ones_like(y))}


def _value_scores(outputs: Tensor, y: Tensor) -> Scores:
    numbers = torch.full(outputs.shape[:1], y[0].numel(), device=y.device)
    return {"mse": (_squared_distance(outputs, y), numbers)}


def _tag_scores(outputs: Tensor, y: Tensor) -> Scores:
    best = y.gather(1, outputs.topk(min(5, y.shape[1])).indices)
    return {"accuracy": (best[:, 0], torch.ones_like(best[:, 0])), "recall@5": (best.sum(1), y.sum(1))}


_SCORES: dict[Loss, Callable[[Tensor, Tensor], Scores]] = {
    cross_entropy: _label_scores,
    squared_error: _value_scores,
    tag_entropy: _tag_scores,
}


def scores(loss: Loss, y: Tensor) -> Callable[[Tensor, Tensor], Scores]:
    """What models are scored by: as the loss has it; under one of your own by whether y (n,) is labels."""
    labels = y.ndim == 1 and not y.is_floating_point()
    return _SCORES.get(loss, _label_scores if labels else lambda outputs, y: {})


def try_loss(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    """Raise ArgumentError for a loss that is of others than its own example, too, or is never finite, or has
    no gradient.

    Clipped sums would be 0 or of another loss, without a word: each example is given to the loss alone, and
    gradients that are not finite count as 0. It is tried on constants that are as these outputs and y are;
    what it does not take is passed over, for it may know what they can be.
    """
    with torch.enable_grad():
        _try(loss, outputs, y)


def _try(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    if not isinstance(outputs, Tensor):
        return
    steps = torch.arange(3 * math.prod(outputs.shape[1:]), device=outputs.device)
    # Within (0, 1), so that they may be probabilities, and no two alike.
    made = 0.5 + 0.3 * torch.sin(1.7 * steps).to(torch.promote_types(outputs.dtype, torch.float32))
    made = nn.Parameter(made.view(3, *outputs.shape[1:]))
    name, finite, graded = getattr(loss, "__name__", type(loss).__name__), list[bool](), list[bool]()
    for values in _TRIED:
        like = torch.tensor(values, dtype=y.dtype, device=y.device).view(3, *[1] * (y.ndim - 1))
        targets = like.expand(3, *y.shape[1:]).contiguous()
        try:
            together = loss(made, targets)
            _check_tensor(name, together)
            alone = torch.cat([loss(made[i : i + 1], targets[i : i + 1]) for i in range(3)])
        except validation.ArgumentError:
            raise
        except Exception:
            continue
        if together.shape != (3,) or alone.shape != (3,):
            return  # the wrong shape is reported when the loss gets a whole batch
        graded.append(together.requires_grad)
        finite.append(bool(torch.isfinite(alone).all()))
        if finite[-1] and not torch.allclose(together, alone, rtol=1e-3, atol=1e-6):
            hint = "here it changes with the others beside it, as a mean over the batch does"
            raise validation.fail("loss", name, "be of each example alone", hint)
    if finite and not any(finite):
        raise validation.fail("loss", name, "be finite", "it is not, for any outputs and y that were tried")
    if graded and not any(graded):
        hint = "it has none: detach, argmax or a comparison cuts it off"
        raise validation.fail("loss", name, "have a gradient in the outputs", hint)


def _check_tensor(name: str, losses: object) -> None:
    """Raises ArgumentError where a loss has given something other than a tensor."""
    if not isinstance(losses, Tensor):
        raise validation.fail("loss", name, "give a tensor (n,)", f"it gives {type(losses).__name__}")

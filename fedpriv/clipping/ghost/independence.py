"""Passes in which each example is alone, for models or losses with user code.

A trial on synthetic examples (:mod:`fedpriv.clipping.ghost.compatibility`) cannot predict what user code does
with other values or in other batches. It may replace a missing value by the mean over the batch, weight a
rare label by its number in the batch, mix examples in large batches only, or mix their gradients (by
``detach``, a hook, or an autograd.Function) while the losses stay the same. Comparing losses finds the first
two at best.

User code is therefore never called with a batch. ``torch.func.vmap`` calls it with one example, (1, ...), and
differentiates that example's loss by offsets that are added at the hook points. What is recorded is thus a
function of the example alone, whatever the code does with its batch: another example cannot reach it. Matrix
products are still those of the whole batch, so that a pass takes 1.2 to 2.4 times as long as an ordinary one.

>>> runs_user_code(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.nn.functional.cross_entropy)
False
>>> runs_user_code(nn.Linear(2, 2), max)
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clipping.dropout import SeededDropout
from fedpriv.clipping.ghost.layers import Call, UnsupportedLayerError
from fedpriv.clipping.ghost.layers.base import by_matrix_products, replacing_hook_points

# Layers and losses of these modules do not mix examples, or the trial finds those that do. Code that
# torch.jit compiled does not count as torch's.
_KNOWN = ("torch.nn.", "fedpriv.")

Calls = list[tuple[str, Call]]
Recorded = tuple[Tensor, Calls]


def runs_user_code(module: nn.Module, loss: Callable[..., Any]) -> bool:
    """Whether a layer's forward, a hook, or the loss is neither torch's nor fedpriv's."""

    def own(layer: nn.Module) -> bool:
        hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
        return bool(hooked) or not _known(type(layer).forward)

    return not _known(loss) or any(map(own, module.modules()))


def _known(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).startswith(_KNOWN)


def record_alone(
    run: Callable[[Tensor, Tensor], Recorded],
    dropout: SeededDropout,
    x: Tensor,
    y: Tensor,
    places: Collection[str] = (),
) -> tuple[Calls, list[tuple[Tensor, ...]], Tensor]:
    """The layers' calls, the gradients at their hook points and the losses (n,), each example alone.

    Args:
        run: x (1, ...), y (1, ...) -> the loss (1,), and the calls of the layers with book-keeping.
        dropout: the model's dropout, with the seeds of the examples.
        x, y: the examples (n, ...) and their labels (n, ...).
        places: the layers whose calls may have several vectors along the first axis
            (:class:`~fedpriv.clipping.ghost.layers.base.LayerRule`): all are of the one example, since no
            other one was there.

    Raises:
        UnsupportedLayerError: another layer's record does not have the example along its first axis.
    """
    each = (x, y) if dropout.seeds is None else (x, y, dropout.seeds)
    shapes = _hook_shapes(run, dropout, *each)
    pattern: Calls = []
    made: list[Tensor] = []

    def of_one(
        offsets: tuple[Tensor, ...], x: Tensor, y: Tensor, seed: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor], list[Tensor]]]:
        made.clear()

        def moved(tensor: Tensor) -> Tensor:
            made.append(tensor + offsets[len(made)])
            return made[-1]

        with dropout.seeded(None if seed is None else seed[None]), replacing_hook_points(moved):
            loss, calls = run(x[None], y[None])
        pattern[:] = calls
        return loss[0], (loss[0], made, [part for _, call in calls for part in tensors_of(call.seen)])

    offsets = tuple(x.new_zeros(shape, dtype=dtype) for shape, dtype in shapes)
    mapped = torch.func.vmap(torch.func.grad(of_one, has_aux=True), (None, *[0] * len(each)))
    with by_matrix_products():
        found, (losses, values, seen) = mapped(offsets, *each)
    parts = iter(seen)
    numbers = {id(tensor): number for number, tensor in enumerate(made)}
    calls, deltas = [], []
    for name, call in pattern:
        own = [numbers[id(point)] for point in call.hook_points]
        records = [next(parts) for _ in tensors_of(call.seen)]
        several = [[found[i] for i in own], [values[i] for i in own], records]
        if any(part.dim() < 2 or part.shape[1] != 1 for each in several for part in each):
            if name not in places or any(part.dim() < 2 for each in several for part in each):
                raise UnsupportedLayerError.of(name)
            sent, points, records = several
        else:
            sent, points, records = ([part[:, 0] for part in each] for each in several)
        calls.append((name, Call(None, tuple(points), _replaced(call.seen, iter(records)))))
        deltas.append(tuple(sent))
    return calls, deltas, losses


def _hook_shapes(
    run: Callable[[Tensor, Tensor], Recorded],
    dropout: SeededDropout,
    x: Tensor,
    y: Tensor,
    seeds: Tensor | None = None,
) -> list[tuple[torch.Size, torch.dtype]]:
    """The shape (1, ...) and the dtype at each hook point, in the order of the calls.

    They are those of a synthetic example, so that no example's values decide them.
    """
    found: list[tuple[torch.Size, torch.dtype]] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append((tensor.shape, tensor.dtype))
        return tensor

    one = None if seeds is None else torch.zeros_like(seeds[:1])
    with torch.no_grad(), dropout.seeded(one), replacing_hook_points(keep):
        run(torch.zeros_like(x[:1]), torch.zeros_like(y[:1]))
    return found


def tensors_of(seen: Any) -> Iterator[Tensor]:
    """The tensors in a record: a tensor, a list, or a dataclass with tensors."""
    if isinstance(seen, Tensor):
        yield seen
    elif isinstance(seen, list | tuple):
        for part in seen:
            yield from tensors_of(part)
    elif dataclasses.is_dataclass(seen):
        for field in dataclasses.fields(seen):
            yield from tensors_of(getattr(seen, field.name))


def _replaced(seen: Any, tensors: Iterator[Tensor]) -> Any:
    """The record with these tensors in the order of :func:`tensors_of`."""
    if isinstance(seen, Tensor):
        return next(tensors)
    if isinstance(seen, list | tuple):
        return type(seen)(_replaced(part, tensors) for part in seen)
    if dataclasses.is_dataclass(seen) and not isinstance(seen, type):
        values = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
        return type(seen)(**{name: _replaced(value, tensors) for name, value in values.items()})
    return seen

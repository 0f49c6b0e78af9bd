"""Bounded sums of per-example gradients in one backward pass, without forming the gradients.

Book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost"): one
forward pass records the inputs of each layer, and one backward pass computes the gradient at each layer's
hook points, but not at its parameters. :mod:`fedpriv.clipping.ghost.layers` turns both into factored
per-example gradients, whose norms and weighted sums need no formed gradients.

It is exact where trained parameters belong to layers with a layer rule and examples do not influence each
other. A layer may be called several times, and layers may share parameters. ``vmap(grad)`` differentiates
the few parameters without a layer rule (:mod:`fedpriv.clipping.ghost.coverage`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clipping.ghost.clipped_sum import FactoredSum, Forms
from fedpriv.clipping.ghost.coverage import Coverage, form_rows
from fedpriv.clipping.ghost.factored import Factored, combine
from fedpriv.clipping.ghost.independence import RefuseHooks, check_functions, equal_alone
from fedpriv.clipping.ghost.layers import Call, UnsupportedLayerError, rule_of
from fedpriv.clipping.precision import Precision, computing
from fedpriv.clipping.protocol import Differentiable
from fedpriv.mechanism.query import Block
from fedpriv.parameters import Layout


class BookKeeping:
    """The passes over a model's layers, and the sums computed from them.

    Attributes:
        precision: that of the passes.
    """

    def __init__(self, layout: Layout, precision: Precision = "float32", watched: bool = False) -> None:
        """Book-keeping for a model of this layout. Each pass temporarily replaces the layers' forwards.

        ``watched`` compares the losses of each pass with those of each example alone, and looks for code that
        changes gradients (:mod:`fedpriv.clipping.ghost.independence`).
        """
        self._layout, self.precision, self._watched = layout, precision, watched

    def sum(
        self,
        coverage: Coverage,
        task: Differentiable,
        points: Sequence[Tensor],
        blocks: Sequence[Block],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        seeds: Tensor | None = None,
        precision: Precision | None = None,
        counted: int | None = None,
    ) -> FactoredSum:
        """The bounded sums of the units' gradients at ``points``, by a coverage that is exact for them.

        Without weights, x (n, ...) and y (n, ...) are n examples and each is a unit. With weights (n, m),
        x (n, m, ...) and y (n, m, ...) are n units of m examples, and a unit's vector is the weighted sum
        of its examples' gradients. ``seeds``, (n,) or (n, m), are the dropout seeds of the examples. Only
        the first ``counted`` units are summed; None sums all. The sums are valid only if every unit's norm
        is known (``norm_known``). Where losses are watched, the norm of a unit whose loss depends on the
        other units is not known.
        """
        drawn = task.dropout.seeded(None if seeds is None else seeds.flatten())
        formed: list[Forms] = [{} for _ in points]
        with drawn, computing(precision or self.precision, x.device):
            passes = [self.record(coverage, task, point, x, y, weights) for point in points]
            alone = self._equal_alone(task, points, x, y, weights, [losses for *_, losses in passes])
            if coverage.remaining:
                tensors = [self._layout.split(point) for point in points]
                units = x, y, weights, seeds
                formed = [
                    form_rows(task.losses_at, task.dropout, t, coverage.remaining, *units) for t in tensors
                ]
        forms = [
            self._measure(coverage, calls, deltas, weights, rest)
            for (calls, deltas, _), rest in zip(passes, formed, strict=True)
        ]
        sums = FactoredSum(forms, self._layout, blocks, points[0], counted)
        if alone is not None:
            sums.norm_known &= alone
        return sums

    def _equal_alone(
        self,
        task: Differentiable,
        points: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        together: Sequence[Tensor],
    ) -> Tensor | None:
        """Whether each unit's losses equal its losses alone at all points, bool (n,); None: not watched."""
        if not self._watched:
            return None
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        coarse = self.precision != "float32"
        each = torch.stack(
            [
                equal_alone(task.losses, task.dropout, point, x, y, losses, coarse)
                for point, losses in zip(points, together, strict=True)
            ]
        ).all(0)
        return each if weights is None else each.view(weights.shape).all(1)

    def record(
        self,
        coverage: Coverage,
        task: Differentiable,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
    ) -> tuple[list[tuple[str, Call]], list[tuple[Tensor, ...]], Tensor]:
        """One forward and backward pass: the layers' calls, gradients at their hook points, the losses."""
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        refuse_hooks = RefuseHooks() if self._watched else nullcontext()
        with torch.enable_grad(), _recorded(coverage.layers) as tape, refuse_hooks:
            losses = task.losses(params.detach(), x, y)
        if self._watched:
            check_functions(losses)
        calls = [(name, call) for name, several in tape.items() for call in several]
        for name, several in tape.items():
            if not several:
                raise UnsupportedLayerError.of(name)
        seeds = torch.ones_like(losses) if weights is None else weights.flatten().to(losses.dtype)
        points = [tensor for _, call in calls for tensor in call.hook_points]
        found = torch.autograd.grad(losses, points, seeds, materialize_grads=True)
        given = iter(delta.to(params.dtype) for delta in found)
        deltas = [tuple(next(given) for _ in call.hook_points) for _, call in calls]
        for (name, _), sent in zip(calls, deltas, strict=True):
            if any(len(delta) != len(x) for delta in sent):
                raise UnsupportedLayerError.of(name)
        return calls, deltas, losses.detach()

    def _measure(
        self,
        coverage: Coverage,
        calls: list[tuple[str, Call]],
        deltas: list[tuple[Tensor, ...]],
        weights: Tensor | None,
        formed: Forms,
    ) -> Forms:
        """The units' factored gradients by tensor, including the formed ones."""
        found: dict[str, list[Factored]] = {slot: [] for slot in self._layout.names}
        for (name, call), sent in zip(calls, deltas, strict=True):
            layer, own = coverage.layers[name], coverage.slots[name]
            measured = _measured(name, layer, call, sent)
            if not own.keys() <= measured.keys():
                raise UnsupportedLayerError.of(name)
            for parameter, form in measured.items():
                if parameter in own:
                    found[own[parameter]].append(form if weights is None else form.grouped(weights.shape[1]))
        for slot, form in formed.items():
            found[slot].append(form)
        return {slot: combine(forms, (1.0,) * len(forms)) for slot, forms in found.items()}


def _measured(name: str, layer: nn.Module, call: Call, deltas: tuple[Tensor, ...]) -> dict[str, Factored]:
    """The factored gradients that the layer's rule computes from a call."""
    rule = rule_of(type(layer))
    assert rule is not None
    try:
        return rule.measure(layer, call.seen, deltas)
    except UnsupportedLayerError as error:
        raise UnsupportedLayerError.of(name) from error


@contextmanager
def _recorded(layers: dict[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Replace each layer's forward while the context is open, so that its calls are recorded."""
    tape: dict[str, list[Call]] = {name: [] for name in layers}

    def recording(name: str, layer: nn.Module) -> Any:
        rule = rule_of(type(layer))
        assert rule is not None

        def forward(*inputs: Any, **named: Any) -> Any:
            try:
                call = rule.record(layer, *inputs, **named)
            except UnsupportedLayerError as error:
                raise UnsupportedLayerError.of(name) from error
            tape[name].append(call)
            return call.output

        return forward

    for name, layer in layers.items():
        vars(layer)["forward"] = recording(name, layer)
    try:
        yield tape
    finally:
        for layer in layers.values():
            del vars(layer)["forward"]

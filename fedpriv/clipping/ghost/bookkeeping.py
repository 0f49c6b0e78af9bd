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
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clipping.ghost.clipped_sum import FactoredSum, Forms
from fedpriv.clipping.ghost.coverage import Coverage, form_rows
from fedpriv.clipping.ghost.factored import Factored, combine
from fedpriv.clipping.ghost.independence import Calls, Recorded, record_alone
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

    def __init__(self, layout: Layout, precision: Precision = "float32", alone: bool = False) -> None:
        """Book-keeping for a model of this layout. Each pass temporarily replaces the layers' forwards.

        ``alone`` passes the examples one by one, as user code needs it
        (:mod:`fedpriv.clipping.ghost.independence`).
        """
        self._layout, self.precision, self._alone = layout, precision, alone

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
        sum_dtype: torch.dtype | None = None,
        values: list[Tensor] | None = None,
    ) -> FactoredSum:
        """The bounded sums of the units' gradients at ``points``, by a coverage that is exact for them.

        Without weights, x (n, ...) and y (n, ...) are n examples and each is a unit. With weights (n, m),
        x (n, m, ...) and y (n, m, ...) are n units of m examples, and a unit's vector is the weighted sum
        of its examples' gradients. ``seeds``, (n,) or (n, m), are the dropout seeds of the examples. Only
        the first ``counted`` units are summed; None sums all. Units are added in ``sum_dtype``, by default
        the points'. ``values`` is a list to which the values at all hook points (examples, ...) are appended.
        The sums are valid only if every unit's norm is known (``norm_known``).
        """
        drawn = task.dropout.seeded(None if seeds is None else seeds.flatten())
        formed: list[Forms] = [{} for _ in points]
        with drawn, computing(precision or self.precision, x.device):
            passes = [self.record(coverage, task, point, x, y, weights) for point in points]
            if coverage.remaining:
                tensors = [self._layout.split(point) for point in points]
                units = x, y, weights, seeds
                formed = [
                    form_rows(task.losses_at, task.dropout, t, coverage.remaining, *units) for t in tensors
                ]
        if values is not None:
            values += [p.detach() for calls, *_ in passes for _, call in calls for p in call.hook_points]
        forms = [
            self._measure(coverage, calls, deltas, weights, rest)
            for (calls, deltas, _), rest in zip(passes, formed, strict=True)
        ]
        return FactoredSum(forms, self._layout, blocks, points[0], counted, sum_dtype)

    def record(
        self,
        coverage: Coverage,
        task: Differentiable,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
    ) -> tuple[Calls, list[tuple[Tensor, ...]], Tensor]:
        """One forward and backward pass: the layers' calls, gradients at their hook points, the losses."""
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)

        def run(x: Tensor, y: Tensor) -> Recorded:
            with torch.enable_grad(), _recorded(coverage.layers) as tape:
                losses = task.losses(params.detach(), x, y)
            for name, several in tape.items():
                if not several:
                    raise UnsupportedLayerError.of(name, called=False)
            return losses, [(name, call) for name, several in tape.items() for call in several]

        weigh = None if weights is None else weights.flatten().to(params.dtype)
        if self._alone:
            places = {name for name, layer in coverage.layers.items() if _has_places(layer)}
            calls, deltas, losses = record_alone(run, task.dropout, x, y, places)
            if weigh is not None:
                deltas = [tuple(_rows_times(delta, weigh) for delta in sent) for sent in deltas]
        else:
            losses, calls = run(x, y)
            points = [tensor for _, call in calls for tensor in call.hook_points]
            seeds = torch.ones_like(losses) if weigh is None else weigh.to(losses.dtype)
            found = iter(torch.autograd.grad(losses, points, seeds, materialize_grads=True))
            deltas = [tuple(next(found) for _ in call.hook_points) for _, call in calls]
        deltas = [tuple(delta.to(params.dtype) for delta in sent) for sent in deltas]
        for (name, _), sent in zip(calls, deltas, strict=True):
            if any(len(delta) != len(x) for delta in sent):
                raise UnsupportedLayerError.of(name)
        return calls, deltas, losses.detach()

    def _measure(
        self,
        coverage: Coverage,
        calls: Calls,
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


def _has_places(layer: nn.Module) -> bool:
    rule = rule_of(type(layer))
    return rule is not None and rule.places


def _rows_times(rows: Tensor, factors: Tensor) -> Tensor:
    """Rows (n, ...), each times its factor (n,)."""
    return rows * factors.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


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

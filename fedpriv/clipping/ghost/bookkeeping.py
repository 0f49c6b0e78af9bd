"""Bounded sums of per-example gradients in one backward pass, without forming the gradients.

Book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost"): one
forward pass keeps what each layer saw, one backward pass gives the gradient at each layer's taps and no
parameter's, and :mod:`fedpriv.clipping.ghost.layers` turns both into factored per-example gradients, whose
norms and weighted sums are had without forming them.

It is exact where trained parameters belong to layers of a known kind that treat examples apart; a layer may
be called several times, and layers may share parameters. The few parameters that belong to none are
differentiated by ``vmap(grad)`` beside it (:mod:`fedpriv.clipping.ghost.coverage`). What can be read from the
module is decided when a :class:`GhostClipper` is made; the rest (a weight used outside its layer, examples
that mix) is tried out once for each shape of input, on made-up examples
(:mod:`fedpriv.clipping.ghost.compatibility`): a model that fails is summed by rows from then on.

>>> from fedpriv.parameters import layout_of
>>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
>>> sorted(GhostClipper(model, layout_of(model)).layers)
['0', '2']
>>> GhostClipper(nn.Bilinear(3, 3, 2), layout_of(nn.Bilinear(3, 3, 2))).layers
{}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.clipping.dropout import Drawing
from fedpriv.clipping.ghost.clipped_sum import FactoredSum, Forms
from fedpriv.clipping.ghost.compatibility import Trial
from fedpriv.clipping.ghost.coverage import Coverage, coverage_of, form_rows
from fedpriv.clipping.ghost.factored import Factored, combine
from fedpriv.clipping.ghost.independence import Hookless, apart, check_functions
from fedpriv.clipping.ghost.layers import Call, UnsupportedLayerError, rule_of
from fedpriv.clipping.precision import Precision, computing
from fedpriv.mechanism.query import Block
from fedpriv.parameters import Layout


class Differentiable(Protocol):
    """What bounded sums of gradients need of a task."""

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""

    @property
    def layout(self) -> Layout:
        """Which tensors make up the parameters."""

    @property
    def drawing(self) -> Drawing:
        """What the model's dropout draws by."""

    @property
    def book(self) -> GhostClipper:
        """How the task's model is summed by book-keeping."""

    def initial(self, generator: np.random.Generator) -> Tensor:
        """A first parameter vector (d,)."""

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses (n,) of the examples at the parameters (d,)."""

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """As ``losses``, at the trained tensors by name."""

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters."""


class GhostClipper:
    """Whether and how a model's gradients are summed by book-keeping.

    Attributes:
        layers: the layers whose parameters are book-kept, by name; empty where the model is not suited.
        tokens: below which number every token of the model's inputs may be.
        precision: that of the passes.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, precision: Precision = "float32", watched: bool = False
    ) -> None:
        """The book of ``module``, whose layers' forwards are replaced during each pass.

        ``watched`` holds the losses of each pass against those of each example alone, and looks for code that
        changes gradients (:mod:`fedpriv.clipping.ghost.independence`).
        """
        self._layout, self.precision, self._watched = layout, precision, watched
        tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        self.tokens = min((table.num_embeddings for table in tables), default=2)
        self._tried: dict[tuple[Any, ...], Coverage | None] = {}
        self._plan = coverage_of(module, layout)
        self.layers = self._plan.layers

    def suits(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, drawing: bool = False
    ) -> Coverage | None:
        """By which plan book-keeping is exact for examples of these shapes, where dropout draws, or does not;
        None where by none: tried once, on made-up ones."""
        if not self.layers:
            return None
        key = (drawing, params.dtype, *((t.shape[1:], t.dtype, t.device) for t in (x, y)))
        if key not in self._tried:
            self._tried[key] = Trial(task, params, x, y, drawing).suited(self._plan)
        return self._tried[key]

    def sum(
        self,
        plan: Coverage,
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
        """The bounded sums of the units' gradients at ``points``, by a plan that suits them.

        Without weights, x (n, ...) and y (n, ...) are n examples and each is a unit. With weights (n, m),
        x (n, m, ...) and y (n, m, ...) are n units of m examples and a unit's vector is the weighted sum
        of its examples' gradients. Dropout draws by the examples' ``seeds``, (n,) or (n, m). Only the first
        ``counted`` units are summed, where that is given. The sums hold where all units are told; a unit is
        not whose losses are others alone, where that is watched.
        """
        drawn = task.drawing.by(None if seeds is None else seeds.flatten())
        formed: list[Forms] = [{} for _ in points]
        with drawn, computing(precision or self.precision, x.device):
            passes = [self.record(plan, task, point, x, y, weights) for point in points]
            alone = self._apart(task, points, x, y, weights, [losses for *_, losses in passes])
            if plan.remaining:
                tensors = [self._layout.split(point) for point in points]
                units = x, y, weights, seeds
                formed = [form_rows(task.losses_at, task.drawing, t, plan.remaining, *units) for t in tensors]
        forms = [
            self._measure(plan, calls, deltas, weights, rest)
            for (calls, deltas, _), rest in zip(passes, formed, strict=True)
        ]
        sums = FactoredSum(forms, self._layout, blocks, points[0], counted)
        if alone is not None:
            sums.told &= alone
        return sums

    def _apart(
        self,
        task: Differentiable,
        points: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        together: Sequence[Tensor],
    ) -> Tensor | None:
        """Which units' losses are what they are alone at all points, bool (n,); None: not watched."""
        if not self._watched:
            return None
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        coarse = self.precision != "float32"
        each = torch.stack(
            [
                apart(task.losses, task.drawing, point, x, y, losses, coarse)
                for point, losses in zip(points, together, strict=True)
            ]
        ).all(0)
        return each if weights is None else each.view(weights.shape).all(1)

    def record(
        self,
        plan: Coverage,
        task: Differentiable,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
    ) -> tuple[list[tuple[str, Call]], list[tuple[Tensor, ...]], Tensor]:
        """A forward and a backward pass: the layers' calls, the gradients at each one's taps, the losses."""
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        hookless = Hookless() if self._watched else nullcontext()
        with torch.enable_grad(), _recorded(plan.layers) as tape, hookless:
            losses = task.losses(params.detach(), x, y)
        if self._watched:
            check_functions(losses)
        calls = [(name, call) for name, several in tape.items() for call in several]
        for name, several in tape.items():
            if not several:
                raise UnsupportedLayerError.of(name)
        seeds = torch.ones_like(losses) if weights is None else weights.flatten().to(losses.dtype)
        taps = [tensor for _, call in calls for tensor in call.taps]
        found = torch.autograd.grad(losses, taps, seeds, materialize_grads=True)
        given = iter(delta.to(params.dtype) for delta in found)
        deltas = [tuple(next(given) for _ in call.taps) for _, call in calls]
        for (name, _), sent in zip(calls, deltas, strict=True):
            if any(len(delta) != len(x) for delta in sent):
                raise UnsupportedLayerError.of(name)
        return calls, deltas, losses.detach()

    def _measure(
        self,
        plan: Coverage,
        calls: list[tuple[str, Call]],
        deltas: list[tuple[Tensor, ...]],
        weights: Tensor | None,
        formed: Forms,
    ) -> Forms:
        """The units' factored gradients by tensor, those that are formed among them."""
        found: dict[str, list[Factored]] = {slot: [] for slot in self._layout.names}
        for (name, call), sent in zip(calls, deltas, strict=True):
            layer, own = plan.layers[name], plan.slots[name]
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
    """What the layer's kind makes of a call."""
    kind = rule_of(type(layer))
    assert kind is not None
    try:
        return kind.measure(layer, call.seen, deltas)
    except UnsupportedLayerError as error:
        raise UnsupportedLayerError.of(name) from error


@contextmanager
def _recorded(layers: dict[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Records each layer's calls while the context is open, in place of its forward."""
    tape: dict[str, list[Call]] = {name: [] for name in layers}

    def recording(name: str, layer: nn.Module) -> Any:
        kind = rule_of(type(layer))
        assert kind is not None

        def forward(*inputs: Any, **named: Any) -> Any:
            try:
                call = kind.record(layer, *inputs, **named)
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

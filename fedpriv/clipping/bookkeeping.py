"""Bounded sums of per-example gradients in one backward pass, without forming the gradients.

Book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost"): one
forward pass keeps what each layer saw, one backward pass gives the gradient at each layer's taps and no
parameter's, and :mod:`fedpriv.clipping.kinds` turns both into factored per-example gradients, whose norms
and weighted sums are had without forming them.

It is exact where every trained parameter belongs to a layer of a known kind that treats examples apart;
a layer may be called several times, and layers may share parameters. What can be read from the module is
decided when a :class:`Book` is made; the rest (a weight used outside its layer, examples that mix) is
tried out once for each shape of input, on made-up examples, against ``vmap(grad)``: a model that does not
agree is summed by rows from then on.

>>> from fedpriv.vectors import layout_of
>>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
>>> sorted(Book(model, layout_of(model)).layers)
['0', '2']
>>> Book(nn.Bilinear(3, 3, 2), layout_of(nn.Bilinear(3, 3, 2))).layers
{}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.clipping.bounded import FactoredSum, Forms
from fedpriv.clipping.drawing import Drawing
from fedpriv.clipping.factored import Factored, combine
from fedpriv.clipping.kinds import KINDS, Call, UnsuitedError
from fedpriv.clipping.precision import Precision, computing
from fedpriv.clipping.rows import sum_rows
from fedpriv.query import LEAST, MOST, Block, SumBlock, Term
from fedpriv.vectors import Layout

_TRIALS, _TRIAL, _TRIAL_ERROR = 3, 3, 1e-3  # trials, examples in each, and what rounding may do
_CROWD, _OWN_ERROR = 33, 1e-4  # examples of which one must not depend on the others, but for rounding
_COARSE_ERROR = 0.2  # what it may do where the passes are of few digits


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
    def book(self) -> Book:
        """How the task's model is summed by book-keeping."""

    def initial(self, generator: np.random.Generator) -> Tensor:
        """A first parameter vector (d,)."""

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses (n,) of the examples at the parameters (d,)."""

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters."""


class Book:
    """Whether and how a model's gradients are summed by book-keeping.

    Attributes:
        layers: the layers that hold the trained parameters, by name; empty where the model is not suited.
        tokens: below which number every token of the model's inputs may be.
    """

    def __init__(self, module: nn.Module, layout: Layout, precision: Precision = "float32") -> None:
        """The book of ``module``, whose layers' forwards are replaced during each pass."""
        self._layout, self._precision = layout, precision
        tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        self.tokens = min((table.num_embeddings for table in tables), default=2)
        self._tried: dict[tuple[Any, ...], bool] = {}
        slots = {id(p): name for name, p in module.named_parameters() if name in layout.names}
        self.layers = _trained_layers(module, set(slots))
        self._slots = {
            name: {own: slots[id(p)] for own, p in layer.named_parameters(recurse=False) if id(p) in slots}
            for name, layer in self.layers.items()
        }

    def suits(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, drawing: bool = False
    ) -> bool:
        """Whether book-keeping is exact for examples of these shapes, where dropout draws, or does not: tried
        once, on made-up ones."""
        if not self.layers:
            return False
        key = (drawing, params.dtype, *((t.shape[1:], t.dtype, t.device) for t in (x, y)))
        if key not in self._tried:
            self._tried[key] = self._try(task, params, x, y, drawing)
        return self._tried[key]

    def sum(
        self,
        task: Differentiable,
        points: Sequence[Tensor],
        blocks: Sequence[Block],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        seeds: Tensor | None = None,
        precision: Precision | None = None,
    ) -> FactoredSum:
        """The bounded sums of the units' gradients at ``points``.

        Without weights, x (n, ...) and y (n, ...) are n examples and each is a unit. With weights (n, m),
        x (n, m, ...) and y (n, m, ...) are n units of m examples and a unit's vector is the weighted sum
        of its examples' gradients. Dropout draws by the examples' ``seeds``, (n,) or (n, m). The sums hold
        where all units are told.
        """
        drawn = task.drawing.by(None if seeds is None else seeds.flatten())
        with drawn, computing(precision or self._precision, x.device):
            passes = [self._pass(task, point, x, y, weights) for point in points]
        forms = [self._measure(*one, weights) for one in passes]
        return FactoredSum(forms, self._layout, blocks, points[0])

    def _pass(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, weights: Tensor | None
    ) -> tuple[list[tuple[str, Call]], list[tuple[Tensor, ...]]]:
        """One forward and one backward pass: the layers' calls, and the gradients at each one's taps."""
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        with torch.enable_grad(), _recorded(self.layers) as tape:
            losses = task.losses(params.detach(), x, y)
        calls = [(name, call) for name, several in tape.items() for call in several]
        if not all(tape.values()):
            raise UnsuitedError
        seeds = torch.ones_like(losses) if weights is None else weights.flatten().to(losses.dtype)
        taps = [tensor for _, call in calls for tensor in call.taps]
        found = torch.autograd.grad(losses, taps, seeds, materialize_grads=True)
        if any(len(delta) != len(x) for delta in found):
            raise UnsuitedError
        deltas = iter(delta.to(params.dtype) for delta in found)
        return calls, [tuple(next(deltas) for _ in call.taps) for _, call in calls]

    def _measure(
        self, calls: list[tuple[str, Call]], deltas: list[tuple[Tensor, ...]], weights: Tensor | None
    ) -> Forms:
        """The units' factored gradients by tensor."""
        found: dict[str, list[Factored]] = {slot: [] for slot in self._layout.names}
        for (name, call), sent in zip(calls, deltas, strict=True):
            layer, own = self.layers[name], self._slots[name]
            for parameter, form in KINDS[type(layer)].measure(layer, call.seen, sent).items():
                if parameter in own:
                    found[own[parameter]].append(form if weights is None else form.grouped(weights.shape[1]))
        return {slot: combine(forms, (1.0,) * len(forms)) for slot, forms in found.items()}

    def _try(self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, drawing: bool) -> bool:
        """Whether book-keeping agrees with vmap on examples that depend on no data.

        Gradients that are all zero (units may be dead where the parameters fell), or outside what can be
        clipped at, prove nothing, so one of a few trials at least must have others.
        """
        generator = np.random.default_rng(0)
        if not all(_alone(task, params, x, y, count, generator, drawing) for count in (_TRIAL, _CROWD)):
            return False
        seeds = torch.arange(_TRIAL, device=x.device) if drawing else None
        labels = y.new_zeros((_TRIAL, *y.shape[1:]))
        proven = False
        held: dict[Precision, float] = {self._precision: _COARSE_ERROR, "float32": _TRIAL_ERROR}
        for _ in range(_TRIALS):
            point = task.initial(generator).to(params)
            inputs = _made_up(x, _TRIAL, generator)
            with task.drawing.by(seeds):
                rows = task.gradients(point, inputs, labels)
            clip = float(rows.norm(dim=1).median()) or 1.0  # clips some and not others
            if not LEAST <= clip <= MOST:
                continue
            blocks = (SumBlock((Term(clip),), 0.5), SumBlock((Term(math.inf),), 0.5))
            wanted = sum_rows([rows], blocks)
            for precision, error in held.items():
                try:
                    sums = self.sum(task, [point], blocks, inputs, labels, None, seeds, precision)
                except (UnsuitedError, RuntimeError, IndexError, TypeError):
                    return False
                for got, want in zip(sums.totals, wanted, strict=True):
                    if not bool((got - want).norm() <= error * want.norm()):
                        return False
            proven = proven or any(bool(want.norm() > 0) for want in wanted)
        return proven


def _made_up(x: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """Inputs (count, ...) like x: normal numbers, or tokens 0 and 1, which every vocabulary has."""
    numbers = generator.standard_normal((count, *x.shape[1:]))
    return torch.as_tensor(numbers if x.is_floating_point() else numbers > 0).to(x)


def _alone(
    task: Differentiable,
    params: Tensor,
    x: Tensor,
    y: Tensor,
    count: int,
    generator: np.random.Generator,
    drawing: bool,
) -> bool:
    """Whether the loss of one of so many made-up examples is the same whatever the others are.

    Where it is not, examples are mixed, before a layer sees them or in the loss, which no clip of what layers
    see bounds: one example more would move all of the others' parts. All other numbers become NaN, which any
    sum, mean or product of several examples passes on; tokens and labels are exchanged for several others.
    """
    inputs, labels = _made_up(x, count, generator), y.new_zeros((count, *y.shape[1:]))
    own = count // 2
    others = _others(inputs, own, task.book.tokens - 1), _others(labels, own, 1)
    point = task.initial(generator).to(params)
    try:
        with torch.no_grad(), task.drawing.by(torch.arange(count, device=x.device) if drawing else None):
            pairs = [(inputs, labels), *zip(*others, strict=True)]
            loss, *beside = (float(task.losses(point, *pair)[own]) for pair in pairs)
    except Exception:
        return False
    return not math.isfinite(loss) or all(abs(loss - one) <= _OWN_ERROR * abs(loss) for one in beside)


def _others(given: Tensor, own: int, most: int) -> list[Tensor]:
    """The same at ``own``, and elsewhere NaN, or whole numbers: 0, most, or all from there down in turn."""
    if given.is_floating_point():
        several = [torch.full_like(given, math.nan)] * 3
    else:
        turns = torch.arange(given.numel(), device=given.device).view(given.shape) % (most + 1)
        several = [torch.full_like(given, number) for number in (0, most)]
        several.append((most - turns).to(given.dtype))
    for others in several:
        others[own] = given[own]
    return several


def _trained_layers(module: nn.Module, trained: set[int]) -> dict[str, nn.Module]:
    """The layers that hold all trained parameters (ids), by name; empty where one is of no known kind."""
    layers = {}
    for name, layer in module.named_modules():
        own = [parameter for _, parameter in layer.named_parameters(recurse=False)]
        if any(id(parameter) in trained for parameter in own):
            if type(layer) not in KINDS or "forward" in vars(layer):
                return {}
            layers[name] = layer
    return layers


@contextmanager
def _recorded(layers: dict[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Records each layer's calls while the context is open, in place of its forward."""
    tape: dict[str, list[Call]] = {name: [] for name in layers}

    def recording(layer: nn.Module, calls: list[Call]) -> Any:
        record = KINDS[type(layer)].record

        def forward(*inputs: Any, **named: Any) -> Any:
            call = record(layer, *inputs, **named)
            calls.append(call)
            return call.output

        return forward

    for name, layer in layers.items():
        vars(layer)["forward"] = recording(layer, tape[name])
    try:
        yield tape
    finally:
        for layer in layers.values():
            del vars(layer)["forward"]

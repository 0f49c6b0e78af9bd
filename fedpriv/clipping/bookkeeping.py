"""Bounded sums of per-example gradients in one backward pass, without forming the gradients.

Book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost"): one
forward pass keeps what each layer saw, one backward pass gives the gradient at each layer's taps and no
parameter's, and :mod:`fedpriv.clipping.kinds` turns both into factored per-example gradients, whose norms
and weighted sums are had without forming them.

It is exact where trained parameters belong to layers of a known kind that treat examples apart; a layer may
be called several times, and layers may share parameters. The few parameters that belong to none are
differentiated by ``vmap(grad)`` beside it (:mod:`fedpriv.clipping.plans`). What can be read from the
module is decided when a :class:`Book` is made; the rest (a weight used outside its layer, examples that mix)
is tried out once for each shape of input, on made-up examples, against ``vmap(grad)``: a model that does not
agree is summed by rows from then on.

>>> from fedpriv.vectors import layout_of
>>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
>>> sorted(Book(model, layout_of(model)).layers)
['0', '2']
>>> Book(nn.Bilinear(3, 3, 2), layout_of(nn.Bilinear(3, 3, 2))).layers
{}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.clipping.bounded import FactoredSum, Forms
from fedpriv.clipping.drawing import Drawing
from fedpriv.clipping.factored import Factored, combine
from fedpriv.clipping.kinds import Call, UnsuitedError, kind_of
from fedpriv.clipping.plans import Plan, form_rows, plan_of
from fedpriv.clipping.precision import Precision, computing
from fedpriv.clipping.rows import sum_rows
from fedpriv.query import LEAST, MOST, Block, SumBlock, Term
from fedpriv.vectors import Layout

_TRIAL, _TRIAL_ERROR = 3, 1e-3  # examples of a trial, and what rounding may do
_SHIFT = 0.1  # of the moves of parameters, where whole gradients are compared
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

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """As ``losses``, at the trained tensors by name."""

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters."""


class Book:
    """Whether and how a model's gradients are summed by book-keeping.

    Attributes:
        layers: the layers whose parameters are book-kept, by name; empty where the model is not suited.
        tokens: below which number every token of the model's inputs may be.
    """

    def __init__(self, module: nn.Module, layout: Layout, precision: Precision = "float32") -> None:
        """The book of ``module``, whose layers' forwards are replaced during each pass."""
        self._layout, self._precision = layout, precision
        tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        self.tokens = min((table.num_embeddings for table in tables), default=2)
        self._tried: dict[tuple[Any, ...], Plan | None] = {}
        self._plan = plan_of(module, layout)
        self.layers = self._plan.layers

    def suits(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, drawing: bool = False
    ) -> Plan | None:
        """By which plan book-keeping is exact for examples of these shapes, where dropout draws, or does not;
        None where by none: tried once, on made-up ones."""
        if not self.layers:
            return None
        key = (drawing, params.dtype, *((t.shape[1:], t.dtype, t.device) for t in (x, y)))
        if key not in self._tried:
            self._tried[key] = self._try(task, params, x, y, drawing)
        return self._tried[key]

    def sum(
        self,
        plan: Plan,
        task: Differentiable,
        points: Sequence[Tensor],
        blocks: Sequence[Block],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        seeds: Tensor | None = None,
        precision: Precision | None = None,
    ) -> FactoredSum:
        """The bounded sums of the units' gradients at ``points``, by a plan that suits them.

        Without weights, x (n, ...) and y (n, ...) are n examples and each is a unit. With weights (n, m),
        x (n, m, ...) and y (n, m, ...) are n units of m examples and a unit's vector is the weighted sum
        of its examples' gradients. Dropout draws by the examples' ``seeds``, (n,) or (n, m). The sums hold
        where all units are told.
        """
        drawn = task.drawing.by(None if seeds is None else seeds.flatten())
        formed: list[Forms] = [{} for _ in points]
        with drawn, computing(precision or self._precision, x.device):
            passes = [self._pass(plan, task, point, x, y, weights) for point in points]
            if plan.remaining:
                tensors = [self._layout.split(point) for point in points]
                units = x, y, weights, seeds
                formed = [form_rows(task.losses_at, task.drawing, t, plan.remaining, *units) for t in tensors]
        forms = [
            self._measure(plan, *one, len(x), rest) for one, rest in zip(passes, formed, strict=True)
        ]
        return FactoredSum(forms, self._layout, blocks, points[0])

    def _pass(
        self,
        plan: Plan,
        task: Differentiable,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
    ) -> tuple[list[tuple[str, Call]], list[tuple[Tensor, ...]]]:
        """One forward and one backward pass: the layers' calls, and the gradients at each one's taps."""
        if weights is not None:
            x, y = x.flatten(0, 1), y.flatten(0, 1)
        with torch.enable_grad(), _recorded(plan.layers) as tape:
            losses = task.losses(params.detach(), x, y)
        calls = [(name, call) for name, several in tape.items() for call in several]
        for name, several in tape.items():
            if not several:
                raise UnsuitedError.of(name)
        seeds = torch.ones_like(losses) if weights is None else weights.flatten().to(losses.dtype)
        taps = [tensor for _, call in calls for tensor in call.taps]
        found = torch.autograd.grad(losses, taps, seeds, materialize_grads=True)
        given = iter(delta.to(params.dtype) for delta in found)
        deltas = [tuple(next(given) for _ in call.taps) for _, call in calls]
        for (name, _), sent in zip(calls, deltas, strict=True):
            if any(len(delta) != len(x) for delta in sent):
                raise UnsuitedError.of(name)
        return calls, deltas

    def _measure(
        self,
        plan: Plan,
        calls: list[tuple[str, Call]],
        deltas: list[tuple[Tensor, ...]],
        units: int,
        formed: Forms,
    ) -> Forms:
        """The units' factored gradients by tensor, those that are formed among them."""
        found: dict[str, list[Factored]] = {slot: [] for slot in self._layout.names}
        for (name, call), sent in zip(calls, deltas, strict=True):
            layer, own = plan.layers[name], plan.slots[name]
            measured = _measured(name, layer, call, sent)
            if not own.keys() <= measured.keys():
                raise UnsuitedError.of(name)
            together = len(sent[0]) // units
            for parameter, form in measured.items():
                if parameter in own:
                    found[own[parameter]].append(form.grouped(together) if together > 1 else form)
        for slot, form in formed.items():
            found[slot].append(form)
        return {slot: combine(forms, (1.0,) * len(forms)) for slot, forms in found.items()}

    def _try(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, drawing: bool
    ) -> Plan | None:
        """The plan by which book-keeping agrees with vmap on examples that depend on no data, if any does.

        Layers that turn out not to hold the examples one after the other are left to rows, if they are small.
        """
        generator = np.random.default_rng(0)
        counts, moves = (_TRIAL, _CROWD), (None, *self._moves(params, self._layout.names))
        several = list(itertools.product(moves, counts))
        if not all(_alone(task, params, x, y, count, generator, drawing, move) for move, count in several):
            return None
        plan = self._plan
        while plan.layers:
            try:
                for move, count in itertools.product((None, *self._moves(params, plan.remaining)), counts):
                    if not _alone(task, params, x, y, count, generator, drawing, move):
                        return None
                    self._hold_apart(plan, task, params, x, y, count, drawing, move)
                agrees = self._agrees(plan, task, params, x, y, generator, drawing)
                return plan if agrees else None
            except UnsuitedError as error:
                if error.layer is None:
                    return None
                plan = plan.without(error.layer)
            except (RuntimeError, IndexError, TypeError):
                return None
        return None

    def _moves(self, params: Tensor, names: tuple[str, ...]) -> list[Tensor]:
        """Two ways to move the named tensors, each entry up in one and down in the other.

        What a number of them gates (examples that are mixed only where it is above a half, which it is not
        when training begins) is open in one or the other.
        """
        generator, moved = np.random.default_rng(1), set(names)
        move = torch.as_tensor(generator.uniform(1, 3, len(params)) * generator.choice([-1, 1], len(params)))
        for name, part in self._layout.split(move).items():
            part.mul_(name in moved)
        return [move.to(params), -move.to(params)] if names else []

    def _hold_apart(
        self,
        plan: Plan,
        task: Differentiable,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        count: int,
        drawing: bool,
        move: Tensor | None,
    ) -> None:
        """Raises UnsuitedError for a layer whose calls do not hold so many examples one after the other.

        The loss of one example alone has no gradient at what a layer saw of the others; what is not finite
        proves nothing at a point that was moved.
        """
        generator = np.random.default_rng(count)
        inputs, labels = _made_up(x, count, generator), y.new_zeros((count, *y.shape[1:]))
        point = task.initial(generator).to(params)
        point = point if move is None else point + move
        own = torch.arange(count, device=x.device) == count // 2
        seeds = torch.arange(count, device=x.device) if drawing else None
        with task.drawing.by(seeds):
            calls, deltas = self._pass(plan, task, point, inputs[:, None], labels[:, None], own[:, None])
        for (name, _), sent in zip(calls, deltas, strict=True):
            strays = [torch.where(own[:, None], 0, delta.reshape(count, -1)) for delta in sent]
            strays = strays if move is None else [stray.nan_to_num(0, 0, 0) for stray in strays]
            if not all(bool((stray == 0).all()) for stray in strays):
                raise UnsuitedError.of(name)

    def _agrees(
        self,
        plan: Plan,
        task: Differentiable,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        generator: np.random.Generator,
        drawing: bool,
    ) -> bool:
        """Whether the sums are those of rows.

        Gradients that are all zero (units may be dead where the parameters fell), or outside what can be
        clipped at, prove nothing, so one of a few trials at least must have others. What is book-kept must
        agree by itself, however large the gradients beside it are, and where all parameters moved a little:
        what a gate lets through that is shut when training begins.
        """
        names = self._layout.names
        seeds = torch.arange(_TRIAL, device=x.device) if drawing else None
        labels = y.new_zeros((_TRIAL, *y.shape[1:]))
        remaining = set(plan.remaining)
        kept = torch.cat([params.new_full((s.size,), s.name not in remaining) for s in self._layout.slots])
        proven = False
        held: dict[Precision, float] = {self._precision: _COARSE_ERROR, "float32": _TRIAL_ERROR}
        for shift in (torch.zeros_like(params), *(_SHIFT * move for move in self._moves(params, names))):
            point = task.initial(generator).to(params) + shift
            inputs = _made_up(x, _TRIAL, generator)
            with task.drawing.by(seeds):
                rows = task.gradients(point, inputs, labels)
            clip = float(rows.norm(dim=1).median()) or 1.0  # clips some and not others
            if not LEAST <= clip <= MOST:
                continue
            blocks = (SumBlock((Term(clip),), 0.5), SumBlock((Term(math.inf),), 0.5))
            wanted = sum_rows([rows], blocks)
            for precision, error in held.items():
                sums = self.sum(plan, task, [point], blocks, inputs, labels, None, seeds, precision)
                for got, want in zip(sums.totals, wanted, strict=True):
                    for own in (kept, 1 - kept):
                        if not bool(((got - want) * own).norm() <= error * (want * own).norm()):
                            return False
            proven = proven or any(bool((want * kept).norm() > 0) for want in wanted)
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
    move: Tensor | None = None,
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
    point = point if move is None else point + move
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


def _measured(
    name: str, layer: nn.Module, call: Call, deltas: tuple[Tensor, ...]
) -> dict[str, Factored]:
    """What the layer's kind makes of a call."""
    kind = kind_of(type(layer))
    assert kind is not None
    try:
        return kind.measure(layer, call.seen, deltas)
    except UnsuitedError as error:
        raise UnsuitedError.of(name) from error


@contextmanager
def _recorded(layers: dict[str, nn.Module]) -> Iterator[dict[str, list[Call]]]:
    """Records each layer's calls while the context is open, in place of its forward."""
    tape: dict[str, list[Call]] = {name: [] for name in layers}

    def recording(name: str, layer: nn.Module) -> Any:
        kind = kind_of(type(layer))
        assert kind is not None

        def forward(*inputs: Any, **named: Any) -> Any:
            try:
                call = kind.record(layer, *inputs, **named)
            except UnsuitedError as error:
                raise UnsuitedError.of(name) from error
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

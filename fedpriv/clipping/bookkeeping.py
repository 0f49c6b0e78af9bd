"""Bounded sums of per-example gradients in one backward pass, without forming the gradients.

Book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost"): one
forward pass keeps each layer's input, one backward pass gives the gradient at each layer's output and no
parameter's, and :mod:`fedpriv.clipping.layers` turns both into norms, clip factors and weighted sums.

It is exact where every trained layer is of a registered kind, is called once, and treats examples apart.
What can be read from the module is decided when a :class:`Book` is made; the rest (a weight used outside
its layer, examples that mix) is tried out once for each shape of input, on made-up examples, against
``vmap(grad)``: a model that does not agree is summed by rows from then on.

>>> from fedpriv.vectors import layout_of
>>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
>>> sorted(Book(model, layout_of(model)).layers)
['0', '2']
>>> Book(nn.LayerNorm(3), layout_of(nn.LayerNorm(3))).layers
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

from fedpriv.clipping.layers import KINDS, Measured, UnsuitedError
from fedpriv.clipping.rows import clip_factors, count_bits, sum_rows
from fedpriv.query import BitBlock, Block, SumBlock, Term
from fedpriv.vectors import Layout

_LARGEST = 1e18  # norms above it (or NaN) are left to rows, which scale before they square
_VANISHED = 1e-8  # of a clip norm's square: what squares too small for the dtype may amount to
_TRIALS, _TRIAL, _TRIAL_ERROR = 3, 3, 1e-3  # trials, examples in each, and what rounding may do


class Differentiable(Protocol):
    """What bounded sums of gradients need of a task."""

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""

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
        layers: the trained layers by name; empty where the model is not suited.
    """

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        """The book of ``module``, on which hooks are set during each pass."""
        self._layout = layout
        self._tried: dict[tuple[Any, ...], bool] = {}
        self.layers = _trained_layers(module, layout)

    def suits(self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor) -> bool:
        """Whether book-keeping is exact for examples of these shapes: tried once, on made-up ones."""
        if not self.layers:
            return False
        key = (params.dtype, *((t.shape[1:], t.dtype, t.device) for t in (x, y)))
        if key not in self._tried:
            self._tried[key] = self._try(task, params, x, y)
        return self._tried[key]

    def total(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, blocks: Sequence[Block]
    ) -> tuple[Tensor, ...]:
        """The bounded sums of the examples' gradients at ``params``, as :func:`sum_rows` has them."""
        measured = self._measure(task, params, x, y)
        norms = torch.stack([layer.squares for layer in measured.values()]).sum(0).sqrt()
        reach = torch.stack([layer.reach for layer in measured.values()]).amax(0).clamp(min=1.0)
        smallest = _smallest_bound(blocks) ** 2 * _VANISHED
        vanished = reach * (torch.finfo(params.dtype).tiny * 4 * task.dimension)
        ordinary = (norms < _LARGEST) & (vanished < smallest)
        if not bool(ordinary.all()):
            odd = task.gradients(params, x[~ordinary], y[~ordinary])
            totals = sum_rows([odd], blocks)
            if not bool(ordinary.any()):
                return totals
            rest = self.total(task, params, x[ordinary], y[ordinary], blocks)
            return tuple(a + b for a, b in zip(totals, rest, strict=True))
        return tuple(self._total_block(block, norms, measured, params) for block in blocks)

    def _total_block(
        self, block: Block, norms: Tensor, measured: dict[str, Measured], params: Tensor
    ) -> Tensor:
        if isinstance(block, BitBlock):
            bits = count_bits(norms, torch.ones_like(norms, dtype=torch.bool), block.threshold)
            return bits.to(params.dtype)
        factors = clip_factors(norms, block.terms).to(params.dtype)
        total = torch.empty_like(params)
        places = self._layout.split(total)
        for name, layer in measured.items():
            for own, tensor in layer.total(factors).items():
                places[f"{name}.{own}" if name else own].copy_(tensor)
        return total

    def _measure(self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor) -> dict[str, Measured]:
        """One forward and one backward pass; what each layer's input and output gradient tell."""
        with torch.enable_grad(), _recorded(self.layers) as tape:
            losses = task.losses(params.detach(), x, y)
        if len(tape) != len(self.layers):
            raise UnsuitedError
        outputs = [output for _, output in tape.values()]
        deltas = torch.autograd.grad(losses.sum(), outputs, materialize_grads=True)
        if any(delta.shape[0] != x.shape[0] for delta in deltas):
            raise UnsuitedError
        return {
            name: KINDS[type(self.layers[name])](self.layers[name], tape[name][0], delta)
            for name, delta in zip(tape, deltas, strict=True)
        }

    def _try(self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor) -> bool:
        """Whether book-keeping agrees with vmap on examples that depend on no data.

        Gradients that are all zero (units may be dead where the parameters fell) prove nothing, so one
        of a few trials at least must have others.
        """
        generator = np.random.default_rng(0)
        labels = y.new_zeros((_TRIAL, *y.shape[1:]))
        proven = False
        for _ in range(_TRIALS):
            point = task.initial(generator).to(params)
            made_up = generator.standard_normal((_TRIAL, *x.shape[1:]))
            inputs = torch.as_tensor(made_up if x.is_floating_point() else 0 * made_up).to(x)
            rows = task.gradients(point, inputs, labels)
            clip = float(rows.norm(dim=1).median()) or 1.0  # clips some and not others
            blocks = (SumBlock((Term(clip),), 0.5), SumBlock((Term(math.inf),), 0.5))
            try:
                totals = self.total(task, point, inputs, labels, blocks)
            except (UnsuitedError, RuntimeError):
                return False
            for got, want in zip(totals, sum_rows([rows], blocks), strict=True):
                if not bool((got - want).norm() <= _TRIAL_ERROR * want.norm()):
                    return False
                proven = proven or bool(want.norm() > 0)
        return proven


def _smallest_bound(blocks: Sequence[Block]) -> float:
    """The smallest norm that a term is clipped at or a bit compares with."""
    return min(
        min(term.clip_norm for term in block.terms) if isinstance(block, SumBlock) else block.threshold
        for block in blocks
    )


def _trained_layers(module: nn.Module, layout: Layout) -> dict[str, nn.Module]:
    """The layers that hold all trained parameters, by name; empty where one is of no known kind."""
    every = [p for _, p in module.named_parameters(remove_duplicate=False)]
    if len({id(p) for p in every}) != len(every):  # a shared weight collects from several layers
        return {}
    layers = {}
    for name, layer in module.named_modules():
        own = [own for own, _ in layer.named_parameters(recurse=False)]
        trained = [o for o in own if (f"{name}.{o}" if name else o) in layout.names]
        if not trained:
            continue
        if type(layer) not in KINDS or trained != own or not set(own) <= {"weight", "bias"}:
            return {}
        layers[name] = layer
    return layers


@contextmanager
def _recorded(layers: dict[str, nn.Module]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Records (input, output) of each layer's one call while the context is open.

    Raises UnsuitedError from the forward pass where a layer is called a second time.
    """
    tape: dict[str, tuple[Tensor, Tensor]] = {}

    def hook_for(name: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if name in tape:
                raise UnsuitedError
            if not output.requires_grad:  # the parameters do not, so the first layers' outputs start it
                output.requires_grad_()
            tape[name] = (inputs[0].detach(), output)

        return hook

    handles = [layer.register_forward_hook(hook_for(name)) for name, layer in layers.items()]
    try:
        yield tape
    finally:
        for handle in handles:
            handle.remove()

"""Whether book-keeping is exact for a model: tried out on made-up examples, which depend on no data.

What cannot be read from a module is looked for here: examples that are mixed, before a layer sees them or in
the loss; layers whose calls do not hold the examples one after the other; weights that are used outside their
layer. A model that fails is summed by rows, a layer that fails is left to rows if it is small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.clipping.explicit import sum_rows
from fedpriv.clipping.ghost.bookkeeping import BookKeeping
from fedpriv.clipping.ghost.coverage import Coverage
from fedpriv.clipping.ghost.layers import UnsupportedLayerError
from fedpriv.clipping.precision import Precision
from fedpriv.clipping.protocol import Differentiable
from fedpriv.mechanism.query import LEAST, MOST, SumBlock, Term

_TRIAL_BATCH, _ERROR = 3, 1e-3  # examples of a trial, and what rounding may do
_SHIFT = 0.1  # of the moves of parameters, where whole gradients are compared
_LARGE_BATCH, _OWN_ERROR = 33, 1e-4  # examples of which one must not depend on the others, but for rounding
_COARSE_ERROR = 0.2  # what it may do where the passes are of few digits


@dataclass(frozen=True)
class Trial:
    """A trial of one kind of examples.

    Attributes:
        bookkeeping: what is tried.
        task: the model and its loss.
        params: a point (d,) of the dtype and device of the trial's.
        x, y: examples and labels whose shapes, dtypes and device the made-up ones have.
        drawing: whether dropout draws.
    """

    bookkeeping: BookKeeping
    task: Differentiable
    params: Tensor
    x: Tensor
    y: Tensor
    drawing: bool

    def suited(self, coverage: Coverage) -> Coverage | None:
        """``coverage``, or one of fewer layers, by which book-keeping agrees with vmap, if any does.

        Layers that turn out not to hold the examples one after the other are left to rows, if they are small.
        """
        generator = np.random.default_rng(0)
        if not all(self._alone(*each, generator) for each in self._ways(self.task.layout.names)):
            return None
        while coverage.layers:
            try:
                for move, count in self._ways(coverage.remaining):
                    if not self._alone(move, count, generator):
                        return None
                    self._hold_apart(coverage, move, count)
                return coverage if self._agrees(coverage, generator) else None
            except UnsupportedLayerError as error:
                if error.layer is None:
                    return None
                coverage = coverage.without(error.layer)
            except (RuntimeError, IndexError, TypeError):
                return None
        return None

    def _ways(self, names: tuple[str, ...]) -> Iterator[tuple[Tensor | None, int]]:
        """How the named tensors are moved, or None where they stay, and so many examples."""
        return itertools.product((None, *self._moves(names)), (_TRIAL_BATCH, _LARGE_BATCH))

    def _moves(self, names: tuple[str, ...]) -> list[Tensor]:
        """Two ways to move the named tensors, each entry up in one and down in the other.

        What a number of them gates (examples that are mixed only where it is above a half, which it is not
        when training begins) is open in one or the other.
        """
        generator, moved, size = np.random.default_rng(1), set(names), len(self.params)
        move = torch.as_tensor(generator.uniform(1, 3, size) * generator.choice([-1, 1], size))
        for name, part in self.task.layout.split(move).items():
            part.mul_(name in moved)
        return [move.to(self.params), -move.to(self.params)] if names else []

    def _made_up(self, count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Examples (count, ...): normal numbers, or tokens 0 and 1, which every vocabulary has; labels 0."""
        numbers = generator.standard_normal((count, *self.x.shape[1:]))
        inputs = torch.as_tensor(numbers if self.x.is_floating_point() else numbers > 0).to(self.x)
        return inputs, self.y.new_zeros((count, *self.y.shape[1:]))

    def _point(self, move: Tensor | None, generator: np.random.Generator) -> Tensor:
        point = self.task.initial(generator).to(self.params)
        return point if move is None else point + move

    def _seeds(self, count: int) -> Tensor | None:
        return torch.arange(count, device=self.x.device) if self.drawing else None

    def _alone(self, move: Tensor | None, count: int, generator: np.random.Generator) -> bool:
        """Whether the loss of one of so many made-up examples is the same whatever the others are.

        Where it is not, examples are mixed, before a layer sees them or in the loss, which no clip of what
        layers see bounds: one example more would move all of the others' parts. All other numbers become NaN,
        which any sum, mean or product of several examples passes on; tokens and labels are exchanged for
        several others.
        """
        inputs, labels = self._made_up(count, generator)
        own = count // 2
        others = _others(inputs, own, tokens_of(self.task.module) - 1), _others(labels, own, 1)
        point = self._point(move, generator)
        try:
            with torch.no_grad(), self.task.drawing.by(self._seeds(count)):
                pairs = [(inputs, labels), *zip(*others, strict=True)]
                loss, *beside = (float(self.task.losses(point, *pair)[own]) for pair in pairs)
        except Exception:
            return False
        return not math.isfinite(loss) or all(abs(loss - one) <= _OWN_ERROR * abs(loss) for one in beside)

    def _hold_apart(self, coverage: Coverage, move: Tensor | None, count: int) -> None:
        """Raises UnsupportedLayerError for a layer whose calls do not hold so many examples one after the
        other.

        The loss of one example alone has no gradient at what a layer saw of the others; what is not finite
        proves nothing at a point that was moved.
        """
        generator = np.random.default_rng(count)
        inputs, labels = self._made_up(count, generator)
        point = self._point(move, generator)
        own = torch.arange(count, device=self.x.device) == count // 2
        units = inputs[:, None], labels[:, None], own[:, None]
        with self.task.drawing.by(self._seeds(count)):
            calls, deltas, _ = self.bookkeeping.record(coverage, self.task, point, *units)
        for (name, _), sent in zip(calls, deltas, strict=True):
            strays = [torch.where(own[:, None], 0, delta.reshape(count, -1)) for delta in sent]
            strays = strays if move is None else [stray.nan_to_num(0, 0, 0) for stray in strays]
            if not all(bool((stray == 0).all()) for stray in strays):
                raise UnsupportedLayerError.of(name)

    def _agrees(self, coverage: Coverage, generator: np.random.Generator) -> bool:
        """Whether the sums are those of rows.

        Gradients that are all zero (units may be dead where the parameters fell), or outside what can be
        clipped at, prove nothing, so one of a few trials at least must have others. What is book-kept must
        agree by itself, however large the gradients beside it are, and where all parameters moved a little:
        what a gate lets through that is shut when training begins.
        """
        task, seeds, remaining = self.task, self._seeds(_TRIAL_BATCH), set(coverage.remaining)
        slots = task.layout.slots
        kept = torch.cat([self.params.new_full((s.size,), s.name not in remaining) for s in slots])
        proven = False
        held: dict[Precision, float] = {self.bookkeeping.precision: _COARSE_ERROR, "float32": _ERROR}
        for move in (None, *(_SHIFT * move for move in self._moves(task.layout.names))):
            point = self._point(move, generator)
            inputs, labels = self._made_up(_TRIAL_BATCH, generator)
            with task.drawing.by(seeds):
                rows = task.gradients(point, inputs, labels)
            clip = float(rows.norm(dim=1).median()) or 1.0  # clips some and not others
            if not LEAST <= clip <= MOST:
                continue
            blocks = (SumBlock((Term(clip),), 0.5), SumBlock((Term(math.inf),), 0.5))
            wanted = sum_rows([rows], blocks)
            for precision, error in held.items():
                sums = self.bookkeeping.sum(
                    coverage, task, [point], blocks, inputs, labels, None, seeds, precision
                )
                for got, want in zip(sums.totals, wanted, strict=True):
                    for own in (kept, 1 - kept):
                        if not bool(((got - want) * own).norm() <= error * (want * own).norm()):
                            return False
            proven = proven or any(bool((want * kept).norm() > 0) for want in wanted)
        return proven


def tokens_of(module: nn.Module) -> int:
    """Below which number every token of the model's inputs may be: of the smallest vocabulary, at least 2."""
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return min((table.num_embeddings for table in tables), default=2)


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

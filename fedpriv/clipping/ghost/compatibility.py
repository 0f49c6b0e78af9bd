"""Whether book-keeping is exact for a model: a trial on synthetic examples, which depend on no data.

The trial finds what inspecting the module cannot show: code that mixes examples, before a layer or in the
loss; layers whose inputs do not have the examples along the first axis; weights that are used outside their
layer. The gradients of a model that fails are formed as rows. Where only small layers fail, only the
gradients of their parameters are.
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
from fedpriv.clipping.precision import Precision, computing
from fedpriv.clipping.protocol import Differentiable
from fedpriv.mechanism.query import LEAST, MOST, SumBlock, Term

_TRIAL_BATCH, _ERROR = 3, 1e-3  # the trial's batch size, and the tolerance for sums
_SHIFT = 0.1  # scale of the parameter shifts when sums are compared
_LARGE_BATCH, _LOSS_ERROR = 33, 1e-4  # a larger batch, and the tolerance for a loss among others
_COARSE_ERROR = 0.2  # the tolerance for sums of reduced precision


@dataclass(frozen=True)
class Trial:
    """A trial of one kind of examples.

    Attributes:
        bookkeeping: the passes to try.
        task: the model and its loss.
        params: a point (d,) that gives dtype and device.
        x, y: examples and labels that give shapes, dtypes and device; their values are not used.
        with_dropout: whether dropout is active.
    """

    bookkeeping: BookKeeping
    task: Differentiable
    params: Tensor
    x: Tensor
    y: Tensor
    with_dropout: bool

    def exact_coverage(self, coverage: Coverage) -> Coverage | None:
        """``coverage``, or one of fewer layers, with which book-keeping agrees with vmap; None if none does.

        A layer whose inputs do not have the examples along the first axis is left out if it is small.
        """
        generator = np.random.default_rng(0)
        if not all(
            self._losses_independent(*each, generator) for each in self._variants(self.task.layout.names)
        ):
            return None
        while coverage.layers:
            try:
                for move, count in self._variants(coverage.remaining):
                    if not self._losses_independent(move, count, generator):
                        return None
                    self._check_calls(coverage, move, count)
                return coverage if self._agrees(coverage, generator) else None
            except UnsupportedLayerError as error:
                if error.layer is None:
                    return None
                coverage = coverage.without(error.layer, error.called)
            except (RuntimeError, IndexError, TypeError):
                return None
        return None

    def _variants(self, names: tuple[str, ...]) -> Iterator[tuple[Tensor | None, int]]:
        """All combinations of a shift of the named tensors (None: no shift) and a batch size."""
        return itertools.product((None, *self._shifts(names)), (_TRIAL_BATCH, _LARGE_BATCH))

    def _shifts(self, names: tuple[str, ...]) -> list[Tensor]:
        """Two opposite shifts of the named tensors.

        A model may mix examples only while a parameter is above a threshold that its initial value does not
        reach. One of the two shifts crosses it.
        """
        generator, moved, size = np.random.default_rng(1), set(names), len(self.params)
        move = torch.as_tensor(generator.uniform(1, 3, size) * generator.choice([-1, 1], size))
        for name, part in self.task.layout.split(move).items():
            part.mul_(name in moved)
        return [move.to(self.params), -move.to(self.params)] if names else []

    def _made_up(self, count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Examples (count, ...) of normal numbers, or of the tokens 0 and 1 of any vocabulary; labels 0."""
        numbers = generator.standard_normal((count, *self.x.shape[1:]))
        inputs = torch.as_tensor(numbers if self.x.is_floating_point() else numbers > 0).to(self.x)
        return inputs, self.y.new_zeros((count, *self.y.shape[1:]))

    def _point(self, move: Tensor | None, generator: np.random.Generator) -> Tensor:
        point = self.task.initial(generator).to(self.params)
        return point if move is None else point + move

    def _seeds(self, count: int) -> Tensor | None:
        return torch.arange(count, device=self.x.device) if self.with_dropout else None

    def _losses_independent(self, move: Tensor | None, count: int, generator: np.random.Generator) -> bool:
        """Whether the loss of one of ``count`` synthetic examples is the same for all values of the others.

        Otherwise the model or the loss mixes examples, so that one example changes the gradients of the
        others, and clipping bounds nothing. The others become NaN, which every sum, mean or product of
        several examples propagates; tokens and labels are replaced by several other values.
        """
        inputs, labels = self._made_up(count, generator)
        own = count // 2
        others = _others(inputs, own, tokens_of(self.task.module) - 1), _others(labels, own, 1)
        point = self._point(move, generator)
        try:
            with torch.no_grad(), self.task.dropout.seeded(self._seeds(count)):
                pairs = [(inputs, labels), *zip(*others, strict=True)]
                loss, *beside = (float(self.task.losses(point, *pair)[own]) for pair in pairs)
        except Exception:
            return False
        return not math.isfinite(loss) or all(abs(loss - one) <= _LOSS_ERROR * abs(loss) for one in beside)

    def _check_calls(self, coverage: Coverage, move: Tensor | None, count: int) -> None:
        """Raises UnsupportedLayerError for a layer whose inputs do not have examples along the first axis.

        The loss of one example must have zero gradient at the other examples' hook points. At a shifted
        point, values that are not finite are ignored.
        """
        generator = np.random.default_rng(count)
        inputs, labels = self._made_up(count, generator)
        point = self._point(move, generator)
        own = torch.arange(count, device=self.x.device) == count // 2
        units = inputs[:, None], labels[:, None], own[:, None]
        with self.task.dropout.seeded(self._seeds(count)):
            calls, deltas, _ = self.bookkeeping.record(coverage, self.task, point, *units)
        for (name, _), sent in zip(calls, deltas, strict=True):
            strays = [torch.where(own[:, None], 0, delta.reshape(count, -1)) for delta in sent]
            strays = strays if move is None else [stray.nan_to_num(0, 0, 0) for stray in strays]
            if not all(bool((stray == 0).all()) for stray in strays):
                raise UnsupportedLayerError.of(name)

    def _agrees(self, coverage: Coverage, generator: np.random.Generator) -> bool:
        """Whether the sums by book-keeping equal those of rows.

        A trial whose gradients are all zero (dead units), or whose median norm is not a valid clip norm,
        proves nothing, so at least one of several trials must have usable gradients. The tensors with
        book-keeping and the others are compared separately, because one may have much larger gradients. The
        trials also shift the parameters a little, to open gates that are closed at the initial point.
        """
        task, seeds, remaining = self.task, self._seeds(_TRIAL_BATCH), set(coverage.remaining)
        slots = task.layout.slots
        kept = torch.cat([self.params.new_full((s.size,), s.name not in remaining) for s in slots])
        proven = False
        held: dict[Precision, float] = {self.bookkeeping.precision: _COARSE_ERROR, "float32": _ERROR}
        for move in (None, *(_SHIFT * move for move in self._shifts(task.layout.names))):
            point = self._point(move, generator)
            inputs, labels = self._made_up(_TRIAL_BATCH, generator)
            with task.dropout.seeded(seeds), computing("float32", inputs.device):
                rows = task.gradients(point, inputs, labels)
            clip = float(rows.norm(dim=1).median()) or 1.0  # clips some examples and not others
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
    """The size of the model's smallest vocabulary; 2 for a model without one. Valid tokens are below it."""
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return min((table.num_embeddings for table in tables), default=2)


def _others(given: Tensor, own: int, most: int) -> list[Tensor]:
    """Variants with the same values at ``own`` and others elsewhere: NaN for floats; for integers 0,
    ``most``, or ``most``, ``most`` - 1, ... in turn."""
    if given.is_floating_point():
        several = [torch.full_like(given, math.nan)] * 3
    else:
        turns = torch.arange(given.numel(), device=given.device).view(given.shape) % (most + 1)
        several = [torch.full_like(given, number) for number in (0, most)]
        several.append((most - turns).to(given.dtype))
    for others in several:
        others[own] = given[own]
    return several

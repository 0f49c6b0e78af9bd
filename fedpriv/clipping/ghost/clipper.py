"""Ghost clipping of a task's gradients: whether it is exact for its model, and the sums.

What can be read from the module is decided when a :class:`GhostClipper` is made; the rest (a weight used
outside its layer, examples that mix) is tried out once for each shape of input, on made-up examples
(:mod:`fedpriv.clipping.ghost.compatibility`): a model that fails is summed by rows from then on.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from fedpriv.clipping.ghost.bookkeeping import BookKeeping
from fedpriv.clipping.ghost.compatibility import Trial
from fedpriv.clipping.ghost.coverage import Coverage, coverage_of
from fedpriv.clipping.ghost.independence import runs_own_code
from fedpriv.clipping.precision import Precision
from fedpriv.clipping.protocol import Differentiable


class GhostClipper:
    """Whether and how a task's gradients are summed by book-keeping.

    It holds the task's layers and not the task, so that it lives no longer than that
    (:func:`clipper_of`); its methods are for the same task.

    Attributes:
        layers: the layers whose parameters are book-kept, by name; empty where the model is not suited.
        bookkeeping: the passes and the sums.
    """

    def __init__(self, task: Differentiable, precision: Precision = "float32") -> None:
        """A clipper for the model and the loss of ``task``, whose passes have this precision."""
        own_code = runs_own_code(task.module, task.loss)
        self.bookkeeping = BookKeeping(task.layout, precision, watched=own_code)
        self._most = coverage_of(task.module, task.layout)
        self._tried: dict[tuple[Any, ...], Coverage | None] = {}
        self.layers = self._most.layers

    def coverage(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, drawing: bool = False
    ) -> Coverage | None:
        """The coverage by which book-keeping is exact for examples like these; None where there is none.

        It depends on the examples' shapes, dtypes and device, and on whether dropout draws. It is tried once
        for each of them, on made-up examples.
        """
        if not self.layers:
            return None
        key = (drawing, params.dtype, *((t.shape[1:], t.dtype, t.device) for t in (x, y)))
        if key not in self._tried:
            self._tried[key] = Trial(self.bookkeeping, task, params, x, y, drawing).suited(self._most)
        return self._tried[key]


_clippers: WeakKeyDictionary[Differentiable, dict[Precision, GhostClipper]] = WeakKeyDictionary()


def clipper_of(task: Differentiable, precision: Precision = "float32") -> GhostClipper:
    """The task's clipper for passes of this precision, made when it is first asked for.

    >>> from torch import nn
    >>> from fedpriv.tasks.task import Task
    >>> task = Task(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> sorted(clipper_of(task).layers), clipper_of(task) is clipper_of(task)
    (['0', '2'], True)
    >>> clipper_of(Task(nn.Bilinear(3, 3, 2))).layers
    {}
    """
    clippers = _clippers.setdefault(task, {})
    if precision not in clippers:
        clippers[precision] = GhostClipper(task, precision)
    return clippers[precision]

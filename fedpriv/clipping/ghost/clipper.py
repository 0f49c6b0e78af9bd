"""Ghost clipping of a task's gradients: whether it is exact for the model, and the sums.

A new :class:`GhostClipper` inspects the module's layers. Other obstacles (a weight that is used outside its
layer, examples that influence each other) are found by a trial on synthetic examples, once for each input
shape (:mod:`fedpriv.clipping.ghost.compatibility`). The gradients of a model that fails are formed as rows.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from fedpriv.clipping.ghost.bookkeeping import BookKeeping
from fedpriv.clipping.ghost.compatibility import Trial
from fedpriv.clipping.ghost.coverage import Coverage, coverage_of
from fedpriv.clipping.ghost.independence import runs_user_code
from fedpriv.clipping.precision import Precision
from fedpriv.clipping.protocol import Differentiable


class GhostClipper:
    """Whether and how a task's gradients are summed by book-keeping.

    It has no reference to the task, so that the cache of :func:`clipper_of` does not keep the task alive.
    Pass the same task to its methods.

    Attributes:
        layers: the layers with book-keeping, by name; empty where the model is not suitable.
        bookkeeping: the passes and the sums.
    """

    def __init__(self, task: Differentiable, precision: Precision = "float32") -> None:
        """A clipper for the model and the loss of ``task``, with passes of this precision."""
        own_code = runs_user_code(task.module, task.loss)
        self.bookkeeping = BookKeeping(task.layout, precision, alone=own_code)
        self._coverage = coverage_of(task.module, task.layout)
        self._tried: dict[tuple[Any, ...], Coverage | None] = {}
        self.layers = self._coverage.layers

    def coverage(
        self, task: Differentiable, params: Tensor, x: Tensor, y: Tensor, with_dropout: bool = False
    ) -> Coverage | None:
        """The coverage with which book-keeping is exact for such examples; None where there is none.

        It depends on the examples' shapes, dtypes and device, and on whether dropout is active. Each
        combination is tried once, on synthetic examples.
        """
        if not self.layers:
            return None
        key = (with_dropout, params.dtype, *((t.shape[1:], t.dtype, t.device) for t in (x, y)))
        if key not in self._tried:
            self._tried[key] = Trial(self.bookkeeping, task, params, x, y, with_dropout).exact_coverage(
                self._coverage
            )
        return self._tried[key]


_clippers: WeakKeyDictionary[Differentiable, dict[Precision, GhostClipper]] = WeakKeyDictionary()


def clipper_of(task: Differentiable, precision: Precision = "float32") -> GhostClipper:
    """The task's clipper for passes of this precision, created on the first call.

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

"""Public data for the baselines that take some: which examples, and the gradient on them.

Public examples are taken from a data set's PUBLIC TEST part, evenly spread over it, and are never among those
that the model is then evaluated on. Training examples are not taken: what AdaDPS and PDA-DPMD compute from
public data passes no release, so that a training example in it would be unprotected.

>>> x, y = torch.arange(6.0)[:, None], torch.arange(6)
>>> public, rest = split(Pair(x, y), 2)
>>> public.y.tolist(), rest.y.tolist()
([0, 3], [1, 2, 4, 5])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.data import Pair
from fedpriv.tasks.task import Task


def split(test: Pair, count: int) -> tuple[Pair, Pair]:
    """(``count`` public examples, the others), both in the order of the test part.

    Raises ArgumentError where ``count`` leaves nothing to evaluate on.
    """
    size = len(test.y)
    if validation.integer("public-examples", count) >= size:
        raise validation.fail("public-examples", count, f"be below {size}, the test part of the data")
    taken = torch.zeros(size, dtype=torch.bool, device=test.y.device)
    taken[[i * size // count for i in range(count)]] = True
    return Pair(test.x[taken], test.y[taken]), Pair(test.x[~taken], test.y[~taken])


_AT_ONCE = 256  # public examples


@dataclass(frozen=True)
class PublicGradient:
    """The gradient (d,) of the mean loss on public examples, as a function of (params, step).

    Step t takes ``batch`` examples from position t * batch on, cyclically: it is a function of its
    arguments alone.

    Attributes:
        task: the model and loss.
        examples: public ones.
        batch: how many a step takes; 0 is all.
    """

    task: Task
    examples: Pair
    batch: int = 0

    def __post_init__(self) -> None:
        if validation.integer("public-batch", self.batch) > len(self.examples.y):
            allowed = f"be at most the {len(self.examples.y)} public examples"
            raise validation.fail("public-batch", self.batch, allowed)
        if not len(self.examples.y):
            raise validation.fail("public-examples", 0, "be at least 1")

    def __call__(self, params: Tensor, step: int) -> Tensor:
        """The gradient at ``params``, in its dtype and on its device."""
        leaf, total = params.detach().clone().requires_grad_(), torch.zeros_like(params)
        x, y = self._taken(step, params)
        for some, labels in zip(torch.split(x, _AT_ONCE), torch.split(y, _AT_ONCE), strict=True):
            loss = self.task.losses(leaf, some, labels).sum() / len(x)
            total += torch.autograd.grad(loss, leaf)[0]
        return total

    def rows(self, params: Tensor, step: int) -> Tensor:
        """The gradient of each example (n, d) at ``params``, in its dtype and on its device."""
        x, y = self._taken(step, params)
        leaf, rows = params.detach().clone().requires_grad_(), params.new_zeros(len(x), len(params))
        for i in range(len(x)):
            loss = self.task.losses(leaf, x[i : i + 1], y[i : i + 1]).sum()
            rows[i] = torch.autograd.grad(loss, leaf)[0]
        return rows

    def _taken(self, step: int, like: Tensor) -> Pair:
        """The examples of a step, on the device of ``like`` and, if they are of floats, of its dtype."""
        x, y = self.examples.x, self.examples.y
        if self.batch:
            at = (torch.arange(self.batch) + step * self.batch) % len(y)
            x, y = x[at.to(y.device)], y[at.to(y.device)]
        return Pair(x.to(like) if x.is_floating_point() else x.to(like.device), y.to(like.device))


@dataclass(frozen=True)
class LazyGradient:
    """A :class:`PublicGradient` that is made when it is first asked, so that a plan reads no data.

    Attributes:
        load: makes it.
    """

    load: Callable[[], PublicGradient]

    def __call__(self, params: Tensor, step: int) -> Tensor:
        """The gradient (d,)."""
        return self._loaded(params, step)

    def rows(self, params: Tensor, step: int) -> Tensor:
        """The gradient of each example (n, d)."""
        return self._loaded.rows(params, step)

    @cached_property
    def _loaded(self) -> PublicGradient:
        return self.load()

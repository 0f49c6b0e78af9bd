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
        x, y = self._taken(step)
        x = x.to(params) if x.is_floating_point() else x.to(params.device)
        leaf, total = params.detach().clone().requires_grad_(), torch.zeros_like(params)
        parts = (torch.split(part, _AT_ONCE) for part in (x, y.to(params.device)))
        for some, labels in zip(*parts, strict=True):
            loss = self.task.losses(leaf, some, labels).sum() / len(x)
            total += torch.autograd.grad(loss, leaf)[0]
        return total

    def _taken(self, step: int) -> Pair:
        if not self.batch:
            return self.examples
        at = (torch.arange(self.batch) + step * self.batch) % len(self.examples.y)
        at = at.to(self.examples.y.device)
        return Pair(self.examples.x[at], self.examples.y[at])


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

    @cached_property
    def _loaded(self) -> PublicGradient:
        return self.load()

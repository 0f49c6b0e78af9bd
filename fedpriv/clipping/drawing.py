"""Models whose layers draw in training, as dropout does.

Where nothing else is asked of it a model is in evaluation mode and draws nothing: on test data, and where its
sums are tried out. In training it draws from torch's generator, which is given back as it was, and which a
seed of that one answer sets (:meth:`Drawing.seeded`). Two rules hold:

- What is drawn for one example is independent of what is drawn for the others, and of all data. The stream
  goes on from one part of a batch to the next and is never started again for other examples. So, given all
  that was drawn, one unit more is one clipped vector more: noise and epsilon are those of a model that draws
  nothing.
- At all points of one query an example is given the same draws (:meth:`Drawing.alike`): DP-SRM's difference
  is that of one function at two points.

>>> drawing = Drawing(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval())
>>> x = torch.ones(1, 2)
>>> with drawing.seeded(7, x.device):
...     one, other = [drawing.module(x) for _ in drawing.alike("ab", x.device)]
>>> bool((one == other).all()), drawing.module.training
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

_T = TypeVar("_T")


class Drawing:
    """Whether a module draws in training, and from what.

    Attributes:
        module: the module; in evaluation mode but while :meth:`seeded` is open.
        draws: whether it draws: a layer of it does, or its attribute ``draws`` says so.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.draws = bool(getattr(module, "draws", False)) or any(map(_layer_draws, module.modules()))

    @property
    def training(self) -> bool:
        """Whether the module may draw now."""
        return self.module.training

    @property
    def randomness(self) -> str:
        """What ``torch.func.vmap`` is told: each example draws its own, or nobody may draw."""
        return "different" if self.draws else "error"

    @contextmanager
    def seeded(self, seed: int, device: torch.device) -> Iterator[None]:
        """In training, with all draws from ``seed`` (at least 0, below 2^63), while this is open."""
        if not self.draws:
            yield
            return
        with _given_back(device):
            torch.manual_seed(seed)
            self.module.train()
            try:
                yield
            finally:
                self.module.eval()

    @contextmanager
    def aside(self, device: torch.device) -> Iterator[None]:
        """What is drawn while this is open is not missing afterwards: for trials, which come once."""
        if not self.training:
            yield
            return
        with _given_back(device):
            yield

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is drawn while this is open."""
        training = self.training
        self.module.eval()
        try:
            yield
        finally:
            self.module.train(training)

    def alike(self, points: Iterable[_T], device: torch.device) -> Iterator[_T]:
        """The points one after the other; what is drawn at the first is drawn again at each."""
        if not self.training:
            yield from points
            return
        host, there = torch.get_rng_state(), None
        if device.type == "cuda":
            there = torch.cuda.get_rng_state(device)
        for number, point in enumerate(points):
            if number:
                torch.set_rng_state(host)
                if there is not None:
                    torch.cuda.set_rng_state(there, device)
            yield point


def _layer_draws(layer: nn.Module) -> bool:
    if isinstance(layer, _DropoutNd):
        return bool(layer.p > 0)
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout > 0)
    return isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


@contextmanager
def _given_back(device: torch.device) -> Iterator[None]:
    """torch's generators are as they were when this is left."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield

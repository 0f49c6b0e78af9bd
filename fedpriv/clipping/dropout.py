"""Dropout whose draws belong to examples.

Whether an entry is dropped is a hash of the example's seed, of which call of a dropout layer it is, and of
the entry's place: so an example is given the same draws alone and in a batch, at all points of a query
(DP-SRM's difference is that of one function), on whatever device and by however many actors. And a unit more
or less changes nothing of what is drawn for the others: given all seeds, which depend on no data, one unit
more is one clipped vector more, so that noise and epsilon are those of a model that draws nothing.

Where no seeds are given, as for evaluations, nothing is dropped.

>>> module = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5))
>>> drawing = Drawing(module)
>>> x, seeds = torch.ones(3, 2), example_seeds(7, torch.arange(3))
>>> with drawing.by(seeds):
...     together = module(x)
>>> with drawing.by(seeds[1:2]):
...     alone = module(x[1:2])
>>> bool((together[1] == alone[0]).all())
True
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

# The constants of SplitMix64 (Steele et al. 2014), as numbers of 64 bits with a sign.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_FIELDS, _STEPS = 4, 2**16  # numbers that one hash holds, and how many values each has
_WHOLE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)  # these drop whole channels
_SELU = -1.7580993408473766  # what AlphaDropout drops to (Klambauer et al. 2017)


class Drawing:
    """The dropout layers of a module, which they are exchanged for, and the seeds that they draw by.

    Attributes:
        draws: whether the module has any.
        seeds: of the examples that are passed through the module now, int64 (n,); None: nothing is dropped.
    """

    def __init__(self, module: nn.Module) -> None:
        """Exchanges the layers of ``module`` in place."""
        self.seeds: Tensor | None = None
        self._calls = 0
        found: dict[nn.Module, Dropping] = {}
        for parent in list(module.modules()):
            for name, layer in parent._modules.items():  # a layer that is used twice stands there twice
                if isinstance(layer, _DropoutNd) and layer.p > 0:
                    parent._modules[name] = found.setdefault(layer, Dropping(layer, self))
        self.draws = bool(found)

    @contextmanager
    def by(self, seeds: Tensor | None) -> Iterator[None]:
        """Draw by these seeds while this is open."""
        before, self.seeds = self.seeds, seeds
        self.begin()
        try:
            yield
        finally:
            self.seeds = before

    def begin(self) -> None:
        """A pass begins: its first call of a layer draws what the first call of any pass does."""
        self._calls = 0

    def kept(self, share: float, shape: Sequence[int]) -> Tensor:
        """Which entries are kept, each with probability ``share``: bool of that shape (n, ...)."""
        assert self.seeds is not None
        self._calls += 1
        seeds = mixed(self.seeds, self._calls)
        entries = math.prod(shape) // len(seeds)
        places = torch.arange(-(-entries // _FIELDS), device=seeds.device)
        fields = mixed(seeds[:, None], places).view(torch.int16)[:, :entries]
        dropped = round((1 - share) * _STEPS)
        kept: Tensor = fields >= dropped - _STEPS // 2
        return kept.reshape(tuple(shape))


class Dropping(nn.Module):
    """One of torch's dropout layers, for given seeds. Its rate is rounded to 16 bits.

    Attributes:
        p: the rate.
    """

    def __init__(self, layer: _DropoutNd, drawing: Drawing) -> None:
        super().__init__()
        self.p = round(layer.p * _STEPS) / _STEPS
        self._drawing = drawing
        self._channels = isinstance(layer, _WHOLE)
        self._alpha = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, ...) with some of its entries, or channels x[:, c], dropped."""
        if self._drawing.seeds is None:
            return x
        share = 1 - self.p
        if not share:
            return torch.zeros_like(x)
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self._channels else x.shape
        kept = self._drawing.kept(share, shape)
        if not self._alpha:
            scaled: Tensor = x * (kept / share)
            return scaled
        scale = (share * (1 + self.p * _SELU**2)) ** -0.5
        shifted: Tensor = (torch.where(kept, x, _SELU) - self.p * _SELU) * scale
        return shifted

    def extra_repr(self) -> str:
        """As torch's layers show theirs."""
        return f"p={self.p:g}"


def mixed(seeds: Tensor, number: Tensor | int) -> Tensor:
    """Numbers (...) int64 that look independent of each other and of all seeds, for each seed and number."""
    z: Tensor = seeds + (torch.as_tensor(number) + 1) * _GOLDEN  # as tensors, whose products wrap around
    for shift, factor in _MIX:
        z = (z ^ _shifted(z, shift)) * factor
    return z ^ _shifted(z, 31)


def example_seeds(seed: int, units: Tensor, positions: Tensor | None = None) -> Tensor:
    """The seeds, int64 (n,), of examples of these units at these positions in them, int64 (n,), or at 0.

    ``seed``, in 0 .. 2^63 - 1, is one answer's alone.
    """
    first = mixed(torch.full_like(units, seed), units)
    return mixed(first, torch.zeros_like(units) if positions is None else positions)


def taken(given: Tensor | None, which: slice | Tensor | Sequence[int]) -> Tensor | None:
    """The seeds, or weights, of some of the examples; None of none."""
    return None if given is None else given[which]


def _shifted(z: Tensor, by: int) -> Tensor:
    """z shifted to the right, with zeros coming in."""
    shifted: Tensor = (z >> by) & (2 ** (64 - by) - 1)
    return shifted

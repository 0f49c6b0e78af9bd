"""Dropout with one seed per example.

Whether an entry is dropped depends only on the example's seed, the index of the dropout call in the forward
pass, and the position of the entry. An example therefore has the same dropout mask alone and in a batch, at
all points of a query (DP-SRM subtracts two gradients of the same function), on every device and with any
number of actors.

The masks of the other units do not change when a unit is added or removed. The seeds depend on no data, so
given the seeds a further unit adds one clipped vector. Noise and epsilon are as without dropout.

Without seeds, as in evaluations, nothing is dropped.

Recurrent layers drop between their levels, and ``nn.MultiheadAttention`` entries of its weights, by a dropout
layer of their own (:func:`built_in`).

Layers of ``transformers`` that call a function for their dropout draw by the same seeds
(:mod:`fedpriv.clipping.dropout_calls`).

>>> module = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5))
>>> dropout = SeededDropout(module)
>>> x, seeds = torch.ones(3, 2), example_seeds(7, torch.arange(3))
>>> with dropout.seeded(seeds):
...     together = module(x)
>>> with dropout.seeded(seeds[1:2]):
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

from fedpriv._internal import validation
from fedpriv.clipping.dropout_calls import calling, seeded_calls

# The constants of SplitMix64 (Steele et al. 2014), as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_FIELDS, _STEPS = 4, 2**16  # 16-bit numbers in one hash, and the number of values of each
_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_BUILT_IN = "seeded_dropout"  # the name of the dropout layer in a recurrent or attention layer
_SELU = -1.7580993408473766  # AlphaDropout replaces dropped entries by it (Klambauer et al. 2017)


class SeededDropout:
    """Replaces the dropout layers of a module, and holds the seeds of the present batch.

    Attributes:
        draws: whether the module drops at a positive rate.
        calling: the module's layers that drop by calling a function.
        seeds: one for each example of the present batch, int64 (n,); None drops nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        """Replaces the dropout layers of ``module`` in place."""
        self.seeds: Tensor | None = None
        self._calls = 0
        self.calling = calling(module)
        found: dict[nn.Module, SeededLayer] = {}
        for parent in list(module.modules()):
            for name, layer in parent._modules.items():  # a shared layer occurs several times
                if isinstance(layer, _DropoutNd) and layer.p > 0:
                    parent._modules[name] = found.setdefault(layer, SeededLayer(layer, self))
            if isinstance(parent, nn.RNNBase | nn.MultiheadAttention) and parent.dropout > 0:
                if isinstance(parent, nn.RNNBase) and parent.num_layers == 1:
                    continue  # it drops between levels
                found[parent] = SeededLayer(nn.Dropout(parent.dropout), self)
                parent.add_module(_BUILT_IN, found[parent])
                parent.dropout = 0.0
        self.draws = bool(found or self.calling)

    @contextmanager
    def seeded(self, seeds: Tensor | None) -> Iterator[None]:
        """Use these seeds while the context is open."""
        before, self.seeds = self.seeds, seeds
        self.begin()
        try:
            yield
        finally:
            self.seeds = before

    def begin(self) -> None:
        """Start a forward pass: count the dropout calls from zero again."""
        self._calls = 0

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """One forward pass: calls are counted from zero, and functions drop by the seeds, too."""
        self.begin()
        if self.seeds is None or not self.calling:
            yield
            return
        with seeded_calls(self.calling, self.dropped):
            yield

    def dropped(self, x: Tensor, rate: float, shape: Sequence[int] | None = None) -> Tensor:
        """x (n, ...) with entries dropped and the others scaled, by a mask of this shape, or of x's."""
        share = 1 - _rounded(rate)
        if not share:
            return torch.zeros_like(x)
        scaled: Tensor = x * (self.kept(share, x.shape if shape is None else shape) / share)
        return scaled

    def kept(self, share: float, shape: Sequence[int]) -> Tensor:
        """A mask of the given shape (n, ...), bool, whose entries are True with probability ``share``."""
        assert self.seeds is not None
        self._calls += 1
        seeds = hash_seeds(self.seeds, self._calls)
        if shape[0] % len(seeds):  # as for a table of positions that all examples share
            raise validation.ArgumentError(
                "dropout is applied to a tensor whose first axis is not that of the examples; apply it after "
                "adding it to the examples, so that each example draws its own mask"
            )
        entries = math.prod(shape) // len(seeds)
        positions = torch.arange(-(-entries // _FIELDS), device=seeds.device)
        fields = hash_seeds(seeds[:, None], positions).view(torch.int16)[:, :entries]
        dropped = round((1 - share) * _STEPS)
        kept: Tensor = fields >= dropped - _STEPS // 2
        return kept.reshape(tuple(shape))


class SeededLayer(nn.Module):
    """One of torch's dropout layers, with the masks of a :class:`SeededDropout`.

    Attributes:
        p: the rate, rounded to 16 bits.
    """

    def __init__(self, layer: _DropoutNd, dropout: SeededDropout) -> None:
        super().__init__()
        self.p = _rounded(layer.p)
        self._dropout = dropout
        self._channels = isinstance(layer, _CHANNEL_DROPOUT)
        self._alpha = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout)

    @property
    def seeded(self) -> bool:
        """Whether there are seeds, by which it drops."""
        return self._dropout.seeds is not None

    def forward(self, x: Tensor) -> Tensor:
        """x (n, ...) with entries, or whole channels x[:, c], dropped."""
        if self._dropout.seeds is None:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self._channels else x.shape
        if not self._alpha or self.p == 1:
            return self._dropout.dropped(x, self.p, shape)
        share = 1 - self.p
        kept = self._dropout.kept(share, shape)
        scale = (share * (1 + self.p * _SELU**2)) ** -0.5
        shifted: Tensor = (torch.where(kept, x, _SELU) - self.p * _SELU) * scale
        return shifted

    def extra_repr(self) -> str:
        """The rate, in the format of torch's layers."""
        return f"p={self.p:g}"


def built_in(layer: nn.Module) -> SeededLayer | None:
    """The dropout in a recurrent or attention layer; None where it has none, or nothing is dropped."""
    found = layer._modules.get(_BUILT_IN)
    return found if isinstance(found, SeededLayer) and found.seeded else None


def hash_seeds(seeds: Tensor, number: Tensor | int) -> Tensor:
    """SplitMix64 hashes (...), int64, of each pair of a seed and a number."""
    z: Tensor = seeds + (torch.as_tensor(number) + 1) * _GOLDEN  # products of tensors wrap around
    for shift, factor in _MIX:
        z = (z ^ _shifted(z, shift)) * factor
    return z ^ _shifted(z, 31)


def example_seeds(seed: int, units: Tensor, positions: Tensor | None = None) -> Tensor:
    """The seeds of examples, int64 (n,).

    Args:
        seed: in 0 .. 2^63 - 1, a new one for each query.
        units: the unit of each example, int64 (n,).
        positions: the position of each example in its unit, int64 (n,); None: 0 for all.
    """
    first = hash_seeds(torch.full_like(units, seed), units)
    return hash_seeds(first, torch.zeros_like(units) if positions is None else positions)


def select(
    given: Tensor | None, which: slice | Tensor | Sequence[int] | tuple[slice, slice]
) -> Tensor | None:
    """``given[which]``, or None where ``given`` is None."""
    return None if given is None else given[which]


def _rounded(rate: float) -> float:
    """The rate in steps of 2^-16."""
    return round(rate * _STEPS) / _STEPS


def _shifted(z: Tensor, by: int) -> Tensor:
    """z shifted to the right by ``by`` bits, padded with zeros."""
    shifted: Tensor = (z >> by) & (2 ** (64 - by) - 1)
    return shifted

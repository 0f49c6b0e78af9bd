"""Augmentation multiplicity: a unit's vector is a mean over K random variants of each of its examples.

Source: De et al. 2022 ("Unlocking high-accuracy differentially private image classification through scale"),
section 3. The mean is taken before the clip, so that a unit still adds a vector of norm C at most: the
sensitivity is that without augmentation. A variant is drawn by the example's own seed, so that what a unit
adds depends on no other unit.

>>> x, seeds = torch.eye(4)[None, None], torch.tensor([7])
>>> tuple(Augmentation(copies=3, shift=1).variants(x, seeds).shape)
(3, 1, 4, 4)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.clipping.dropout import hash_seeds
from fedpriv.data.datasets import deformation

_BITS = 2**31  # of a hash, from which a number is drawn
_DOWN, _RIGHT, _MIRRORED, _FIRST, _SECOND = range(5)  # what is drawn for a variant


@dataclass(frozen=True)
class Augmentation:
    """Random variants of images (n, channels, height, width).

    Attributes:
        copies: K, the number of variants of each example.
        shift: the most pixels that a variant is moved along each side; black comes in.
        flip: whether half of the variants are mirrored, left to right.
        deform: the strength of InfiniteMNIST's deformations; 0: none. Only for grey images of 28x28 pixels.
        finish: what is applied to the variants, such as fixed features; None: nothing.
    """

    copies: int
    shift: int = 0
    flip: bool = False
    deform: float = 0.0
    finish: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        validation.integer("augmentation-copies", self.copies, minimum=1)

    def batch(self, x: Tensor, y: Tensor, owner: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """K variants of each example (n, ...), side by side, with its label and owner.

        Args:
            x, y, owner: examples (n, ...), labels (n, ...) and owners (n,).
            seeds: the examples' seeds, int64 (n,), on the CPU.
        """
        repeated = y.repeat_interleave(self.copies, 0), owner.repeat_interleave(self.copies)
        return self.variants(x, seeds), *repeated

    def variants(self, x: Tensor, seeds: Tensor) -> Tensor:
        """The variants (n K, ...) of images (n, channels, height, width)."""
        own = hash_seeds(seeds[:, None], torch.arange(self.copies)).flatten().to(x.device)
        x = x.repeat_interleave(self.copies, 0)
        x = self._deformed(x, own) if self.deform else x
        x = self._moved(x, own)
        return x if self.finish is None else self.finish(x)

    def _moved(self, x: Tensor, seeds: Tensor) -> Tensor:
        """Each image, mirrored or not and moved by whole pixels: its bits are those of the image."""
        height, width = x.shape[2:]
        span = 2 * self.shift + 1
        rows = torch.arange(height, device=x.device) + _drawn(seeds, _DOWN, span)[:, None]
        columns = torch.arange(width, device=x.device).expand(len(x), width)
        if self.flip:
            mirrored = _drawn(seeds, _MIRRORED, 2)[:, None].bool()
            columns = torch.where(mirrored, width - 1 - columns, columns)
        columns = columns + _drawn(seeds, _RIGHT, span)[:, None]
        padded = torch.nn.functional.pad(x, (self.shift,) * 4)
        image = torch.arange(len(x), device=x.device)[:, None, None]
        moved = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
        return moved.permute(0, 3, 1, 2).contiguous()

    def _deformed(self, x: Tensor, seeds: Tensor) -> Tensor:
        """Each image, deformed as InfiniteMNIST deforms: x + alpha (F_k T_0 - F_l T_1)."""
        if tuple(x.shape[1:]) != (1, deformation.SIDE, deformation.SIDE):
            allowed = "be 0 unless images are grey and have 28x28 pixels"
            raise validation.fail("augmentation-deform", self.deform, allowed)
        pixels = (x[:, 0] * 255).round().to(torch.uint8)
        slopes = deformation.tangents(pixels)
        fields = deformation.fields().to(x.device)
        across = fields[_drawn(seeds, _FIRST, len(fields))] * slopes[:, 0]
        down = fields[_drawn(seeds, _SECOND, len(fields))] * slopes[:, 1]
        bent = pixels.flatten(1) + self.deform * (across - down)
        return (bent.clamp(0, 255) / 255).view_as(x)


def _drawn(seeds: Tensor, what: int, below: int) -> Tensor:
    """A number 0 .. below - 1 for each seed, int64 (n,)."""
    return (hash_seeds(seeds, what) & (_BITS - 1)) % below

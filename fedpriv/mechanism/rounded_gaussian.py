"""The normal law rounded to whole numbers, exactly: noise whose last bits tell nothing.

Noise that is drawn and added in floating point tells more than its law does: some results are made by one sum
and by none of its neighbours (Mironov 2012, "On significance of the least significant bits for differential
privacy"). And what a generator made for statistics will draw can be found out from what it has drawn, which
parameters without a gradient show as it is. Here bits are ChaCha20's, and each number is round(s Z) for a
standard normal Z: k with probability Phi((k + 1/2) / s) - Phi((k - 1/2) / s). Added to a sum of whole numbers
it is the Gaussian mechanism and then rounding, which is post-processing. It takes the bits to be random, and
numpy's log, sine and cosine to be right to 4 units in the last place.

Z is Box and Muller's, of two uniform numbers whose first 64 bits are drawn. Float64 knows it up to an error
that is bounded here, which leaves the whole number open for few (of s = 2**26 about 1 in 500,000): for those
more bits are drawn, and mpmath computes with them, until it is known. So it is the same on every machine.

>>> draws = Rounded(Key.from_seed(1), ("noise", 3), [torch.zeros(5), torch.zeros(())])
>>> [whole.tolist() for whole in draws.take((2.0, 1e9))]
[[-1.0, 0.0, -2.0, -0.0, -3.0], -1886902731.0]
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from mpmath.ctx_mp import MPContext
from torch import Tensor

from fedpriv.mechanism.gaussian import Label, pieces, submit
from fedpriv.rng import Key

Words = npt.NDArray[np.uint64]

# |computed - true| <= _ERROR (r + 1 / r) for a normal number of radius r = sqrt(-2 ln U), where U >= 2**-18.
# In units of 2**-53 the angle is off by 19 at most (conversion, 2 pi, their product), its cosine by 4 more,
# ln U by 2 + 8 |ln U| + 64 (conversion, halves, 4 units in the last place, missing bits), the root and both
# products by 1 each: 30 r + 2 / r, and 30 r + 66 / r for U < 2**-9, where r > 3.5; all below 37 (r + 1 / r).
_ERROR = 2.0**-47
_LEAST = np.uint64(2**46)  # of the 64 bits of U; below it float64 is not asked
_MORE = 4  # words that are drawn at first where float64 leaves it open

_CONTEXT, _ALONE = MPContext(), threading.Lock()  # mpmath's constants are common to all threads


class Rounded:
    """Independent numbers round(s Z), Z ~ N(0, 1), in the shapes and on the devices of given tensors.

    Attributes:
        label: what the draws are for: the purpose and its indices.
    """

    def __init__(self, key: Key, label: Label, like: Sequence[Tensor]) -> None:
        """Start drawing; no two draws of a key share a label."""
        self.label = label
        self._key = key
        self._like = [(tuple(tensor.shape), tensor.device) for tensor in like]
        self._blocks: list[list[Future[_Piece]]] = [
            [
                submit(_Piece, key, (*label, block, piece), count)
                for piece, count in enumerate(pieces(math.prod(tensor.shape)))
            ]
            for block, tensor in enumerate(like)
        ]

    def take(self, scales: Sequence[float]) -> tuple[Tensor, ...]:
        """Whole numbers (float64), a tensor a block, of the scale s >= 0 of each; at most 2**48."""
        tensors = []
        for jobs, (shape, device), scale in zip(self._blocks, self._like, scales, strict=True):
            if not 0 <= scale <= 2**48:
                raise ValueError(f"{scale} must lie in [0, 2**48]")
            rounding = [submit(job.result().rounded, scale) for job in jobs]
            parts = [part.result() for part in rounding]
            whole = np.concatenate(parts) if parts else np.empty(0)
            tensors.append(torch.from_numpy(whole).view(shape).to(device))
        return tuple(tensors)


class _Piece:
    """Up to PIECE normal numbers, as float64 has them, and how far they may be off."""

    def __init__(self, key: Key, label: Label, count: int) -> None:
        self._key, self._label, self._pairs = key, label, -(-count // 2)
        first, second = self._words()
        radius = np.sqrt(-2 * np.log((first + 0.5) * 2.0**-64))
        angle = (second + 0.5) * (2 * np.pi * 2.0**-64)
        error = np.where(first < _LEAST, np.inf, _ERROR * (radius + 1 / radius))
        self._normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
        self._errors = np.concatenate([error, error])[:count]

    def _words(self) -> tuple[Words, Words]:
        """The first 64 bits of each pair's two uniform numbers."""
        words = _bits(self._key, self._label, 2 * self._pairs)
        return words[: self._pairs], words[self._pairs :]

    def rounded(self, scale: float) -> npt.NDArray[np.float64]:
        """round(scale Z) of all of them."""
        if not scale:
            return np.zeros_like(self._normals)
        scaled = scale * self._normals
        whole = np.rint(scaled)
        known = np.abs(scaled - whole) + scale * self._errors < 0.5
        if not known.all():
            words = self._words()
            for entry in np.flatnonzero(~known):
                whole[entry] = self._settled(int(entry), scale, *words)
        return whole

    def _settled(self, entry: int, scale: float, first: Words, second: Words) -> int:
        """round(scale Z) of one, by as many bits as it takes."""
        pair, words = entry % self._pairs, _MORE
        while True:
            more = _bits(self._key, (f"{self._label[0]}-more", *self._label[1:], pair), 2 * words)
            # The words of both numbers in turn, so that drawing more goes on where it was.
            u, v = (_whole(top[pair], more[start::2]) for start, top in enumerate((first, second)))
            with _ALONE:
                whole = _settle(scale, u, v, 64 * (words + 1), entry >= self._pairs)
            if whole is not None:
                return whole
            words *= 2


def _settle(scale: float, u: int, v: int, bits: int, sine: bool) -> int | None:
    """round(scale Z) by the first ``bits`` bits of its uniform numbers; None where they leave it open."""
    if not u:
        return None
    context = _CONTEXT
    context.prec = 2 * bits
    radius = context.sqrt(-2 * context.log(context.ldexp(2 * u + 1, -bits - 1)))
    turn = context.ldexp(2 * v + 1, -bits)  # in half turns, from 0 to 2
    scaled = scale * radius * (context.sinpi(turn) if sine else context.cospi(turn))
    nearest = context.nint(scaled)
    # What the bits that are missing could change, and far more than mpmath rounds.
    error = scale * (1 / (u * radius) + 8 * radius / context.ldexp(1, bits))
    return int(nearest) if abs(scaled - nearest) + error < 0.5 else None


def _bits(key: Key, label: Label, count: int) -> Words:
    """So many words of ChaCha20's key stream for this label."""
    stream = Cipher(algorithms.ChaCha20(key.secret(*label), bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), np.dtype("<u8"))


def _whole(top: Any, rest: Words) -> int:
    """The words as one number, the first one highest."""
    number = int(top)
    for word in rest:
        number = number << 64 | int(word)
    return number

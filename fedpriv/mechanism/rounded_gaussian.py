"""Normal noise rounded exactly to integers, so that its last bits reveal nothing.

Floating-point noise leaks more than its distribution suggests: some results are possible for one sum and
impossible for a neighbouring one (Mironov 2012, "On significance of the least significant bits for
differential privacy"). And the output of a statistical generator can be predicted from earlier output, which
parameters without a gradient reveal unchanged. Here the bits are ChaCha20's, and each number is round(s Z)
for a standard normal Z: it is k with probability Phi((k + 1/2) / s) - Phi((k - 1/2) / s). Added to an integer
sum, this is the Gaussian mechanism followed by rounding, which is post-processing. It assumes that the bits
are random, and that NumPy's log, sine and cosine are accurate to 4 units in the last place.

Z is computed by the Box-Muller transform from the first 64 bits of two uniform numbers. The error of float64
is bounded below. For a few numbers (about 1 in 500,000 at s = 2**26) this error leaves the integer undecided.
Then more bits are generated, and mpmath computes with them until the integer is known. The result is
therefore the same on every machine.

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
_LEAST = np.uint64(2**46)  # below these first 64 bits of U, the error bound of float64 does not hold
_EXTRA_WORDS = 4  # the first number of extra words for an undecided integer

_CONTEXT, _MPMATH_LOCK = MPContext(), threading.Lock()  # all threads share mpmath's cached constants


class Rounded:
    """Independent numbers round(s Z), Z ~ N(0, 1), in the shapes and on the devices of given tensors.

    Attributes:
        label: the purpose of the numbers and its indices.
    """

    def __init__(self, key: Key, label: Label, like: Sequence[Tensor]) -> None:
        """Start the threads; do not use a label twice with one key."""
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
        """The integers, one float64 tensor per block, for each block's scale s in [0, 2**48]."""
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
    """Up to PIECE normal numbers in float64, with their error bounds."""

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
        """round(scale Z) for all numbers."""
        if not scale:
            return np.zeros_like(self._normals)
        scaled = scale * self._normals
        whole = np.rint(scaled)
        known = np.abs(scaled - whole) + scale * self._errors < 0.5
        if not known.all():
            words = self._words()
            for entry in np.flatnonzero(~known):
                whole[entry] = self._exactly_rounded(int(entry), scale, *words)
        return whole

    def _exactly_rounded(self, entry: int, scale: float, first: Words, second: Words) -> int:
        """round(scale Z) for one number, with as many bits as needed."""
        pair, words = entry % self._pairs, _EXTRA_WORDS
        while True:
            more = _bits(self._key, (f"{self._label[0]}-more", *self._label[1:], pair), 2 * words)
            # The two numbers' words alternate, so that further words extend both.
            u, v = (_integer(top[pair], more[start::2]) for start, top in enumerate((first, second)))
            with _MPMATH_LOCK:
                whole = _round(scale, u, v, 64 * (words + 1), entry >= self._pairs)
            if whole is not None:
                return whole
            words *= 2


def _round(scale: float, u: int, v: int, bits: int, sine: bool) -> int | None:
    """round(scale Z) from the first ``bits`` bits of the uniform numbers; None if they do not decide it."""
    if not u:
        return None
    context = _CONTEXT
    context.prec = 2 * bits
    radius = context.sqrt(-2 * context.log(context.ldexp(2 * u + 1, -bits - 1)))
    turn = context.ldexp(2 * v + 1, -bits)  # in half turns, from 0 to 2
    scaled = scale * radius * (context.sinpi(turn) if sine else context.cospi(turn))
    nearest = context.nint(scaled)
    # A bound for the missing bits, which is much larger than mpmath's rounding.
    error = scale * (1 / (u * radius) + 8 * radius / context.ldexp(1, bits))
    return int(nearest) if abs(scaled - nearest) + error < 0.5 else None


def _bits(key: Key, label: Label, count: int) -> Words:
    """The first ``count`` words of ChaCha20's key stream for this label."""
    stream = Cipher(algorithms.ChaCha20(key.secret(*label), bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), np.dtype("<u8"))


def _integer(top: Any, rest: Words) -> int:
    """The words as one integer, the first word being the most significant."""
    number = int(top)
    for word in rest:
        number = number << 64 | int(word)
    return number

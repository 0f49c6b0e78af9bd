"""Normal noise rounded exactly to integers, so that its last bits reveal nothing.

Floating-point noise leaks more than its distribution suggests: some results are possible for one sum and
impossible for a neighbouring one (Mironov 2012, "On significance of the least significant bits for
differential privacy"). And the output of a statistical generator can be predicted from earlier output, which
parameters without a gradient reveal unchanged. Here the bits are ChaCha20's, and each number is round(s Z)
for a standard normal Z: it is k with probability Phi((k + 1/2) / s) - Phi((k - 1/2) / s). Added to an integer
sum, this is the Gaussian mechanism followed by rounding, which is post-processing. It assumes that the bits
are random, and that NumPy's logarithm is accurate to 4 units in the last place.

Z is computed by the Box-Muller transform from the first 64 bits of two uniform numbers. The error of float64
is bounded below. For a few numbers (about 1 in 1,000,000 at s = 2**26) this error leaves the integer
undecided. Then more bits are generated, and mpmath computes with them until the integer is known. The result
is therefore the same on every machine.

>>> draws = Rounded(Key.from_seed(1), ("noise", 3), [torch.zeros(5), torch.zeros(())])
>>> [whole.tolist() for whole in draws.take((2.0, 1e9))]
[[-1.0, 0.0, -2.0, -0.0, -3.0], -1886902731.0]
"""

from __future__ import annotations

import functools
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

from fedpriv.mechanism.gaussian import PIECE, Label, pieces, submit
from fedpriv.rng import Key

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

# |computed - true| <= _ERROR (r + 1 / r) for a normal number of radius r = sqrt(-2 ln U), where U >= 2**-18.
# In units of 2**-53: the cosine and the sine are off by 2.2 (see _turns), ln U by 2 + 8 |ln U| + 64
# (conversion, halves, 4 units in the last place, missing bits), the root and the product by 1 each. That is
# 9 r + 2 / r, and 9 r + 66 / r for U < 2**-9, where r > 3.5; all of it below 15 (r + 1 / r), half of _ERROR.
_ERROR = 2.0**-48
_LEAST = np.uint64(2**46)  # below these first 64 bits of U, the error bound of float64 does not hold
_EXTRA_WORDS = 4  # the first number of extra words for an undecided integer
_STRIP = 4096  # numbers computed at one time, so that the intermediate results stay in the processor's cache
_ARCS = 10  # the leading bits of an angle, whose cosine and sine are in a table

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
            whole = np.empty(math.prod(shape))
            rounding = [
                submit(job.result().rounded, scale, whole[number * PIECE : (number + 1) * PIECE])
                for number, job in enumerate(jobs)
            ]
            for part in rounding:
                part.result()
            tensors.append(torch.from_numpy(whole).view(shape).to(device))
        return tuple(tensors)


class _Piece:
    """Up to PIECE normal numbers in float64, with a bound for their errors."""

    def __init__(self, key: Key, label: Label, count: int) -> None:
        self._key, self._label, self._pairs, self._count = key, label, -(-count // 2), count
        first, second = self._words()
        self._normals = np.empty(2 * self._pairs)
        least, most = math.inf, 0.0
        for start in range(0, self._pairs, _STRIP):
            strip = slice(start, start + _STRIP)
            cosine, sine = self._normals[: self._pairs][strip], self._normals[self._pairs :][strip]
            radius = _radii(first[strip])
            _turns(second[strip], cosine, sine)
            cosine *= radius
            sine *= radius
            least, most = min(least, float(radius.min())), max(most, float(radius.max()))
        self._error = _error(np.array([least, most])).max()  # r + 1 / r is convex
        far = np.flatnonzero(first < _LEAST)
        self._far = np.concatenate([far, far + self._pairs])

    def _words(self) -> tuple[Words, Words]:
        """The first 64 bits of each pair's two uniform numbers."""
        words = _bits(self._key, self._label, 2 * self._pairs)
        return words[: self._pairs], words[self._pairs :]

    def rounded(self, scale: float, out: Floats) -> None:
        """Write round(scale Z) for all numbers into ``out``, float64 (count,)."""
        if not scale:
            out.fill(0.0)
            return
        room = 0.5 - scale * self._error
        unsure = [self._far[self._far < self._count]]
        for start in range(0, self._count, _STRIP):
            whole = out[start : start + _STRIP]
            distance = scale * self._normals[start : start + len(whole)]
            np.rint(distance, out=whole)
            np.abs(np.subtract(distance, whole, out=distance), out=distance)
            if distance.max() >= room:
                unsure.append(start + np.flatnonzero(distance >= room))
        self._decide(np.unique(np.concatenate(unsure)), scale, out)

    def _decide(self, entries: npt.NDArray[np.intp], scale: float, out: Floats) -> None:
        """Replace the integers that float64 leaves undecided, among ``entries``."""
        pairs = entries % self._pairs
        radius = np.hypot(self._normals[pairs], self._normals[pairs + self._pairs])
        distance = np.abs(scale * self._normals[entries] - out[entries])
        # The radius itself is known to a few units in the last place: twice the bound is enough.
        unknown = (distance + 2 * scale * _error(radius) >= 0.5) | np.isin(entries, self._far)
        if unknown.any():
            words = self._words()
            for entry in entries[unknown]:
                out[entry] = self._exactly_rounded(int(entry), scale, *words)

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


def _error(radius: Floats) -> Floats:
    """The bound of the error of a normal number of this radius."""
    return _ERROR * (radius + 1 / radius)


def _radii(first: Words) -> Floats:
    """sqrt(-2 ln U) for the first 64 bits of U."""
    radius = np.add(first, 0.5)
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2
    return np.sqrt(radius, out=radius)


def _turns(second: Words, cosine: Floats, sine: Floats) -> None:
    """Write cos(2 pi V) and sin(2 pi V) for the first 64 bits of V, with an error below 2.2 * 2**-53.

    V = j / 1024 + w. The cosine c and the sine s of 2 pi j / 1024 are in a table, and the angle b = 2 pi w
    is below 0.0062, so cos b and sin b are their Taylor polynomials up to b**6 and b**5 (the next terms are
    below 1e-22 and 1e-19). In units of 2**-53: c and s are off by 0.5, cos b by 0.51, sin b by 0.05 in all,
    since it is small, and three roundings of c cos b - s sin b add 1.1.
    """
    whole, half = _table()
    arc = (second >> np.uint64(64 - _ARCS)).view(np.int64)
    angle = np.add(second & np.uint64(2 ** (64 - _ARCS) - 1), 0.5)
    angle *= 2 * math.pi * 2.0**-64
    square = angle * angle
    short = square * (1 / 120)  # the sine of the short angle
    short -= 1 / 6
    short *= square
    short += 1
    short *= angle
    near = square * (-1 / 720)  # its cosine
    near += 1 / 24
    near *= square
    near -= 0.5
    near *= square
    near += 1
    c, s = whole.take(arc), half.take(arc)
    np.multiply(c, near, out=cosine)
    np.multiply(s, near, out=sine)
    cosine -= np.multiply(s, short, out=s)
    sine += np.multiply(c, short, out=c)


@functools.cache
def _table() -> tuple[Floats, Floats]:
    """The cosines and sines of the 2**_ARCS equal parts of a turn, correctly rounded."""
    context = MPContext()
    turns = [context.mpf(arc) / 2 ** (_ARCS - 1) for arc in range(2**_ARCS)]
    with context.workprec(120):
        cosines, sines = ([float(of(turn)) for turn in turns] for of in (context.cospi, context.sinpi))
    return np.array(cosines), np.array(sines)


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

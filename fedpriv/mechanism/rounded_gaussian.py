"""Normal noise rounded exactly to integers, so that its last bits reveal nothing.

Floating-point noise leaks more than its distribution suggests: some results are possible for one sum and
impossible for a neighbouring one (Mironov 2012, "On significance of the least significant bits for
differential privacy"). And the output of a statistical generator can be predicted from earlier output, which
parameters without a gradient reveal unchanged. Here the bits are ChaCha20's, and each number is round(s Z)
for a standard normal Z: it is k with probability Phi((k + 1/2) / s) - Phi((k - 1/2) / s). Added to an integer
sum, this is the Gaussian mechanism followed by rounding, which is post-processing. It assumes that the bits
are random, and that the logarithm of NumPy, and of torch on a GPU, is accurate to 4 units in the last place.
With a known shift f each number is round(s Z + f).

Z is computed by the Box-Muller transform from the first 64 bits of two uniform numbers. The error of float64
is bounded below. For a few numbers (about 1 in 1,000,000 at s = 2**26) this error leaves the integer
undecided. Then more bits are generated, and mpmath computes with them until the integer is known. The result
is therefore the same on every machine and device.

>>> draws = Rounded(Key.from_seed(1), ("noise", 3), [torch.zeros(5), torch.zeros(())], (2.0, 1e9))
>>> [whole.tolist() for whole in draws.take()]
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

from fedpriv.mechanism.chacha20 import key_streams
from fedpriv.mechanism.gaussian import PIECE, Label, submit
from fedpriv.rng import Key

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

# |computed - true| <= _ERROR (r + 1 / r) for a normal number of radius r = sqrt(-2 ln U), where U >= 2**-18.
# In units of 2**-53: the cosine and the sine are off by 2.9 (see _turns), ln U by 2 + 8 |ln U| + 64
# (conversion, halves, 4 units in the last place, missing bits), the root and the product by 1 each. That is
# 9 r + 2 / r, and 9 r + 66 / r for U < 2**-9, where r > 3.5; all of it below 15 (r + 1 / r), half of _ERROR.
_ERROR = 2.0**-48
_SHIFT_ERROR = 2.0**-52  # more than the error of adding a shift (or 0), beyond the spare half of _ERROR
_LEAST = np.uint64(2**46)  # below these first 64 bits of U, the error bound of float64 does not hold
_EXTRA_WORDS = 4  # the first number of extra words for an undecided integer
_STRIP = 2**14  # numbers computed at one time, so that the intermediate results stay in the processor's cache
_ARCS = 12  # the leading bits of an angle, whose cosine and sine are in a table
_TOGETHER = 64  # pieces that a GPU computes at one time, which takes some 400 MiB

_CONTEXT, _MPMATH_LOCK = MPContext(), threading.Lock()  # all threads share mpmath's cached constants


class Rounded:
    """Independent numbers round(s Z + f), Z ~ N(0, 1), in the shapes and on the devices of given tensors.

    Attributes:
        label: the purpose of the numbers and its indices.
        scales: the scale s of each block.
    """

    def __init__(
        self,
        key: Key,
        label: Label,
        like: Sequence[Tensor],
        scales: Sequence[float],
        shifts: Sequence[Tensor] | None = None,
    ) -> None:
        """Start the threads; do not use a label twice with one key.

        Args:
            key: the key of the streams.
            label: the purpose and its indices.
            like: tensors of the wanted shapes and devices, one per block.
            scales: each block's s, in [0, 2**48].
            shifts: each block's f, float64 of the shapes and devices of ``like``, in [-1/2, 1/2]; None: 0.
        """
        self.label, self.scales = label, tuple(scales)
        self._devices = [tensor.device for tensor in like]
        self._blocks: list[tuple[Tensor, list[Future[None]]]] = []
        for block, (tensor, scale) in enumerate(zip(like, self.scales, strict=True)):
            if not 0 <= scale <= 2**48:
                raise ValueError(f"{scale} must lie in [0, 2**48]")
            place = tensor.device if tensor.is_cuda else "cpu"
            whole = torch.empty(tensor.shape, dtype=torch.float64, device=place)
            flat, own = whole.view(-1), (*label, block)
            shift = shifts[block].reshape(-1) if shifts is not None and scale else None
            if whole.is_cuda:
                jobs = [submit(fill_on_device, key, own, scale, flat, shift)]
            else:
                jobs = [
                    submit(_fill, key, (*own, piece), scale, *(part.numpy() for part in parts))
                    for piece, parts in enumerate(_split(flat, shift))
                ]
            self._blocks.append((whole, jobs))

    def take(self) -> tuple[Tensor, ...]:
        """Wait for the integers; returns one float64 tensor per block."""
        for _, jobs in self._blocks:
            for job in jobs:
                job.result()
        return tuple(whole.to(device) for (whole, _), device in zip(self._blocks, self._devices, strict=True))


def _split(out: Tensor, shift: Tensor | None) -> list[tuple[Tensor, ...]]:
    """The pieces of a block on the CPU, each with that of its shift."""
    outs = torch.split(out, PIECE)
    if shift is None:
        return [(own,) for own in outs]
    return list(zip(outs, torch.split(shift.cpu(), PIECE), strict=True))


def _fill(key: Key, label: Label, scale: float, out: Floats, shift: Floats | None = None) -> None:
    """Write one piece of a block."""
    _Piece(key, label, len(out)).fill(scale, out, shift)


class _Piece:
    """Up to PIECE numbers from one stream, in pairs of a cosine and a sine."""

    def __init__(self, key: Key, label: Label, count: int) -> None:
        self._key, self._label, self._pairs = key, label, -(-count // 2)

    def _words(self) -> tuple[Words, Words]:
        """The first 64 bits of each pair's two uniform numbers."""
        words = _bits(self._key, self._label, 2 * self._pairs)
        return words[: self._pairs], words[self._pairs :]

    def fill(self, scale: float, out: Floats, shift: Floats | None = None) -> None:
        """Write round(scale Z + shift) into ``out``, float64 (count,): first the cosines, then the sines."""
        if not scale:
            out.fill(0.0)
            return
        words = self._words()
        for start in range(0, self._pairs, _STRIP):
            first, second = (word[start : start + _STRIP] for word in words)
            radius, cosine, sine = _normals(first, second)
            # r + 1 / r is convex, so no number of the strip has a larger error than the ends.
            most = scale * float(_error(np.array([radius.min(), radius.max()])).max())
            far = np.flatnonzero(first < _LEAST)
            for numbers, begin in ((cosine, start), (sine, self._pairs + start)):
                whole = out[begin : begin + len(first)]  # an odd count lacks the last sine
                distance = numbers[: len(whole)]
                distance *= scale
                if shift is not None:
                    distance += shift[begin : begin + len(whole)]
                np.rint(distance, out=whole)
                np.abs(np.subtract(distance, whole, out=distance), out=distance)
                unsure = np.flatnonzero(distance >= 0.5 - _SHIFT_ERROR - most)
                unknown = unsure[distance[unsure] + _SHIFT_ERROR + scale * _error(radius[unsure]) >= 0.5]
                for entry in {*unknown.tolist(), *far[far < len(whole)].tolist()}:
                    tops = (int(word[(begin + entry) % self._pairs]) for word in words)
                    own = 0.0 if shift is None else float(shift[begin + entry])
                    whole[entry] = self.exactly_rounded(begin + entry, scale, *tops, shift=own)

    def exactly_rounded(
        self, entry: int, scale: float, first: int, second: int, *, shift: float = 0.0
    ) -> int:
        """round(scale Z + shift) for one number, from these first 64 bits of its pair and as many more as
        needed."""
        pair, words = entry % self._pairs, _EXTRA_WORDS
        while True:
            more = _bits(self._key, (f"{self._label[0]}-more", *self._label[1:], pair), 2 * words)
            # The two numbers' words alternate, so that further words extend both.
            u, v = (_integer(top, more[start::2]) for start, top in enumerate((first, second)))
            with _MPMATH_LOCK:
                whole = _round(scale, u, v, 64 * (words + 1), entry >= self._pairs, shift)
            if whole is not None:
                return whole
            words *= 2


def fill_on_device(key: Key, label: Label, scale: float, out: Tensor, shift: Tensor | None = None) -> None:
    """Write round(scale Z + shift) into ``out``, float64 (count,), by torch on its device: the same numbers
    as from the pieces of the block ``label``."""
    if not scale:
        out.zero_()
        return
    whole = len(out) // PIECE
    for start in range(0, whole, _TOGETHER):
        stop = min(whole, start + _TOGETHER)
        part, shape = slice(start * PIECE, stop * PIECE), (stop - start, PIECE)
        own = None if shift is None else shift[part].view(shape)
        _fill_pieces(key, label, start, scale, out[part].view(shape), own)
    if rest := len(out) - whole * PIECE:
        own = None if shift is None else shift[whole * PIECE :].view(1, rest)
        _fill_pieces(key, label, whole, scale, out[whole * PIECE :].view(1, rest), own)


def _fill_pieces(key: Key, label: Label, start: int, scale: float, out: Tensor, shift: Tensor | None) -> None:
    """Write pieces of one length, float64 (pieces, length); the first of them is number ``start``."""
    count, length = out.shape
    pairs = -(-length // 2)
    keys = [key.secret(*label, start + piece) for piece in range(count)]
    bits = key_streams(keys, 2 * pairs, out.device)
    first, second = bits[:, :pairs], bits[:, pairs:]
    radius, cosine, sine = _normals_by_torch(first, second)
    scaled = torch.cat((cosine, sine), 1)[:, :length].mul_(scale)
    if shift is not None:
        scaled.add_(shift)
    torch.round(scaled, out=out)
    radii, words = (torch.cat((half, half), 1)[:, :length] for half in (radius, first))
    unsure = scaled.sub_(out).abs_() + _SHIFT_ERROR + scale * _ERROR * (radii + 1 / radii) >= 0.5
    unsure |= (words >= 0) & (words < int(_LEAST))  # negative numbers have their highest bit
    for piece, entry in unsure.nonzero().tolist():
        tops = (int(word[piece, entry % pairs]) % 2**64 for word in (first, second))
        offset = 0.0 if shift is None else float(shift[piece, entry])
        own = _Piece(key, (*label, start + piece), length)
        out[piece, entry] = own.exactly_rounded(entry, scale, *tops, shift=offset)


def _normals_by_torch(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`_normals`, from int64 tensors of the same bits, with the same bound of the errors."""
    # The halves of 64 bits are exact in float64, so that their sum is rounded once.
    uniform = ((first >> 32) & (2**32 - 1)).double().mul_(2.0**32)
    uniform += (first & (2**32 - 1)).double().add_(0.5)
    radius = uniform.mul_(2.0**-64).log_().mul_(-2).sqrt_()
    whole, half = (torch.from_numpy(table).to(first.device) for table in _table())
    arc = (second >> (64 - _ARCS)) & (2**_ARCS - 1)
    angle = (second & (2 ** (64 - _ARCS) - 1)).double().add_(0.5).mul_(2 * math.pi * 2.0**-64)
    square = angle * angle
    near = (square * (1 / 24)).sub_(0.5).mul_(square).add_(1)
    short = square.mul_(-1 / 6).add_(1).mul_(angle)
    c, s = whole[arc], half[arc]
    cosine = (c * near).sub_(s * short).mul_(radius)
    sine = (s * near).add_(c * short).mul_(radius)
    return radius, cosine, sine


def _error(radius: Floats) -> Floats:
    """The bound of the error of a normal number of this radius."""
    return _ERROR * (radius + 1 / radius)


def _normals(first: Words, second: Words) -> tuple[Floats, Floats, Floats]:
    """The radii r of pairs, r cos(2 pi V) and r sin(2 pi V), from the first 64 bits of U and V."""
    radius = np.add(first, 0.5)
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    cosine, sine = _turns(second)
    cosine *= radius
    sine *= radius
    return radius, cosine, sine


def _turns(second: Words) -> tuple[Floats, Floats]:
    """cos(2 pi V) and sin(2 pi V) for the first 64 bits of V, with errors below 2.9 * 2**-53.

    V = j / 4096 + w. The cosine c and the sine s of 2 pi j / 4096 are in a table, and the angle b = 2 pi w
    is below 0.00154, so cos b and sin b are their Taylor polynomials up to b**4 and b**3. In units of
    2**-53: the next term of sin b is below 0.65, that of cos b below 0.001; c and s are off by 0.5, cos b by
    0.51, sin b by 0.02 more, since it is small, and three roundings of c cos b - s sin b add 1.1.
    """
    whole, half = _table()
    arc = (second >> np.uint64(64 - _ARCS)).view(np.int64)
    angle = np.add(second & np.uint64(2 ** (64 - _ARCS) - 1), 0.5)
    angle *= 2 * math.pi * 2.0**-64
    square = angle * angle
    near = square * (1 / 24)  # the cosine of the short angle
    near -= 0.5
    near *= square
    near += 1
    square *= -1 / 6  # its sine
    square += 1
    short = np.multiply(angle, square, out=square)
    c, s = whole.take(arc), half.take(arc)
    cosine = c * near
    sine = np.multiply(s, near, out=near)
    cosine -= np.multiply(s, short, out=s)
    sine += np.multiply(c, short, out=c)
    return cosine, sine


@functools.cache
def _table() -> tuple[Floats, Floats]:
    """The cosines and sines of the 2**_ARCS equal parts of a turn, correctly rounded."""
    context, quarter = MPContext(), 2 ** (_ARCS - 2)
    context.prec = 120
    rise = np.array([float(context.sinpi(context.mpf(arc) / (2 * quarter))) for arc in range(quarter + 1)])
    sines = np.concatenate([rise[:-1], rise[:0:-1], -rise[:-1], -rise[:0:-1]])
    return np.roll(sines, -quarter), sines


def _round(scale: float, u: int, v: int, bits: int, sine: bool, shift: float = 0.0) -> int | None:
    """round(scale Z + shift) from the first ``bits`` bits of the uniform numbers; None if they do not decide
    it."""
    if not u:
        return None
    context = _CONTEXT
    context.prec = 2 * bits
    radius = context.sqrt(-2 * context.log(context.ldexp(2 * u + 1, -bits - 1)))
    turn = context.ldexp(2 * v + 1, -bits)  # in half turns, from 0 to 2
    scaled = scale * radius * (context.sinpi(turn) if sine else context.cospi(turn)) + shift
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

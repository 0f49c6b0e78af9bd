"""Random generators derived from (run nonce or seed, purpose, indices).

A run owns one :class:`Key`. Without a seed its root is 32 bytes of OS entropy, so no two runs and no
two resumptions share noise; with a seed the run is reproducible and NOT private, because who holds
the seed can subtract the noise. Each draw names its purpose and indices (release, client, chunk, ...),
and gets a stream whose key is a hash of all of them: never the same noise twice. It is Philox of 128 bits,
or for noise SFC64 of 192, which are not made to withstand those who want to foresee them: noise that protects
data of people is drawn by :mod:`fedpriv.mechanism.rounded_gaussian`, from ChaCha20.

>>> key = Key.from_seed(7)
>>> a, b = key.generator("noise", 0), key.generator("noise", 1)
>>> bool(a.standard_normal() == key.generator("noise", 0).standard_normal())
True
>>> bool(a.standard_normal() == b.standard_normal())
False
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from fedpriv._internal import validation


@dataclass(frozen=True)
class Key:
    """The root of all randomness of one run.

    Attributes:
        root: 32 bytes that every stream is derived from. Never logged or stored for an unseeded run.
        seed: the seed that was asked for, or None when the root is OS entropy.
    """

    root: bytes = field(repr=False)
    seed: int | None = None
    _used: set[tuple[bytes | str | int, ...]] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def fresh(cls) -> Key:
        """A key from OS entropy: the only kind that keeps the noise secret."""
        return cls(os.urandom(32))

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """A reproducible key, for which the run is not private. Raises ArgumentError if seed < 0."""
        validation.integer("seed", seed)
        return cls(hashlib.sha256(b"fedpriv-seed" + str(int(seed)).encode()).digest(), int(seed))

    @classmethod
    def of(cls, seed: int | None) -> Key:
        """``from_seed(seed)``, or ``fresh()`` when ``seed`` is None."""
        return cls.fresh() if seed is None else cls.from_seed(seed)

    @property
    def reproducible(self) -> bool:
        """Whether a seed was given, so that the run is reproducible and not private."""
        return self.seed is not None

    def once(self, purpose: str, *indices: int) -> None:
        """What ``purpose`` at ``indices`` draws may be drawn now, and not again: the same noise on two
        answers gives their difference away. A seed's may be drawn again; its runs are not private.

        Raises ArgumentError where an unseeded key was asked before.
        """
        if self.reproducible:
            return
        drawn: tuple[bytes | str | int, ...] = (self.root, purpose, *indices)
        # The record is of this key and of its children.
        if drawn in self._used:
            draw = " ".join(map(str, (purpose, *indices)))
            hint = "its noise and cohorts would be those of an earlier run; make one by Key.fresh()"
            raise validation.fail("key", "...", f"be a run's own: {draw} was drawn from it before", hint)
        self._used.add(drawn)

    def child(self, purpose: str, *indices: int) -> Key:
        """A key of its own for ``purpose`` at ``indices`` (e.g. a silo), as reproducible as this one."""
        return Key(self._words("key", (purpose, *indices)).tobytes(), self.seed, self._used)

    def generator(self, purpose: str, *indices: int) -> np.random.Generator:
        """A generator of its own for ``purpose`` at ``indices`` (e.g. release, client)."""
        return np.random.Generator(np.random.Philox(key=self._words(purpose, indices)[:2]))

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """As :meth:`generator`, over SFC64: half the time a draw, for the many that noise takes."""
        words: Any = _Words(self._words(purpose, indices))  # numpy's stubs know SeedSequence alone
        return np.random.Generator(np.random.SFC64(words))

    def integer(self, purpose: str, *indices: int) -> int:
        """A seed of its own for ``purpose`` at ``indices``, in 0 .. 2^63 - 1, for others' generators."""
        return int(self._words(purpose, indices)[0] >> 1)

    def secret(self, purpose: str, *indices: int) -> bytes:
        """32 bytes of its own for ``purpose`` at ``indices``: a key for ChaCha20."""
        return self._words(purpose, indices).tobytes()

    def _words(self, purpose: str, indices: tuple[str | int, ...]) -> npt.NDArray[np.uint64]:
        """256 bits that no other purpose and indices have."""
        label = repr((purpose, *(i if isinstance(i, str) else int(i) for i in indices))).encode()
        return np.frombuffer(hashlib.sha256(self.root + label).digest(), dtype=np.uint64)


class _Words(ISeedSequence):
    """Hands a bit generator its seed as it is: it comes from a hash and needs no more mixing."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(
        self, n_words: int, dtype: npt.DTypeLike = np.uint32
    ) -> npt.NDArray[np.uint32 | np.uint64]:
        """The first ``n_words`` of them."""
        return self._words.view(dtype)[:n_words]

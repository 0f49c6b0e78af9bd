"""Random generators derived from a root key, a purpose and indices.

A run owns one :class:`Key`. Without a seed its root is 32 bytes of OS entropy, so no two runs and no two
resumptions share noise. With a seed the run is reproducible and NOT private, because anyone who knows the
seed can subtract the noise. Each draw names its purpose and indices (release, client, chunk, ...) and gets a
stream keyed by a hash of all of them, so the same noise is never used twice. The streams are Philox with a
128-bit key, or SFC64 with a 192-bit state for noise. Neither is cryptographically secure. Noise that protects
private data is drawn from ChaCha20 by :mod:`fedpriv.mechanism.rounded_gaussian`.

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
        root: 32 bytes from which every stream is derived. It is never logged or stored for an unseeded run.
        seed: the given seed, or None if the root is OS entropy.
    """

    root: bytes = field(repr=False)
    seed: int | None = None
    _used: set[tuple[bytes | str | int, ...]] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def fresh(cls) -> Key:
        """A key from OS entropy. Only such a key keeps the noise secret."""
        return cls(os.urandom(32))

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """A reproducible key, for which the run is not private. Raises ArgumentError if seed < 0."""
        validation.integer("seed", seed)
        return cls(hashlib.sha256(b"fedpriv-seed" + str(int(seed)).encode()).digest(), int(seed))

    @classmethod
    def of(cls, seed: int | None) -> Key:
        """``from_seed(seed)``, or ``fresh()`` if ``seed`` is None."""
        return cls.fresh() if seed is None else cls.from_seed(seed)

    @property
    def reproducible(self) -> bool:
        """Whether a seed was given, so that the run is reproducible and not private."""
        return self.seed is not None

    def once(self, purpose: str, *indices: int) -> None:
        """Marks the draw of ``purpose`` at ``indices`` as used; an unseeded key allows it only once.

        Two answers with the same noise would reveal their exact difference. A seeded key may repeat its
        draws, since its runs are not private anyway.

        Raises ArgumentError if an unseeded key has already made this draw.
        """
        if self.reproducible:
            return
        drawn: tuple[bytes | str | int, ...] = (self.root, purpose, *indices)
        # The record is shared with this key's children.
        if drawn in self._used:
            draw = " ".join(map(str, (purpose, *indices)))
            raise validation.ArgumentError(
                f"The key was used before: the draw '{draw}' was already made from it. The noise and the "
                "cohorts would repeat those of an earlier run. Make a new key with Key.fresh()."
            )
        self._used.add(drawn)

    def child(self, purpose: str, *indices: int) -> Key:
        """An independent key for ``purpose`` at ``indices`` (e.g. a silo), seeded if this key is seeded."""
        return Key(self._words("key", (purpose, *indices)).tobytes(), self.seed, self._used)

    def generator(self, purpose: str, *indices: int) -> np.random.Generator:
        """An independent generator for ``purpose`` at ``indices`` (e.g. release, client)."""
        return np.random.Generator(np.random.Philox(key=self._words(purpose, indices)[:2]))

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """The same as :meth:`generator` with SFC64, which is twice as fast; used for bulk noise."""
        words: Any = _Words(self._words(purpose, indices))  # numpy's stubs accept only SeedSequence
        return np.random.Generator(np.random.SFC64(words))

    def integer(self, purpose: str, *indices: int) -> int:
        """A seed in 0 .. 2^63 - 1 for ``purpose`` at ``indices``, for other libraries' generators."""
        return int(self._words(purpose, indices)[0] >> 1)

    def secret(self, purpose: str, *indices: int) -> bytes:
        """32 bytes for ``purpose`` at ``indices``, a key for ChaCha20."""
        return self._words(purpose, indices).tobytes()

    def _words(self, purpose: str, indices: tuple[str | int, ...]) -> npt.NDArray[np.uint64]:
        """256 bits that are specific to ``purpose`` and ``indices``."""
        label = repr((purpose, *(i if isinstance(i, str) else int(i) for i in indices))).encode()
        return np.frombuffer(hashlib.sha256(self.root + label).digest(), dtype=np.uint64)


class _Words(ISeedSequence):
    """A seed sequence that passes its words on unchanged: they come from a hash and need no mixing."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(
        self, n_words: int, dtype: npt.DTypeLike = np.uint32
    ) -> npt.NDArray[np.uint32 | np.uint64]:
        """The first ``n_words`` words."""
        return self._words.view(dtype)[:n_words]

"""Random generators derived from (run nonce or seed, purpose, indices).

A run owns one :class:`Key`. Without a seed its root is 32 bytes of OS entropy, so no two runs and no
two resumptions share noise; with a seed the run is reproducible and NOT private, because who holds
the seed can subtract the noise. Each draw names its purpose and indices (release, client, chunk, ...),
and gets a Philox stream whose 128-bit key is a hash of all of them: never the same noise twice.

Noise drawn through these generators is floating-point, simulation-grade noise.

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

import numpy as np

from fedpriv import _check


@dataclass(frozen=True)
class Key:
    """The root of all randomness of one run.

    Attributes:
        root: 32 bytes that every stream is derived from. Never logged or stored for an unseeded run.
        seed: the seed that was asked for, or None when the root is OS entropy.
    """

    root: bytes = field(repr=False)
    seed: int | None = None

    @classmethod
    def fresh(cls) -> Key:
        """A key from OS entropy: the only kind that keeps the noise secret."""
        return cls(os.urandom(32))

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """A reproducible key, for which the run is not private. Raises ArgumentError if seed < 0."""
        _check.integer("seed", seed)
        return cls(hashlib.sha256(b"fedpriv-seed" + str(int(seed)).encode()).digest(), int(seed))

    @classmethod
    def of(cls, seed: int | None) -> Key:
        """``from_seed(seed)``, or ``fresh()`` when ``seed`` is None."""
        return cls.fresh() if seed is None else cls.from_seed(seed)

    @property
    def reproducible(self) -> bool:
        """Whether a seed was given, so that the run is reproducible and not private."""
        return self.seed is not None

    def generator(self, purpose: str, *indices: int) -> np.random.Generator:
        """A generator of its own for ``purpose`` at ``indices`` (e.g. release, client)."""
        label = repr((purpose, *(int(i) for i in indices))).encode()
        digest = hashlib.sha256(self.root + label).digest()
        words = np.frombuffer(digest[:16], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=words))

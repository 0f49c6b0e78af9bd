"""Samplers: how a release's cohort is sampled, and the accounting event of a release.

One object has both, so the accounting always matches the sampling. A population is implicit: units are the
numbers 0..N-1, nothing is stored for them, and sampling m of N costs O(m) for N up to 10^12. A cohort and,
under add/remove, its size are private: only the engine receives them.

A sampler is a file of this package, which registers it with its own settings; nothing else lists samplers.

>>> list(SAMPLERS), SAMPLERS["fixed-size"].summary
(['poisson', 'cyclic-poisson', 'fixed-size', 'everyone'], 'a cohort of one size, uniformly')
"""

from fedpriv._internal.registry import import_modules
from fedpriv.mechanism.sampling.base import (
    LARGEST_POPULATION,
    SAMPLERS,
    Indices,
    Sampler,
    SamplerContext,
    SamplerKind,
    draw_distinct,
    register,
)
from fedpriv.mechanism.sampling.cyclic_poisson import CyclicPoisson, CyclicSettings
from fedpriv.mechanism.sampling.everyone import Everyone
from fedpriv.mechanism.sampling.fixed_size import FixedSize
from fedpriv.mechanism.sampling.poisson import Poisson, TruncatedPoisson

import_modules(__name__, __path__)  # a new file registers its sampler by lying in this folder

__all__ = [
    "LARGEST_POPULATION",
    "SAMPLERS",
    "CyclicPoisson",
    "CyclicSettings",
    "Everyone",
    "FixedSize",
    "Indices",
    "Poisson",
    "Sampler",
    "SamplerContext",
    "SamplerKind",
    "TruncatedPoisson",
    "draw_distinct",
    "register",
]

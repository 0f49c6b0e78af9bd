"""Queries: an optimizer's request for noisy sums, as points, blocks of clipped terms, and their sensitivity.

For each block, each privacy unit of the cohort contributes one bounded vector, and the noisy sum of these
vectors is released. For a :class:`SumBlock` the contribution of a unit is

    sum_k  w_k * clip(A_k, C_k),        A_k = (sum_j a_kj g(theta_j) - O_k) / D_k,

where ``g(theta_j)`` is the unit's vector at the query's j-th point (its gradient, or its local model change).
Its add/remove sensitivity is S = sum_k |w_k| C_k. All blocks of a query use ONE cohort and are ONE event with
noise multiplier z: block j has noise of std z S_j / sqrt(share_j), with shares that sum to 1, so that
sum_j (S_j / sigma_j)^2 = z^-2.

>>> import torch
>>> query = Query(points=(torch.zeros(3),), blocks=(SumBlock((Term(clip_norm=1.5),)),))
>>> query.noise_stds(2.0)
(3.0,)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedpriv._internal import validation

if TYPE_CHECKING:
    from torch import Tensor

# The allowed sensitivities of a clipped sum. Sums are computed in float32 before noise is added. Within this
# range no sum of a cohort overflows float32, and denormal numbers are negligible. Noise would not hide an
# overflow.
LEAST, MOST = 1e-12, 1e12


@dataclass(frozen=True)
class Term:
    """One clipped vector of a unit's contribution.

    Attributes:
        clip_norm: C, the bound on the Euclidean norm, from LEAST to MOST; infinity means no clipping.
        weight: w; |w| and |w| C must be in [LEAST, MOST]. A term of weight 0 is left out.
        at: coefficients a_j over the query's points; (1.0,) is the vector at the first point,
            (1.0, -1.0) the difference between two points.
        divisor: D, a positive vector of shape (d,) that divides A before clipping, or None.
        per_layer: clip the part of A of each of the model's L layers to C / sqrt(L), instead of all of A to C
            (McMahan et al. 2018, "Learning differentially private recurrent language models", section 4).
            The sensitivity is the same.
        gamma: 0 clips, A min(1, C / norm(A)). A positive number scales every vector instead: A C / (norm(A) +
            gamma), the automatic clipping of Bu et al. 2022, whose bound is C, too.
        offset: O, a vector of shape (d,) that is subtracted from A before it is divided, or None.
        squared: the entries of A are squared, after the division and before the clip.

    Divisor and offset are public. So a unit adds a vector of norm at most |w| C whatever they are, and a unit
    that is not in the cohort adds zero, not ``-O / D``.
    """

    clip_norm: float
    weight: float = 1.0
    at: tuple[float, ...] = (1.0,)
    divisor: Tensor | None = None
    per_layer: bool = False
    gamma: float = 0.0
    offset: Tensor | None = None
    squared: bool = False

    def __post_init__(self) -> None:
        validation.positive("clip-norm", self.clip_norm)
        check_range("clip-norm", self.clip_norm)
        if validation.non_negative("clip-gamma", self.gamma):
            check_range("clip-gamma", self.gamma, unless=None)
            check_range("clip-norm with automatic clipping", self.clip_norm, unless=None)
        if self.weight:
            check_range("term weight", abs(validation.real("term weight", self.weight)), unless=None)
            check_range("term weight times clip-norm", self.sensitivity)
        if not self.at:
            raise validation.fail("term coefficients", self.at, "name at least one point")

    @property
    def sensitivity(self) -> float:
        """|w| C."""
        return abs(self.weight) * self.clip_norm if self.weight else 0.0

    @property
    def needs_rows(self) -> bool:
        """Whether the clipped sum needs each unit's vector, formed: factors give no norm of such an A."""
        return self.offset is not None or self.squared

    def bound(self, layers: int) -> float:
        """The clip norm of each part of A, for a model with ``layers`` layers: C, or C / sqrt(L)."""
        return self.clip_norm / math.sqrt(layers) if self.per_layer else self.clip_norm

    def factors(self, norms: Tensor, layers: int = 1, unit: Tensor | float = 1.0) -> Tensor:
        """What vectors of these norms are multiplied by, times ``unit`` (...).

        ``norms`` (...) are those of the vectors over ``unit``. A zero vector has a factor that is not finite
        only where gamma is 0.
        """
        bound = self.bound(layers)
        if self.gamma:
            return bound / (norms + self.gamma / unit)
        return (bound / norms).clamp(max=unit)

    def combine(self, vectors: Sequence[Tensor]) -> Tensor:
        """A before clipping, from the vectors (..., d) at the query's points."""
        total = vectors[0] if self.at[0] == 1.0 else self.at[0] * vectors[0]
        for coefficient, vector in zip(self.at[1:], vectors[1:], strict=False):
            total = total + coefficient * vector
        if self.offset is not None:
            total = total - self.offset
        if self.divisor is not None:
            total = total / self.divisor
        return total * total if self.squared else total


def check_range(name: str, value: float, unless: float | None = math.inf) -> None:
    """Raises ArgumentError unless LEAST <= value <= MOST or value == ``unless``."""
    if value != unless and not LEAST <= value <= MOST:
        other = "" if unless is None else f"be {unless:g} or "
        raise validation.fail(name, value, f"{other}lie in [{LEAST:g}, {MOST:g}]", "sums are of float32")


@dataclass(frozen=True)
class SumBlock:
    """A block whose units each add ``sum_k w_k clip(A_k, C_k)``, a vector of shape (d,).

    Attributes:
        terms: the clipped terms.
        share: this block's part of the event's 1/z^2, in (0, 1].
    """

    terms: tuple[Term, ...]
    share: float = 1.0

    def __post_init__(self) -> None:
        if not any(term.weight for term in self.terms):
            weights = [term.weight for term in self.terms]
            raise validation.fail("term weights", weights, "have at least one that is not 0")
        check_range("a block's sensitivity", self.sensitivity)

    @property
    def sensitivity(self) -> float:
        """S = sum_k |w_k| C_k (add/remove)."""
        return sum(term.sensitivity for term in self.terms)


@dataclass(frozen=True)
class IndicatorBlock:
    """A block whose units each add the number 1{norm(A) <= threshold} - 1/2, with the norm before clipping.

    It is the indicator of adaptive clipping (Andrew et al. 2019, section 2.1), centred so that its
    sensitivity is 1/2. A unit whose A is not finite adds -1/2.
    """

    term: Term
    threshold: float
    share: float

    def __post_init__(self) -> None:
        if self.term.per_layer:
            raise validation.fail("bit", "per-layer", "compare the norm of a whole vector")

    @property
    def sensitivity(self) -> float:
        """1/2 for every threshold."""
        return 0.5


Block = SumBlock | IndicatorBlock


@dataclass(frozen=True)
class Query:
    """A request for noisy sums, charged as one event.

    Attributes:
        points: one or two parameter vectors of shape (d,) at which units compute their vectors.
        blocks: the released sums; their shares sum to 1.
        relative_noise: r_t; the event's noise multiplier is scale * r_t.
        rate_factor: the cohort's expected size as a multiple of the usual one (DP-SRM's first step).
        releases: the number of releases that the optimizer's step still needs, including this one (ADADP
            needs two): the loop starts a step only if budget and rounds suffice for all of them.
    """

    points: tuple[Tensor, ...]
    blocks: tuple[Block, ...]
    relative_noise: float = 1.0
    rate_factor: float = 1.0
    releases: int = 1

    def __post_init__(self) -> None:
        validation.non_negative("relative noise", self.relative_noise)
        validation.finite_positive("rate factor", self.rate_factor)
        shares = [block.share for block in self.blocks]
        if any(share <= 0 for share in shares) or abs(sum(shares) - 1) > 1e-9:
            raise validation.fail("block shares", shares, "be positive and add to 1")

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return self.points[0].numel()

    def noise_stds(self, noise_multiplier: float) -> tuple[float, ...]:
        """The noise std of each block's SUM for an event with noise multiplier z: z S_j / sqrt(share_j).

        No other function computes a noise standard deviation. Raises ArgumentError if z > 0 and a block's
        sensitivity is infinite.
        """
        z = validation.non_negative("noise multiplier", noise_multiplier)
        if z == 0:
            return tuple(0.0 for _ in self.blocks)
        stds = tuple(z * block.sensitivity / math.sqrt(block.share) for block in self.blocks)
        if not all(math.isfinite(std) for std in stds):
            raise validation.fail("clip-norm", math.inf, "be finite where noise is added")
        return stds


# The noisy answer to a query: for each block the noisy sum DIVIDED by the expected cohort size, of shape (d,)
# for a SumBlock and () for an IndicatorBlock.
NoisyAnswer: TypeAlias = "tuple[Tensor, ...]"

"""What an audit asks of the units of its run: canaries, or the run's own units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data import Batch, Indices
from fedpriv.mechanism.query import Query, SumBlock

Floats = NDArray[np.float64]


class AuditedUnits(Protocol):
    """The units of a run, of some of which a coin decides whether they are there."""

    @property
    def replaced(self) -> bool:
        """Whether an absent unit is replaced by another one."""

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """See :class:`fedpriv.federated.worker.Units`."""

    def shaped(self, values: Floats) -> Floats:
        """A released vector (d,) as the other methods take it; () for an indicator."""

    def total(self, query: Query, release: int, ids: Indices) -> list[Floats]:
        """The exact sums over the units ``ids``, one for each block, shaped."""

    def expected(
        self, query: Query, release: int, units: Indices, cohort: Indices, rate: float
    ) -> list[Floats]:
        """What an adversary expects of a release's sums, who knows the cohort but for ``units``, shaped.

        Each of ``units`` is asked with the probability ``rate``, and its coin is not known.
        """

    def ratios(
        self,
        query: Query,
        release: int,
        ids: Indices,
        sums: Sequence[Floats],
        stds: Sequence[float],
        rate: float,
        others: Indices,
        factors: Sequence[float],
    ) -> Iterator[tuple[int, Floats]]:
        """The log likelihood ratios (a, k) of noisy sums if each of the guessed units ``ids`` (k,) took part.

        Args:
            query, release: of the sums.
            ids: the units.
            sums: the noisy sums, shaped.
            stds: the std of each one's noise.
            rate: the probability with which a unit takes part.
            others: the cohort, of which the adversary knows those units that are not guessed.
            factors: on the stds, as a adversaries assume them.

        Yields (1, ratios), and where units are replaced (-1, the ratios of those in their places).
        """

    def moves(self, query: Query, ids: Indices, change: Floats) -> Floats:
        """How far a model's change (d,) goes against each unit's gradients at the query: (k,)."""

    def in_steps(self) -> Self:
        """The units by which steps are repeated on neighbouring data."""

    def probed(self, ids: Indices, most: int) -> Indices:
        """Up to ``most`` units of a cohort ``ids`` that are there and differ in kind."""

    def flipped(self, unit: int) -> Self:
        """The same units but one, which is gone, or replaced."""


def log_ratios(
    query: Query, sums: Sequence[Floats], added: Sequence[Floats], stds: Sequence[float]
) -> Floats:
    """The log likelihood ratios (k,) of sums if units add ``added``, (rows, k) each, without indicators."""
    logs = np.zeros(added[0].shape[-1])
    for total, own, std, block in zip(sums, added, stds, query.blocks, strict=True):
        if isinstance(block, SumBlock):
            logs += ((2 * total * own - own**2) / (2 * std**2)).sum(0)
    return logs


def numbers(part: Tensor) -> Floats:
    """A tensor as float64 on the CPU."""
    return np.asarray(part.detach().double().cpu().numpy())

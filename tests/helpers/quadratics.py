"""Units with known gradients, curve_i * (theta - centre_i), for transcriptions of papers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fedpriv.clipping import sum_rows
from fedpriv.mechanism.query import Query
from helpers.trajectories import DIMENSION

UNITS = 30


class Quadratics:
    """Cohorts and noise of releases over 30 units, drawn once.

    Args:
        releases: how many.
        usual: the size of a usual cohort, by which an answer is divided.
        size: of a release's cohort.
        scale: the noise multiplier.
    """

    def __init__(self, releases: int, usual: int, size: Callable[[int], int], scale: float) -> None:
        generator = np.random.Generator(np.random.Philox(4))
        self.centres = generator.standard_normal((UNITS, DIMENSION)) + 1.0
        self.curves = 0.5 + 2 * generator.random((UNITS, DIMENSION))
        self.noise = generator.standard_normal((releases, DIMENSION))
        self.cohorts = [generator.choice(UNITS, size(t), replace=False) for t in range(releases)]
        self._usual, self._scale = usual, scale

    def gradients(self, theta: np.ndarray, release: int) -> np.ndarray:
        """Of the release's cohort, a row each."""
        cohort = self.cohorts[release]
        rows: np.ndarray = self.curves[cohort] * (theta - self.centres[cohort])
        return rows

    def noisy_answer(self, query: Query, release: int) -> list[torch.Tensor]:
        """The noisy answer on the release's cohort and noise."""
        rows = [torch.as_tensor(self.gradients(point.numpy(), release)) for point in query.points]
        total = sum_rows(rows, query.blocks)[0]
        std = query.noise_stds(self._scale * query.relative_noise)[0]
        noisy = total + std * torch.as_tensor(self.noise[release])
        return [noisy / (self._usual * query.rate_factor)]


def clip(vector: np.ndarray, bound: float) -> np.ndarray:
    """The vector, scaled down to the norm ``bound`` if it is longer."""
    norm = np.linalg.norm(vector)
    return vector * (bound / norm) if norm > bound else vector

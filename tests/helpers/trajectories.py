"""An optimizer's states on answers that a test gives, as one computes them by hand from a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedpriv.mechanism.query import Query
from fedpriv.optimizers import PrivateOptimizer, State

DIMENSION = 20


def follow(
    optimizer: PrivateOptimizer,
    answer: Callable[[Query, int], Sequence[np.ndarray | torch.Tensor]],
    releases: int,
) -> list[State]:
    """The states after each of ``releases`` updates, from zeros (20,) in float64.

    ``answer`` takes a query and the number of its release, and gives a value for each of the query's blocks.
    """
    state = optimizer.init(torch.zeros(DIMENSION, dtype=torch.float64))
    states = []
    for release in range(releases):
        values = answer(optimizer.query(state), release)
        state = optimizer.update(state, tuple(map(torch.as_tensor, values)))
        states.append(state)
    return states


def iterates(states: Sequence[State]) -> np.ndarray:
    """The parameters (len(states), 20) of each."""
    return np.array([state.params.numpy() for state in states])

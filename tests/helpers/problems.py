"""A small logistic regression for the baselines: 400 examples of 2 labels, 5 features."""

from __future__ import annotations

import numpy as np
import torch

from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.tasks.task import Task

FEATURES = 5
TASK = Task(torch.nn.Linear(FEATURES, 2))
START = torch.zeros(2 * FEATURES + 2, dtype=torch.float64)


def examples(seed: int, count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """x (n, 5) float64 and y (n,): labels follow the first two features."""
    generator = np.random.Generator(np.random.Philox(seed))
    x = generator.standard_normal((count, FEATURES))
    y = (x[:, 0] - 2 * x[:, 1] + 0.3 * generator.standard_normal(count) > 0).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(y)


def accuracy(params: torch.Tensor, seed: int = 99) -> float:
    return TASK.evaluate(params, *examples(seed))["accuracy"]


def logistic(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses (n,) and gradients (n, d) of softmax regression, by hand; theta is W (2, 5), then b (2,)."""
    weight, bias = theta[:10].reshape(2, 5), theta[10:]
    scores = x @ weight.T + bias
    logs = scores - np.logaddexp(scores[:, 0], scores[:, 1])[:, None]
    errors = np.exp(logs) - np.eye(2)[y]
    gradients = np.concatenate([(errors[:, :, None] * x[:, None, :]).reshape(len(x), 10), errors], axis=1)
    return -logs[np.arange(len(y)), y], gradients


class Holder:
    """An engine over one silo's examples."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def gather(self, request: SumRequest) -> PartialSum:
        ids = torch.from_numpy(
            np.concatenate([shard.ids for shard in request.shards] or [np.empty(0, np.int64)])
        )
        return PartialSum(clipped_sum(OneGradient(), TASK, request.query, self.x[ids], self.y[ids]), 1)

    def close(self) -> None:
        pass

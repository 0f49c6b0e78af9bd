"""What optimizers are tried on: a quadratic, logistic regression, and a small convolutional network.

Each has 24 units, parameters in float64, an engine that computes bounded sums, and the mean gradient over
all units computed in another way: in closed form, or by plain autograd of the network written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from helpers.toys import RowsEngine, world
from torch import nn

from fedpriv.clipping import zeros
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.mechanism.query import Query
from fedpriv.tasks.task import Task

UNITS = 24

Tensor = torch.Tensor
Public = Callable[[Tensor, int], Tensor]


@dataclass
class TaskEngine(RowsEngine):
    """Unit i is example i of a task; ``rows`` are the inputs."""

    task: Task = field(kw_only=True)
    labels: Tensor = field(kw_only=True)

    def sums(self, query: Query, ids: Tensor) -> tuple[Tensor, ...]:
        if not len(ids):  # what a toy adds to every gathering is not worth its time here
            return zeros(query.blocks, query.points[0])
        return clipped_sum(OneGradient(), self.task, query, self.rows[ids], self.labels[ids])


@dataclass(frozen=True)
class Target:
    """Attributes:
    start: theta_0 (d,).
    data: a seed -> data of UNITS units.
    engine: data -> what computes their sums.
    gradient: data, theta -> the mean gradient over the units.
    loss: data, theta -> the mean loss.
    """

    start: Tensor
    data: Callable[[int], tuple[Tensor, Tensor]]
    engine: Callable[[tuple[Tensor, Tensor]], RowsEngine]
    gradient: Callable[[tuple[Tensor, Tensor], Tensor], Tensor]
    loss: Callable[[tuple[Tensor, Tensor], Tensor], Tensor]

    def public(self, theta: Tensor, step: int) -> Tensor:
        """The gradient of the loss on examples that are public, and like the units'."""
        return self.gradient(self.data(99), theta)


def quadratic() -> Target:
    """norm(theta - row)^2 / 2, d = 20."""
    return Target(
        start=torch.zeros(20, dtype=torch.float64),
        data=lambda seed: (world(seed, UNITS), torch.zeros(UNITS)),
        engine=lambda data: RowsEngine(data[0]),
        gradient=lambda data, theta: theta - data[0].mean(0),
        loss=lambda data, theta: 0.5 * (theta - data[0]).square().sum(1).mean(),
    )


def classified(shape: tuple[int, ...]) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Inputs of three classes that lie about three public centres."""
    centres = np.random.Generator(np.random.Philox(5)).standard_normal((3, *shape))

    def data(seed: int) -> tuple[Tensor, Tensor]:
        generator = np.random.Generator(np.random.Philox(seed))
        labels = generator.integers(0, 3, UNITS)
        noise = generator.standard_normal((UNITS, *shape))
        return torch.as_tensor(2 * centres[labels] + noise), torch.as_tensor(labels)

    return data


def of_task(
    module: nn.Module, shape: tuple[int, ...], losses: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Target:
    """A target of a task; ``losses`` (n,) at theta, x, y are the task's, written out."""
    task = Task(module)

    def gradient(data: tuple[Tensor, Tensor], theta: Tensor) -> Tensor:
        leaf = theta.detach().clone().requires_grad_()
        return torch.autograd.grad(losses(leaf, *data).mean(), leaf)[0]

    return Target(
        start=task.initial(np.random.default_rng(2)).double(),
        data=classified(shape),
        engine=lambda data: TaskEngine(data[0], task=task, labels=data[1]),
        gradient=gradient,
        loss=lambda data, theta: losses(theta, *data).mean(),
    )


def logistic() -> Target:
    """Linear to three classes, d = 18."""

    def losses(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        logits = x @ theta[:15].view(3, 5).T + theta[15:]
        return logits.logsumexp(1) - logits[torch.arange(len(y)), y]

    return of_task(nn.Linear(5, 3), (5,), losses)


def network() -> Target:
    """A convolution of two filters, ReLU, and a linear layer, d = 47."""

    def losses(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        kernels, biases, weights = theta[:18].view(2, 1, 3, 3), theta[18:20], theta[20:44].view(3, 8)
        hidden = F.relu(F.conv2d(x, kernels, biases, stride=2)).flatten(1)
        return F.cross_entropy(hidden @ weights.T + theta[44:], y, reduction="none")

    layers = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    return of_task(layers, (1, 6, 6), losses)


TARGETS = {"quadratic": quadratic(), "logistic": logistic(), "network": network()}

"""pfl-research's side of benchmarks/round.py and benchmarks/cifar_rounds.py.

    pip install --no-deps pfl==0.6.0 multiprocess dill
    python benchmarks/peer_pfl.py central 20        # seconds per round of round.py, as one line of JSON

The same model, cohort and work as fedpriv's, in pfl's own simulation, with the central or local Gaussian
mechanism. pfl's data is in memory; fedpriv generates or gathers its.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

from fedpriv import models

COHORT, EXAMPLES = 250, 2000


class Network(nn.Module):
    """A network with pfl's model interface."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """The mean loss."""
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        """Nothing: a round of fedpriv has no client metrics."""
        return {}


class AfterRound(TrainingProcessCallback):
    """Calls a function when a round has ended."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Call it; continue."""
        self.call()
        return False, Metrics()


def model_of(network: nn.Module) -> PyTorchModel:
    """pfl's model of a network: plain gradient descent at the clients and at the server."""
    return PyTorchModel(Network(network), torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))


def local_training(batch: int | None = None) -> NNTrainHyperParams:
    """One pass of step size 0.1 over a user's examples, ``batch`` at a time, or all at once."""
    return NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=batch)


def simulate(
    network: nn.Module,
    user: Callable[[int], list[Tensor]],
    users: int,
    cohort: int,
    mechanism: Any,
    rounds: int,
    after_round: Callable[[], None],
    batch: int | None = None,
) -> None:
    """Run pfl's federated averaging without evaluation.

    Args:
        network: the model.
        user: a user's examples [x, y].
        users: how many there are; a cohort is drawn from them with replacement.
        cohort: users a round.
        mechanism: pfl's clip and noise.
        rounds: how many.
        after_round: called after each round.
        batch: examples of a local step; all of the user's if None.
    """
    generator = np.random.default_rng(0)
    data = FederatedDataset(
        lambda chosen: Dataset(raw_data=user(chosen)), lambda: int(generator.integers(users))
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, [mechanism]),
        model_of(network),
        local_training(batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[AfterRound(after_round)],
    )


def central(clip_norm: float) -> Any:
    """pfl's central Gaussian mechanism with noise multiplier 1."""
    return CentrallyAppliedPrivacyMechanism(GaussianMechanism(clip_norm, 1.0))


def main(placement: str, rounds: int) -> None:
    """Run ``rounds`` rounds of benchmarks/round.py and print the seconds of all but the first."""
    generator, marks = np.random.default_rng(0), list[float]()
    x = torch.from_numpy(generator.random((EXAMPLES, 1, 28, 28), np.float32))
    y = torch.from_numpy(generator.integers(0, 10, EXAMPLES))
    simulate(
        models.build("cnn"),
        lambda user: [x[user : user + 1], y[user : user + 1]],
        EXAMPLES,
        COHORT,
        central(1.0) if placement == "central" else GaussianMechanism(1.0, 1.0),
        rounds,
        lambda: marks.append(time.perf_counter()),
    )
    print("FIGURES " + json.dumps([b - a for a, b in itertools.pairwise(marks)]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""pfl-research's part of benchmarks/round.py: seconds per round, printed as one line of JSON.

    pip install --no-deps pfl==0.6.0 multiprocess dill
    python benchmarks/peer_pfl.py central 20

The same model, cohort and placement as fedpriv's, in pfl's own simulation: clients of one example that make
one local step, and the central or local Gaussian mechanism. pfl's data is in memory; fedpriv generates its.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
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
    """fedpriv's network with pfl's model interface."""

    def __init__(self) -> None:
        super().__init__()
        self.net = models.build("cnn")

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """The mean loss."""
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        """Nothing: a round of fedpriv has no client metrics."""
        return {}


class Marks(TrainingProcessCallback):
    """Records when each round ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Record the time; continue."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def main(placement: str, rounds: int) -> None:
    """Run ``rounds`` rounds and print the seconds of all but the first."""
    network, generator, marks = Network(), np.random.default_rng(0), Marks()
    x = torch.from_numpy(generator.random((EXAMPLES, 1, 28, 28), np.float32))
    y = torch.from_numpy(generator.integers(0, 10, EXAMPLES))
    data = FederatedDataset(
        lambda user: Dataset(raw_data=[x[user : user + 1], y[user : user + 1]]),
        lambda: int(generator.integers(EXAMPLES)),
    )
    noise = GaussianMechanism(1.0, 1.0)
    mechanism = CentrallyAppliedPrivacyMechanism(noise) if placement == "central" else noise
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, [mechanism]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[marks],
    )
    print("FIGURES " + json.dumps([b - a for a, b in itertools.pairwise(marks.times)]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

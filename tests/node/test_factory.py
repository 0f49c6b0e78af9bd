"""A node's worker: what its units are."""

import numpy as np
import torch

from fedpriv.config.schema import Config
from fedpriv.data import load
from fedpriv.data.client_files import write_client_file
from fedpriv.node.factory import make_worker
from fedpriv.scattering import scattering


def test_a_node_with_a_file_of_its_own_learns_from_the_features_of_its_images(tmp_path):
    digits = load("infinite-digits")
    write_client_file(tmp_path / "own.npz", digits, np.arange(1000, 1003))
    run = {"features": "scattering", "model": "normalised-linear", "clients": 4, "sampling-rate": 0.5}
    config = Config.parse({**run, "nodes-own-data": True})
    worker = make_worker(config.table(), {"partition-id": 2, "data-file": str(tmp_path / "own.npz")})
    x, y, owner = worker.view.batch(np.array([1, 2]))
    images, labels = digits.batch(np.arange(1000, 1003))
    assert torch.equal(x, scattering(images).half().float())
    assert torch.equal(y, labels)
    assert owner.tolist() == [1, 1, 1]

"""Weights to start from that cost no privacy: the model of the records, fitted to the public digits.

    python simulations/records/public_weights.py public.safetensors

The 1,797 digits that come with the package are not MNIST's, and nobody's here. Their features are those of
`features=scattering-pca`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from fedpriv import models
from fedpriv.data.components import SHAPE, projected
from fedpriv.data.datasets.digits import digits
from fedpriv.scattering import scattering

DECAY = 3e-4  # of the squared norm of all parameters, in the mean loss
CLASSES = 10


@cache
def public_weights() -> dict[str, torch.Tensor]:
    """The tensors of `normalised-linear` on the components, by name, with the least loss on the digits."""
    train, labels, test, more = digits()
    images = torch.from_numpy(np.concatenate([train, test])).float()[:, None] / 255
    x = torch.cat([projected(scattering(part)) for part in images.split(64)])
    y = torch.from_numpy(np.concatenate([labels, more])).long()
    model = models.build("normalised-linear", SHAPE, CLASSES).double()  # with all parameters zero
    params = list(model.parameters())
    # All of the data in each step, and a convex loss: nothing is drawn.
    solver = torch.optim.LBFGS(params, max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        decay = DECAY * torch.stack([param.square().sum() for param in params]).sum()
        found = F.cross_entropy(model(x.double()), y) + decay
        found.backward()  # type: ignore[no-untyped-call]
        return found

    solver.step(loss)  # type: ignore[no-untyped-call]
    return {name: tensor.detach().float() for name, tensor in model.state_dict().items()}


def main() -> None:
    """See the module's docstring."""
    save_file(public_weights(), Path(sys.argv[1]))


if __name__ == "__main__":
    main()

"""The model: a hidden layer of 32 units, 25,450 parameters."""

import torch


def build() -> torch.nn.Module:
    """A model with the same starting weights wherever it is built."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

"""The model: a hidden layer with BatchNorm, whose running statistics are buffers."""

import torch


def build() -> torch.nn.Module:
    """A model with the same starting weights wherever it is built."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    return torch.nn.Sequential(*layers)

"""The model: softmax regression."""

import torch


def build() -> torch.nn.Module:
    """A model with the same starting weights wherever it is built."""
    torch.manual_seed(0)
    return torch.nn.Linear(64, 10)

"""Matrix factorisation: predicts a value, such as a rating, from a pair of ids.

Li 2023 (appendix C.1) factorise MovieLens-100k (943 users x 1,682 items) with embeddings of size 100 and no
biases: 262,500 parameters. As in their code, both factors are drawn from a normal truncated at two standard
deviations, but with std 0.01 instead of 1. With 0.01 their settings give about their figures
(``simulations/dp2_movielens``). With 1 the initial predictions have std 7.7 for ratings of 1 to 5, and no
private run recovers from that.

Both factors near 0 are a saddle point, where the gradient is about 0. Therefore a short run of :func:`plain`
learns almost nothing, with or without noise. :func:`with_biases` is the usual model and learns from the first
step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv._internal import validation
from fedpriv.models import initializers
from fedpriv.models.inputs import Inputs

_SIZE = 100


class Factors(nn.Module):
    """The inner product of a user's and an item's factors, (n,).

    Args:
        users, items: the numbers of users and items.
        size: the length of a factor.
        scale: the std of the initial normal distribution before its truncation at two standard deviations.
    """

    def __init__(self, users: int, items: int, size: int = _SIZE, scale: float = 0.01) -> None:
        super().__init__()
        self.users = nn.Embedding(users, size)
        self.items = nn.Embedding(items, size)
        initializer = initializers.truncated_normal(scale)
        self.initializers = {"users.weight": initializer, "items.weight": initializer}

    def forward(self, x: Tensor) -> Tensor:
        """Values (n,) for ids (n, 2)."""
        product: Tensor = self.users(x[:, 0]) * self.items(x[:, 1])
        return product.sum(1)


class BiasedFactors(Factors):
    """The same plus a global mean, a bias per user and a bias per item, all initialised to 0."""

    def __init__(self, users: int, items: int, size: int = _SIZE, scale: float = 0.1) -> None:
        super().__init__(users, items, size, scale)
        self.mean = nn.Embedding(1, 1)
        self.user_bias = nn.Embedding(users, 1)
        self.item_bias = nn.Embedding(items, 1)
        for name in ("mean", "user_bias", "item_bias"):
            self.initializers[f"{name}.weight"] = initializers.zeros

    def forward(self, x: Tensor) -> Tensor:
        """Values (n,) for ids (n, 2)."""
        mean = self.mean(torch.zeros_like(x[:, 0]))
        biases: Tensor = mean + self.user_bias(x[:, 0]) + self.item_bias(x[:, 1])
        return super().forward(x) + biases[:, 0]


def plain(inputs: Inputs) -> nn.Module:
    """See :class:`Factors`."""
    return Factors(*_two(inputs))


def with_biases(inputs: Inputs) -> nn.Module:
    """See :class:`BiasedFactors`."""
    return BiasedFactors(*_two(inputs))


def _two(inputs: Inputs) -> tuple[int, int]:
    if len(inputs.tokens) != 2:
        raise validation.ArgumentError(
            f"Matrix factorisation needs two columns of ids (users and items), not {len(inputs.tokens)}."
        )
    return inputs.tokens[0], inputs.tokens[1]

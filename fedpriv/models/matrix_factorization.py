"""Matrix factorisation: the value that one id of a column has for one of another, such as a rating.

Li 2023 (appendix C.1) factorise MovieLens-100k's 943 users x 1,682 items with embeddings of 100, without
biases: 262,500 parameters. Both factors start from a normal that is cut to two stds, as in their code, but
of std 0.01 and not 1: from there their settings give about their figures (``simulations/dp2_movielens``),
while a std of 1 makes first predictions of std 7.7 for ratings of 1 to 5, from which no private run recovers.

Both factors near 0 are a saddle, where the gradient is about 0: a short run of :func:`plain` stands still,
with noise or without. :func:`with_biases` is the usual model, and learns from its first step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv._internal import validation
from fedpriv.models import initializers
from fedpriv.models.inputs import Inputs

_SIZE = 100


class Factors(nn.Module):
    """user, item -> the inner product of their factors, (n,).

    Args:
        users, items: how many there are.
        size: of the factors.
        scale: the std, before they are cut to two of it, of the normal that factors start from.
    """

    def __init__(self, users: int, items: int, size: int = _SIZE, scale: float = 0.01) -> None:
        super().__init__()
        self.users = nn.Embedding(users, size)
        self.items = nn.Embedding(items, size)
        law = initializers.truncated_normal(scale)
        self.laws = {"users.weight": law, "items.weight": law}

    def forward(self, x: Tensor) -> Tensor:
        """Values (n,) for ids (n, 2)."""
        product: Tensor = self.users(x[:, 0]) * self.items(x[:, 1])
        return product.sum(1)


class BiasedFactors(Factors):
    """The same plus a mean, a bias a user and a bias an item, all of which start at 0."""

    def __init__(self, users: int, items: int, size: int = _SIZE, scale: float = 0.1) -> None:
        super().__init__(users, items, size, scale)
        self.mean = nn.Embedding(1, 1)
        self.user_bias = nn.Embedding(users, 1)
        self.item_bias = nn.Embedding(items, 1)
        for name in ("mean", "user_bias", "item_bias"):
            self.laws[f"{name}.weight"] = initializers.zeros

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
        raise validation.fail("tokens", inputs.tokens, "be two columns of ids", "users and items")
    return inputs.tokens[0], inputs.tokens[1]

"""Models for benchmarks of clipped sums, with synthetic examples, and equal models of layers for Opacus.

>>> case = tokens_by_lstm()
>>> case.x.shape, case.model(case.x).shape
(torch.Size([250, 15]), torch.Size([250, 18]))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from opacus.layers import DPGRU, DPLSTM
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """Examples x (n, ...) with labels y (n,), a model, and an equal model for Opacus with its parameters."""

    model: nn.Module
    theirs: nn.Module
    x: Tensor
    y: Tensor


class LastState(nn.Module):
    """Tokens (n, length) -> embedding -> a recurrent layer -> its last state -> the classes."""

    def __init__(self, layer: type[nn.Module], vocabulary: int, embedding: int, hidden: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layer = layer(embedding, hidden, batch_first=True)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.classes(self.layer(self.embedding(x))[0][:, -1])
        return outputs


class MeanEmbedding(nn.Module):
    """Tokens (n, length) -> the mean of their embeddings -> a hidden layer -> the classes."""

    def __init__(self, vocabulary: int, size: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.hidden = nn.Linear(size, size)
        self.classes = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.classes(torch.relu(self.hidden(self.embedding(x).mean(1))))
        return outputs


class Sentences(nn.Module):
    """Tokens (n, length) -> token and position embeddings -> two transformer layers -> their mean."""

    def __init__(self, vocabulary: int, length: int, size: int, classes: int):
        super().__init__()
        self.embedding, self.places = nn.Embedding(vocabulary, size), nn.Parameter(torch.zeros(length, size))
        layer = nn.TransformerEncoderLayer(size, 4, 2 * size, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.classes(self.encoder(self.embedding(x) + self.places).mean(1))
        return outputs


def tokens_by_transformer(n: int = 250, length: int = 32, vocabulary: int = 1000, size: int = 64) -> Case:
    """A text classifier with torch's transformer; its position embeddings belong to no layer."""
    x, y = _tokens(n, length, vocabulary, 2)
    model, twin = (Sentences(vocabulary, length, size, 2) for _ in range(2))
    return Case(model, twin, x, y)


def images_by_prelu(n: int = 250) -> Case:
    """The multilayer perceptron with learned slopes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 28, 28, generator=generator)
    y = torch.randint(10, (n,), generator=generator)

    def model() -> nn.Module:
        hidden = nn.Linear(784, 256), nn.PReLU(), nn.Linear(256, 256), nn.PReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, 10))

    return Case(model(), model(), x, y)


def tokens_by_lstm(n: int = 250, length: int = 15) -> Case:
    """A classifier of names by an LSTM: 57 characters, 18 languages, sizes of Du 2021, A.9."""
    return _recurrent(nn.LSTM, DPLSTM, n, length)


def tokens_by_gru(n: int = 250, length: int = 15) -> Case:
    """The same by a GRU."""
    return _recurrent(nn.GRU, DPGRU, n, length)


def tokens_by_embedding(n: int = 250, length: int = 64, vocabulary: int = 10_000, size: int = 64) -> Case:
    """A text classifier that averages word embeddings."""
    x, y = _tokens(n, length, vocabulary, 2)
    return Case(MeanEmbedding(vocabulary, size, 2), MeanEmbedding(vocabulary, size, 2), x, y)


def _recurrent(layer: type[nn.Module], theirs: type[nn.Module], n: int, length: int) -> Case:
    x, y = _tokens(n, length, 57, 18)
    model, twin = (LastState(kind, 57, 64, 128, 18) for kind in (layer, theirs))
    return Case(model, twin, x, y)


def _tokens(n: int, length: int, vocabulary: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(vocabulary, (n, length), generator=generator)
    return x, torch.randint(classes, (n,), generator=generator)

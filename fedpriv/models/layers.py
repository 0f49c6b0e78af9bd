"""Modules that the built-in models are made of, besides torch's own.

They lie here and not with the models (:mod:`fedpriv.models.architectures`) because defining a subclass of
``nn.Module`` imports torch, and models are listed without torch.

The outputs of models of tokens (n, length), padded with 0 on the right, do not depend on the amount of
padding. A model with this property declares ``right_padded = True``; sequences of similar length are then
batched together and padded as little as possible.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv._internal import validation
from fedpriv.models import initializers
from fedpriv.scattering import scattering

_LEAST_SQUARE = 1e-10  # of a filter's squared norm, so that a constant one has a gradient
FACTORS = 100  # the length of a factor in Li 2023, appendix C.1


class Standardised(nn.Module):
    """``model`` applied to (x - mean) / std. Both are public constants, not computed from clients' data."""

    def __init__(self, model: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.model = model
        self.mean = validation.real("input-mean", mean)
        self.std = validation.finite_positive("input-std", std)

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs for inputs (n, ...) before standardisation."""
        outputs: Tensor = self.model((x - self.mean) / self.std)
        return outputs


class FromZero(nn.Sequential):
    """Layers of which only the last has parameters, initialised to zero; the loss is convex in them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        last = len(layers) - 1
        self.initializers = {f"{last}.weight": initializers.zeros, f"{last}.bias": initializers.zeros}


class Scattering(nn.Module):
    """Images -> their scattering features (:func:`fedpriv.scattering.scattering`); it has no parameters."""

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, channels * 81, height / 4, width / 4) of images (n, channels, height, width)."""
        return scattering(x)


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 / fan-in: weight standardisation.

    Source: Qiao et al. 2019, "Micro-batch training with batch-channel normalization and weight
    standardization". The filters are computed from the parameters alone, so that it costs no privacy.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The convolution with standardised filters. A constant filter becomes zero."""
        flat = self.weight.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        norms = (centred.square().sum(1, keepdim=True) + _LEAST_SQUARE).sqrt()
        outputs: Tensor = self._conv_forward(input, (centred / norms).view_as(self.weight), self.bias)
        return outputs


class ScaledGroupNorm(nn.GroupNorm):
    """Group normalisation whose scales start at 1 and whose shifts start at 0."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups, channels)
        self.initializers = {"weight": initializers.ones, "bias": initializers.zeros}


class Residual(nn.Module):
    """Two standardised convolutions of 3x3 with group normalisation and ReLU, added to their input.

    Args:
        ins, outs: the numbers of channels.
        stride: that of the first convolution; where it is not 1, or the channels differ, the input passes a
            convolution of 1x1.
        first: the wide form (normalise, ReLU, convolve; Zagoruyko & Komodakis 2016) instead of that of He et
            al. 2016 (convolve, normalise, ReLU).
        groups: of group normalisation.
    """

    def __init__(self, ins: int, outs: int, stride: int, first: bool, groups: int) -> None:
        super().__init__()
        self.first = first
        self.norm1 = ScaledGroupNorm(groups, ins if first else outs)
        self.conv1 = StandardisedConv2d(ins, outs, 3, stride, padding=1, bias=False)
        self.norm2 = ScaledGroupNorm(groups, outs)
        self.conv2 = StandardisedConv2d(outs, outs, 3, padding=1, bias=False)
        same = stride == 1 and ins == outs
        self.short = nn.Identity() if same else StandardisedConv2d(ins, outs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, ins, h, w) -> (n, outs, h / stride, w / stride)."""
        if self.first:
            before = F.relu(self.norm1(x))
            after = self.conv2(F.relu(self.norm2(self.conv1(before))))
            same = isinstance(self.short, nn.Identity)
            wide: Tensor = after + (x if same else self.short(before))
            return wide
        after = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(after + self.short(x))


class Pool(nn.Module):
    """2x2 max pooling with stride 1: (n, c, h, w) -> (n, c, h - 1, w - 1).

    It equals ``nn.MaxPool2d(2, 1)`` but uses the channels-last memory format. torch's CPU kernel for
    channels-first inputs takes several times longer, more than the rest of the network together.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The maximum of each 2x2 square."""
        return F.max_pool2d(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), 2, 1)


class LastState(nn.Module):
    """Tokens -> embedding -> one LSTM layer -> its state after the last token -> the classes.

    Args:
        vocabulary: V, the number of tokens including the padding.
        classes: the number of outputs.
        embedding, hidden: the sizes; by default 64 and 128 as in Du 2021, A.9.
    """

    right_padded = True

    def __init__(self, vocabulary: int, classes: int, embedding: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.classes = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, classes) for tokens (n, length). An empty sequence counts as one padding token."""
        states, _ = self.lstm(self.embedding(x))
        last = (x != 0).sum(1).clamp(min=1) - 1
        state = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2]))
        outputs: Tensor = self.classes(state[:, 0])
        return outputs


class MeanEmbedding(nn.Module):
    """Tokens -> the mean of their embeddings -> a hidden layer with ReLU -> the classes.

    Args:
        vocabulary: V, the number of tokens including the padding.
        classes: the number of outputs.
        size: the size of the embedding and of the hidden layer.
    """

    right_padded = True

    def __init__(self, vocabulary: int, classes: int, size: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.hidden = nn.Linear(size, size)
        self.classes = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, classes) for tokens (n, length); the mean of no tokens is 0."""
        real = (x != 0).to(self.embedding.weight.dtype)
        total = torch.einsum("nl,nle->ne", real, self.embedding(x))
        mean = total / real.sum(1, keepdim=True).clamp(min=1)
        outputs: Tensor = self.classes(F.relu(self.hidden(mean)))
        return outputs


class Factors(nn.Module):
    """The inner product of a user's and an item's factors, (n,).

    Args:
        users, items: the numbers of users and items.
        size: the length of a factor.
        scale: the std of the initial normal distribution before its truncation at two standard deviations.
    """

    def __init__(self, users: int, items: int, size: int = FACTORS, scale: float = 0.01) -> None:
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

    def __init__(self, users: int, items: int, size: int = FACTORS, scale: float = 0.1) -> None:
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

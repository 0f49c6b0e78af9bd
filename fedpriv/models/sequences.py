"""Models for sequences of tokens (n, length), padded with 0 on the right.

The outputs do not depend on the amount of padding. A model with this property declares ``right_padded =
True``; sequences of similar length are then batched together and padded as little as possible.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.models.inputs import Inputs


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


def lstm(inputs: Inputs) -> nn.Module:
    """See :class:`LastState`."""
    return LastState(inputs.tokens[0], inputs.classes)


def mlp_text(inputs: Inputs) -> nn.Module:
    """See :class:`MeanEmbedding`."""
    return MeanEmbedding(inputs.tokens[0], inputs.classes)

"""Models for sequences of tokens (n, length), padded with 0 on the right."""

from __future__ import annotations

from fedpriv._internal.lazy import nn
from fedpriv.models.inputs import SEQUENCE, Inputs
from fedpriv.models.registry import Model, register


def lstm(inputs: Inputs) -> nn.Module:
    """See :class:`fedpriv.models.layers.LastState`."""
    from fedpriv.models.layers import LastState

    return LastState(inputs.tokens[0], inputs.classes)


def mlp_text(inputs: Inputs) -> nn.Module:
    """See :class:`fedpriv.models.layers.MeanEmbedding`.

    Du 2021 give no sizes. Here they are those of Bu et al. 2020, whose experiments Du 2021 follow.
    """
    from fedpriv.models.layers import MeanEmbedding

    return MeanEmbedding(inputs.tokens[0], inputs.classes)


register(
    Model(
        "lstm",
        SEQUENCE,
        lstm,
        "embedding of 64, one LSTM layer of 128, linear layer",
        "105,362 on names",
        "Du 2021, A.9",
    )
)
register(
    Model(
        "mlp-text",
        SEQUENCE,
        mlp_text,
        "mean of embeddings of 16, two linear layers",
        "160,306 on 10,000 words",
        "Du 2021, A.9; Bu et al. 2020",
    )
)

"""Per-layer clipping around any optimizer: every layer's part of a vector is clipped to C / sqrt(L).

As McMahan et al. 2018 ("Learning differentially private recurrent language models", section 4): one large
layer no longer takes the bound of all others. The parts' bounds make C together, so that sensitivities,
noise and accounting are those of the inner optimizer.

>>> import torch
>>> from fedpriv.optimizers.first_order import dp_sgd
>>> method = PerLayer(dp_sgd(learning_rate=0.5, clip_norm=1.0))
>>> query = method.query(method.init(torch.zeros(3)))
>>> query.blocks[0].terms[0].per_layer, query.noise_stds(2.0)
(True, (2.0,))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fedpriv._internal.settings import Settings, setting
from fedpriv.mechanism.query import Block, Query, SumBlock
from fedpriv.optimizers.base import OptimizerWrapper, State, Wrapper, register_wrapper


class PerLayerSettings(Settings):
    """The settings of per-layer clipping."""

    clipping: Literal["flat", "per-layer", "automatic"] = setting(
        "flat",
        "clip whole vectors to C; or each of the model's L layers to C / sqrt(L); or scale every vector to "
        "about C",
    )


@dataclass(frozen=True)
class PerLayer(OptimizerWrapper):
    """An optimizer whose vectors are clipped layer by layer.

    Attributes:
        inner: the optimizer; bits that it releases stay those of whole vectors.
    """

    def query(self, state: State) -> Query:
        """The inner query, its sums clipped layer by layer."""
        query = self.inner.query(state)
        return replace(query, blocks=tuple(_per_layer(block) for block in query.blocks))


def _per_layer(block: Block) -> Block:
    if isinstance(block, SumBlock):
        return replace(block, terms=tuple(replace(term, per_layer=True) for term in block.terms))
    return block


register_wrapper(
    Wrapper(
        key="clipping",
        summary="`per-layer`: clips each layer to C / sqrt(L); `automatic`: scales vectors to about C",
        paper="McMahan et al. 2018; Bu et al. 2022",
    )
)

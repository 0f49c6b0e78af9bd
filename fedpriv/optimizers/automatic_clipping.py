"""Automatic clipping around any optimizer: every vector is scaled to a norm below C, small ones too.

As Bu et al. 2022 ("Automatic clipping: differentially private deep learning made easier and stronger",
AUTO-S): A C / (norm(A) + gamma) takes the place of A min(1, C / norm(A)). C then only scales the step size.
The bound is C, so that sensitivities, noise and accounting are those of the inner optimizer.

>>> import torch
>>> from fedpriv.optimizers.first_order import dp_sgd
>>> method = AutomaticClipping(dp_sgd(learning_rate=0.5, clip_norm=2.0), gamma=0.1)
>>> query = method.query(method.init(torch.zeros(3)))
>>> query.blocks[0].terms[0].gamma, query.noise_stds(2.0)
(0.1, (4.0,))
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpriv._internal import validation
from fedpriv._internal.settings import Settings, needs, setting
from fedpriv.mechanism.query import Block, Query, SumBlock
from fedpriv.optimizers.base import OptimizerWrapper, State


class AutomaticClippingSettings(Settings):
    """The settings of automatic clipping."""

    clip_gamma: float = setting(
        0.01,
        "gamma: vectors are multiplied by C / (norm + gamma); below it, smaller vectors stay smaller",
        gt=0,
        needs=needs(clipping="automatic"),
    )


@dataclass(frozen=True)
class AutomaticClipping(OptimizerWrapper):
    """An optimizer whose vectors are all scaled to norms just below C.

    Attributes:
        inner: the optimizer; its clip norms must be finite.
        gamma: what is added to norms, positive.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        validation.finite_positive("clip-gamma", self.gamma)

    def query(self, state: State) -> Query:
        """The inner query, its vectors scaled instead of clipped."""
        query = self.inner.query(state)
        return replace(query, blocks=tuple(self._scaled(block) for block in query.blocks))

    def _scaled(self, block: Block) -> Block:
        if isinstance(block, SumBlock):
            return replace(block, terms=tuple(replace(term, gamma=self.gamma) for term in block.terms))
        return block

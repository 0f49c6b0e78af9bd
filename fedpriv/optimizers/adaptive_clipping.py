"""Adaptive-quantile clipping: the clip norm follows a quantile of the units' norms, privately.

Source: Andrew et al. 2019, section 2. Each unit adds one more number to the same event, the bit
1{norm(A) <= C} - 1/2 of its norm BEFORE clipping (sensitivity 1/2), and the server moves
C <- C exp(-step (b - quantile)) on the noisy fraction b (equation 1's geometric form). Both blocks are
on one cohort and are ONE event of multiplier z: the bit takes ``share`` of 1/z^2, so its noise std on
the sum is z / (2 sqrt(share)). The paper's sigma_b = m/20 is share = (10 z / m)^2.

z and the shares are fixed in advance, so an adaptive C is post-processing of noisy answers.

A method that compares the answers of one step with each other (ADADP's two releases) is refused: C would move
between them. So is one whose question has several clip norms (DP-SRM, DP2's extra query).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Needs, Settings, setting
from fedpriv.mechanism.query import LEAST, MOST, IndicatorBlock, NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import OptimizerWrapper, State, Wrapper, register_wrapper

if TYPE_CHECKING:
    from torch import Tensor

_SLOT = "adaptive_clip_norm"
_ADAPTS = Needs("adaptive-quantile above 0", lambda run: run["adaptive-quantile"] > 0)


class AdaptiveClippingSettings(Settings):
    """The settings of adaptive clipping."""

    adaptive_quantile: float = setting(0.0, "quantile that the clip norm adapts to; 0: off", ge=0, lt=1)
    adaptive_step: float = setting(0.2, "geometric step of the adaptive clip norm", gt=0, needs=_ADAPTS)
    adaptive_share: float = setting(
        0.05, "part of each event's 1/z^2 that the norm bit takes", gt=0, lt=1, needs=_ADAPTS
    )


@dataclass(frozen=True)
class AdaptiveClipping(OptimizerWrapper):
    """Wraps an optimizer of one clipped term; its clip norm is replaced by the adaptive one.

    Attributes:
        inner: the optimizer whose clip norm is learnt; its first clip norm is where C starts.
        quantile: the fraction of units whose norm should be at most C, in (0, 1).
        step: the geometric step size, > 0 (the paper's eta_C = 0.2).
        share: the bit's part of the event's 1/z^2, in (0, 1).
    """

    quantile: float = 0.5
    step: float = 0.2
    share: float = 0.05

    def __post_init__(self) -> None:
        validation.between("adaptive-quantile", self.quantile, 0, 1)
        validation.finite_positive("adaptive-step", self.step)
        validation.between("adaptive-share", self.share, 0, 1)

    def init(self, params: Tensor) -> State:
        """The inner state, and C at the inner optimizer's first clip norm.

        Raises ArgumentError where that is infinite, or a step is not one release of one clipped term.
        """
        state = self.inner.init(params)
        query = self.inner.query(state)
        if query.releases != 1:
            name = type(self.inner).__name__
            raise validation.fail("optimizer", name, "make steps of one release to be clipped adaptively")
        start = self._only_term(query).clip_norm
        validation.finite_positive("clip-norm", start, "adaptive clipping needs a finite start")
        self._check_second(state)
        return replace(state, slots={**state.slots, _SLOT: torch.tensor(start, dtype=torch.float64)})

    def query(self, state: State) -> Query:
        """The inner query at the adaptive C, and the bit as a second block of the same event."""
        inner = self.inner.query(state)
        clip_norm = float(state.slots[_SLOT])
        term = replace(self._only_term(inner), clip_norm=clip_norm)
        blocks = (
            SumBlock((term,), share=1 - self.share),
            IndicatorBlock(term, threshold=clip_norm, share=self.share),
        )
        return replace(inner, blocks=blocks)

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The inner update on the first block; C moves on the second."""
        total, bit = answer
        fraction = float(bit) + 0.5
        moved = state.slots[_SLOT] * torch.exp(
            torch.tensor(-self.step * (fraction - self.quantile), dtype=torch.float64)
        )
        inner = self.inner.update(state, (total,))
        return replace(inner, slots={**inner.slots, _SLOT: moved.clamp(LEAST, MOST)})

    def _check_second(self, state: State) -> None:
        """Refuse a method that asks for more from its second step on, as DP-SRM does."""
        try:
            query = self.inner.query(self.inner.update(state, (torch.zeros_like(state.params),)))
        except validation.ArgumentError:  # the schedules of a run of one step end here
            return
        self._only_term(query)

    def _only_term(self, query: Query) -> Term:
        if len(query.blocks) == 1:
            block = query.blocks[0]
            if isinstance(block, SumBlock) and len(block.terms) == 1:
                return block.terms[0]
        name = type(self.inner).__name__
        raise validation.fail("optimizer", name, "ask for one clipped term to be clipped adaptively")


register_wrapper(
    Wrapper(
        key="adaptive-quantile",
        summary="a clip norm that follows a quantile of the norms, privately",
        paper="Andrew et al. 2019",
    )
)

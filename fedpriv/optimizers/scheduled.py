"""Dynamic clip norms and noise on top of any optimizer whose step is one release.

Du et al. 2021, algorithm 3, lets C_t and the noise multiplier of DP-SGD follow any sequences. What it needs
is that both are fixed in advance, so the same holds around another method: :class:`Scheduled` multiplies all
clip norms of the inner query, two of them alike, and its relative noise r_t, and leaves the update alone. For
:class:`~fedpriv.optimizers.FirstOrder` it is algorithm 3 itself.

Where the method compares answers of one step with each other (ADADP's two releases) they must be alike, and
such a method is refused. An inner preconditioner that subtracts a constant noise variance must not be told
of one (``Dp2.noise_std`` 0): the noise is no longer constant. Adaptive clipping goes around the outside.

>>> import torch
>>> from fedpriv.optimizers.dp_srm import DpSrm
>>> from fedpriv.optimizers.schedules import Constant
>>> from fedpriv.optimizers.schedules import Geometric
>>> inner = DpSrm(Constant(0.5), clip_norm=1.0, difference_clip_norm=0.5, gamma=0.5)
>>> method = Scheduled(inner, clip_factor=Geometric(1.0, 0.25, 2), relative_noise=Geometric(1.0, 0.5, 2))
>>> state = method.update(method.init(torch.zeros(2)), (torch.ones(2),))
>>> query = method.query(state)
>>> query.blocks[0].sensitivity, round(query.relative_noise, 3)
(0.375, 0.707)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpriv._internal import validation
from fedpriv.mechanism.query import Query, SumBlock
from fedpriv.optimizers.base import OptimizerWrapper, PlannedRelease, State
from fedpriv.optimizers.schedules import Constant, Schedule

_ONE = Constant(1.0)


@dataclass(frozen=True)
class Scheduled(OptimizerWrapper):
    """An optimizer under schedules that are fixed in advance.

    Attributes:
        inner: the optimizer; its steps are one release each and its blocks are sums.
        clip_factor: what the clip norms of step t are multiplied with, > 0.
        relative_noise: what r_t is multiplied with, > 0.
    """

    clip_factor: Schedule = _ONE
    relative_noise: Schedule = _ONE

    def __post_init__(self) -> None:
        validation.finite_positive("clip-factor", self.clip_factor(0))
        validation.finite_positive("relative-noise", self.relative_noise(0))

    def query(self, state: State) -> Query:
        """The inner query with scaled clip norms and noise. Raises ArgumentError where that cannot be."""
        query, name = self.inner.query(state), type(self.inner).__name__
        if query.releases != 1:
            raise validation.fail("optimizer", name, "make steps of one release to be scheduled")
        factor = validation.finite_positive("clip-factor", self.clip_factor(state.step))
        blocks = []
        for block in query.blocks:
            if not isinstance(block, SumBlock):
                raise validation.fail("optimizer", name, "ask for sums to be scheduled")
            terms = tuple(replace(term, clip_norm=factor * term.clip_norm) for term in block.terms)
            blocks.append(replace(block, terms=terms))
        noise = query.relative_noise * self.relative_noise(state.step)
        return replace(query, blocks=tuple(blocks), relative_noise=noise)

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """The inner releases with r_t multiplied."""
        inner = enumerate(self.inner.planned(rounds))
        return tuple(replace(p, relative_noise=p.relative_noise * self.relative_noise(t)) for t, p in inner)

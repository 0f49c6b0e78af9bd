"""AdaDPS and PDA-DPMD: private steps that public data helps, the baselines of Li et al. 2023, Table 1.

Both hold a function of public data alone, ``public(params, step) -> (d,)``, as the gradient of the loss on
public examples is (``baselines.PublicGradient``). Whatever it computes is free, and whatever it reads is NOT
protected: no example of the training data may be in it.

AdaDPS (Li et al. 2022, "Private adaptive optimization with side information", algorithm 1):

| paper | here |
|---|---|
| w^t, alpha^t, C, epsilon | ``State.params``, ``learning_rate(t)``, ``clip_norm``, ``epsilon`` |
| ghat^t, the gradient on public data | ``public(w^t, t)`` |
| v = beta v + (1 - beta) ghat^2 (RMSProp, from 0, not corrected for that) | slot ``second`` |
| A^t = sqrt(v) + epsilon | ``Term.divisor``: each unit's gradient is divided BEFORE the clip |
| w^{t+1} = w^t - alpha^t gtilde^t | ``update`` |

Their variant without public data divides by public statistics s, as token frequencies: that is
``public=lambda params, step: s`` with beta = 0, where A = abs(s) + epsilon.

PDA-DPMD (Amid et al. 2022, "Public data-assisted mirror descent for private model training") takes the loss
Psi on public data as mirror map. What they run in practice, and this is, approximates the mirror step by

    theta_{t+1} = theta_t - eta (alpha_t y + (1 - alpha_t) grad Psi(theta_t)),   alpha_t = cos(pi t / (2 K)),

and alpha_t = 0 from K on. Their start from public training is the caller's choice of theta_0.

>>> import torch
>>> from fedpriv.optimizers.schedules import Constant
>>> method = PdaDpmd(Constant(1.0), clip_norm=1.0, public=lambda params, step: -params, horizon=2)
>>> state = method.init(torch.tensor([1.0]))
>>> for _ in range(2):
...     state = method.update(state, (torch.tensor([0.5]),))
>>> round(float(state.params), 4)  # 1 - 0.5, then 0.5 - 0.7071 * 0.5 + 0.2929 * 0.5
0.2929
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.first_order import check_decays
from fedpriv.optimizers.schedules import Schedule

_SLOT = "second"

Public = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class AdaDps:
    """Gradients preconditioned by public data, then clipped (Li et al. 2022, algorithm 1).

    Attributes:
        learning_rate: eta by step.
        clip_norm: C > 0, of the preconditioned gradients.
        public: a function of public data, (params (d,), step) -> (d,).
        epsilon: offset of the preconditioner, > 0.
        beta: decay of the second moment, in [0, 1).
    """

    learning_rate: Schedule
    clip_norm: float
    public: Public
    epsilon: float = 1e-3
    beta: float = 0.9

    def __post_init__(self) -> None:
        validation.positive("clip-norm", self.clip_norm)
        validation.finite_positive("adadps-epsilon", self.epsilon)
        check_decays(**{"adadps-beta": self.beta})

    def init(self, params: Tensor) -> State:
        """w^0, and v from the public gradient there."""
        return State(params, slots={_SLOT: self._second(torch.zeros_like(params), params, 0)})

    def query(self, state: State) -> Query:
        """The gradient at w^t over A^t, clipped to C."""
        divisor = state.slots[_SLOT].sqrt() + self.epsilon
        return Query((state.params,), (SumBlock((Term(self.clip_norm, divisor=divisor),)),))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """w^{t+1}, and v from the public gradient there."""
        params = state.params - self.learning_rate(state.step) * answer[0]
        return state.advanced(params, {_SLOT: self._second(state.slots[_SLOT], params, state.step + 1)})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round."""
        return tuple(PlannedRelease() for _ in range(rounds))

    def _second(self, second: Tensor, params: Tensor, step: int) -> Tensor:
        gradient = self.public(params, step)
        return self.beta * second + (1 - self.beta) * gradient * gradient


@dataclass(frozen=True)
class PdaDpmd:
    """Private and public gradients, weighted alpha_t to 1 - alpha_t (Amid et al. 2022).

    Attributes:
        learning_rate: eta by step.
        clip_norm: C > 0, of the private gradients.
        public: the gradient of Psi, (params (d,), step) -> (d,).
        horizon: K >= 1, the step at which only the public gradient is left.
    """

    learning_rate: Schedule
    clip_norm: float
    public: Public
    horizon: int

    def __post_init__(self) -> None:
        validation.positive("clip-norm", self.clip_norm)
        validation.integer("pda-horizon", self.horizon, minimum=1)

    def init(self, params: Tensor) -> State:
        """theta_0."""
        return State(params)

    def query(self, state: State) -> Query:
        """The gradient at theta_t, clipped to C."""
        return Query((state.params,), (SumBlock((Term(self.clip_norm),)),))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """theta_t - eta (alpha_t y + (1 - alpha_t) grad Psi(theta_t))."""
        share = math.cos(math.pi * min(state.step, self.horizon) / (2 * self.horizon))
        gradient = share * answer[0] + (1 - share) * self.public(state.params, state.step)
        return state.advanced(state.params - self.learning_rate(state.step) * gradient, {})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round."""
        return tuple(PlannedRelease() for _ in range(rounds))

"""AdaDPS and PDA-DPMD: private steps that public data helps, the baselines of Li et al. 2023, Table 1.

Both hold a function of public data alone, ``public(params, step) -> (d,)``, as the gradient of the loss on
public examples is (``tasks.public_gradient.PublicGradient``). Whatever it computes is free, and whatever it
reads is NOT protected: no example of the training data may be in it.

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

and alpha_t = 0 from K on. Their start from public training is the caller's choice of theta_0. By default K is
sixteen times the rounds of a run: the public gradient is not clipped, and its share never passes 0.005. With
four times the rounds and 0.08, two of three runs jumped away in the end (simulations/defaults/README.md).

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Settings, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, PublicFunction, State
from fedpriv.optimizers.first_order import check_decays
from fedpriv.optimizers.registry import BuildContext, Method, register, sgd_rate
from fedpriv.optimizers.schedules import Constant, Schedule

if TYPE_CHECKING:
    from torch import Tensor

_SLOT = "second"


class PublicSettings(Settings):
    """The settings of methods that learn from public examples."""

    public_examples: int = setting(0, "public examples, out of the test part and not evaluated on", ge=0)
    public_batch: int = setting(0, "public examples of a step; 0: all", ge=0)


class AdaDpsSettings(PublicSettings):
    """The settings of AdaDPS."""

    adadps_epsilon: float = setting(1e-3, "offset of the preconditioner", ge=1e-12)
    adadps_beta: float = setting(0.9, "decay of the preconditioner", ge=0, lt=1)


class PdaDpmdSettings(PublicSettings):
    """The settings of PDA-DPMD."""

    pda_horizon: int = setting(
        0, "K, when only public steps are left; 0: sixteen times rounds", ge=0, filled=True
    )


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
    public: PublicFunction
    epsilon: float = 1e-3
    beta: float = 0.9

    name: ClassVar[str] = "adadps"

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
    public: PublicFunction
    horizon: int

    name: ClassVar[str] = "pda-dpmd"

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


def _check(own: PublicSettings, context: BuildContext) -> None:
    if not own.public_examples:
        hint = "they come out of the test part"
        allowed = f"be at least 1 with optimizer {context.common.optimizer}"
        raise validation.fail("public-examples", 0, allowed, hint)


def _build_adadps(own: AdaDpsSettings, context: BuildContext) -> AdaDps:
    rate, public = Constant(context.common.learning_rate), context.public_gradient()
    return AdaDps(rate, context.common.clip_norm, public, own.adadps_epsilon, own.adadps_beta)


def _build_pda(own: PdaDpmdSettings, context: BuildContext) -> PdaDpmd:
    rate, public = Constant(context.common.learning_rate), context.public_gradient()
    return PdaDpmd(rate, context.common.clip_norm, public, own.pda_horizon)


def _resolve_pda(own: PdaDpmdSettings, context: BuildContext) -> PdaDpmdSettings:
    return own.filled_in(pda_horizon=16 * context.rounds)


register(
    Method(
        name=AdaDps.name,
        summary="a preconditioner from public examples (`public-examples`)",
        paper="Li et al. 2022, algorithm 1",
        settings=AdaDpsSettings,
        build=_build_adadps,
        check=_check,
        learning_rate=sgd_rate(3.0),  # of preconditioned gradients, whose mean has a norm of at most C
    )
)
register(
    Method(
        name=PdaDpmd.name,
        summary="a mirror map from public examples (`public-examples`)",
        paper="Amid et al. 2022",
        settings=PdaDpmdSettings,
        build=_build_pda,
        resolve=_resolve_pda,
        check=_check,
        regularisers="it would fade out with the answers",
        averaging=0.9,  # the public gradient is not clipped: the newest model can jump
    )
)

"""DP-SGD, with momentum, and the plain adaptive methods: one clipped gradient a step, then a textbook rule.

Sources: DP-SGD is Abadi et al. 2016, algorithm 1; DP-Adam is Du et al. 2021, algorithm 4 (its line 10
prints v where line 8 defines u: the same second moment); RMSProp is Hinton et al. 2012, AdaGrad Duchi
et al. 2011, Yogi Zaheer et al. 2018, algorithm 2, each on the privatised gradient (Zhou et al. 2020).
Symbols: theta ``params`` (d,); g a unit's gradient; C_t ``clip_norm(t)``; eta ``learning_rate(t)``; r_t
``relative_noise(t)``; y ``answer[0]``, the noisy sum over the EXPECTED cohort size (d,). Noise stds are
of the sum, never of the mean. A rule sees y only, so schedules of C_t and r_t, and an adaptive clip
norm, go with any of them.

>>> import torch
>>> optimizer = dp_sgd(learning_rate=0.5, clip_norm=1.0)
>>> state = optimizer.init(torch.tensor([1.0, 2.0]))
>>> optimizer.update(state, (torch.tensor([2.0, 0.0]),)).params
tensor([0., 2.])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Settings
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.local_step_defaults import rate_by_noise
from fedpriv.optimizers.registry import SCHEDULED, BuildContext, DefaultRate, Method, register, sgd_rate
from fedpriv.optimizers.schedules import Annealed, Constant, Schedule, as_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fedpriv.optimizers.settings import SharedSettings

Slots: TypeAlias = "Mapping[str, Tensor]"


class Rule(Protocol):
    """A textbook update rule: turns (noisy) gradients into directions."""

    def slots(self, params: Tensor) -> Slots:
        """The rule's memory before the first step."""

    def direction(self, slots: Slots, gradient: Tensor, step: int) -> tuple[Tensor, Slots]:
        """The direction (d,) to subtract, times the step size, and the new memory."""


@dataclass(frozen=True)
class Sgd:
    """theta -= eta m, with m = momentum m + y (heavy ball; momentum 0 is plain SGD)."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= validation.real("momentum", self.momentum) < 1:
            raise validation.fail("momentum", self.momentum, "lie in [0, 1)")

    def slots(self, params: Tensor) -> Slots:
        """The velocity, where there is momentum."""
        return {"velocity": torch.zeros_like(params)} if self.momentum else {}

    def direction(self, slots: Slots, gradient: Tensor, step: int) -> tuple[Tensor, Slots]:
        """``gradient``, or the velocity it feeds."""
        if not self.momentum:
            return gradient, slots
        velocity = self.momentum * slots["velocity"] + gradient
        return velocity, {"velocity": velocity}


@dataclass(frozen=True)
class Adam:
    """Adam's moments with bias correction (Du et al. 2021, algorithm 4, lines 7 to 11)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_decays(beta1=self.beta1, beta2=self.beta2)
        validation.finite_positive("adam-epsilon", self.epsilon)

    def slots(self, params: Tensor) -> Slots:
        """Both moments, zero."""
        return {"first": torch.zeros_like(params), "second": torch.zeros_like(params)}

    def direction(self, slots: Slots, gradient: Tensor, step: int) -> tuple[Tensor, Slots]:
        """m_hat / (sqrt(v_hat) + epsilon)."""
        first = self.beta1 * slots["first"] + (1 - self.beta1) * gradient
        second = self.beta2 * slots["second"] + (1 - self.beta2) * gradient * gradient
        m_hat = first / (1 - self.beta1 ** (step + 1))
        v_hat = second / (1 - self.beta2 ** (step + 1))
        return m_hat / (v_hat.sqrt() + self.epsilon), {"first": first, "second": second}


@dataclass(frozen=True)
class RmsProp:
    """v = beta2 v + (1 - beta2) y^2, theta -= eta y / (sqrt(v) + epsilon) (Hinton et al. 2012).

    v has no bias correction, so that the first step is eta / sqrt(1 - beta2). Hinton has beta2 0.9, PyTorch
    0.99: under noise the longer memory learns more.
    """

    beta2: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_decays(beta2=self.beta2)
        validation.finite_positive("adam-epsilon", self.epsilon)

    def slots(self, params: Tensor) -> Slots:
        """The second moment, zero."""
        return {"second": torch.zeros_like(params)}

    def direction(self, slots: Slots, gradient: Tensor, step: int) -> tuple[Tensor, Slots]:
        """y / (sqrt(v) + epsilon)."""
        second = self.beta2 * slots["second"] + (1 - self.beta2) * gradient * gradient
        return gradient / (second.sqrt() + self.epsilon), {"second": second}


@dataclass(frozen=True)
class AdaGrad:
    """v = v + y^2, theta -= eta y / (sqrt(v) + epsilon) (Duchi et al. 2011, diagonal)."""

    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        validation.finite_positive("adam-epsilon", self.epsilon)

    def slots(self, params: Tensor) -> Slots:
        """The sum of squares, zero."""
        return {"second": torch.zeros_like(params)}

    def direction(self, slots: Slots, gradient: Tensor, step: int) -> tuple[Tensor, Slots]:
        """y / (sqrt(v) + epsilon)."""
        second = slots["second"] + gradient * gradient
        return gradient / (second.sqrt() + self.epsilon), {"second": second}


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam whose v moves additively: v = v - (1 - beta2) sign(v - y^2) y^2; no bias correction.

    Zaheer et al. 2018, algorithm 2: m = beta1 m + (1 - beta1) y, theta -= eta m / (sqrt(v) + epsilon),
    both moments from zero. Their epsilon of 1e-3 is larger than sqrt(v) is in many private runs, which makes
    the rule nearly SGD with momentum there.
    """

    epsilon: float = 1e-3

    def direction(self, slots: Slots, gradient: Tensor, step: int) -> tuple[Tensor, Slots]:
        """m / (sqrt(v) + epsilon)."""
        square = gradient * gradient
        first = self.beta1 * slots["first"] + (1 - self.beta1) * gradient
        second = slots["second"] - (1 - self.beta2) * (slots["second"] - square).sign() * square
        return first / (second.sqrt() + self.epsilon), {"first": first, "second": second}


def check_decays(**betas: float) -> None:
    """Raises ArgumentError, naming it, for a decay outside [0, 1)."""
    for name, beta in betas.items():
        if not 0 <= validation.real(name, beta) < 1:
            raise validation.fail(name, beta, "lie in [0, 1)")


@dataclass(frozen=True)
class FirstOrder:
    """One query of one clipped gradient a step; ``rule`` on the noisy mean.

    Attributes:
        rule: the update rule.
        learning_rate: eta by step.
        clip_norm: C_t by step.
        relative_noise: r_t by step; the event of step t has noise multiplier scale * r_t.

    Raises ArgumentError where a schedule does not begin above 0, or the step size or r_t not finite.
    """

    rule: Rule
    learning_rate: Schedule
    clip_norm: Schedule
    relative_noise: Schedule = field(default_factory=lambda: Constant(1.0))

    def __post_init__(self) -> None:
        validation.finite_positive("learning-rate", self.learning_rate(0))
        validation.positive("clip-norm", self.clip_norm(0))
        validation.finite_positive("relative-noise", self.relative_noise(0))

    @property
    def name(self) -> str:
        """The method's name: dp-adam for the rule :class:`Adam`."""
        return f"dp-{type(self.rule).__name__.lower()}"

    def init(self, params: Tensor) -> State:
        """See :class:`~fedpriv.optimizers.base.PrivateOptimizer`."""
        return State(params=params, slots=self.rule.slots(params))

    def query(self, state: State) -> Query:
        """The gradient at theta, clipped to C_t, with relative noise r_t."""
        block = SumBlock((Term(clip_norm=self.clip_norm(state.step)),))
        return Query((state.params,), (block,), relative_noise=self.relative_noise(state.step))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """theta - eta_t * direction(y)."""
        direction, slots = self.rule.direction(state.slots, answer[0], state.step)
        return state.advanced(state.params - self.learning_rate(state.step) * direction, slots)

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """One release a round."""
        return tuple(PlannedRelease(self.relative_noise(t)) for t in range(rounds))


def dp_sgd(learning_rate: float | Schedule, clip_norm: float | Schedule, momentum: float = 0.0) -> FirstOrder:
    """DP-SGD (Abadi et al. 2016, algorithm 1). Raises ArgumentError for values <= 0.

    Here as below, step size and clip norm are numbers, or schedules of the step t = 0, 1, ...
    """
    return _constant(Sgd(momentum), learning_rate, clip_norm)


def dp_adam(
    learning_rate: float | Schedule,
    clip_norm: float | Schedule,
    beta1: float = Adam.beta1,
    beta2: float = Adam.beta2,
    epsilon: float = Adam.epsilon,
) -> FirstOrder:
    """DP-Adam (Du et al. 2021, algorithm 4 with constant C and sigma)."""
    return _constant(Adam(beta1, beta2, epsilon), learning_rate, clip_norm)


def dp_rmsprop(
    learning_rate: float | Schedule,
    clip_norm: float | Schedule,
    beta2: float = RmsProp.beta2,
    epsilon: float = RmsProp.epsilon,
) -> FirstOrder:
    """DP-RMSProp: RMSProp on the privatised gradient (Zhou et al. 2020; Li et al. 2023, section 3.2)."""
    return _constant(RmsProp(beta2, epsilon), learning_rate, clip_norm)


def dp_adagrad(
    learning_rate: float | Schedule, clip_norm: float | Schedule, epsilon: float = AdaGrad.epsilon
) -> FirstOrder:
    """DP-AdaGrad: AdaGrad on the privatised gradient (Zhou et al. 2020).

    Noisy AdaGrad (Kairouz et al. 2021) is another method: :mod:`fedpriv.optimizers.noisy_adagrad`.
    """
    return _constant(AdaGrad(epsilon), learning_rate, clip_norm)


def dp_yogi(
    learning_rate: float | Schedule,
    clip_norm: float | Schedule,
    beta1: float = Yogi.beta1,
    beta2: float = Yogi.beta2,
    epsilon: float = Yogi.epsilon,
) -> FirstOrder:
    """DP-Yogi: Yogi on the privatised gradient."""
    return _constant(Yogi(beta1, beta2, epsilon), learning_rate, clip_norm)


def _constant(rule: Rule, learning_rate: float | Schedule, clip_norm: float | Schedule) -> FirstOrder:
    return FirstOrder(rule, as_schedule(learning_rate), as_schedule(clip_norm))


@dataclass(frozen=True)
class NamedRule:
    """A textbook rule as it is configured.

    Attributes:
        make: the rule, from the common settings.
        uses: the common settings that it takes, by key.
        learning_rate: the step size where none is given.
        defaults: what 0 stands for in settings that it takes, by attribute.
        summary, paper: what it is, and its source.
    """

    make: Callable[[SharedSettings], Rule]
    uses: tuple[str, ...]
    learning_rate: float | DefaultRate
    defaults: Mapping[str, float]
    summary: str
    paper: str


_MOMENTS = ("beta1", "beta2", "adam-epsilon")
_PRIVATE = "Zhou et al. 2020"
RULES = {
    "sgd": NamedRule(
        lambda common: Sgd(common.momentum),
        ("momentum",),
        sgd_rate(),
        {},
        "clipped gradients and Gaussian noise; heavy-ball momentum",
        "Abadi et al. 2016, algorithm 1",
    ),
    "adam": NamedRule(
        lambda common: Adam(common.beta1, common.beta2, common.adam_epsilon),
        _MOMENTS,
        0.01,
        {"beta2": Adam.beta2, "adam_epsilon": Adam.epsilon},
        "Adam on the noisy mean",
        "Du et al. 2021, algorithm 4",
    ),
    "rmsprop": NamedRule(
        lambda common: RmsProp(common.beta2, common.adam_epsilon),
        ("beta2", "adam-epsilon"),
        0.005,
        {"beta2": RmsProp.beta2, "adam_epsilon": RmsProp.epsilon},
        "RMSProp on the noisy mean",
        f"Hinton et al. 2012; {_PRIVATE}",
    ),
    "adagrad": NamedRule(
        lambda common: AdaGrad(common.adam_epsilon),
        ("adam-epsilon",),
        0.1,
        {"adam_epsilon": AdaGrad.epsilon},
        "AdaGrad on the noisy mean",
        f"Duchi et al. 2011; {_PRIVATE}",
    ),
    "yogi": NamedRule(
        lambda common: Yogi(common.beta1, common.beta2, common.adam_epsilon),
        _MOMENTS,
        0.02,
        {"beta2": Yogi.beta2, "adam_epsilon": Yogi.epsilon},
        "Yogi on the noisy mean",
        f"Zaheer et al. 2018, algorithm 2; {_PRIVATE}",
    ),
}


def step_sizes(context: BuildContext) -> Annealed:
    """The step sizes of a textbook rule, as configured."""
    common = context.common
    return Annealed(
        common.learning_rate,
        context.rounds,
        common.learning_rate_schedule,
        common.learning_rate_end,
        common.warmup_steps,
    )


def _build(name: str, own: Settings, context: BuildContext) -> FirstOrder:
    rule = RULES[name].make(context.common)
    return FirstOrder(rule, step_sizes(context), Constant(context.common.clip_norm))


def rate_of(name: str, build: Callable[[Any, BuildContext], FirstOrder]) -> DefaultRate:
    """The default step size of the method that ``build`` makes with the rule ``name``."""
    rate = RULES[name].learning_rate
    if isinstance(rate, DefaultRate):
        return rate

    def schedules(own: Any, context: BuildContext) -> tuple[Schedule, Schedule]:
        method = build(own, context)
        return method.clip_norm, method.relative_noise

    def factors(own: Any, context: BuildContext, stds: Sequence[float]) -> list[float]:
        rule, found = RULES[name].make(context.common), []
        slots = rule.slots(torch.zeros(1, dtype=torch.float64))
        for step, std in enumerate(stds):
            direction, slots = rule.direction(slots, torch.tensor([std], dtype=torch.float64), step)
            found.append(float(direction) / std)
        return found

    return rate_by_noise(rate, schedules, factors)


for _name, _rule in RULES.items():
    register(
        Method(
            name=f"dp-{_name}",
            summary=_rule.summary,
            paper=_rule.paper,
            build=partial(_build, _name),
            uses=(*SCHEDULED, "clip-norm", *_rule.uses),
            learning_rate=rate_of(_name, partial(_build, _name)),
            defaults=_rule.defaults,
            correlated_noise=True,
        )
    )

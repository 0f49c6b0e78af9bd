"""AdaCliP: every coordinate is centred and scaled by running estimates before the clip.

Source: Pichapati et al. 2019, "AdaCliP: Adaptive Clipping for Private SGD". Vectors are (d,):

| paper | here |
|---|---|
| theta, eta, and the clip norm 1 of w | those of ``inner``: ``State.params``, ``learning_rate(t)``, C_t |
| a, the mean; s^2, the variance | slots ``adaclip_mean``, from 0; ``adaclip_variance``, from sqrt(h1 h2) |
| b = sqrt(s) sqrt(sum_j s_j), the scale | the term's divisor |
| w = (g - a) / b, clipped to norm 1 | the term: units centre, scale, then clip |
| w~, the noisy mean of the clipped w | the private answer y |
| g~ = b w~ + a, the private gradient | what ``inner`` updates on |
| a = beta1 a + (1 - beta1) g~ | ``mean_decay`` is beta1 |
| v = min(max(m ((g~ - a)^2 - (b sigma)^2), h1), h2) | ``noise_std`` C_t r_t is sigma, of y |
| h1, h2, the bounds of the variance | ``min_variance``, ``max_variance`` |
| s^2 = beta2 s^2 + (1 - beta2) v | ``variance_decay`` is beta2 |

Of all b with E norm(w)^2 <= 1, this b gives the least noise on g~, whose std is b sigma. The sensitivity is
that of w: it does not depend on a and b. Both follow from g~ alone, which is released, and so are public.

s is the standard deviation of ONE unit's gradient. The variance of g~, a mean over m units, is m times
smaller, so m is a factor of v: ``cohort``, the expected number of units. Without it s falls to its lower
bound, whatever the gradients are. A run without noise does not know m, and takes 1.

The factor m and the start of the variance are choices of ours.

Terms with an offset are summed from formed gradients, not by ghost clipping: large models take longer.

``inner`` is any method of one clipped gradient a step, whose schedules of C_t, r_t and step sizes stay.

>>> from fedpriv.optimizers.first_order import dp_sgd
>>> method = AdaClip(dp_sgd(learning_rate=1.0, clip_norm=1.0), min_variance=1e-2, max_variance=1e2)
>>> state = method.init(torch.zeros(4))
>>> term = method.query(state).blocks[0].terms[0]
>>> term.offset, term.divisor  # s = 1, so that b = sqrt(4)
(tensor([0., 0., 0., 0.]), tensor([2., 2., 2., 2.]))
>>> method.update(state, (torch.tensor([0.5, 0.5, 0.0, 0.0]),)).params
tensor([-1., -1.,  0.,  0.])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from fedpriv._internal import validation
from fedpriv._internal.lazy import torch
from fedpriv._internal.settings import Settings, setting
from fedpriv.mechanism.query import NoisyAnswer, Query, SumBlock, Term
from fedpriv.optimizers.base import PlannedRelease, State
from fedpriv.optimizers.dynamic_dp_sgd import DynamicSettings
from fedpriv.optimizers.first_order import FirstOrder, check_decays
from fedpriv.optimizers.registry import METHODS, SCHEDULED, BuildContext, Method, register, sgd_rate

if TYPE_CHECKING:
    from torch import Tensor

_MEAN, _VARIANCE = "adaclip_mean", "adaclip_variance"
_LEAST, _MOST = 1e-24, 1e24  # of variances, so that float32 holds divisors


class AdaClipSettings(Settings):
    """The settings of AdaCliP: its running estimates of each coordinate's mean and variance."""

    adaclip_min_variance: float = setting(
        1e-8, "h1, the smallest variance of a coordinate", ge=_LEAST, le=_MOST
    )
    adaclip_max_variance: float = setting(
        1e-3, "h2, the largest variance of a coordinate", ge=_LEAST, le=_MOST
    )
    adaclip_mean_decay: float = setting(0.9, "beta1, decay of the mean", ge=0, lt=1)
    adaclip_variance_decay: float = setting(0.9, "beta2, decay of the variance", ge=0, lt=1)


class DynamicAdaClipSettings(AdaClipSettings, DynamicSettings):
    """AdaCliP's, and how clip norm and noise change over the run."""


_DEFAULT = AdaClipSettings()


@dataclass(frozen=True)
class AdaClip:
    """A first-order method on gradients that are centred and scaled before they are clipped.

    Attributes:
        inner: the method; its clip norm C_t bounds w, its rule takes g~.
        min_variance, max_variance: h1 and h2, 0 < h1 <= h2.
        mean_decay, variance_decay: beta1 and beta2, in [0, 1).
        noise_std: the public std of one coordinate of y for C_t = r_t = 1, to correct v by; 0: no correction.
        cohort: m, the expected number of units of a release, > 0.

    Raises ArgumentError for values out of range.
    """

    inner: FirstOrder
    min_variance: float = _DEFAULT.adaclip_min_variance
    max_variance: float = _DEFAULT.adaclip_max_variance
    mean_decay: float = _DEFAULT.adaclip_mean_decay
    variance_decay: float = _DEFAULT.adaclip_variance_decay
    noise_std: float = 0.0
    cohort: float = 1.0

    name: ClassVar[str] = "adaclip"

    def __post_init__(self) -> None:
        for name, variance in (("min", self.min_variance), ("max", self.max_variance)):
            if not _LEAST <= validation.real(f"adaclip-{name}-variance", variance) <= _MOST:
                allowed = f"lie in [{_LEAST:g}, {_MOST:g}]"
                raise validation.fail(f"adaclip-{name}-variance", variance, allowed)
        _require_order(self.min_variance, self.max_variance)
        check_decays(**{"adaclip-mean-decay": self.mean_decay, "adaclip-variance-decay": self.variance_decay})
        validation.non_negative("noise-std", self.noise_std)
        validation.finite_positive("cohort", self.cohort)

    def init(self, params: Tensor) -> State:
        """The inner state, the mean 0, and the variance in the middle of its bounds."""
        state = self.inner.init(params)
        middle = math.sqrt(self.min_variance) * math.sqrt(self.max_variance)
        estimates = {_MEAN: torch.zeros_like(params), _VARIANCE: torch.full_like(params, middle)}
        return replace(state, slots={**state.slots, **estimates})

    def query(self, state: State) -> Query:
        """The inner query of w = (g - a) / b instead of g."""
        query = self.inner.query(state)
        term = Term(self.inner.clip_norm(state.step), divisor=_scale(state), offset=state.slots[_MEAN])
        return replace(query, blocks=(SumBlock((term,)),))

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """The inner update on g~ = b y + a, and both estimates from g~."""
        mean, scale = state.slots[_MEAN], _scale(state)
        centred = scale * answer[0]
        gradient = centred + mean
        square = centred**2 - (scale * self._noise_std(state.step)) ** 2
        variance = (self.cohort * square).clamp(self.min_variance, self.max_variance)
        estimates = {
            _MEAN: self.mean_decay * mean + (1 - self.mean_decay) * gradient,
            _VARIANCE: self.variance_decay * state.slots[_VARIANCE] + (1 - self.variance_decay) * variance,
        }
        after = self.inner.update(state, (gradient,))
        return replace(after, slots={**after.slots, **estimates})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        """The inner releases."""
        return self.inner.planned(rounds)

    def _noise_std(self, step: int) -> float:
        """The public std of one coordinate of y."""
        if not self.noise_std:
            return 0.0
        return self.noise_std * self.inner.clip_norm(step) * self.inner.relative_noise(step)


def _scale(state: State) -> Tensor:
    """b = sqrt(s) sqrt(sum_j s_j)."""
    std = state.slots[_VARIANCE].sqrt()
    return (std * std.sum()).sqrt()


def _require_order(least: float, most: float) -> None:
    if least > most:
        raise validation.fail("adaclip-min-variance", least, f"be at most adaclip-max-variance, {most:g}")


def _build(like: str, own: AdaClipSettings, context: BuildContext) -> AdaClip:
    inner = METHODS[like].build(own, context)
    assert isinstance(inner, FirstOrder)
    numbers = own.adaclip_min_variance, own.adaclip_max_variance
    decays = own.adaclip_mean_decay, own.adaclip_variance_decay
    if context.calibrated is None:
        return AdaClip(inner, *numbers, *decays)
    noise_std = context.calibrated.noise_std(1.0)
    return AdaClip(inner, *numbers, *decays, noise_std, context.calibrated.cohort)


def _check(own: AdaClipSettings, context: BuildContext) -> None:
    _require_order(own.adaclip_min_variance, own.adaclip_max_variance)


def _check_dynamic(own: DynamicAdaClipSettings, context: BuildContext) -> None:
    METHODS["dynamic-dp-sgd"].check(own, context)
    _check(own, context)


_BY_ITSELF = "its scale adapts to the gradients by itself"
_USES = (*SCHEDULED, "clip-norm", "momentum")

register(
    Method(
        name="adaclip",
        summary="coordinates are centred and scaled by running estimates before the clip",
        paper="Pichapati et al. 2019",
        settings=AdaClipSettings,
        build=partial(_build, "dp-sgd"),
        check=_check,
        uses=_USES,
        adaptive_clipping=_BY_ITSELF,
    )
)
register(
    Method(
        name="dynamic-adaclip",
        summary="AdaCliP with the schedules of dynamic-dp-sgd",
        paper="Pichapati et al. 2019; Du et al. 2021",
        settings=DynamicAdaClipSettings,
        build=partial(_build, "dynamic-dp-sgd"),
        resolve=METHODS["dynamic-dp-sgd"].resolve,
        check=_check_dynamic,
        uses=_USES,
        learning_rate=sgd_rate(5.0),
        adaptive_clipping=_BY_ITSELF,
    )
)

"""The private optimizers by name: each file of this package registers its methods here.

A method is everything that the command line, the help, the documents and a run need to know of it: its own
settings, how it is built from them, what it cannot be combined with, and its source. Nothing else lists
optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedpriv._internal import user_code
from fedpriv._internal.registry import Registry
from fedpriv._internal.settings import Needs, Settings, setting
from fedpriv.optimizers.settings import SharedSettings

if TYPE_CHECKING:
    import numpy as np

    from fedpriv.mechanism.sampling import Sampler
    from fedpriv.optimizers.base import PrivateOptimizer, PublicGradients

# The step sizes of textbook rules.
SCHEDULED = ("learning-rate", "learning-rate-schedule", "learning-rate-end", "warmup-steps")


@dataclass(frozen=True)
class Calibrated:
    """The noise of a run, known once its budget has been calibrated. All of it is public.

    Attributes:
        noise_multiplier: z of a release whose relative noise is 1.
        cohort: m, the expected number of units in a release.
        noise_std: the standard deviation of each coordinate of the noisy MEAN, by the sensitivity of the sum.
    """

    noise_multiplier: float
    cohort: float
    noise_std: Callable[[float], float]


def _no_data() -> PublicGradients:
    raise RuntimeError("settings are resolved without data; the public gradient is there for build")


def _no_model() -> int:
    raise RuntimeError("settings are resolved without a model; its dimension is there for build")


@dataclass(frozen=True)
class BuildContext:
    """What a method may know of the run that it is built for; none of it depends on private data.

    Attributes:
        common: the settings that optimizers share, with what 0 stands for filled in.
        rounds: T, the releases that the run is planned for.
        by_silo: whether each silo runs the optimizer on its own examples (level client).
        silo_steps: releases of a silo in one round of the server.
        local_steps: whether clients make several local steps.
        sampler, placement: how units are drawn and where the noise enters (the settings).
        draw: a random generator by purpose, from the run's seed where it has one.
        public_gradient: makes the gradient on public examples, which reads data: call it when the optimizer
            is built. Raises RuntimeError while settings are resolved, for which no data is read.
        dimension: gives the number of the model's parameters, for which the data set is opened. Raises
            RuntimeError while settings are resolved.
        calibrated: the noise, or None while the run is planned. The planned releases must not depend on it.
    """

    common: OptimizerSettings
    rounds: int
    by_silo: bool
    silo_steps: int
    local_steps: bool
    sampler: str
    placement: str
    draw: Callable[[str], np.random.Generator]
    public_gradient: Callable[[], PublicGradients] = _no_data
    dimension: Callable[[], int] = _no_model
    calibrated: Calibrated | None = None


@dataclass(frozen=True)
class DefaultRate:
    """A step size that follows from public settings where none is given.

    Attributes:
        text: the rule, for help.
        of: the step size, from the method's own settings, resolved, and the run.
    """

    text: str
    of: Callable[[Any, BuildContext], float]


def sgd_rate(value: float = 4.0) -> DefaultRate:
    """``value``; a quarter with several local steps, since the server then averages changes of the model
    (FedAvg): 1 where DP-SGD has 4."""
    quarter = value / 4
    return DefaultRate(
        f"{value:g}; {quarter:g} with work=local-steps",
        lambda own, context: quarter if context.local_steps else value,
    )


def _keep(own: Any, context: BuildContext) -> Any:
    return own


def _accept(own: Any, context: BuildContext) -> None:
    """Nothing is refused."""


def _accept_sampler(own: Any, sampler: Sampler, context: BuildContext) -> None:
    """Nothing is refused."""


def _all_rounds(rounds: int, context: BuildContext) -> int:
    return rounds


def _draws_nothing(own: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Method:
    """A private optimizer.

    Attributes:
        name: the value of ``optimizer``.
        summary: what it is, in a few words, for tables.
        paper: its source.
        build: makes it. Raises ArgumentError for settings that are out of range.
        settings: the type of its own settings, which several methods may share.
        uses: the common settings that it uses, by key, besides those of the wrappers.
        needs: conditions of the common settings that it does not use always, by key.
        learning_rate: what learning-rate=0 stands for.
        defaults: its own defaults of other common settings, by attribute, where their own default is 0.
        averaging: what averaging=-1 stands for; 0 at the level of clients, whose models are averaged anyway.
        resolve: its own settings with what 0 stands for filled in.
        resolve_with_rate: the same for those that follow from the step size, which is known by then.
        check: refuses what it cannot be combined with. Raises ArgumentError.
        check_sampler: the same, of the sampler. Raises ArgumentError.
        adaptive_clipping: why its clip norm cannot adapt; empty where it can.
        regularisers: why it cannot have a regulariser; empty where it can.
        run_rounds: how many of the planned rounds are run.
        draws: whether something is drawn before the run, which a run that is resumed would draw again.
        clip_norms: the keys of all of its clip norms.
        correlated_noise: whether each step is one release of one clipped gradient, whose noise may be
            correlated with that of other steps.
    """

    name: str
    summary: str
    paper: str
    build: Callable[[Any, BuildContext], PrivateOptimizer]
    settings: type[Settings] = Settings
    uses: tuple[str, ...] = ("learning-rate", "clip-norm")
    needs: Mapping[str, Needs] = field(default_factory=dict)
    learning_rate: float | DefaultRate = field(default_factory=sgd_rate)
    defaults: Mapping[str, float] = field(default_factory=dict)
    averaging: float = 0.0
    resolve: Callable[[Any, BuildContext], Any] = _keep
    resolve_with_rate: Callable[[Any, BuildContext], Any] = _keep
    check: Callable[[Any, BuildContext], None] = _accept
    check_sampler: Callable[[Any, Sampler, BuildContext], None] = _accept_sampler
    adaptive_clipping: str = ""
    regularisers: str = ""
    run_rounds: Callable[[int, BuildContext], int] = _all_rounds
    draws: Callable[[Any], bool] = _draws_nothing
    clip_norms: tuple[str, ...] = ("clip-norm",)
    correlated_noise: bool = False

    @property
    def draws_rounds(self) -> bool:
        """Whether the number of rounds is drawn before the run."""
        return self.run_rounds is not _all_rounds

    def default_rate(self, own: Any, context: BuildContext) -> float:
        """The step size that learning-rate=0 stands for in this run."""
        rule = self.learning_rate
        return rule.of(own, context) if isinstance(rule, DefaultRate) else rule


METHODS = Registry[Method](
    "optimizer", "see `fedpriv optimizers`; your own is named module:name", own_code=True
)


def register(method: Method) -> Method:
    """Add a method to METHODS."""
    return METHODS.add(method.name, method)


class ChoiceSettings(Settings):
    """Which optimizer runs."""

    optimizer: str = setting(
        "dynamic-dp-sgd",
        "private optimizer: see `fedpriv optimizers`; or your own, as module:name",
        words=METHODS,
    )


class OptimizerSettings(SharedSettings, ChoiceSettings):
    """All settings of optimizers but each method's own."""


def users_of(key: str, optimizer: str) -> str:
    """The methods that use the setting ``key``, for errors; those like ``optimizer`` come first.

    >>> users_of("learning-rate", "in-memory:DpSgd")
    'an optimizer by name; set it where you make your own optimizer'
    """
    if user_code.in_memory(optimizer):
        return "an optimizer by name; set it where you make your own optimizer"
    users = [m.name for m in METHODS.values() if key in m.uses or key in m.settings.fields()]
    users.sort(key=lambda name: not name.endswith(optimizer))
    if not users:
        return "an optimizer that takes it"
    return f"optimizer={' or '.join(users)}" if len(users) < 3 else f"optimizer={', '.join(users[:2])}, ..."

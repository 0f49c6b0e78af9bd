"""What a configuration tells an optimizer of the run that it is built for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.optimizers.registry import BuildContext, Calibrated

if TYPE_CHECKING:
    import numpy as np

    from fedpriv.config.schema import Config
    from fedpriv.optimizers.base import PublicFunction


def build_context(config: Config, calibrated: Calibrated | None = None) -> BuildContext:
    """The context of the configured optimizer; at the client level of a silo's, over all its releases."""
    return BuildContext(
        common=config,
        rounds=config.rounds * config.silo_steps,
        by_silo=config.level == "client",
        silo_steps=config.silo_steps,
        local_steps=config.work == "local-steps",
        sampler=config.sampler,
        placement=config.placement,
        draw=lambda purpose: _generator(config, purpose),
        public_gradient=lambda: _public_gradient(config),
        calibrated=calibrated,
    )


def _generator(config: Config, purpose: str) -> np.random.Generator:
    from fedpriv.rng import Key

    return Key.of(config.asked_seed).generator(purpose)


def _public_gradient(config: Config) -> PublicFunction:
    from fedpriv.config.builders import make_public
    from fedpriv.tasks.public_gradient import LazyGradient

    return LazyGradient(lambda: make_public(config))

"""What a configuration tells an optimizer of the run that it is built for, public data included."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedpriv.config.schema import Config
from fedpriv.optimizers.registry import BuildContext, Calibrated

if TYPE_CHECKING:
    from fedpriv.optimizers.base import PublicGradients


def build_context(
    config: Config, calibrated: Calibrated | None = None, dimension: int | None = None
) -> BuildContext:
    """The context of the configured optimizer; at the client level of a silo's, over all its releases.

    ``dimension`` is the number of parameters; None: that of the configured model.
    """
    return replace(
        config.context(),
        public_gradient=lambda: _public_gradient(config),
        dimension=lambda: _dimension(config) if dimension is None else dimension,
        calibrated=calibrated,
    )


def _dimension(config: Config) -> int:
    from fedpriv.config.builders import make_source, make_task

    return make_task(config, make_source(config)).dimension


def _public_gradient(config: Config) -> PublicGradients:
    from fedpriv.config.builders import make_public
    from fedpriv.tasks.public_gradient import LazyGradient

    return LazyGradient(lambda: make_public(config))

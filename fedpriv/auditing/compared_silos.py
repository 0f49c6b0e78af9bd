"""Silos that train in other processes (the client level), compared with the same silos in this process.

An audit at the client level observes every step inside a silo, which is possible in its own process only. So
the attack is made on silos in this process. In each round the run's engine trains the silos, too, from the
same model, with all of their examples and with the same seed. Its changes must be those that the run's own
code computes here: then what the attack finds about this code holds for the engine. A change that was counted
twice, came from another silo, or had other noise or another cohort differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedpriv.config.schema import Config
from fedpriv.node.silo import ModelDelta, SiloEngine, TrainRequest, make_silo_worker

_TOLERANCE = 1e-4  # of a change's largest coordinate: other processes may round differently
NOT_FROM_RELEASES = "a silo's change that does not follow from its charged releases"


def follows(change: ModelDelta, wanted: Tensor) -> bool:
    """Whether a silo's change is the ``wanted`` one (d,), up to rounding."""
    wanted = wanted.to(change.delta)
    return wanted.shape == change.delta.shape and bool(
        (change.delta - wanted).abs().max() <= _TOLERANCE * wanted.abs().max()
    )


@dataclass(frozen=True)
class ComparedSilos:
    """An engine whose changes are compared.

    Attributes:
        engine: trains the run's silos in other processes.
        twin: trains the same silos in this process.
    """

    engine: SiloEngine
    twin: SiloEngine

    @classmethod
    def started(cls, config: Config, make_engine: Callable[[Config], Any]) -> ComparedSilos:
        """The engine of a configuration with a seed, by which both sides have the same noise."""
        twin = make_silo_worker(config.table())
        return cls(make_engine(config), twin)

    def fault(self, request: TrainRequest) -> str | None:
        """What is wrong with the engine's changes in one round, in words; None if nothing is.

        A silo that did not answer sent nothing, and is no fault. Its twin goes on.
        """
        expected = {change.silo: change.delta for change in self.twin.train(request)}
        changes = self.engine.train(request)
        if len({change.silo for change in changes}) < len(changes):
            return "a silo that answered a round twice"
        for change in changes:
            if change.silo not in expected:
                return "a change of a silo that was not asked"
            if not follows(change, expected[change.silo]):
                return NOT_FROM_RELEASES
        return None

    def close(self) -> None:
        """Releases the engine's resources."""
        self.engine.close()

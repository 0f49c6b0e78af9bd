"""A ``PrivacyAccountant`` for Flower's own strategies (Flower 1.41), based on fedpriv's accounting methods.

Flower's wrappers accept any implementation of ``flwr.supercore.privacy_accounting.PrivacyAccountant``; Flower
itself provides an RDP accountant only. This one uses any of fedpriv's methods, PLD by default:

    config = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE,
                           SamplingMethod.NO_AMPLIFICATION, max_epsilon=8.0)
    DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 0.1, 10, accountant=FlowerAccountant(config))

How noise is added stays the wrapper's responsibility; see its documentation for its assumptions.

>>> config = PrivacyConfig(
...     1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
... )
>>> accountant = FlowerAccountant(config)
>>> accountant.compose(GaussianPrivacyEvent(2.0, 10, 100))
>>> round(accountant.get_epsilon(1e-5), 2)
1.99
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from fedpriv._internal import validation
from fedpriv.accounting import METHODS, Accountant, Budget, Event, epsilon
from fedpriv.accounting.events import Relation, Sampling

_SCHEMA = 1
_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: Relation.ADD_REMOVE,
    NeighboringRelation.REPLACE_ONE: Relation.REPLACE_ONE,
}
_SAMPLINGS = {
    SamplingMethod.POISSON: Sampling.POISSON,
    SamplingMethod.WITHOUT_REPLACEMENT: Sampling.WITHOUT_REPLACEMENT,
    SamplingMethod.NO_AMPLIFICATION: Sampling.NONE,
}


class FlowerAccountant:
    """Implements Flower's ``PrivacyAccountant`` protocol with one of fedpriv's accounting methods.

    Flower's noise multiplier is noise std over the clip norm, the z of :class:`fedpriv.accounting.Event`.
    Errors are ValueErrors, as Flower expects.
    """

    def __init__(self, config: PrivacyConfig, method: str = "pld") -> None:
        """An accountant without events. Raises ArgumentError for an unknown method."""
        self._config = config
        self._method = validation.choice("accounting", method, METHODS)
        self._events: list[Event] = []
        # An accountant with the last requested budget. It verifies ahead, so that a check per round is cheap.
        self._gate: Accountant | None = None

    @property
    def config(self) -> PrivacyConfig:
        """Flower's privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of composed releases."""
        return sum(event.count for event in self._events)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Composes ``count`` identical releases. It enforces no budget; ``would_exceed`` checks it."""
        added = [self._event(event, count)]
        self._events += added
        if self._gate is not None:
            if self._gate.affords(added):
                self._gate.charge(added)
            else:
                self._gate = None

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of all composed releases at ``delta`` in (0, 1)."""
        return epsilon(self._events, delta, self._method).epsilon

    def get_delta(self, epsilon: float) -> float:
        """An upper bound, tight to 0.1 % and at least 1e-15, of all releases' delta at ``epsilon`` >= 0."""
        validation.non_negative("epsilon", epsilon)
        low, high = math.log(1e-15), math.log(1 - 1e-9)
        if self.get_epsilon(math.exp(high)) > epsilon:
            return 1.0
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if self.get_epsilon(math.exp(middle)) <= epsilon else (middle, high)
        return math.exp(high)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The epsilon of all releases at ``delta`` (default: the configured one), with the method."""
        target = self._config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(target), target, self.num_releases, self._method)

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether composing ``count`` more releases would exceed ``max_epsilon``.

        The default is the configured limit. Raises ArgumentError if there is none.
        """
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise validation.ArgumentError("No max_epsilon is given; pass it, or set it in PrivacyConfig.")
        budget = Budget(
            validation.finite_positive("max_epsilon", limit), self._config.target_delta, self._method
        )
        if self._gate is None or self._gate.budget != budget:
            self._gate = Accountant(budget, charged=self._events)
        return not self._gate.affords([self._event(event, count)])

    def state_dict(self) -> dict[str, object]:
        """The complete state as a JSON-serialisable dict."""
        config = self._config
        return {
            "schema_version": _SCHEMA,
            "backend": f"fedpriv-{self._method}",
            "config": {
                "target_delta": config.target_delta,
                "population_size": config.population_size,
                "neighboring_relation": config.neighboring_relation.value,
                "sampling_method": config.sampling_method.value,
                "max_epsilon": config.max_epsilon,
            },
            "events": [event.to_json() for event in self._events],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state_dict``. Raises ArgumentError if it is from another kind of accountant."""
        own = self.state_dict()
        for key in ("schema_version", "backend", "config"):
            if state.get(key) != own[key]:
                raise validation.fail(f"state {key}", state.get(key), f"be {own[key]!r}")
        events = state.get("events")
        if not isinstance(events, list):
            raise validation.fail("state events", events, "be a list")
        self._events = [Event.from_json(record) for record in events]
        self._gate = None

    def _event(self, event: GaussianPrivacyEvent, count: int) -> Event:
        if event.population_size != self._config.population_size:
            raise validation.fail(
                "population_size", event.population_size, f"be the configured {self._config.population_size}"
            )
        sampling = _SAMPLINGS[self._config.sampling_method]
        fixed = sampling.fixed_size
        return Event(
            event.noise_multiplier,
            sampling,
            _RELATIONS[self._config.neighboring_relation],
            rate=1.0 if not sampling.samples else event.sample_size / event.population_size,
            population=event.population_size,
            cohort=event.sample_size if fixed else None,
            count=count,
        )

"""The configuration of a private run over a Flower app, whose clients train what their app has.

Only the settings of sampling, privacy, optimizer and output have a meaning there. Data, model and the
computation of a client are the app's own; the configuration names them as objects in memory, so that a stored
run is not mistaken for a simulation of another model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from fedpriv._internal import hints, user_code, validation
from fedpriv._internal.settings import by_key
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.config.settings import DataSettings, FederationSettings, MachineSettings
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.sampling import CyclicPoisson
from fedpriv.optimizers.public_data import PublicSettings

DATA, MODEL = f"{user_code.IN_MEMORY}:clients-of-a-flower-app", f"{user_code.IN_MEMORY}:flower-app"
_APP = {"dataset": DATA, "model": MODEL, "work": "local-steps", "engine": "in-process", "evaluate-every": 1}
# Of the groups whose other settings belong to the app or to simulations.
_KEPT = {"sampler", "sampling-rate", "rounds", "evaluate-every", "ledger-anchor", "ledger-anchor-command"}

_SIMULATED = {"noise-cohort", "noise-population"}


def configured(population: int, optimizer: Any, settings: Mapping[str, Any]) -> Config:
    """The configuration of N = ``population`` clients with these settings, by their Python names.

    Raises ArgumentError for an unknown setting, one that belongs to the app, or an impossible value.
    """
    validation.integer("population", population, minimum=1)
    values = by_key(settings)
    known = Config.keys()
    for key in values:
        if key not in known:
            raise validation.ArgumentError(f"there is no argument {key!r}; {hints.of_key(key, known)}")
        _require_own(key)
    values = {**_APP, "clients": population, **values}
    if isinstance(optimizer, str):
        values["optimizer"] = optimizer
    config = Config.parse(values)
    at_parties = PLACEMENTS[config.placement].at_parties
    if at_parties:  # a client that adds noise is a node with data and a ledger of its own
        config = config.changed(nodes_own_data=True)
    if optimizer is None or isinstance(optimizer, str):
        return config
    if at_parties:
        hint = "each client makes the plan itself, and an object is not sent"
        raise validation.fail("optimizer", optimizer, f"be a name with placement {config.placement}", hint)
    made: Any = optimizer() if inspect.isclass(optimizer) else optimizer
    return config.with_optimizer(made)


def _require_own(key: str) -> None:
    """Raises ArgumentError for a setting that has no meaning for a Flower app."""
    if key in _SIMULATED:
        name = key.replace("-", "_")
        raise validation.ArgumentError(
            f"{name} is no setting of a Flower app's strategy: it would protect nobody, and is for "
            "`fedpriv simulate`."
        )
    groups = (DataSettings, FederationSettings, MachineSettings)
    if key in _KEPT or not any(key in group.fields() for group in groups):
        return
    name = key.replace("-", "_")
    hint = "population is the number of clients" if key == "clients" else "the app decides it"
    raise validation.ArgumentError(f"{name} is no setting of a Flower app's strategy: {hint}.")


def planned(config: Config, dimension: int) -> Plan:
    """The plan of a run over an app with this number of trained parameters.

    Raises ArgumentError if the settings contradict each other, or do not work with a Flower app.
    """
    if config.sampler == CyclicPoisson.name:
        hint = "a client must keep its number all run, and clients of an app come and go"
        raise validation.fail("sampler", config.sampler, "be another for a Flower app", hint)
    if config.privacy_unit.in_silos:
        raise validation.fail("unit", config.unit, "be client", "the clients answer with one model each")
    if isinstance(config.own, PublicSettings) or config.public_examples:
        hint = "only fedpriv's own apps have public examples"
        raise validation.fail("optimizer", config.optimizer, "do without public examples", hint)
    return make_plan(config, dimension=dimension)

"""What is audited: a plan with canaries in place of its units, or with its own data and model."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.auditing import claims
from fedpriv.auditing.audited_units import AuditedUnits
from fedpriv.auditing.canaries import LARGEST, LAYERS, canaries_of, nodes_of
from fedpriv.auditing.compared_silos import ComparedSilos
from fedpriv.auditing.distinct_units import DistinctUnits
from fedpriv.auditing.noting_silos import NotingSilos
from fedpriv.auditing.own_units import OwnUnits, usual_number
from fedpriv.auditing.views import Splitter, View
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.node.factory import make_worker
from fedpriv.node.planted import most_canaries, planted_ids, span_of
from fedpriv.rng import Key

MOST = 100_000  # the default limit of canaries
_MOST_LOCAL_STEPS = 5_000  # the same with local steps, where each client's change is computed separately
_MOST_MESSAGES = 2_000  # the same where each message is computed separately
_SUSPECTED = (1.0, 0.5, 0.25, 0.125)
# Where units are each other's noise, who expects much noise cannot tell them apart, even if there is none.
_SUSPECTED_OF_OWN = (1.0, 0.25, 0.0625, 0.001)
_MOST_SEEDS = 2**31
_INITIAL_STD = 0.1  # of the initial parameters

Made = Callable[[Config], Any]
_PARTITION = (  # what the audit's silos, which are equal, do without
    "partition",
    "client_sizes",
    "dirichlet_alpha",
    "labels_per_client",
    "partition_seed",
)


@dataclass(frozen=True)
class Subject:
    """A run to be audited.

    Attributes:
        plan: what runs.
        view: what the adversary sees.
        side: the worker by which the auditor computes exact sums.
        engine: what the run's sums are computed by.
        units: the units, some of which a coin leaves out or replaces.
        coins: the units whose coins are guessed, ascending (k,).
        there: the coins of these, bool (k,).
        start: the parameters (d,) at the beginning.
        key: the run's key, which is seeded, so that steps can be repeated.
        elsewhere: the run's engine, if its silos train apart in other processes.
        on_nodes: whether the nodes themselves leave units out of their data. They answer each release once,
            so that steps are repeated in this process.
        noting: the nodes' silos, if they train apart on data of their own.
    """

    plan: Plan
    view: View
    side: Worker
    engine: Engine
    units: AuditedUnits
    coins: NDArray[np.int64]
    there: NDArray[np.bool_]
    start: Tensor
    key: Key
    elsewhere: ComparedSilos | None = None
    on_nodes: bool = False
    noting: NotingSilos | None = None

    def close(self) -> None:
        """Releases the resources of the run's engine."""
        self.engine.close()
        if self.elsewhere is not None:
            self.elsewhere.close()

    def gather(self, request: SumRequest, units: AuditedUnits) -> PartialSum:
        """What the run's engine gives over ``units``, which have the same numbers as the subject's."""
        if self.on_nodes:
            return self.engine.gather(request)
        if not isinstance(units, OwnUnits):
            return replace(self.side, view=units).gather(request)
        shards = tuple(replace(shard, ids=units.asked(shard.ids)) for shard in request.shards)
        return self.engine.gather(replace(request, shards=shards))

    def repeat(self, request: SumRequest, units: AuditedUnits) -> PartialSum:
        """The same for a step that is repeated: of the run's code in this process on nodes."""
        if not self.on_nodes:
            return self.gather(request, units)
        return replace(self.side, view=units).gather(request)

    @property
    def suspected(self) -> tuple[float, ...]:
        """The noise that each adversary assumes, as a factor on the claimed noise."""
        return _SUSPECTED_OF_OWN if self.own_data else _SUSPECTED

    @property
    def own_data(self) -> bool:
        """Whether the run has its own data and model."""
        return isinstance(self.units, OwnUnits)


def with_canaries(plan: Plan, view: View, key: Key) -> Subject:
    """The plan with a canary in place of each unit."""
    there = key.generator("canaries").random(plan.units) < 0.5
    units = canaries_of(plan, there, view)
    side = nodes_of(plan, units, key)
    params = key.generator("initial-params").normal(0, _INITIAL_STD, LAYERS * units.parameters)
    start = torch.from_numpy(params).float().to(side.device)
    coins = np.arange(first_secret(plan, view), plan.units)
    return Subject(plan, view, side, side, units, coins, there[coins], start, key)


def with_own_data(plan: Plan, view: View, key: Key, count: int, make_engine: Made) -> Subject:
    """The plan with its own data and model; ``count`` units have a coin (0: as many as are usual).

    ``make_engine`` starts the engine that the configuration names, which the caller closes.
    """
    config = plan.config
    worker = replace(make_worker(config.table()), key=key)
    generator, span = key.generator("canaries"), span_of(config)
    coins = _with_coins(plan, view, count, worker.task.dimension, generator)
    there = generator.random(len(coins)) < 0.5
    replaced = claims.replaces(config) or (view is View.SERVER and not config.privacy_unit.in_silos)
    units = OwnUnits(worker.view, worker, coins, coins[~there], replaced, span)
    side = replace(worker, view=units)
    start = initial_params(worker.task, key).to(worker.device)
    here = config.in_process or config.by_silo  # silos' steps are observed in this process
    config = with_seed(config)  # other processes repeat their noise
    engine: Engine = worker
    if not here:
        engine = DistinctUnits(make_engine(config)) if replaced else make_engine(config)
    elsewhere = None if config.in_process or not here else ComparedSilos.started(config, make_engine)
    return Subject(plan, view, side, engine, units, coins, there, start, key, elsewhere)


def require_a_coin(among: NDArray[np.int64]) -> None:
    """Raises ArgumentError where all planted canaries are units whose coins the adversary knows."""
    if not len(among):
        hint = "raise planted-canaries, or take a view that knows fewer coins"
        raise validation.ArgumentError(
            f"no planted canary has a coin that the adversary does not know; {hint}"
        )


def _with_coins(
    plan: Plan, view: View, count: int, dimension: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The units that have a coin, ascending: random ones, or the run's planted canaries."""
    config, first = plan.config, first_secret(plan, view)
    if config.planted_canaries:
        among = planted_ids(config)
        among = among[among >= first]
        require_a_coin(among)
        return np.sort(generator.choice(among, count, replace=False)) if count else among
    most = plan.units - first
    count = min(most, count or usual_number(dimension))
    return np.asarray(np.sort(generator.choice(most, count, replace=False)) + first)


def with_seed(config: Config) -> Config:
    """The configuration with a seed, by which other processes repeat their noise: its own or a random one."""
    return config if config.seed >= 0 else config.changed(seed=secrets.randbelow(_MOST_SEEDS))


def first_secret(plan: Plan, view: View) -> int:
    """The first unit whose coin the adversary does not know: colluding parties know their own."""
    known = Splitter.of(view, plan).known
    return known * (plan.config.examples_per_client if plan.config.privacy_unit.in_silos else 1)


def require_auditable(config: Config, own_data: bool = False, on_nodes: bool = False) -> None:
    """Raises ArgumentError if there is no noise, or the audit cannot make canaries for the run.

    Args:
        config: the run.
        own_data: whether the units are the run's own.
        on_nodes: whether they are the data of nodes' owners.
    """
    if not PLACEMENTS[config.placement].adds_noise:
        hint = "without noise there is nothing to audit"
        raise validation.fail("placement", config.placement, "add noise for an audit", hint)
    if config.simulates_noise:
        hint = "with the noise of larger cohorts nothing is claimed for the run's own clients"
        raise validation.fail("noise-cohort", config.noise_cohort, "be 0 for an audit", hint)
    if config.silo_sampling != "same-rate":
        hint = "the audit's silos are equal"
        raise validation.fail("silo-sampling", config.silo_sampling, "be same-rate for an audit", hint)
    if on_nodes:
        return _require_nodes(config)
    if own_data:
        return _require_own_data(config)
    if config.planted_canaries:
        hint = "without the run's own data, every unit is a canary"
        raise validation.fail("planted-canaries", config.planted_canaries, "be 0 without --own-data", hint)
    for key in config.method.clip_norms:
        if (clip_norm := float(config.table()[key])) > LARGEST:
            hint = "dividing all clip norms and step sizes by one number does not change the privacy"
            raise validation.fail(key, clip_norm, f"be at most {LARGEST:g} for an audit", hint)
    if config.public_examples:
        hint = "audit it with your own data (--own-data), where it has its public examples"
        raise validation.ArgumentError(
            f"optimizer={config.optimizer} cannot be audited with canaries, because it learns from public "
            f"examples; {hint}"
        )


def _require_own_data(config: Config) -> None:
    """Raises ArgumentError for what an audit of a run's own data cannot watch."""
    if config.nodes_own_data:
        hint = "`fedpriv audit --deployment` audits a deployment whose nodes are all yours"
        raise validation.fail("nodes-own-data", True, "be false for an audit", hint)
    if config.privacy_unit.in_silos and config.partitioning.several:
        hint = "the audit swaps examples of equal silos"
        raise validation.fail("partition", config.partition, "be one-example for an audit", hint)
    if names_examples_twice(config) and not config.in_process:
        hint = "an example that replaces another would be in a silo's message twice, which nodes refuse"
        raise validation.fail(
            "engine", config.engine, "be in-process for an audit of replaced examples", hint
        )


def names_examples_twice(config: Config) -> bool:
    """Whether an audit would ask silos for a message in which an example replaces another one."""
    silos_add_noise = config.privacy_unit.in_silos and PLACEMENTS[config.placement].at_parties
    return silos_add_noise and claims.replaces(config) and not config.by_silo


def _require_nodes(config: Config) -> None:
    """Raises ArgumentError for what an audit on nodes with their own data cannot watch."""
    if not config.nodes_own_data:
        raise validation.fail("nodes-own-data", False, "be true for an audit of a deployment")
    if not config.privacy_unit.in_silos:
        hint = "a coin for each node would be too few"
        raise validation.fail("unit", config.unit, "be example for an audit of a deployment", hint)
    if config.seed >= 0:
        hint = "nodes draw their noise as in any run"
        raise validation.fail("seed", config.seed, "be left out for an audit of a deployment", hint)
    if config.augmentation_copies:
        hint = "nodes draw variants that the auditor cannot repeat"
        raise validation.fail("augmentation-copies", config.augmentation_copies, "be 0", hint)


def canaries_plan(config: Config, canaries: int, view: View) -> Plan:
    """The plan of the configuration with ``canaries`` units (0: as many as are usual)."""
    require_auditable(config)
    config = config.resolved()  # defaults, such as delta, depend on the configured number of units
    _require_units(config, canaries)
    most = _MOST_LOCAL_STEPS if config.trains_locally else MOST
    most = _MOST_MESSAGES if view is View.SERVER and not config.privacy_unit.in_silos else most
    count = canaries or min(config.units, most)
    changes: dict[str, Any] = {"clients": count, "nodes_own_data": False}
    if config.privacy_unit.in_silos:
        clients = min(config.clients, count)
        changes |= {"clients": clients, "examples_per_client": -(-count // clients)}
        changes |= {key: Config.model_fields[key].default for key in _PARTITION}
    return make_plan(config.changed(**changes))


def own_plan(config: Config, canaries: int) -> Plan:
    """The plan of the configuration as it is."""
    require_auditable(config, own_data=True)
    _require_units(config.resolved(), canaries)
    if config.planted_canaries:
        require_planted(config, canaries)
    return make_plan(config)


def require_planted(config: Config, canaries: int) -> None:
    """Raises ArgumentError for a second number of canaries, or more than there is room for."""
    number = config.planted_canaries
    if canaries:
        raise validation.fail("canaries", canaries, f"be 0 with planted-canaries={number}")
    if number > (most := most_canaries(config.units, span_of(config))):
        hint = "each canary takes two units, for itself and for its opposite"
        raise validation.fail("planted-canaries", number, f"be at most {most} in this run", hint)


def _require_units(config: Config, canaries: int) -> None:
    if validation.integer("canaries", canaries) > config.units:
        hint = "if you raise clients, set delta, too, since its default depends on clients"
        raise validation.fail("canaries", canaries, f"be at most the run's {config.units} units", hint)

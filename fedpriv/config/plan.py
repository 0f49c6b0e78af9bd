"""Public configuration -> a consistent run: sampler, optimizer, placement, calibrated noise, budget.

Everything here is decided before any data is touched, from public numbers alone. Settings that
contradict each other are refused with one line that says which and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedpriv._internal import hardware, ray_cluster, user_code, validation
from fedpriv.accounting import Budget, calibrate
from fedpriv.accounting.events import Event, Relation
from fedpriv.accounting.local_view import costliest
from fedpriv.accounting.parallel_composition import costs_no_more
from fedpriv.config import consistency
from fedpriv.config.bands import with_bands
from fedpriv.config.context import build_context
from fedpriv.config.schema import Config
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism
from fedpriv.mechanism.correlated import has_room
from fedpriv.mechanism.grid import most_steps
from fedpriv.mechanism.placement import PLACEMENTS, Placement, PlacementContext, SimulatedNoise
from fedpriv.mechanism.sampling import SAMPLERS, Sampler, SamplerContext, SamplerKind
from fedpriv.optimizers import BuildContext, Calibrated, PrivateOptimizer, wrapped
from fedpriv.optimizers.wrappers import unwrapped
from fedpriv.rng import Key

# A truncated Poisson cohort leaves its public bounds with at most this share of delta over the run.
_TRUNCATION_SHARE = 1e-3

_SEEDED_PARTS = 4  # chunks of an expected cohort, of a reproducible run
_PARTY_CHUNK, _CHUNKS = 128, (16, 512)  # clients: below, calls cost; above, nothing more is saved


@dataclass(frozen=True)
class SiloSchedule:
    """The releases of silos that are alike, at the client level.

    Attributes:
        mechanism: that of one of these silos alone.
        events: its planned events of the whole run.
        silos: the numbers of these silos, ascending.
    """

    mechanism: Mechanism
    events: tuple[Event, ...]
    silos: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """One run, decided.

    Attributes:
        config: the configuration it follows from.
        setup: optimizer, sampler, placement, calibrated scale, rounds; at the client level those of every
            silo alone, whose rounds are its releases of the whole run.
        budget: what may be spent, or None where no noise was asked for.
        units: N, the public number of privacy units.
        max_participations: K of the local placement (rounds where there is no cap), else None.
        configured: the optimizer that the configuration names, as ``make_plan`` built it.
        silo_samplers: the sampler of each silo at the client level, by the silo's public size; ``mechanism``
            has that of the silo with the largest rate, which loses most.
    """

    config: Config
    mechanism: Mechanism
    budget: Budget | None
    units: int
    max_participations: int | None
    configured: PrivateOptimizer | None = field(default=None, compare=False)
    silo_samplers: Mapping[int, Sampler] = field(default_factory=dict, hash=False)

    @property
    def optimizer_object(self) -> PrivateOptimizer | None:
        """What runs, where no setting names it: an optimizer that was handed over, or put in place of the
        configured one, as an object or a class."""
        if self.mechanism.optimizer is not self.configured:
            return self.mechanism.optimizer
        if not user_code.in_memory(self.config.optimizer):
            return None
        return self.config.optimizer_object or unwrapped(self.mechanism.optimizer)

    def key(self) -> Key:
        """The server's key: OS entropy, or the seed that was asked for."""
        return Key.of(self.config.asked_seed)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The gate's events of the whole run; at the client level those of the silo that loses most."""
        return self.mechanism.planned_events()

    @cached_property
    def schedules(self) -> tuple[SiloSchedule, ...]:
        """The events of all silos at the client level, the costliest first, and who follows them."""
        sizes, found = self.config.silo_sizes, dict[Sampler, list[int]]()
        for size, sampler in self.silo_samplers.items():
            found.setdefault(sampler, []).extend(np.flatnonzero(sizes == size).tolist())
        schedules = [
            SiloSchedule(mechanism, mechanism.planned_events(), tuple(sorted(silos)))
            for sampler, silos in found.items()
            for mechanism in [replace(self.mechanism, sampler=sampler)]
        ]
        return tuple(sorted(schedules, key=lambda one: (one.events != self.events, one.silos)))

    def schedule_of(self, silo: int) -> SiloSchedule:
        """The schedule of one silo at the client level."""
        return self._schedule_of[silo]

    @cached_property
    def _schedule_of(self) -> dict[int, SiloSchedule]:
        return {silo: schedule for schedule in self.schedules for silo in schedule.silos}

    @property
    def rounds(self) -> int:
        """The server's rounds."""
        return self.config.rounds

    @property
    def by_silo(self) -> bool:
        """Whether each silo makes private steps of its own (the client level)."""
        return self.config.by_silo

    @property
    def capped(self) -> bool:
        """Whether units are kept from giving data to more than K releases; a cap of all rounds keeps
        nobody from giving data to releases that are made again."""
        return self.max_participations is not None and self.max_participations < self.mechanism.rounds

    def of_worst_client(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Of the gate's ``events``, those that the unit who loses most can have given data to."""
        if self.max_participations is None or not self.capped:
            return tuple(events)
        return costliest(events, self.max_participations)

    @property
    def chunk_size(self) -> int:
        """The expected size of a chunk: as configured, else so that every actor has one, within reason.

        Chunks fix how sums are rounded, and at parties their noise. So where parties add noise, and with a
        seed, which is to give the same run on every machine, they do not depend on the number of actors.
        """
        if self.config.chunk_size:
            return self.config.chunk_size
        if self.mechanism.placement.at_parties:
            return _PARTY_CHUNK
        parts = number_of_actors(self.config) if self.config.seed < 0 else _SEEDED_PARTS
        share = math.ceil(self.mechanism.sampler.expected_size / parts)
        return min(max(share, _CHUNKS[0]), _CHUNKS[1])

    def cohorts(self, key: Key, silo: int | None = None) -> CohortSampler:
        """The run's cohort source, or at the client level that of ``silo``."""
        silos = self.config.privacy_unit.in_silos
        mechanism = self.mechanism if silo is None else self.schedule_of(silo).mechanism
        return CohortSampler(
            sampler=mechanism.sampler,
            key=key,
            chunk_size=self.chunk_size,
            silo_starts=np.concatenate([[0], np.cumsum(self.config.silo_sizes)]) if silos else None,
            silo=silo,
            max_participations=self.max_participations if self.capped else None,
            data_on_node=self.config.nodes_own_data,
        )


def make_plan(
    config: Config, optimizer: PrivateOptimizer | None = None, dimension: int | None = None
) -> Plan:
    """The plan of a configuration.

    Args:
        config: the settings.
        optimizer: an optimizer to run in place of the one that the configuration names; the wrappers that are
            configured go around it.
        dimension: d, the number of parameters, where another model is trained than the configured one.

    Raises:
        ArgumentError: settings contradict each other, or the budget cannot be met.
    """
    config = config if optimizer is None else config.with_optimizer(optimizer)
    rate_is_default, config = config.learning_rate == 0, config.resolved()
    consistency.check_noise_cohort(config)
    consistency.check_correlated(config)
    consistency.check_parts(config)
    consistency.check_silo_sizes(config)
    consistency.check_canaries(config)
    if config.by_silo:
        consistency.check_client_level(config)
    consistency.check_used(config)
    consistency.check_privacy(config, config.units, config.delta)
    consistency.check_optimizer(config, build_context(config, dimension=dimension))
    if not config.by_silo:
        return _make_plan(config, rate_is_default, dimension)
    return _plan_of_silos(config)


def _plan_of_silos(config: Config) -> Plan:
    """The plan of silos, which are disjoint: that of a run over the silo alone that loses most.

    All silos have its noise multiplier. Of silos with equal multipliers, the one with the largest sampling
    rate loses most.
    """
    alone = {size: _alone(config, size) for size in np.unique(config.silo_sizes).tolist()}
    samplers = {size: make_sampler(one, size, one.delta) for size, one in alone.items()}
    worst = max(samplers, key=lambda size: samplers[size].event(1.0).rate)
    unequal = config.client_sizes if len(alone) > 1 else ""
    silo = _make_plan(alone[worst], unequal=unequal)
    plan = replace(silo, config=config, units=config.units, silo_samplers=samplers)
    for sampler in samplers.values():  # what only some of the silos cannot do is refused here, too
        config.method.check_sampler(config.own, sampler, build_context(alone[worst]))
    if not all(costs_no_more(schedule.events, plan.events) for schedule in plan.schedules):
        hint = "rounding gives no silo the largest sampling rate in every release; use sampler poisson"
        raise validation.fail("client-sizes", config.client_sizes, f"be equal with {config.optimizer}", hint)
    return plan


def _alone(config: Config, size: int) -> Config:
    """The run over one silo of this public size alone."""
    rate = config.sampling_rate
    if config.silo_sampling == "same-size":
        rate = min(1.0, rate * config.examples_per_client / size)
    changes = {"level": "aggregation", "silo_steps": 1, "clients": 1, "partition": "one-example"}
    changes |= {"client_sizes": "equal", "examples_per_client": size, "silo_sampling": "same-rate"}
    return config.model_copy(
        update=changes | {"sampling_rate": rate, "rounds": config.rounds * config.silo_steps}
    )


def _make_plan(
    config: Config, rate_is_default: bool = False, dimension: int | None = None, unequal: str = ""
) -> Plan:
    """The plan of one federation, or of one silo, whose settings are resolved and agree with each other.

    A step size that ``rate_is_default`` is asked for again, once the noise is known. Silos of ``unequal``
    sizes have means of unequal noise: an optimizer that reads it is refused.
    """
    units, delta = config.units, config.delta
    config = with_bands(config)
    context = build_context(config, dimension=dimension)
    sampler = make_sampler(config, units, delta)
    config.method.check_sampler(config.own, sampler, context)
    placement = make_placement(config, sampler)
    cap = placement.participations(config.rounds)
    optimizer = make_optimizer(config, context)
    unscaled = Mechanism(optimizer, sampler, placement, 1.0, config.rounds)
    rounds = config.method.run_rounds(config.rounds, context)
    if not placement.adds_noise:
        mechanism = replace(unscaled, scale=0.0, rounds=rounds)
        return Plan(config, mechanism, None, units, None, optimizer)
    budget = Budget(config.epsilon, delta, config.accounting)
    events = unscaled.planned_events()
    scale = calibrate(costliest(events, cap) if cap else events, budget)

    if sampler.bands > 1 and config.exact_noise and not has_room(sampler.bands, most_steps(scale)):
        hint = (
            f"integers of 64 bits have no room for noise of {scale:.4g} clip norms and {sampler.bands} bands"
        )
        raise validation.fail("noise-draws", config.noise_draws, "be fast, or noise-bands be fewer", hint)

    def noise_std(sensitivity: float) -> float:
        if unequal:
            hint = "it corrects by the noise of a silo's mean, which depends on the silo's size"
            raise validation.fail("client-sizes", unequal, f"be equal with {config.optimizer}", hint)
        return placement.total_stds((scale * sensitivity,))[0] / sampler.expected_size

    calibrated = Calibrated(scale, sampler.expected_size, noise_std)
    if rate_is_default:
        config = config.with_default_rate(build_context(config, calibrated, dimension))
    optimizer = make_optimizer(config, build_context(config, calibrated, dimension))
    mechanism = replace(unscaled, optimizer=optimizer, scale=scale, rounds=rounds)
    return Plan(config, mechanism, budget, units, cap, optimizer)


def make_optimizer(config: Config, context: BuildContext | None = None) -> PrivateOptimizer:
    """The optimizer that the configuration names, inside its wrappers; ``config`` is resolved."""
    context = context or build_context(config)
    return wrapped(config.method.build(config.own, context), context)


def number_of_actors(config: Config) -> int:
    """As configured, else as many as find room on the GPUs, else as there are CPUs for; 1 without actors."""
    if config.in_process:
        return 1
    if config.actors:
        return config.actors
    there, share = gpus(config), config.gpus_per_actor
    if share:
        # An actor's fraction lies on one GPU; what rounding takes from 1 / share must not cost an actor.
        return max(1, there * int(1 / share + 1e-9) if share < 1 else int(there / share))
    if there:
        return there
    cluster = ray_cluster.resources()
    return max(1, int((cluster["CPU"] if cluster else hardware.usable()) / config.cpus_per_actor))


def gpus(config: Config) -> int:
    """The GPUs for actors: those of the Ray cluster, else of this machine; 0 if the device is a CPU."""
    cluster = None if config.device == "cpu" else ray_cluster.resources()
    return int(cluster["GPU"]) if cluster else hardware.gpus(config.device)


def gpu_share(config: Config) -> float:
    """The GPUs that Ray lends each actor: as configured, else a GPU, or an equal part of one.

    Without a share Ray hides all GPUs from an actor, whose device would be a CPU or not be there.
    """
    there = gpus(config)
    if config.gpus_per_actor or not there:
        return config.gpus_per_actor
    return 1 / -(-number_of_actors(config) // there)


def make_sampler(config: Config, units: int, delta: float) -> Sampler:
    """The sampler that the configuration names, over ``units`` units."""
    tail = None
    if PLACEMENTS[config.placement].at_parties and not config.privacy_unit.in_silos:
        # (1 + e^epsilon) * rounds * tail stays a small share of delta.
        spread = (1 + math.exp(min(config.epsilon, 300.0))) * config.rounds
        tail = _TRUNCATION_SHARE * delta / (2 * spread)
    return _sampler(config, units, config.sampling_rate, tail)


def _sampler(config: Config, units: int, rate: float, tail: float | None = None) -> Sampler:
    """The configured sampler over ``units`` units at this rate."""
    kind = SAMPLERS[config.sampler]
    own = config.part(kind.settings)
    return kind.build(SamplerContext(units, rate, _relation(config, kind), _known(config), tail, own))


def _colluders(config: Config) -> int:
    """How many parties other than a unit's own collude at most."""
    return min(config.colluding_parties, config.clients - 1)


def _known(config: Config) -> int:
    """How many units' part in cohorts the colluding parties know."""
    return config.units_of_parties(_colluders(config))


def _relation(config: Config, kind: SamplerKind) -> Relation:
    """The relation of neighbours: as configured, else the sampler's."""
    relation = kind.sampling.relation if config.relation == "auto" else Relation(config.relation)
    if not kind.allows(relation):
        other = "replace-one" if relation is Relation.ADD_REMOVE else "add-remove"
        raise validation.fail("relation", config.relation, f"be {other} with sampler {kind.name}")
    return relation


def make_placement(config: Config, sampler: Sampler) -> Placement:
    """The placement with its public numbers m (shares) and n_min."""
    kind = PLACEMENTS[config.placement]
    context = PlacementContext(
        sampler,
        silos=config.clients if config.privacy_unit.in_silos else None,
        min_replies=config.min_replies,
        colluders=_colluders(config),
        exact=config.exact_noise,
        rounds=config.rounds,
        nodes_own_data=config.nodes_own_data,
        own=config.part(kind.settings),
    )
    placement = kind.configured(context)
    if not config.simulates_noise:
        return placement
    population = config.noise_units
    stands_for = _sampler(config, population, config.noise_cohort / population)
    return SimulatedNoise(exact=placement.exact, sampler=sampler, stands_for=stands_for)

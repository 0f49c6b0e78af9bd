"""Settings that contradict each other, or that have no effect in a run: refused before any work.

Every function raises ArgumentError, in one line that says which setting and what to do. What an optimizer
cannot be combined with is in its own file.
"""

from __future__ import annotations

import math

from fedpriv._internal import user_code, validation
from fedpriv.accounting.events import Relation
from fedpriv.config.schema import Config, unused
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.query import check_range
from fedpriv.mechanism.sampling import SAMPLERS, CyclicPoisson, CyclicSettings
from fedpriv.optimizers import METHODS, BuildContext, wrappers


def check_used(config: Config) -> None:
    """Refuse a setting that was changed and has no effect in this run."""
    found = unused(config)
    if found is not None:
        key, needed = found
        raise validation.ArgumentError(f"{key} is {config.table()[key]!r}, which needs {needed}")


def check_optimizer(config: Config, context: BuildContext) -> None:
    """Refuse what the optimizer, and the wrappers around it, cannot be combined with."""
    if config.nodes_own_data and config.method.draws_rounds:
        hint = "each node would draw a number of rounds of its own"
        raise validation.fail("optimizer", config.optimizer, "be another where nodes own their data", hint)
    config.method.check(config.own, context)
    wrappers.check(config.method, context)


def check_silo_sizes(config: Config) -> None:
    """Refuse silos of the data set's own users that would use one example each."""
    if config.privacy_unit.in_silos and config.partitioning.natural and config.examples_per_client < 2:
        hint = "a silo is a user of the data set, and this is the public number of examples that each may use"
        raise validation.fail("examples-per-client", config.examples_per_client, "be at least 2", hint)


def check_privacy(config: Config, units: int, delta: float) -> None:
    """Refuse what gives no protection, or none that can be stated: delta, clip norms, budget, unit."""
    placement = PLACEMENTS[config.placement]
    if delta >= 1 / units and placement.adds_noise:
        raise validation.fail("delta", delta, f"be below 1 / units = {1 / units:g}", "0 means 1 / (10 units)")
    for key in config.method.clip_norms:
        clip_norm = float(config.table()[key])
        check_range(key, clip_norm)
        if placement.adds_noise and math.isinf(clip_norm):
            raise validation.fail(key, math.inf, "be finite where noise is added")
    if math.isinf(config.epsilon) and placement.adds_noise:
        raise validation.fail(
            "epsilon", config.epsilon, "be finite", "use placement none to train unprotected"
        )
    if config.noise_draws == "fast" and config.nodes_own_data:
        hint = "floating-point noise is for simulations"
        raise validation.fail("noise-draws", "fast", "be exact where nodes own their data", hint)
    if config.relation == Relation.ADD_REMOVE.value and placement.server_view:
        hint = "the server sees who takes part; what they hold is replaced"
        raise validation.fail(
            "relation", config.relation, "be auto or replace-one with placement local", hint
        )
    if config.continues and not (config.continues.isascii() and config.continues.isdecimal()):
        raise validation.fail("continues", config.continues, "be the number of a run, or empty")
    if config.ledger_anchor and config.ledger_anchor_command:
        raise validation.fail("ledger-anchor", config.ledger_anchor, "be empty with ledger-anchor-command")
    if config.privacy_unit.in_silos and config.partitioning.several and config.nodes_own_data:
        hint = "a node's data is what its file holds"
        raise validation.fail("partition", config.partition, "be one-example with nodes-own-data", hint)
    if config.privacy_unit.in_silos and config.trains_locally:
        raise validation.fail("work", config.work, "be gradient where the unit is an example")


def check_noise_cohort(config: Config) -> None:
    """Refuse the noise of larger cohorts wherever it is not a simulation of clients under central noise."""
    if not config.simulates_noise:
        return

    def refused(allowed: str, hint: str) -> validation.ArgumentError:
        return validation.fail("noise-cohort", config.noise_cohort, allowed, hint)

    if config.nodes_own_data:
        hint = "its noise protects nobody, and is for simulations"
        raise refused("be 0 where nodes own their data", hint)
    if config.privacy_unit.in_silos:
        raise refused("be 0 where the unit is an example", "it is for simulations of clients")
    if PLACEMENTS[config.placement].at_parties:
        raise refused(f"be 0 with placement {config.placement}", "the server adds the noise that it scales")
    if config.sampler == CyclicPoisson.name or not SAMPLERS[config.sampler].sampling.samples:
        raise refused(f"be 0 with sampler {config.sampler}", "poisson and fixed-size have it")
    own, population = config.clients * config.sampling_rate, config.noise_units
    if config.noise_cohort < own:
        raise refused(f"be at least the run's own expected cohort, {own:g}", "0 takes the run's own")
    if population < config.noise_cohort:
        raise validation.fail(
            "noise-population", population, f"be at least noise-cohort={config.noise_cohort}"
        )
    if config.delta * population > 1:
        hint = "it is the population that the noise is for"
        raise validation.fail(
            "delta", config.delta, f"be at most 1 / noise-population = {1 / population:g}", hint
        )


def check_no_audit(config: Config) -> None:
    """Refuse an audit, and its canaries, in a run whose model is for use."""
    if config.audit:
        raise validation.fail("audit", True, "be false", "`fedpriv audit --deployment` starts audits")
    if config.planted_canaries:
        hint = "they take the place of units; `fedpriv audit --own-data` plants them"
        raise validation.fail("planted-canaries", config.planted_canaries, "be 0 in a run", hint)


def check_canaries(config: Config) -> None:
    """Refuse canaries where nodes own their data and the run is no audit."""
    if config.planted_canaries and config.nodes_own_data and not config.audit:
        hint = "`fedpriv audit --deployment` plants canaries"
        raise validation.fail(
            "planted-canaries", config.planted_canaries, "be 0 where nodes own their data", hint
        )


def check_parts(config: Config) -> None:
    """Refuse frozen parameters whose values not every node would have."""
    for key, value in (("frozen", config.frozen), ("lora-rank", config.lora_rank)):
        if not value:
            continue
        if not user_code.named(config.model) and not config.initial_weights:
            hint = f"what is not trained of model={config.model} would be zero; give initial-weights"
            raise validation.fail(key, value, "be used with weights that are there", hint)
        if config.nodes_own_data and config.initial_weights:
            hint = "nodes get trained parameters alone; let your own model bring the others"
            raise validation.fail(
                key, value, "be used without initial-weights where nodes own their data", hint
            )


def check_correlated(config: Config) -> None:
    """Refuse what noise that is correlated over releases is not proved for."""
    sampler = f"with sampler {CyclicPoisson.name}"
    if config.sampler != CyclicPoisson.name:
        return
    if PLACEMENTS[config.placement].at_parties:
        hint = "one party must know the noise of earlier releases"
        raise validation.fail("placement", config.placement, f"be central {sampler}", hint)
    if config.by_silo:
        raise validation.fail("level", config.level, f"be aggregation {sampler}", "groups are the server's")
    if config.nodes_own_data:
        hint = "a unit must keep its number during a run, which a node's file does not ensure"
        raise validation.fail("nodes-own-data", True, f"be false {sampler}", hint)
    if config.part(CyclicSettings).noise_bands == 1:
        return
    if not config.method.correlated_noise:
        names = ", ".join(method.name for method in METHODS.values() if method.correlated_noise)
        allowed = f"be one of {names} {sampler}, or noise-bands be 1"
        raise validation.fail("optimizer", config.optimizer, allowed)
    if config.adaptive_quantile:
        hint = "the norm bits' noise is independent"
        raise validation.fail("adaptive-quantile", config.adaptive_quantile, f"be 0 {sampler}", hint)


def check_client_level(config: Config) -> None:
    """Refuse what silos cannot do by themselves (:mod:`fedpriv.node.silo`)."""
    if not config.privacy_unit.in_silos:
        raise validation.fail(
            "unit", config.unit, "be example with level client", "silos protect their examples"
        )
    if PLACEMENTS[config.placement].at_parties:
        hint = "each silo adds all the noise to its own sums"
        raise validation.fail("placement", config.placement, "be central or none with level client", hint)

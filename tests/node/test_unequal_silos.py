"""Silos that are not alike: public sizes, one noise multiplier, and each silo's own events and epsilon."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import epsilon
from fedpriv.accounting.ledger import Ledger, read
from fedpriv.accounting.parallel_composition import compose, of_each
from fedpriv.auditing.subject import canaries_plan, own_plan
from fedpriv.auditing.views import View
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.node.factory import make_worker
from fedpriv.node.silo import SiloWorker, TrainRequest, round_events
from fedpriv.report import markdown
from fedpriv.rng import Key
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute

UNEQUAL: dict[str, object] = {
    "level": "client",
    "unit": "example",
    "clients": 5,
    "examples_per_client": 60,
    "partition": "dirichlet",
    "client_sizes": "lognormal",
    "silo_sampling": "same-size",
    "silo_steps": 2,
    "optimizer": "dp-sgd",
    "learning_rate": 0.2,
    "rounds": 2,
    "accounting": "gdp-clt",  # calibrates fast; tests of epsilon name another
    "epsilon": 4.0,
    "delta": 1e-4,
    "seed": 5,
}


def config_of(**changes: object) -> Config:
    return small(**{**UNEQUAL, **changes})


def plan_of(**changes: object) -> Plan:
    return make_plan(config_of(**changes))


def by_google(z: float, rate: float, count: int, delta: float) -> float:
    """Epsilon by dp-accounting, which rounds up in steps of 1e-4."""
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), count)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(("seed", "budget", "q", "steps"), [(0, 4.0, 0.1, 2), (3, 0.5, 0.02, 1)])
@pytest.mark.slow
def test_the_budget_is_the_epsilon_of_the_smallest_silo(
    seed: int, budget: float, q: float, steps: int
) -> None:
    changes = {"partition_seed": seed, "epsilon": budget, "sampling_rate": q, "silo_steps": steps}
    plan = plan_of(**changes, clients=3, accounting="pld")
    sizes, z = plan.config.silo_sizes, plan.mechanism.scale
    rates = np.minimum(1, q * 60 / sizes)  # the cohort of each silo has q 60 examples
    own = {silo: by_google(z, float(rates[silo]), 2 * steps, 1e-4) for silo in range(3)}
    assert max(own.values()) == own[int(np.argmin(sizes))]
    assert max(own.values()) == pytest.approx(budget, rel=5e-3)
    silos = {str(silo): plan.schedule_of(silo).events for silo in range(3)}
    assert compose(silos, 1e-4).epsilon <= budget
    for names, guarantee in of_each(silos, 1e-4):
        for name in names:
            assert guarantee.epsilon == pytest.approx(own[int(name)], rel=2e-3)


@pytest.mark.slow
def test_many_silos_have_a_bound_of_their_own_by_few_compositions() -> None:
    plan = plan_of(clients=30)
    silos = {str(silo): plan.schedule_of(silo).events for silo in range(30)}
    found = of_each(silos, 1e-4, "rdp", most=4)
    assert len(found) <= 4
    assert sorted(int(name) for names, _ in found for name in names) == list(range(30))
    assert found[0][1].epsilon == compose(silos, 1e-4, "rdp").epsilon
    for names, guarantee in found:
        assert all(epsilon(silos[name], 1e-4, "rdp").epsilon <= guarantee.epsilon for name in names)


def delta_of(plan: Plan, silo: int, scale: float | None = None) -> torch.Tensor:
    """The change of one silo in round 0, with the plan's noise or ``scale`` times it."""
    if scale is not None:
        plan = replace(plan, mechanism=replace(plan.mechanism, scale=scale))
    side = SiloWorker(plan, make_worker(plan.config.table()))
    start = initial_params(side.side.task, Key.from_seed(9))
    [change] = side.train(TrainRequest(start, 0, round_events(plan, 0), (silo,)))
    return change.delta


@pytest.mark.parametrize("sampling", ["same-size", "same-rate"])
def test_the_denominator_of_a_silo_is_its_own_public_cohort(sampling: str) -> None:
    """7,850 coordinates of noise: their std is within 0.8 % (one sigma), and 5 % is a flake of below 1e-9."""
    plan = plan_of(silo_sampling=sampling, silo_steps=1)
    sizes, z = plan.config.silo_sizes, plan.mechanism.scale
    assert len(set(sizes.tolist())) == 5
    for silo in (int(np.argmin(sizes)), int(np.argmax(sizes))):
        cohort = 6 if sampling == "same-size" else 0.1 * sizes[silo]
        noise = delta_of(plan, silo) - delta_of(plan, silo, 0.0)
        assert float(noise.std()) == pytest.approx(0.2 * z / cohort, rel=0.05)


def test_a_silo_samples_its_own_examples_at_its_own_rate() -> None:
    """Means of 400 cohorts of size 6 are within 0.12 (one sigma): 0.8 is a flake of below 1e-9."""
    plan = plan_of()
    sizes = plan.config.silo_sizes
    starts = np.cumsum(sizes) - sizes
    for silo in (0, int(np.argmin(sizes)), int(np.argmax(sizes))):
        cohorts = plan.cohorts(Key.from_seed(silo), silo)
        shards = [cohorts.draw(release)[0] for release in range(400)]
        assert {shard.home for shard in shards} == {silo}
        drawn = np.concatenate([shard.ids for shard in shards])
        assert starts[silo] <= drawn.min()
        assert 0.9 * sizes[silo] < drawn.max() - starts[silo] < sizes[silo]
        assert len(drawn) / 400 == pytest.approx(6, abs=0.8)


def test_the_ledger_and_the_report_have_each_silos_own_events(tmp_path: Path) -> None:
    plan = plan_of(accounting="rdp", clients=3)
    worker = SiloWorker(plan, make_worker(plan.config.table()))
    result = execute(plan, worker, RunFolder.create(tmp_path / "run", False))
    charged = read(tmp_path / "run" / "ledger.jsonl").by_silo()
    assert charged == {str(silo): plan.schedule_of(silo).events for silo in range(3)}
    sizes = plan.config.silo_sizes
    for silo, size in enumerate(sizes.tolist()):
        assert charged[str(silo)][0].rate == pytest.approx(6 / size)
    privacy = result.report["privacy"]
    assert privacy["releases"] == 4
    each = privacy["silos"]["epsilon of each"]
    assert [one["epsilon"] for one in each] == sorted((one["epsilon"] for one in each), reverse=True)
    assert each[0]["epsilon"] == result.epsilon <= 4
    assert each[0]["silos"] == [int(np.argmin(sizes))]
    text = markdown.markdown(json.loads(json.dumps(result.report)))
    assert f"3 silos of {sizes.min()} to {sizes.max()} examples" in text
    assert f"| {np.argmin(sizes)} | {sizes.min()} |" in text


def test_silos_at_one_rate_cost_the_same_and_have_no_table() -> None:
    plan = plan_of(silo_sampling="same-rate")
    silos = {str(silo): plan.schedule_of(silo).events for silo in range(5)}
    assert len(of_each(silos, 1e-4, "rdp")) == 1
    assert compose(silos, 1e-4, "rdp") == epsilon(silos["0"], 1e-4, "rdp")


def test_the_accountant_refuses_silos_that_lose_more_than_it_holds(tmp_path: Path) -> None:
    plan = plan_of()
    cheapest, costliest = plan.schedules[-1], plan.schedules[0]
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        gate = RunAccountant(plan, ledger, tmp_path / "ledger.jsonl")
        with pytest.raises(ValueError, match="less than the costliest"):
            gate.record(costliest.events[:2], (0,), cheapest.events[:2])
        gate.record(cheapest.events[:2], (0,), costliest.events[:2])
    assert len(read(tmp_path / "ledger.jsonl").events) == 2


def test_colluding_silos_are_the_largest() -> None:
    plan = plan_of(
        level="aggregation", silo_sampling="same-rate", silo_steps=1, placement="distributed",
        sampler="fixed-size", colluding_parties=2, accounting="rdp",
    )  # fmt: skip
    sizes = np.sort(plan.config.silo_sizes)
    assert plan.units == sizes.sum()
    assert plan.mechanism.sampler.event(1.0).population == sizes[:-2].sum()


def test_silos_with_empty_slots_are_counted_by_their_public_number() -> None:
    """1,437 digits of three silos with 500 slots each."""
    data = {"dataset": "digits", "partition": "iid", "clients": 3, "examples_per_client": 500}
    one = {"level": "aggregation", "silo_sampling": "same-rate", "silo_steps": 1, "client_sizes": "equal"}
    plan = plan_of(**data, **one)
    assert plan.units == 1500
    assert plan.mechanism.sampler.expected_size == 150
    assert len(make_worker(plan.config.table()).view.batch(np.arange(1500)).y) == 1437


def test_fixed_size_cohorts_lose_most_where_rounding_says_so() -> None:
    plan = plan_of(sampler="fixed-size", silo_sampling="same-rate", accounting="rdp")
    sizes = plan.config.silo_sizes
    rates = np.maximum(1, np.rint(0.1 * sizes)) / sizes
    assert plan.events[0].rate == rates.max()


def test_audits_use_equal_silos_or_refuse() -> None:
    plan = canaries_plan(config_of(silo_sampling="same-rate"), 50, View.MODELS)
    assert (plan.config.partition, plan.config.client_sizes, plan.units) == ("one-example", "equal", 50)
    with pytest.raises(ArgumentError, match="silo-sampling is 'same-size'; it must be same-rate"):
        canaries_plan(config_of(), 50, View.MODELS)
    with pytest.raises(ArgumentError, match="partition is 'dirichlet'; it must be one-example for an audit"):
        own_plan(config_of(silo_sampling="same-rate"), 20)

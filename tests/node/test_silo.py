"""Silos that train by themselves: the same loop as everywhere, charged ahead, remembered, and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pytest
import torch
from helpers.plain_loop import clipped_sum_loop
from helpers.small import small
from scipy import stats

from fedpriv.accounting import Event, epsilon
from fedpriv.accounting.ledger import read
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.loop import run as run_loop
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.gaussian import Normals
from fedpriv.node import silo as silo_module
from fedpriv.node.factory import make_worker
from fedpriv.node.policy import RefusedError
from fedpriv.node.silo import ModelDelta, SiloState, SiloWorker, TrainRequest, make_silo_worker
from fedpriv.optimizers.base import State
from fedpriv.report import markdown
from fedpriv.report import summary as summary_module
from fedpriv.rng import Key
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute

SILOS: dict[str, object] = {
    "level": "client",
    "unit": "example",
    "clients": 3,
    "examples_per_client": 60,
    "silo_steps": 4,
    "optimizer": "dp-sgd",
    "learning_rate": 0.2,
    "rounds": 3,
    "epsilon": 8.0,
    "delta": 1e-4,
    "seed": 5,
}
OPTIMIZERS: dict[str, dict[str, object]] = {
    "dp-sgd": {},
    "momentum": {"momentum": 0.5},
    "dp-adam": {"optimizer": "dp-adam", "learning_rate": 0.01},
    "dp-rmsprop": {"optimizer": "dp-rmsprop", "learning_rate": 0.01},
    "dp-adagrad": {"optimizer": "dp-adagrad", "learning_rate": 0.01},
    "dp-yogi": {"optimizer": "dp-yogi", "learning_rate": 0.01},
    "dynamic": {"optimizer": "dynamic-dp-adam", "learning_rate": 0.01},
    "adaptive clip": {"adaptive_quantile": 0.5},
    "adp-sgd": {"optimizer": "adp-sgd", "learning_rate": 1.0},
    "adaptive adp-sgd": {"optimizer": "adaptive-adp-sgd", "learning_rate": 1.0},
    "dp2-adam": {"optimizer": "dp2-adam", "dp2_sgd_steps": 3, "dp2_adaptive_steps": 2},
    "dp2 corrected": {
        "optimizer": "dp2-yogi",
        "dp2_sgd_steps": 3,
        "dp2_adaptive_steps": 2,
        "dp2_noise_correction": True,
    },
    "dp2 extra query": {"optimizer": "dp2-rmsprop", "dp2_variant": "extra-query", "dp2_sgd_steps": 3},
    "adadp": {"optimizer": "adadp", "learning_rate": 0.1},
    "noise decay": {"optimizer": "dynamic-dp-sgd", "noise_schedule": "time-based"},
    "regularised": {"regulariser": "l2", "regularisation": 0.1},
    "adadps": {"optimizer": "adadps", "public_examples": 30},
    "pda-dpmd": {"optimizer": "pda-dpmd", "public_examples": 30},
    "dp-srm": {"optimizer": "dp-srm", "learning_rate": 0.1, "srm_first_cohort": 3.0},
}


def config_of(**changes: object) -> Config:
    return small(**{**SILOS, **changes})


def plan_of(**changes: object) -> Plan:
    return make_plan(config_of(**changes))


def side_of(**changes: object) -> SiloWorker:
    return make_silo_worker(config_of(**changes).table())


def request_of(side: SiloWorker, number: int = 0, asked: Sequence[int] = (0,)) -> TrainRequest:
    params = initial_params(side.side.task, Key.from_seed(9))
    return TrainRequest(params, number, silo_module.round_events(side.plan, number), tuple(asked))


class Paid:
    """Books that let everything pass."""

    adaptive = False

    def affords(self, events: Sequence[Event]) -> bool:
        return True

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        pass


def end_of(plan: Plan, side: Worker) -> torch.Tensor:
    """The server's model (d,) after all rounds."""
    start = initial_params(side.task, plan.key())
    return silo_module.run(plan, start, SiloWorker(plan, side), Paid()).state.params


@pytest.mark.parametrize(
    ("optimizer", "sampler"),
    [("dp-sgd", "poisson"), ("dp-srm", "poisson"), ("momentum", "fixed-size"), ("dp-srm", "fixed-size")],
)
def test_one_silo_of_one_step_a_round_is_the_centralised_trajectory_bit_for_bit(
    optimizer: str, sampler: str
) -> None:
    changes = {**OPTIMIZERS[optimizer], "clients": 1, "silo_steps": 1, "rounds": 5, "sampler": sampler}
    alone = make_plan(config_of(**changes, level="aggregation"))
    side = make_worker(alone.config.table())
    key = Key.from_seed(5).child("silo", 0)  # the same draws
    params = initial_params(side.task, alone.key())
    central = run_loop(alone.mechanism, params, side, Paid(), key, alone.cohorts(key))
    plan = plan_of(**changes)
    assert torch.equal(end_of(plan, side), central.state.params)


def straight(plan: Plan, side: Worker, params: torch.Tensor) -> torch.Tensor:
    """The server's model (d,) after all rounds: plain loops over rounds, silos, steps and examples."""
    mechanism, config = plan.mechanism, plan.config
    memory: dict[int, dict[str, torch.Tensor]] = {}
    for number in range(config.rounds):
        ends = []
        for silo in range(config.clients):
            key = Key.from_seed(config.seed).child("silo", silo)
            slots = memory.get(silo) or mechanism.optimizer.init(params).slots
            state = State(params, number * config.silo_steps, slots)
            for step in range(number * config.silo_steps, (number + 1) * config.silo_steps):
                query = mechanism.optimizer.query(state)
                sampler = mechanism.sampler.resized(query.rate_factor)
                ids = sampler.draw(key.generator("cohort", step)) + silo * config.examples_per_client
                x, y, owner = side.view.batch(ids)
                sums = clipped_sum_loop(side.work, side.task, query, x, y, owner, len(ids))
                normals = Normals(key, ("server-noise", step), sums).take()
                owed = query.noise_stds(mechanism.scale * query.relative_noise)
                noisy = [total + std * z for total, std, z in zip(sums, owed, normals, strict=True)]
                state = mechanism.optimizer.update(state, tuple(n / sampler.expected_size for n in noisy))
            memory[silo] = dict(state.slots)
            ends.append(state.params.double() - params.double())
        params = (params.double() + sum(ends) / config.clients).float()
    return params


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.slow
def test_k_steps_of_every_optimizer_are_the_straight_loop(name: str) -> None:
    # GDP-CLT calibrates fast, and fast noise is the one that the plain loop draws.
    plan = plan_of(**OPTIMIZERS[name], accounting="gdp-clt", noise_draws="fast")
    side = make_worker(plan.config.table())
    expected = straight(plan, side, initial_params(side.task, plan.key()))
    torch.testing.assert_close(end_of(plan, side), expected, rtol=1e-3, atol=1e-4)


def change_of(plan: Plan, number: int = 0, silo: int = 0, seed: int = 5) -> torch.Tensor:
    side = SiloWorker(plan, make_worker(plan.config.changed(seed=seed).table()))
    [change] = side.train(request_of(side, number, (silo,)))
    return change.delta


def test_each_silos_noise_has_the_planned_std_and_is_its_own() -> None:
    """The same cohorts without noise leave the noise: 7,850 coordinates, whose std is within 0.8 % (one
    sigma) and whose correlations are below 0.011 (one sigma): 5 % and 0.08 are flakes of below 1e-9."""
    plan = plan_of(silo_steps=1)
    quiet = replace(plan, mechanism=replace(plan.mechanism, scale=0.0))
    noises = [
        change_of(plan, number, silo) - change_of(quiet, number, silo)
        for number, silo in ((0, 0), (0, 1), (1, 0))
    ]
    z, size = plan.mechanism.scale, plan.mechanism.sampler.expected_size
    assert 0.4 < z < 5
    for noise in noises:
        assert float(noise.std()) == pytest.approx(0.2 * z * 1.0 / size, rel=0.05)
    correlations = torch.corrcoef(torch.stack(noises)) - torch.eye(3)
    assert float(correlations.abs().max()) < 0.08


def test_without_a_seed_a_silo_never_makes_the_same_noise_twice() -> None:
    plan = plan_of(silo_steps=1)
    one, two = (change_of(plan, seed=-1) for _ in range(2))
    expected = 0.2 * plan.mechanism.scale / plan.mechanism.sampler.expected_size
    assert float((one - two).std()) > expected  # sqrt(2) times, and the cohorts' difference


def test_without_a_seed_a_round_that_is_asked_again_has_new_noise() -> None:
    """The state is lost and the process is not, so the worker's own key is the same both times."""
    side = side_of(silo_steps=1, seed=-1)
    assert not side.side.key.reproducible
    changes = []
    for _ in range(2):
        changes.append(side.train(request_of(side))[0].delta)
        side.memories.clear()
    mechanism = side.plan.mechanism
    assert float((changes[0] - changes[1]).std()) > 0.2 * mechanism.scale / mechanism.sampler.expected_size


def test_the_ledger_holds_every_silos_planned_events(tmp_path: Path) -> None:
    plan = plan_of(optimizer="dynamic-dp-sgd", accounting="gdp-clt")
    execute(plan, make_silo_worker(plan.config.table()), RunFolder.create(tmp_path / "out"))
    record = read(tmp_path / "out" / "ledger.jsonl")
    assert record.header["level"] == "client"
    assert record.events == plan.mechanism.planned_events()
    assert record.by_silo() == {str(silo): plan.events for silo in range(3)}
    assert len({event.noise_multiplier for event in record.events}) == 12
    summary = json.loads((tmp_path / "out" / "report.json").read_text())
    assert summary["privacy"]["releases"] == 12
    assert summary["result"]["rounds"] == 3


@pytest.mark.parametrize("silo_count", [1, 7])
def test_silos_in_parallel_cost_what_one_does_in_closed_form(silo_count: int) -> None:
    """Everyone in all 12 releases: one Gaussian of mu = sqrt(12) / z, whose delta is known."""
    config = config_of(sampler="everyone", sampling_rate=1.0, clients=silo_count, examples_per_client=20)
    plan = make_plan(config)
    ledger = {str(silo): plan.events for silo in range(silo_count)}
    [view] = summary_module.summarise(plan, plan.events, [], "rounds", ledger)["privacy"]["views"]
    spent = view["epsilon"]["pld"]["epsilon"]
    mu = math.sqrt(12) / plan.events[0].noise_multiplier
    shift, normal = spent / mu, stats.norm.cdf
    delta = normal(mu / 2 - shift) - math.exp(spent) * normal(-mu / 2 - shift)
    assert delta == pytest.approx(1e-4, rel=0.01)
    assert view["gates the budget"]
    assert 7.9 < spent <= 8.0


def test_a_replacement_from_another_silo_costs_both() -> None:
    plan = plan_of(sampler="fixed-size")
    ledger = {str(silo): plan.events for silo in range(3)}
    summary = summary_module.summarise(plan, plan.events, [], "rounds", ledger)
    stays, moves = summary["privacy"]["views"]
    assert (stays["gates the budget"], moves["gates the budget"]) == (True, False)
    for view, events in ((stays, plan.events), (moves, plan.events * 2)):
        expected = epsilon(events, 1e-4, "pld").epsilon
        assert view["epsilon"]["pld"]["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert "one in another silo" in markdown.markdown(summary)


def test_the_report_states_the_adversaries_of_silos() -> None:
    plan = plan_of()
    ledger = {str(silo): plan.events for silo in range(3)}
    text = markdown.markdown(summary_module.summarise(plan, plan.events, [], "rounds", ledger))
    for said in (
        "Each silo trusts only itself",
        "It does not hold against the example's own silo",
        "3 silos of 60 examples, disjoint; 4 private steps per round in each silo",
        "everyone except an example's own silo, for the silo with the largest privacy loss (the enforced "
        "guarantee)",
        "| releases charged to each silo | 12 |",
        "an example that is in several silos, and several examples of one person",
    ):
        assert said in text


@dataclass
class Losing:
    """A trainer that fails in one round, or loses one silo of every round."""

    inner: SiloWorker
    fails_in: int | None = None
    loses: int | None = None
    asks: list[TrainRequest] = field(default_factory=list)

    def train(self, request: TrainRequest) -> Sequence[ModelDelta]:
        self.asks.append(request)
        if request.round == self.fails_in:
            raise RuntimeError("lost")
        return [change for change in self.inner.train(request) if change.silo != self.loses]

    def close(self) -> None:
        pass


def test_a_round_that_fails_stays_charged(tmp_path: Path) -> None:
    plan, trainer = plan_of(), Losing(side_of(), fails_in=1)
    with pytest.raises(RuntimeError, match="lost"):
        execute(plan, trainer, RunFolder.create(tmp_path / "out"))
    record = read(tmp_path / "out" / "ledger.jsonl")
    assert record.by_silo() == {str(silo): plan.events[:8] for silo in range(3)}
    assert len(trainer.asks) == 2


def test_a_missing_silo_stays_charged_and_the_others_continue(tmp_path: Path) -> None:
    plan, trainer = plan_of(), Losing(side_of(), loses=1)
    result = execute(plan, trainer, RunFolder.create(tmp_path / "out"))
    assert result.stopped == "rounds"
    assert read(tmp_path / "out" / "ledger.jsonl").by_silo()["1"] == plan.events
    assert [request.events for request in trainer.asks] == [plan.events[i : i + 4] for i in (0, 4, 8)]
    assert {request.silos for request in trainer.asks} == {(0, 1, 2)}


def test_the_model_moves_by_the_mean_of_the_received_changes() -> None:
    theta = torch.tensor([1.0, 2.0])
    changes = [
        ModelDelta(0, torch.tensor([0.5, 0.0]).double()),
        ModelDelta(2, torch.tensor([1.0, -1.0]).double()),
    ]
    assert silo_module.averaged(theta, changes).tolist() == [1.75, 1.5]
    assert silo_module.averaged(theta, []) is theta


@dataclass(frozen=True)
class Watched(Worker):
    """Records the queries of a silo's steps; raises KeyboardInterrupt after some."""

    asks: list[SumRequest] = field(default_factory=list)
    stops_after: float = math.inf

    def gather(self, request: SumRequest) -> PartialSum:
        self.asks.append(request)
        if len(self.asks) > self.stops_after:
            raise KeyboardInterrupt
        return super().gather(request)


def watched(plan: Plan, **changes: float) -> tuple[SiloWorker, Watched]:
    inner = make_worker(plan.config.table())
    same = {f.name: getattr(inner, f.name) for f in fields(inner)}
    side = Watched(**same, **changes)
    return SiloWorker(plan, side), side


def test_ctrl_c_within_a_silo_ends_the_run() -> None:
    plan = plan_of()
    trainer, side = watched(plan, stops_after=17)  # 12 steps of the first round, 5 of the second
    result = execute(plan, trainer)
    assert (result.stopped, result.report["result"]["rounds"]) == ("interrupted", 1)
    assert result.report["privacy"]["releases"] == 8
    assert len(side.asks) == 18


@pytest.mark.parametrize("missed", [0, 1])
def test_a_silo_that_missed_a_round_continues_at_the_planned_step(missed: int) -> None:
    """DP-SRM's first cohort and noise belong to step 0 only, for every set of silos that took part."""
    plan = plan_of(**OPTIMIZERS["dp-srm"])
    side, seen = watched(plan)
    for number in (0, 1, 2):
        if number != missed:
            side.train(request_of(side, number))
    steps = [step for step in range(12) if step // 4 != missed]
    assert [request.release for request in seen.asks] == steps
    assert [request.query.rate_factor for request in seen.asks] == [
        3.0 if step == 0 else 1.0 for step in steps
    ]
    assert [len(request.query.points) for request in seen.asks] == [1 if step == 0 else 2 for step in steps]


def test_a_silo_keeps_its_optimizers_state_but_not_its_parameters() -> None:
    side = side_of(momentum=0.5)
    side.train(request_of(side, asked=(0, 2)))
    assert set(side.memories) == {0, 2}
    assert {name for memory in side.memories.values() for name in memory.slots or {}} == {"velocity"}
    lost = replace(side, memories={0: SiloState(1)})
    kept = replace(side, memories=dict(side.memories))
    (one,), (two,) = (s.train(request_of(s, 1)) for s in (lost, kept))
    assert not torch.equal(one.delta, two.delta)


def test_a_node_refuses_requests_outside_its_plan() -> None:
    side = side_of(optimizer="dynamic-dp-sgd")
    good = request_of(side)
    cheaper = [replace(event, noise_multiplier=event.noise_multiplier * 0.999) for event in good.events]
    denser = [replace(event, rate=0.2) for event in good.events]
    refused = [
        replace(good, round=3, events=good.events),
        replace(good, round=1),  # another round's noise
        replace(good, events=tuple(cheaper)),
        replace(good, events=tuple(denser)),
        replace(good, events=good.events[:3]),
        replace(good, events=(*good.events, good.events[0])),
        replace(good, silos=(3,)),
        replace(good, silos=(0, 0)),
    ]
    for request in refused:
        with pytest.raises(RefusedError):
            side.train(request)
    close = [replace(event, noise_multiplier=event.noise_multiplier * (1 + 1e-9)) for event in good.events]
    side.train(replace(good, events=tuple(close)))  # another machine's calibration
    with pytest.raises(RefusedError, match="round 0 was answered before"):
        side.train(good)
    side.train(request_of(side, 2))
    with pytest.raises(RefusedError, match="round 1 was answered before"):
        side.train(request_of(side, 1))


def test_a_silo_releases_what_was_charged() -> None:
    """The steps of a round are paid for together, each with its own noise."""
    first, second, *_ = plan_of(optimizer="dynamic-dp-sgd", accounting="gdp-clt").events
    assert first != second
    for wrong in ([second], [first, first], [first, second, first], [replace(first, rate=0.2)]):
        with pytest.raises(RefusedError, match="differs from the event that was charged"):
            silo_module._Prepaid((first, second)).charge(wrong)
    prepaid = silo_module._Prepaid((first, second))
    prepaid.charge([first])
    prepaid.charge([second])
    with pytest.raises(RefusedError, match="differs from the event that was charged"):
        prepaid.charge([second])


def test_a_silo_samples_only_its_own_examples() -> None:
    side, seen = watched(plan_of())
    side.train(request_of(side, asked=(1,)))
    shards = [shard for request in seen.asks for shard in request.shards]
    assert {shard.home for shard in shards} == {1}
    assert all(60 <= i < 120 for shard in shards for i in shard.ids.tolist())
    assert len({tuple(shard.ids.tolist()) for shard in shards}) == 4


def test_without_noise_it_is_local_training_and_averaging() -> None:
    """Clipped local steps over all examples, averaged: deterministic, so silos that agree stay together."""
    config = config_of(placement="none", sampler="everyone", sampling_rate=1.0, clients=2)
    result = execute(make_plan(config), make_silo_worker(config.table()))
    assert result.report["privacy"]["views"] == []
    assert result.report["remark"].startswith("not private: no noise is added")
    assert result.metrics[-1]["accuracy"] > 0.3

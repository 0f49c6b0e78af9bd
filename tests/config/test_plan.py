"""The plan: contradictions are refused before any work, and the calibrated noise spends the budget."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv._internal.files import read_numbers
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Accountant, epsilon
from fedpriv.accounting.local_view import costliest
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.mechanism.release import draw_ahead
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.mechanism.sampling import FixedSize, Poisson, TruncatedPoisson
from fedpriv.node.factory import make_worker
from fedpriv.optimizers import FirstOrder, State
from fedpriv.optimizers.schedules import Annealed
from fedpriv.rng import Key

SMALL: dict[str, object] = {"clients": 1000, "sampling-rate": 0.1, "rounds": 12}
SILOS = {"unit": "example", "clients": 4, "examples-per-client": 250}
SILOS_TRAIN = {**SILOS, "level": "client", "rounds": 3}


def plan_of(**changes: object) -> Plan:
    values = {key.replace("_", "-"): value for key, value in changes.items()}
    return make_plan(Config.parse({**SMALL, **values}))


CONTRADICTIONS: list[tuple[dict[str, object], str]] = [
    (
        {"optimizer": "dp-sgd", "rho-mu": 2.0},
        "rho-mu is 2.0, which needs optimizer=dynamic-dp-sgd, ",
    ),
    (
        {"optimizer": "dp-adam", "rho-c": 2.0},
        "rho-c is 2.0, which needs optimizer=dynamic-dp-adam, ",
    ),
    (
        {"optimizer": "dp-sgd", "noise-schedule": "sqrt-clip"},
        "noise-schedule is 'sqrt-clip', which needs",
    ),
    (
        {"optimizer": "dynamic-dp-adam", "momentum": 0.5},
        "momentum is 0.5, which needs optimizer=dp-sgd, ",
    ),
    ({"noise-schedule": "sqrt-clip", "rho-mu": 3.0}, "rho-mu is 3.0; it must be 1"),
    ({"noise-schedule": "given"}, "relative-noise-file is ''; it must name a CSV file"),
    ({"noise-schedule": "given", "rho-mu": 2.0}, "rho-mu is 2.0; it must be 0 or 1"),
    ({"noise-schedule": "step", "rho-c": 2.0}, "rho-c is 2.0; it must be 0 or 1 with noise-schedule step"),
    ({"noise-schedule": "step", "noise-decay": 2.0}, "decay factor is 2.0"),
    ({"rho-c": 0.5}, "rho-c is 0.5; it must be at least 1"),
    ({"rho-c": 1e300}, "rho-c is 1e+300; it must leave clip norms of at least 1e-12"),
    ({"rho-mu": 1e300}, "rho-mu is 1e+300; it must keep noise multipliers within a factor of 1e+06"),
    (
        {"noise-schedule": "sqrt-clip", "rho-c": 1e17, "clip-norm": 1e6},
        "rho-c is 1e+17; it must keep noise multipliers within a factor of 1e+06",
    ),
    ({"noise-schedule": "sqrt-clip", "rho-c": 0.5}, "rho-c is 0.5; it must be at least 1"),
    (
        {"noise-schedule": "exponential", "noise-decay": 1e3},
        "noise-decay is 1000.0; it must keep noise multipliers within a factor of 1e+06",
    ),
    (
        {"noise-schedule": "polynomial", "noise-end": 1e-9, "noise-period": 5},
        "noise-end is 1e-09; it must keep noise multipliers within a factor of 1e+06",
    ),
    ({"optimizer": "adp-sgd", "adp-a": 1e300}, "adp-a is 1e+300; it must keep (adp-a + adp-c rounds)^(1/4)"),
    ({"optimizer": "adp-sgd", "adp-c": 1e300}, "adp-c is 1e+300; it must keep (adp-a + adp-c rounds)^(1/4)"),
    ({"clip-norm": 1e13}, "clip-norm is 10000000000000.0; it must be inf or lie in [1e-12, 1e+12]"),
    ({"optimizer": "dp-srm", "srm-difference-clip-norm": 1e-13}, "srm-difference-clip-norm is 1e-13"),
    (
        {"optimizer": "dp-srm", "placement": "local", "srm-first-cohort": 2.0},
        "srm-first-cohort is 2.0; it must be 1 with sampler poisson under local noise",
    ),
    ({"adaptive-quantile": 0.5, "rho-c": 2.0}, "adaptive-quantile is 0.5; it must be 0"),
    ({"adaptive-quantile": 0.5, "clip-norm": math.inf, "placement": "none"}, "clip-norm is inf"),
    ({"sampler": "fixed-size", "relation": "add-remove"}, "relation is 'add-remove'"),
    ({"placement": "local", "relation": "add-remove"}, "it must be auto or replace-one with placement"),
    ({"sampler": "everyone"}, "sampling-rate is 0.1; it must be 1 with sampler everyone"),
    ({"clip-norm": math.inf}, "clip-norm is inf; it must be finite where noise is added"),
    ({"epsilon": math.inf}, "epsilon is inf; it must be finite"),
    ({"delta": 1e-3}, "delta is 0.001; it must be below 1 / units = 0.001"),
    ({"max-participations": 3}, "max-participations is 3, which needs placement=local"),
    ({"placement": "local", "max-participations": 13}, "max-participations is 13; it must be at most rounds"),
    ({"min-replies": 3}, "min-replies is 3; it must be 0 unless clients add the noise"),
    ({"placement": "distributed", "min-replies": 90}, "the smallest size of the Poisson cohorts"),
    ({"placement": "distributed", "sampler": "fixed-size", "min-replies": 101}, "min-replies is 101"),
    ({"placement": "distributed", "sampling-rate": 0.002}, "practically never empty"),
    (
        {"optimizer": "rrpsgd", "nodes-own-data": True, "dataset": "digits"},
        "optimizer is 'rrpsgd'; it must be another where nodes own their data",
    ),
    (
        {**SILOS, "partition": "iid", "nodes-own-data": True},
        "partition is 'iid'; it must be one-example with nodes-own-data",
    ),
    (
        {**SILOS, "partition": "iid", "client-sizes": "uniform", "silo-sampling": "same-size"},
        "silo-sampling is 'same-size', which needs level=client and client-sizes other than equal",
    ),
    ({**SILOS, "work": "local-steps"}, "work is 'local-steps'; it must be gradient"),
    ({"examples-per-client": 5}, "examples-per-client is 5, which needs a partition"),
    ({"client-sizes": "uniform"}, "client-sizes is 'uniform', which needs a partition"),
    ({"partition": "natural", "partition-seed": 1}, "partition-seed is 1, which needs a partition"),
    ({"partition": "natural", "examples-per-client": 5}, "examples-per-client is 5, which needs a partition"),
    ({"dirichlet-alpha": 1.0, "partition": "iid"}, "dirichlet-alpha is 1.0, which needs partition=dirichlet"),
    ({"labels-per-client": 1}, "labels-per-client is 1, which needs partition=shards"),
    ({"local-steps": 5}, "local-steps is 5, which needs work=local-steps"),
    ({"engine": "in-process", "actors": 2}, "actors is 2, which needs engine=ray"),
    ({"engine": "in-process", "gpus-per-actor": 0.5}, "gpus-per-actor is 0.5, which needs engine=ray"),
    ({"engine": "in-process", "cpus-per-actor": 2}, "cpus-per-actor is 2.0, which needs engine=ray"),
    ({"engine": "in-process", "reply-timeout": 60.0}, "reply-timeout is 60.0, which needs engine=ray"),
    ({"beta2": 0.9}, "beta2 is 0.9, which needs optimizer="),
    ({"srm-gamma": 0.7}, "srm-gamma is 0.7, which needs optimizer=dp-srm"),
    ({"optimizer": "adadp", "momentum": 0.5}, "momentum is 0.5, which needs optimizer=dp-sgd"),
    ({"optimizer": "adadp", "rho-c": 2.0}, "rho-c is 2.0, which needs optimizer=dynamic-dp-sgd"),
    ({"optimizer": "adadp", "rounds": 1}, "rounds is 1; it must be even with optimizer adadp"),
    ({"optimizer": "dp-srm", "adaptive-quantile": 0.5}, "it must be 0 with dp-srm (it has two clip norms)"),
    ({"optimizer": "adadp", "adaptive-quantile": 0.5}, "adaptive-quantile is 0.5; it must be 0 with adadp"),
    ({"optimizer": "dp-srm", "srm-difference-clip-norm": math.inf}, "srm-difference-clip-norm is inf"),
    ({"optimizer": "dp2-adam", "dp2-adaptive-clip-norm": math.inf}, "dp2-adaptive-clip-norm is inf"),
    ({"optimizer": "dp-srm", "srm-first-cohort": 30.0}, "srm-first-cohort is 30.0; it must be at most 10 "),
    (
        {"optimizer": "dp-srm", "srm-first-cohort": 30.0, "sampler": "fixed-size"},
        "srm-first-cohort is 30.0; it must be at most 10 ",
    ),
    (
        {"optimizer": "dp-srm", "srm-first-cohort": 0.001, "sampler": "fixed-size"},
        "srm-first-cohort=0.001 rounds to an empty cohort; use at least 0.01",
    ),
    (
        {"optimizer": "dp-srm", "srm-first-cohort": 2.0, "sampler": "everyone", "sampling-rate": 1.0},
        "srm-first-cohort is 2.0; it must be 1 with sampler everyone",
    ),
    ({"adaptive-share": 0.1}, "adaptive-share is 0.1, which needs adaptive-quantile"),
    ({"clip-norm-file": "c.csv"}, "which needs noise-schedule=given"),
    ({"colluding-parties": 3}, "colluding-parties is 3, which needs several parties that add noise, or are"),
    ({"colluding-parties": 3, "sampler": "fixed-size", "placement": "none"}, "colluding-parties is 3, which"),
    ({**SILOS, "level": "client", "sampler": "fixed-size", "colluding-parties": 0}, "colluding-parties is 0"),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS)
def test_contradictions_are_refused_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_plan(Config.parse({**SMALL, **changes}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


OPTIMIZERS: dict[str, dict[str, object]] = {
    "dp-sgd": {"optimizer": "dp-sgd"},
    "momentum": {"optimizer": "dp-sgd", "momentum": 0.9},
    "dp-adam": {"optimizer": "dp-adam"},
    "dynamic": {},
    "growing-mu": {"rho-c": 1.0, "rho-mu": 4.0},
    "sensitivity-decay": {"rho-c": 4.0, "rho-mu": 1.0},
    "sqrt-clip": {"noise-schedule": "sqrt-clip", "rho-c": 4.0},
    "dynamic-adam": {"optimizer": "dynamic-dp-adam"},
    "adaptive": {"optimizer": "dp-sgd", "adaptive-quantile": 0.5},
    "dynamic-rmsprop": {"optimizer": "dynamic-dp-rmsprop"},
    "adp-sgd": {"optimizer": "adp-sgd"},
    "dp2": {"optimizer": "dp2-yogi", "dp2-noise-correction": True},
    "extra-query": {"optimizer": "dp2-rmsprop", "dp2-variant": "extra-query", "dp2-sgd-steps": 4},
    "adadp": {"optimizer": "adadp"},
    "dp-srm": {"optimizer": "dp-srm"},
    "noise-decay": {"noise-schedule": "polynomial"},
    "adadps": {"optimizer": "adadps", "public-examples": 5},
}
SAMPLERS: dict[str, dict[str, object]] = {
    "poisson": {},
    "fixed-size": {"sampler": "fixed-size"},
    "everyone": {"sampler": "everyone", "sampling-rate": 1.0},
}
ALIKE = [("central", "fixed-size"), ("distributed", "everyone")]
CELLS = [
    pytest.param(*cell, marks=pytest.mark.slow if cell[:2] in ALIKE else ())
    for cell in itertools.product(("central", "distributed", "local"), SAMPLERS, OPTIMIZERS)
]


@pytest.mark.parametrize(("placement", "sampler", "optimizer"), CELLS)
def test_the_plan_spends_the_budget_and_not_more(placement: str, sampler: str, optimizer: str) -> None:
    values = {**SMALL, **SAMPLERS[sampler], **OPTIMIZERS[optimizer], "placement": placement}
    plan = make_plan(Config.parse(values))
    assert plan.budget is not None
    events = plan.mechanism.planned_events()
    assert len(events) == 12
    spent = epsilon(events, plan.budget.delta, plan.budget.method).epsilon
    assert 0.99 * 3.0 <= spent <= 3.0


@pytest.mark.parametrize("method", [pytest.param("rdp", marks=pytest.mark.slow), "gdp-clt", "zcdp", "tcdp"])
def test_other_methods_hold_the_budget_too(method: str) -> None:
    plan = plan_of(accounting=method)
    spent = epsilon(plan.mechanism.planned_events(), 1 / 10_000, method).epsilon
    assert 0.99 * 3.0 <= spent <= 3.0


def test_no_noise_has_no_budget() -> None:
    plan = plan_of(placement="none", clip_norm=math.inf)
    assert plan.budget is None
    assert [event.noise_multiplier for event in plan.mechanism.planned_events()] == [0.0] * 12


def test_local_noise_is_calibrated_to_the_servers_view_of_the_costliest_participations() -> None:
    """Per client and participation, unamplified, replace-one; the client that took part in the worst K."""
    plan = plan_of(placement="local", max_participations=3)
    events = plan.mechanism.planned_events()
    assert {(event.sampling, event.relation) for event in events} == {("none", "replace-one")}
    worst = costliest(events, 3)
    assert list(worst) == sorted(events, key=lambda event: event.noise_multiplier)[:3]
    assert worst[-1].noise_multiplier < events[0].noise_multiplier  # the noise falls along the run
    assert plan.budget is not None
    assert 0.99 * 3.0 <= epsilon(worst, plan.budget.delta, "pld").epsilon <= 3.0
    first = epsilon(events[:3], plan.budget.delta, "pld").epsilon
    assert first < 0.9 * epsilon(worst, plan.budget.delta, "pld").epsilon


def test_fewer_participations_need_less_noise() -> None:
    scales = [plan_of(placement="local", max_participations=k).mechanism.scale for k in (1, 4, 12)]
    assert scales == sorted(scales)
    assert scales[2] == plan_of(placement="local").mechanism.scale


def test_distributed_shares_add_up_to_the_whole_noise() -> None:
    plan = plan_of(placement="distributed", sampler="fixed-size", min_replies=80)
    placement = plan.mechanism.placement
    assert (placement.shares, placement.min_replies) == (100, 80)
    [share] = placement.party_stds((8.0,)) or ()
    assert share * math.sqrt(79) == pytest.approx(8.0)  # one client knows its own noise
    everyone = plan_of(placement="distributed", sampler="everyone", sampling_rate=1.0).mechanism.placement
    assert (everyone.shares, everyone.min_replies) == (1000, 1000)
    silos = make_plan(Config.parse({**SMALL, **SILOS, "placement": "distributed"})).mechanism.placement
    assert (silos.shares, silos.min_replies) == (4, 4)
    assert [silos.secret_shares, placement.secret_shares] == [3, 79]


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, 1),
        ({"colluding_parties": 0}, 0),
        ({"colluding_parties": 2000}, 999),
        ({"unit": "example", "clients": 4, "examples_per_client": 250}, 250),
        ({"unit": "example", "clients": 4, "examples_per_client": 250, "colluding_parties": 9}, 750),
        ({"unit": "example", "clients": 1, "examples_per_client": 1000}, 0),
        ({"unit": "example", "clients": 4, "examples_per_client": 1000, "level": "client"}, 0),
    ],
)
def test_colluding_parties_know_their_own_membership_in_cohorts(
    changes: dict[str, object], known: int
) -> None:
    plan = plan_of(sampler="fixed-size", **changes)
    sampler = plan.mechanism.sampler
    assert isinstance(sampler, FixedSize)
    assert (sampler.population, sampler.size, sampler.known) == (1000, 100, known)
    drawn = min(100, 1000 - known)
    assert {event.rate for event in plan.events} == {drawn / (1000 - known)}
    assert epsilon(plan.events, plan.budget.delta).epsilon <= 3


def test_a_poisson_cohort_is_cut_for_whichever_part_the_colluders_have() -> None:
    plan = plan_of(placement="local", colluding_parties=30)
    sampler = plan.mechanism.sampler
    assert isinstance(sampler, TruncatedPoisson)
    others = stats.binom(970, 0.1)
    for inside in (0, 15, 30):
        outside = float(others.sf(sampler.cap - inside) + others.cdf(sampler.floor - 1 - inside))
        assert outside <= sampler.truncation


@pytest.mark.parametrize("placement", ["local", "distributed"])
def test_a_truncated_poisson_cohort_hardly_ever_leaves_its_bounds(placement: str) -> None:
    plan = plan_of(placement=placement)
    sampler, budget = plan.mechanism.sampler, plan.budget
    assert isinstance(sampler, TruncatedPoisson)
    assert budget is not None
    law = stats.binom(1000, 0.1)
    above = float(law.sf(sampler.cap))
    below = float(law.cdf(sampler.floor - 1))
    # Over the run, with the e^epsilon of moving delta across a mixture: a small share of delta.
    assert (1 + math.exp(3.0)) * 12 * (above + below) <= 1.01e-3 * budget.delta
    assert sampler.cap < 200
    assert sampler.floor > 30
    assert above <= sampler.truncation <= 1e-6


@pytest.mark.parametrize("epsilon", [1e-3, 50.0])
def test_the_public_bounds_stay_close_and_leave_the_budget_to_the_noise(epsilon: float) -> None:
    """Tails far below 1e-16. If the cap were the number of clients, the noise would be that of all of
    them."""
    plan = make_plan(Config.parse({"placement": "distributed", "epsilon": epsilon, "delta": 1e-8}))
    assert 500 < plan.mechanism.placement.min_replies < 1000 < plan.mechanism.placement.shares < 2000
    assert plan.budget is not None
    spent = Accountant(plan.budget, charged=plan.mechanism.planned_events()).spent().epsilon
    assert 0.99 * epsilon <= spent <= epsilon


@pytest.mark.parametrize("own_data", [False, True])
@pytest.mark.parametrize("placement", ["central", "local", "distributed", "client level"])
def test_noise_is_exact_unless_fast_noise_is_asked_for(placement: str, own_data: bool) -> None:
    """Who sees a model with floating-point noise may tell from its last bits whether a unit was there."""
    level = placement == "client level"
    changes = {**SILOS_TRAIN} if level else {"placement": placement, "sampler": "fixed-size"}
    config = Config.parse({**SMALL, **changes, "nodes-own-data": own_data, "dataset": "digits"})
    mechanism = make_plan(config).mechanism
    query = mechanism.optimizer.query(mechanism.optimizer.init(torch.zeros(3)))
    assert mechanism.placement.exact
    assert config.exact_noise
    if not mechanism.placement.at_parties:
        assert isinstance(draw_ahead(query, 1.0, mechanism.placement, Key.from_seed(1), 0), Rounded)
    if not own_data:
        assert make_worker(config.table()).exact
        assert not make_worker(config.changed(noise_draws="fast").table()).exact
    else:
        with pytest.raises(ArgumentError, match="noise-draws is 'fast'"):
            make_plan(config.changed(noise_draws="fast"))


def test_central_noise_and_silos_take_plain_poisson() -> None:
    assert isinstance(plan_of().mechanism.sampler, Poisson)
    silos = make_plan(Config.parse({**SMALL, **SILOS, "placement": "distributed"}))
    assert isinstance(silos.mechanism.sampler, Poisson)
    assert (silos.units, silos.mechanism.sampler.population) == (1000, 1000)


def test_fixed_size_cohorts_are_rounded_and_never_empty() -> None:
    sampler = plan_of(sampler="fixed-size", sampling_rate=1e-5).mechanism.sampler
    assert isinstance(sampler, FixedSize)
    assert sampler.size == 1


def test_given_sequences_come_from_files(tmp_path: Path) -> None:
    noise, clips = tmp_path / "noise.csv", tmp_path / "clips.csv"
    noise.write_text("".join(f"{1 + t / 10}\n" for t in range(12)))
    clips.write_text("".join(f"{2 - t / 10}\n\n" for t in range(12)))
    plan = plan_of(
        noise_schedule="given", relative_noise_file=str(noise), clip_norm_file=str(clips), rounds=12
    )
    multipliers = np.array([event.noise_multiplier for event in plan.mechanism.planned_events()])
    np.testing.assert_allclose(multipliers / multipliers[0], 1 + np.arange(12) / 10)
    with pytest.raises(ArgumentError, match=r"noise.csv'; it must have one value a round, 5 \(it has 12\)"):
        plan_of(noise_schedule="given", relative_noise_file=str(noise), rounds=5)


@pytest.mark.parametrize(
    ("key", "lines", "message"),
    [
        ("relative-noise-file", "1\n\n1,1\n", "r.csv, line 3 is '1,1'; it must be one number"),
        ("relative-noise-file", "1\ntwo\n", "r.csv, line 2 is 'two'; it must be one number"),
        ("relative-noise-file", "1\nnan\n", "r.csv, line 2 is nan; it must be a number"),
        ("relative-noise-file", "1\n-1\n", "r.csv, line 2 is -1.0; it must be greater than 0"),
        ("relative-noise-file", "1\n1e-7\n", "r.csv'; it must keep noise multipliers within a factor"),
        ("clip-norm-file", "1\n1e-75\n", "r.csv, line 2 is 1e-75; it must lie in [1e-12, 1e+12]"),
        ("clip-norm-file", "1\ninf\n", "r.csv, line 2 is inf; it must lie in"),
    ],
)
def test_a_given_sequence_is_refused_by_file_and_line(
    key: str, lines: str, message: str, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("relative-noise-file", "clip-norm-file")}
    files[key] = tmp_path / "r.csv"
    for file in files.values():
        file.write_text("1\n1\n")
    files[key].write_text(lines)
    with pytest.raises(ArgumentError) as caught:
        plan_of(rounds=2, **{"noise-schedule": "given", **{name: str(file) for name, file in files.items()}})
    assert message in str(caught.value)
    assert str(caught.value).startswith(key)


def test_unreadable_numbers_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("1.0\ntwo\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\n")
    for name in ("words.csv", "binary.csv", "none.csv", "."):
        with pytest.raises(ArgumentError, match="relative-noise-file") as caught:
            read_numbers("relative-noise-file", str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_keys_are_entropy_unless_a_seed_is_given() -> None:
    assert not plan_of().key().reproducible
    assert plan_of(seed=0).key() == Key.from_seed(0)


def test_the_plan_is_made_of_public_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*arguments: object) -> None:
        raise AssertionError("the plan looked at data")

    monkeypatch.setattr("fedpriv.data.load", touched)
    assert plan_of().mechanism.rounds == 12


CLIENT_LEVEL = {**SILOS, "level": "client", "silo_steps": 3}


def client_level(**changes: object) -> Plan:
    keys = {key.replace("_", "-"): value for key, value in {**CLIENT_LEVEL, **changes}.items()}
    return make_plan(Config.parse({**SMALL, **keys}))


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dynamic-dp-sgd", "dp-srm"])
def test_a_silos_plan_is_that_of_a_run_over_it_alone(optimizer: str) -> None:
    """It has rounds times steps releases over the silo's own examples, at the delta of all silos'
    examples."""
    plan = client_level(optimizer=optimizer, delta=1e-5)
    alone = make_plan(
        Config.parse({**SMALL, **SILOS, "clients": 1, "rounds": 36, "optimizer": optimizer, "delta": 1e-5})
    )
    assert plan.mechanism.planned_events() == alone.mechanism.planned_events()
    assert len(plan.mechanism.planned_events()) == plan.mechanism.rounds == 36
    assert (plan.rounds, plan.units, alone.units) == (12, 1000, SILOS["examples-per-client"])
    assert {event.population for event in plan.mechanism.planned_events()} == {alone.units}
    assert not alone.by_silo
    assert plan.by_silo
    assert plan.budget == alone.budget
    silo = plan.cohorts(plan.key(), 2).draw(0)
    assert [shard.home for shard in silo] == [2]


def test_the_default_delta_is_of_all_silos_examples() -> None:
    budget = client_level().budget
    assert budget is not None
    assert budget.delta == 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": "client"}, "unit is 'client'; it must be example with level client"),
        ({"placement": "local"}, "placement is 'local'; it must be central or none with level client"),
        ({"placement": "distributed"}, "placement is 'distributed'; it must be central or none"),
        ({"optimizer": "adadp"}, "silo-steps is 3; it must be even with adadp"),
        ({"optimizer": "dp-srm", "srm_random_iterate": True}, "srm-random-iterate is True"),
        ({"optimizer": "rrpsgd"}, "optimizer is 'rrpsgd'; it must be another with level client"),
        ({"level": "aggregation"}, "silo-steps is 3, which needs level=client"),
        ({"delta": 0.01}, "delta is 0.01; it must be below 1 / units = 0.001"),
        ({"work": "local-steps"}, "work is 'local-steps'; it must be gradient"),
        ({"min_replies": 2}, "min-replies is 2"),
        ({"max_participations": 2}, "max-participations is 2"),
    ],
    ids=str,
)
def test_what_silos_cannot_do_by_themselves_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        client_level(**changes)


def test_a_chunk_is_an_actors_share_unless_chunks_key_the_noise() -> None:
    def size(**values: object) -> int:
        settings = {"clients": 50_000, "sampling-rate": 0.02, "delta": 1e-6, "actors": 4, **values}
        settings["optimizer"] = "dp-sgd"  # planning is fast
        return make_plan(Config.parse(settings)).chunk_size

    assert size() == 250
    assert size(actors=100) == 16
    assert size(engine="in-process", actors=0) == 512
    seeded = {size(seed=1, actors=actors) for actors in (1, 2, 4, 7)}
    assert seeded == {size(seed=1, engine="in-process", actors=0)} == {250}
    assert size(**{"chunk-size": 9}) == 9
    assert size(placement="distributed", actors=1) == size(placement="distributed", actors=9) == 128


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp-adam", "dynamic-dp-yogi"])
@pytest.mark.parametrize("level", ["aggregation", "client"])
def test_step_sizes_follow_the_schedule_over_all_releases(optimizer: str, level: str) -> None:
    settings: dict[str, object] = {"optimizer": optimizer, "learning-rate": 0.5, "rounds": 10}
    settings |= {"learning-rate-schedule": "linear", "warmup-steps": 2, "delta": 1e-6, "sampling-rate": 0.05}
    if level == "client":
        settings |= {**SILOS, "level": level, "silo-steps": 3}
    plan = make_plan(Config.parse(settings))
    steps = 30 if level == "client" else 10
    inner = plan.mechanism.optimizer
    assert isinstance(inner, FirstOrder)
    assert inner.learning_rate == Annealed(0.5, steps, "linear", 0.0, 2)
    state = State(torch.zeros(3), steps - 1, inner.init(torch.zeros(3)).slots)
    moved = inner.update(state, (torch.ones(3),)).params
    direction, _ = inner.rule.direction(state.slots, torch.ones(3), steps - 1)
    torch.testing.assert_close(moved, -0.5 / (steps - 2) * direction)


def test_a_rise_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(ArgumentError, match="warmup-steps is 10; it must be below the 10 steps"):
        make_plan(Config.parse({"optimizer": "dp-sgd", "rounds": 10, "warmup-steps": 10}))


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "dp-srm"}, {**SILOS, "level": "client", "rounds": 3}, {"placement": "local"}],
)
def test_a_plan_reads_its_configuration_once(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that changes single settings does not check all settings again."""
    values, times, read = {**SMALL, **changes}, [], Config.parse.__func__

    def counted(kind: type[Config], values: object) -> Config:
        times.append(1)
        return read(kind, values)

    monkeypatch.setattr(Config, "parse", classmethod(counted))
    make_plan(Config.parse(values))
    assert len(times) == 1

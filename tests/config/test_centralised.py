"""Training without federation: the same run as a federation of silos, and what contradicts it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import textbook
from helpers.small import SMALL, small

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli.display import follow
from fedpriv.cli.progress import shown
from fedpriv.config.builders import initial_params, make_public, make_source, make_task, make_view
from fedpriv.config.centralised import SET, resolve
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Arrays, DataError
from fedpriv.optimizers import METHODS
from fedpriv.report import markdown
from fedpriv.report import summary as summary_module
from fedpriv.runs.run_dir import FILES, RunFolder
from fedpriv.simulation import compare, compare_runs
from fedpriv.simulation.run import check, simulate

DIGITS = 1437  # training examples of the embedded set


def centralised(**changes: object) -> Config:
    values = {key: value for key, value in SMALL.items() if key not in SET}
    values |= {"dataset": "digits", "examples-per-client": 1400}
    return resolve({**values, **{key.replace("_", "-"): value for key, value in changes.items()}})


OPTIMIZERS: dict[str, dict[str, object]] = {
    "dynamic-dp-sgd": {},
    "dp-adam": {"learning_rate": 0.02},
    "dp2-rmsprop": {"dp2_sgd_steps": 2, "dp2_adaptive_steps": 1},
    "adadp": {},
    "dp-srm": {"srm_first_cohort": 2.0},
}
EVERYONE: dict[str, object] = {"sampler": "everyone", "sampling_rate": 1.0, "rounds": 2}


FIXED: dict[str, object] = {"sampler": "fixed-size"}


@pytest.mark.parametrize(
    ("optimizer", "changes", "sampling"),
    [
        ("dp-srm", OPTIMIZERS["dp-srm"], FIXED),
        *(
            pytest.param(*row, sampling, marks=pytest.mark.slow)
            for row in OPTIMIZERS.items()
            for sampling in ({}, FIXED)
            if (row[0], sampling) != ("dp-srm", FIXED)
        ),
    ],
)
def test_it_takes_the_steps_of_a_federation_of_silos(
    optimizer: str, changes: dict[str, object], sampling: dict[str, object]
) -> None:
    """Example unit, central noise, one seed: 1,400 examples in one place or in 7 silos."""
    changes = {**changes, **sampling, "optimizer": optimizer, "seed": 5}
    alone = simulate(centralised(**changes))
    among = (
        {"colluding_parties": 0} if sampling else {}
    )  # a silo knows whether its own units are in such a cohort
    many = {"dataset": "digits", "unit": "example", "clients": 7, "examples_per_client": 200}
    silos = simulate(small(**many, **changes, **among))
    torch.testing.assert_close(alone.params, silos.params, rtol=1e-4, atol=1e-5)
    config = make_plan(centralised(**changes)).config
    began = initial_params(make_task(config, make_source(config)), make_plan(config).key())
    assert not torch.allclose(alone.params, began, rtol=1e-2, atol=1e-2)
    spent = [run.report["privacy"]["views"][0]["epsilon"] for run in (alone, silos)]
    assert spent[0] == spent[1]
    assert alone.metrics[-1]["accuracy"] == pytest.approx(silos.metrics[-1]["accuracy"], abs=0.01)


def test_everyone_every_time_is_a_federation_of_silos_too() -> None:
    alone = simulate(centralised(**EVERYONE, seed=5))
    silos = small(dataset="digits", unit="example", clients=7, examples_per_client=200, seed=5, **EVERYONE)
    torch.testing.assert_close(alone.params, simulate(silos).params, rtol=1e-4, atol=1e-5)


def test_the_whole_training_set_is_used_by_default() -> None:
    assert resolve({"dataset": "digits"}).units == DIGITS
    assert resolve({"dataset": "digits", "examples-per-client": 100}).units == 100
    assert resolve({"dataset": "infinite-digits", "examples-per-client": 10**6}).units == 10**6
    assert make_plan(resolve({"dataset": "digits"})).units == DIGITS
    assert resolve({"dataset": "digits"}).resolved().delta == pytest.approx(1 / (10 * DIGITS))


def test_its_own_resolved_settings_give_the_same_run() -> None:
    config = resolve({"dataset": "digits", "optimizer": "dp-sgd"}).resolved()
    assert resolve(config.table()) == config


CONTRADICTIONS = [
    ({"unit": "client"}, "unit is 'client'; it must be example without federation"),
    ({"clients": 100_000}, "clients is 100000; it must be 1 without federation"),
    ({"partition": "iid"}, "partition is 'iid'; it must be one-example"),
    ({"level": "client"}, "level is 'client'; it must be aggregation without federation"),
    ({"work": "local-steps"}, "work is 'local-steps'; it must be gradient"),
    ({"nodes-own-data": True}, "nodes-own-data is True; it must be False"),
    ({"engine": "ray"}, "engine is 'ray'; it must be in-process without federation .*leave it out"),
    ({"placement": "local"}, "placement is 'local'; it must be none or central .*who holds the data"),
    ({"placement": "distributed"}, "placement is 'distributed'"),
    ({"examples-per-client": 1438}, "examples-per-client is 1438; it must be at most 1437"),
    ({"dataset": "infinite-digits"}, "examples-per-client is 1; it must be given for infinite-digits"),
    ({"sampling-rat": 1}, "did you mean 'sampling-rate'"),
    ({"dataset": "mnits"}, "dataset is 'mnits'"),
]


@pytest.mark.parametrize(("values", "message"), CONTRADICTIONS)
def test_what_contradicts_it_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve({"dataset": "digits", **values})


def test_data_that_is_not_there_is_refused(tmp_path: object) -> None:
    with pytest.raises(DataError, match="fedpriv data fetch mnist"):
        resolve({"dataset": "mnist", "data-folder": str(tmp_path)})


def test_silos_that_need_more_examples_than_there_are_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match="clients is 2; it must be at most 1 with 1000 examples each: digits has 1437"
    ):
        check(small(dataset="digits", unit="example", clients=2, examples_per_client=1000))


# What each optimizer of the configuration is without noise and clipping; DP2's epsilons and DP-SRM's
# second clip norm stand beside it, and so does a step size that suits.
RULES: dict[str, tuple[Callable[[Config], textbook.Rule], dict[str, object]]] = {
    "dp-sgd": (lambda c: textbook.sgd(c.learning_rate, c.momentum), {"momentum": 0.5}),
    "dp-adam": (lambda c: textbook.adam(c.learning_rate), {"learning_rate": 0.01}),
    "dp-rmsprop": (lambda c: textbook.rmsprop(c.learning_rate, c.beta2), {"beta2": 0.9}),
    "dp-adagrad": (lambda c: textbook.adagrad(c.learning_rate), {"learning_rate": 0.05}),
    "dp-yogi": (lambda c: textbook.yogi(c.learning_rate, epsilon=c.adam_epsilon), {"adam_epsilon": 1e-3}),
    "adp-sgd": (lambda c: textbook.decaying(c.learning_rate, c.own.adp_a, c.own.adp_c), {}),
    "adaptive-adp-sgd": (lambda c: textbook.by_norm(c.learning_rate, c.own.adp_a**0.5, c.own.adp_nu), {}),
    "adadp": (
        lambda c: textbook.extrapolating(c.learning_rate, c.own.adadp_tolerance),
        {"rounds": 6, "adadp_variant": "paper", "adadp_alpha_max": 1.1},
    ),
    "dp-srm": (
        lambda c: textbook.storm(c.learning_rate, c.own.srm_gamma),
        {"srm_difference_clip_norm": math.inf},
    ),
    "private-spiderboost": (
        lambda c: textbook.spider(c.learning_rate, c.own.spiderboost_phase),
        {"spiderboost_difference_clip_norm": math.inf, "spiderboost_phase": 3},
    ),
    "dp-gd": (lambda c: textbook.sgd(c.learning_rate), {"sampler": "everyone", "sampling_rate": 1.0}),
    "rrpsgd": (lambda c: textbook.sgd(c.learning_rate), {}),
    "adadps": (
        lambda c: textbook.preconditioned(c.learning_rate, make_public(c), c.own.adadps_epsilon),
        {"public_examples": 40, "adadps_epsilon": 0.1},
    ),
    "pda-dpmd": (
        lambda c: textbook.mixed(c.learning_rate, make_public(c), c.own.pda_horizon),
        {"public_examples": 40},
    ),
}
TWO_PHASES: dict[str, object] = {"dp2_sgd_steps": 2, "dp2_adaptive_steps": 2, "dp2_epsilon": 0.1}


def has_rule(name: str) -> bool:
    """Whether the name is in RULES; the conformance table has the rules of others."""
    return name.startswith("dp2-") or name.removeprefix("dynamic-") in RULES


def rule_of(name: str) -> tuple[Callable[[Config], textbook.Rule], dict[str, object]]:
    if name.startswith("dp2-"):
        changes = {**TWO_PHASES, "dp2_adaptive_clip_norm": math.inf}
        return lambda c: textbook.delayed(
            name.removeprefix("dp2-"), (c.learning_rate, c.own.dp2_adaptive_learning_rate), (2, 2), 0.1
        ), changes
    make, changes = RULES[name.removeprefix("dynamic-")]
    return make, {key: value for key, value in changes.items() if key != "momentum" or name == "dp-sgd"}


@pytest.mark.parametrize("name", [name for name in METHODS if has_rule(name)])
def test_without_noise_and_clipping_each_optimizer_is_its_textbook_rule(name: str) -> None:
    """The upper limits of the papers' tables: SGD, Adam, RMSProp, delayed RMSProp, STORM and the others."""
    make, changes = rule_of(name)
    common: dict[str, object] = {
        "placement": "none",
        "clip_norm": math.inf,
        "seed": 5,
        "optimizer": name,
        "averaging": 0.0,
    }
    plan = make_plan(centralised(**common, **changes))
    config, key = plan.config, plan.key()
    source = make_source(config)
    task, view, cohorts = make_task(config, source), make_view(config, source), plan.cohorts(key)
    drawn = [view.batch(cohorts.draw(t)[0].ids) for t in range(config.rounds)]

    def gradient(theta: torch.Tensor, release: int) -> torch.Tensor:
        leaf = theta.detach().clone().requires_grad_()
        total = task.losses(leaf, drawn[release].x, drawn[release].y).sum()
        return torch.autograd.grad(total, leaf)[0] / plan.mechanism.sampler.expected_size

    start, result = initial_params(task, key), simulate(config, plan=plan)
    expected = make(config)(gradient, start, result.metrics[-1]["round"])
    torch.testing.assert_close(result.params, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    assert float((expected - start).norm()) > 0.01
    assert result.report["remark"].startswith("not private: no noise is added")


def toy(target: str) -> Arrays:
    """Made-up data of each kind of target that a model can learn."""
    generator = np.random.Generator(np.random.Philox(3))
    if target == "value":  # the rating is the user's mood plus the item's worth
        ids = np.stack([generator.integers(0, 20, 900), generator.integers(0, 30, 900)], 1)
        y = (3 + (ids[:, 0] % 3 - 1) + (ids[:, 1] % 2) / 2).astype(np.float32)
        return Arrays("toy", ids, y, ids[:99], y[:99], 1, tokens=(20, 30), target="value")
    if target == "tags":
        x = generator.standard_normal((900, 12)).astype(np.float32)
        tags = (x[:, :8] > 1).astype(np.float32)
        return Arrays("toy", x, tags, x[:99], tags[:99], 8, target="tags")
    words = generator.integers(1, 9, (900, 6))
    labels = (words[:, 0] > 4).astype(np.int64)
    return Arrays("toy", words, labels, words[:99], labels[:99], 2, tokens=(9,))


KINDS = [
    ("value", "factors-biases", "mse", "mean squared error"),
    ("tags", "logistic", "accuracy", "accuracy"),
    pytest.param("label", "mlp-text", "accuracy", "accuracy", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("target", "model", "key", "words"), KINDS)
@pytest.mark.slow
def test_every_kind_of_data_is_learned_and_reported(
    target: str, model: str, key: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.data.load", lambda name, folder, **sizes: toy(target))
    common: dict[str, object] = {"model": model, "examples-per-client": 900, "optimizer": "dp-adam"}
    config = centralised(**common, learning_rate=0.05, sampling_rate=0.3, rounds=40, epsilon=20.0, seed=6)
    result = simulate(config, folder=RunFolder.create(tmp_path / "out"))
    first, last = result.metrics[0][key], result.metrics[-1][key]
    assert last < 0.7 * first if key == "mse" else last > max(0.6, first)
    assert f"Test {words} " in (tmp_path / "out" / "report.md").read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)
    chosen = compare.plans(config.changed(rounds=2), ["none", "central"])
    rows = compare_runs.run_here(compare_runs.as_sweep(config, chosen))
    assert f"| test {words} |" in compare.markdown(rows)
    assert compare.draw(rows).axes


def test_a_model_that_diverges_has_no_score_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedpriv.data.load", lambda name, folder, **sizes: toy("value"))
    common: dict[str, object] = {"model": "factors-biases", "examples-per-client": 900, "rounds": 4}
    config = centralised(**common, learning_rate=1e30, placement="none", clip_norm=math.inf, seed=1)
    with shown("first round") as bar:
        result = simulate(config, follow(bar), RunFolder.create(tmp_path / "out"))
    assert [record["mse"] for record in result.metrics] == [None, None]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [None, None]
    assert "round 2/4  mean squared error nan" in capsys.readouterr().out
    assert "Test mean squared error - after 4 rounds" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("value", {"model": "mlp"}, "which are ids; use one of factors, factors-biases"),
        ("value", {"model": "factors", "input_mean": 0.1}, "input-mean is 0.1; it must be 0: toy is"),
        ("value", {"model": "factors", "input_std": 2.0}, "input-std is 2.0"),
        ("tags", {"model": "linear"}, "model is 'linear'; it must have 8 outputs for each example"),
        ("label", {"model": "factors"}, "use one of lstm, mlp-text"),
    ],
)
def test_a_model_that_does_not_suit_the_data_is_refused(
    target: str, changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.data.load", lambda name, folder, **sizes: toy(target))
    with pytest.raises(ArgumentError, match=message):
        check(centralised(**{"examples-per-client": 900}, **changes))


@pytest.mark.parametrize("placement", ["central", "none"])
def test_the_report_says_who_adds_the_noise_and_what_one_unit_is(placement: str) -> None:
    plan = make_plan(centralised(placement=placement))
    summary = summary_module.summarise(plan, plan.mechanism.planned_events(), [], "rounds")
    text = markdown.markdown(summary)
    assert summary["privacy"]["unit"] == "example: one example of the training set"
    assert summary["privacy"]["units"] == 1400
    assert "| neighbouring data | add/remove one unit |" in text
    central = "one party holds all examples, trains the model and adds the noise"
    assert (central in text) == (placement == "central")
    assert "Clients" not in summary["privacy"]["trust"]
    if placement == "central":
        assert "if any one example is added to the data or removed from it" in text

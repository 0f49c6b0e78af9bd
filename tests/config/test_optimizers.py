"""Optimizers from the configuration: every key reaches its method, and keys without use are named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import epsilon
from fedpriv.config.builders import make_source, make_task
from fedpriv.config.context import build_context
from fedpriv.config.plan import make_optimizer, make_plan
from fedpriv.config.schema import Config, unused
from fedpriv.optimizers import (
    METHODS,
    Adadp,
    AdaDps,
    AdaptiveAdpSgd,
    Dp2,
    DpSrm,
    ExtraQuery,
    FirstOrder,
    NoisyAdaGrad,
    NormalisedStep,
    PdaDpmd,
    Polynomial,
    PrivateSpiderBoost,
    Restarting,
    RmsProp,
    Yogi,
    adaptive_adp_sgd,
    adp_sgd,
    dp_sgd,
)
from fedpriv.optimizers.schedules import Constant
from fedpriv.simulation.run import check, simulate
from fedpriv.tasks.public_gradient import PublicGradient, split

RATES = (Constant(0.5), Constant(0.25))
SHARED = {"dp2-adaptive-learning-rate": 0.25, "dp2-adaptive-clip-norm": 4.0, "dp2-epsilon": 0.5}
CASES: dict[str, tuple[dict[str, Any], object]] = {
    "adp-sgd": ({"adp-a": 9.0, "adp-c": 2.0}, adp_sgd(0.5, 2.0, Polynomial(9.0, 2.0))),
    "adp-sgd with DP-SGD's noise": (
        {"optimizer": "adp-sgd", "adp-a": 9.0, "adp-c": 2.0, "adp-noise": "constant"},
        adp_sgd(0.5, 2.0, Polynomial(9.0, 2.0), Constant(1.0)),
    ),
    "adaptive-adp-sgd with DP-SGD's noise": (
        {"optimizer": "adaptive-adp-sgd", "adp-a": 9.0, "adp-nu": 0.5, "adp-noise": "constant"},
        AdaptiveAdpSgd(0.5, 2.0, 3.0, Constant(1.0), 0.5, Restarting(1.0, 1)),
    ),
    "adaptive-adp-sgd": (
        {"adp-a": 9.0, "adp-c": 2.0, "adp-nu": 0.5, "adp-beta": 3.0, "adp-period": 7},
        adaptive_adp_sgd(0.5, 2.0, 3.0, 2.0, 0.5, Restarting(3.0, 7)),
    ),
    "adadp": (
        {
            "adadp-tolerance": 2.0,
            "adadp-alpha-min": 0.8,
            "adadp-alpha-max": 1.2,
            "adadp-discard": True,
            "adadp-decay-after": 8,
            "adadp-epoch": 3,
            "adadp-decay": 0.5,
            "adadp-variant": "authors-code",
        },
        Adadp(0.5, 2.0, 2.0, 0.8, 1.2, True, 8, 3, 0.5, "authors-code", steps=4),
    ),
    "adadp by its starting weights": (
        {"optimizer": "adadp", "adadp-tolerance": 0, "rounds": 30},
        Adadp(0.5, 2.0, None, steps=15),
    ),
    "dp-srm": (
        {"srm-gamma": 0.5, "srm-difference-clip-norm": 0.3, "srm-first-cohort": 2.0},
        DpSrm(Constant(0.5), 2.0, 0.3, 0.5, 2.0),
    ),
    "private-spiderboost": (
        {
            "spiderboost-phase": 4,
            "spiderboost-full-cohort": 2.0,
            "spiderboost-smoothness": 0.5,
            "spiderboost-difference-clip-norm": 0.3,
        },
        PrivateSpiderBoost(Constant(0.5), 2.0, 0.3, 0.5, 4, 2.0),
    ),
    "dp-gd": ({}, dp_sgd(0.5, 2.0)),
    "rrpsgd": ({}, dp_sgd(0.5, 2.0)),
    "dp2-adam": (
        {**SHARED, "dp2-sgd-steps": 3, "dp2-adaptive-steps": 2, "dp2-beta": 0.5, "beta1": 0.25},
        Dp2("adam", *RATES, 2.0, 4.0, 3, 2, 0.5, 0.5, 0.25),
    ),
    "dp2-yogi": (
        {"dp2-adaptive-learning-rate": 0.25, "dp2-variant": "noise-first", "dp2-epsilon": 0.5},
        Dp2("yogi", *RATES, 2.0, 4.0, 10, 10, 0.5, noise_first=True),
    ),
    "dp2-rmsprop": (
        {**SHARED, "dp2-variant": "extra-query", "dp2-sgd-steps": 3, "dp2-beta": 0.5},
        ExtraQuery("rmsprop", *RATES, 2.0, 4.0, 3, 0.5, 0.5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_key_reaches_its_method(name: str) -> None:
    changes, expected = CASES[name]
    config = Config.parse({"optimizer": name, "learning-rate": 0.5, "clip-norm": 2.0, **changes})
    assert make_optimizer(config.changed(averaging=0.0).resolved()) == expected
    assert unused(config) is None


def test_the_normalised_step_has_its_own_keys() -> None:
    keys = {"srm-step": "normalised", "srm-zeta": 2.0, "srm-smoothness": 3.0, "srm-n0": 4.0}
    method = make_optimizer(Config.parse({"optimizer": "dp-srm", **keys}).resolved())
    assert isinstance(method, DpSrm)
    assert method.step_size == NormalisedStep(2.0, 3.0, 4.0)


def test_the_random_iterate_is_chosen_before_the_run_and_handed_out() -> None:
    """Without noise, it equals the last iterate of a run with that many rounds."""
    keys = {"optimizer": "dp-srm", "placement": "none", "learning-rate": 0.5}
    chosen = set()
    for seed in range(4):
        whole = small(seed=seed, **{**keys, "srm-random-iterate": True})
        method = make_optimizer(whole.resolved())
        assert isinstance(method, DpSrm)
        assert method.output_step is not None
        chosen.add(method.output_step)
        if method.output_step == 0:
            continue
        short = small(seed=seed, **{**keys, "rounds": method.output_step})
        torch.testing.assert_close(simulate(whole).params, simulate(short).params)
    assert len(chosen) > 1
    assert chosen <= set(range(6))


def rule_of(optimizer: str, **values: float) -> object:
    method = make_optimizer(Config.parse({"optimizer": optimizer, **values}).resolved())
    assert isinstance(method, FirstOrder)
    return method.rule


def test_textbook_rules_are_named_by_the_last_word() -> None:
    values = {"beta1": 0.5, "beta2": 0.75, "adam-epsilon": 0.1}
    assert rule_of("dp-yogi", **values) == Yogi(0.5, 0.75, 0.1)
    assert rule_of("dynamic-dp-rmsprop", beta2=0.75, **{"adam-epsilon": 0.1}) == RmsProp(0.75, 0.1)


PUBLIC = ("adadps", "noisy-adagrad", "pda-dpmd")
DP2 = ("dp2-rmsprop", "dp2-adagrad", "dp2-yogi", "dp2-adam")
NEEDED: dict[str, dict[str, Any]] = {
    "dp-gd": {"sampler": "everyone", "sampling-rate": 1.0},
    **{name: {"public-examples": 20} for name in PUBLIC},
}


def is_used(**changes: Any) -> bool:
    try:
        return unused(small(**changes)) is None
    except ArgumentError:
        return False


@pytest.mark.parametrize("name", METHODS)
def test_every_optimizer_has_a_plan(name: str) -> None:
    """A key that belongs to another method is refused."""
    needed = NEEDED.get(name, {})
    mechanism = make_plan(small(optimizer=name, **needed)).mechanism
    assert len(mechanism.planned_events()) == 6 or name == "rrpsgd"
    changed = {
        "adp-c": 0.5,
        "adp-nu": 1e-3,
        "dp2-beta": 0.5,
        "adadp-tolerance": 3.0,
        "srm-gamma": 0.7,
        "beta1": 0.5,
        "beta2": 0.5,
        "adam-epsilon": 0.5,
        "adadps-beta": 0.5,
        "pda-horizon": 4,
        "public-batch": 4,
        "adaclip-mean-decay": 0.5,
        "spiderboost-phase": 4,
        "noisy-adagrad-epsilon": 0.5,
    }
    used = {key for key, value in changed.items() if is_used(optimizer=name, **{**needed, key: value})}
    expected = {
        "adp-sgd": {"adp-c"},
        "adaptive-adp-sgd": {"adp-c", "adp-nu"},
        "adadp": {"adadp-tolerance"},
        "dp-srm": {"srm-gamma"},
        "dp2-adam": {"dp2-beta", "beta1"},
        "adadps": {"adadps-beta", "public-batch"},
        "private-spiderboost": {"spiderboost-phase"},
        "adaclip": {"adaclip-mean-decay"},
        "dynamic-adaclip": {"adaclip-mean-decay"},
        "noisy-adagrad": {"noisy-adagrad-epsilon", "public-batch"},
        "pda-dpmd": {"pda-horizon", "public-batch"},
    }
    plain = {
        "gd": set(),
        "rrpsgd": set(),
        "sgd": set(),
        "adam": {"beta1", "beta2", "adam-epsilon"},
        "yogi": {"beta1", "beta2", "adam-epsilon"},
        "rmsprop": {"beta2", "adam-epsilon"},
        "adagrad": {"adam-epsilon"},
    }
    known = {**{key: {"dp2-beta"} for key in DP2}, "dp2-adagrad": set(), **expected}
    assert used == known.get(name, plain.get(name.rpartition("-")[2], used))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"optimizer": "dp2-adam", "dp2-variant": "noise-first", "dp2-adaptive-clip-norm": 9.0}, "clip-norm"),
        ({"optimizer": "dp2-yogi", "dp2-variant": "extra-query", "dp2-adaptive-steps": 9}, "adaptive-steps"),
        ({"optimizer": "dp2-adagrad", "dp2-beta": 0.5}, "dp2-beta"),
        ({"optimizer": "adadp", "adadp-decay": 0.5}, "adadp-decay"),
        ({"optimizer": "adadp", "adp-noise": "constant"}, "adp-noise"),
        ({"optimizer": "adaptive-adp-sgd", "adp-noise": "constant", "adp-c": 0.5}, "adp-c"),
        ({"optimizer": "dp-srm", "srm-zeta": 0.5}, "srm-zeta"),
        ({"optimizer": "dp-srm", "warmup-steps": 3}, "warmup-steps"),
        ({"optimizer": "adadp", "learning-rate-schedule": "cosine"}, "learning-rate-schedule"),
        ({"optimizer": "dp-adam", "learning-rate-end": 0.5}, "learning-rate-end"),
        ({"optimizer": "dp-sgd", "public-examples": 3}, "public-examples"),
        ({"noise-decay": 0.5}, "noise-decay"),
        ({"noise-schedule": "exponential", "noise-period": 3}, "noise-period"),
        ({"noise-schedule": "step", "noise-end": 0.5}, "noise-end"),
        ({"optimizer": "dp-srm", "srm-step": "normalised", "learning-rate": 0.5}, "learning-rate"),
        ({"optimizer": "dp-srm", "srm-gamma": 1, "srm-difference-clip-norm": 9.0}, "difference-clip-norm"),
    ],
)
def test_keys_that_a_variant_has_no_use_for_are_named(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{found} is .*, which needs "):
        make_plan(Config.parse(changes))


def test_what_was_filled_in_is_no_change() -> None:
    config = Config.parse({"optimizer": "dp-srm", "srm-step": "normalised"})
    assert config.resolved().learning_rate == 4.0
    assert unused(config.resolved()) is unused(config) is None
    make_plan(config)


def test_the_noise_correction_knows_the_noise_of_the_plan() -> None:
    for placement, factor in (("central", 1.0), ("local", math.sqrt(40))):
        keys = {"placement": placement, "sampler": "fixed-size", "clip-norm": 2.0}
        plan = make_plan(small(optimizer="dp2-rmsprop", **{"dp2-noise-correction": True, **keys}))
        method = plan.mechanism.optimizer
        assert isinstance(method, Dp2)
        assert method.noise_std == pytest.approx(plan.mechanism.scale * 2.0 / 40 * factor)


@pytest.mark.parametrize(
    "changes", [{"optimizer": "dp2-adam", "dp2-noise-correction": True}, {"optimizer": "adaclip"}]
)
def test_silos_of_unequal_sizes_have_no_noise_to_correct_by(changes: dict[str, Any]) -> None:
    """The noise of a silo's mean depends on its size; one optimizer of the plan is for all silos."""
    silos = {
        "level": "client",
        "unit": "example",
        "clients": 4,
        "partition": "iid",
        "examples-per-client": 99,
    }
    unequal = small(**{**silos, **changes, "client-sizes": "uniform"})
    with pytest.raises(ArgumentError, match="client-sizes is 'uniform'; it must be equal with"):
        make_plan(unequal)
    make_plan(unequal.changed(client_sizes="equal"))
    make_plan(unequal.changed(optimizer="dp2-rmsprop", dp2_noise_correction=False))


def test_the_step_sizes_constant_beside_a_small_clip_norm_is_named_as_the_setting() -> None:
    with pytest.raises(ArgumentError, match=r"adp-c is 1.0; it must lie in \[adp-nu, clip-norm\^2\] = "):
        make_plan(small(**{"optimizer": "adaptive-adp-sgd", "clip-norm": 0.5}))
    make_plan(small(**{"optimizer": "adaptive-adp-sgd", "clip-norm": 0.5, "adp-c": 0.25}))
    make_plan(small(**{"optimizer": "adaptive-adp-sgd", "clip-norm": 0.5, "adp-noise": "constant"}))


def test_dp2_adam_has_no_extra_query() -> None:
    with pytest.raises(ArgumentError, match="dp2-variant"):
        make_plan(Config.parse({"optimizer": "dp2-adam", "dp2-variant": "extra-query"}))


DECAYS = {
    "time-based": (lambda t: 1 / (1 + 0.3 * t), {"noise-decay": 0.3}),
    "exponential": (lambda t: math.exp(-0.01 * t), {}),
    "step": (lambda t: 0.6 ** (t // 2), {"noise-period": 2}),
    "polynomial": (lambda t: 0.5 * (1 - t / 3) + 0.5, {"noise-decay": 1.0, "noise-end": 0.5}),
}


@pytest.mark.parametrize("accounting", ["pld", "zcdp", "tcdp"])
@pytest.mark.parametrize("form", DECAYS)
def test_a_noise_decay_by_epochs_spends_the_budget(form: str, accounting: str) -> None:
    """Six releases in epochs of two; C and the step size stay constant."""
    formula, keys = DECAYS[form]
    plan = make_plan(small(noise_schedule=form, noise_epoch=2, accounting=accounting, **keys))
    optimizer, events = plan.mechanism.optimizer, plan.events
    first = events[0].noise_multiplier
    assert [e.noise_multiplier / first for e in events] == pytest.approx([formula(t // 2) for t in range(6)])
    state = optimizer.init(torch.zeros(3))
    for _ in range(6):
        assert optimizer.query(state).blocks[0].sensitivity == 1.0
        state = optimizer.update(state, (torch.zeros(3),))
    assert plan.budget is not None
    spent = epsilon(events, plan.budget.delta, accounting).epsilon
    # tCDP's epsilon jumps where its amplification begins, so no noise spends a budget within the jump.
    assert (0.99 if accounting != "tcdp" else 0.3) * 3 < spent <= 3


def rounds_of(config: Config) -> int:
    return config.method.run_rounds(config.rounds, build_context(config))


@pytest.mark.slow
def test_rrpsgd_ends_at_a_round_drawn_before_the_run_with_the_noise_of_all() -> None:
    lengths = set()
    for seed in range(12):
        config = small(optimizer="rrpsgd", rounds=40, seed=seed, learning_rate=0.1)
        plan = make_plan(config)
        assert plan.mechanism.rounds == rounds_of(config) <= 40
        assert plan.mechanism.scale == make_plan(small(optimizer="dp-sgd", rounds=40)).mechanism.scale
        lengths.add(plan.mechanism.rounds)
    assert len(lengths) > 4
    short = next(s for s in range(99) if rounds_of(small(optimizer="rrpsgd", seed=s)) == 2)
    result = simulate(small(optimizer="rrpsgd", seed=short))
    assert (result.report["result"]["rounds"], result.stopped) == (2, "rounds")
    view = result.report["privacy"]["views"][0]["epsilon"]["pld"]
    assert view["epsilon"] < 2.9  # less than the budget, which is for all six rounds
    quiet = make_plan(small(optimizer="rrpsgd", seed=short, placement="none"))
    assert quiet.mechanism.rounds == 2


@pytest.mark.parametrize("name", PUBLIC)
def test_public_examples_teach_and_are_not_evaluated_on(name: str) -> None:
    config = small(optimizer=name, public_examples=30, public_batch=8, seed=1, learning_rate=0.5, averaging=0)
    source = make_source(config)
    public, rest = split(source.test(), 30)
    result = simulate(config)
    scores = make_task(config, source).evaluate(result.params, *rest)
    assert result.metrics[-1]["accuracy"] == scores["accuracy"]
    assert len(rest.y) == len(source.test().y) - 30
    method = make_optimizer(config.resolved())
    assert isinstance(method, AdaDps | NoisyAdaGrad | PdaDpmd)
    params, gradient = torch.ones(7850), PublicGradient(make_task(config, source), public, 8)
    expected = gradient.rows(params, 3) if isinstance(method, NoisyAdaGrad) else gradient(params, 3)
    torch.testing.assert_close(method.public(params, 3), expected)
    assert "30 public examples" in " ".join(result.report["privacy"]["not covered"])


def test_public_examples_are_checked_before_a_run() -> None:
    with pytest.raises(ArgumentError, match="public-examples is 0; it must be at least 1 with optimizer"):
        make_plan(small(optimizer="adadps"))
    with pytest.raises(ArgumentError, match="public-examples is 5000; it must be below"):
        check(small(optimizer="adadps", public_examples=5000))
    with pytest.raises(ArgumentError, match="public-batch is 9; it must be at most the 8"):
        check(small(optimizer="pda-dpmd", public_examples=8, public_batch=9))
    assert make_plan(small(optimizer="pda-dpmd", public_examples=8)).config.own.pda_horizon == 96


def test_dp_gd_asks_everyone() -> None:
    with pytest.raises(ArgumentError, match="sampler is 'poisson'; it must be everyone with optimizer dp-gd"):
        make_plan(small(optimizer="dp-gd"))
    events = make_plan(small(optimizer="dp-gd", sampler="everyone", sampling_rate=1.0)).events
    assert {event.sampling for event in events} == {"none"}

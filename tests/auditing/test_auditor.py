"""The audit finds what leaks more than it says, and nothing else; its bounds hold by themselves."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.patching import expect_found, patched
from helpers.small import small
from scipy import stats
from torch import Tensor
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event
from fedpriv.auditing.auditor import audit
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.one_run import one_run_p_value, proved_epsilon
from fedpriv.cli import app
from fedpriv.config.schema import Config
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.mechanism.gaussian import PIECE
from fedpriv.mechanism.placement import Central, Distributed
from fedpriv.mechanism.query import Query, Term
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.mechanism.sampling import FixedSize, Poisson
from fedpriv.rng import Key
from fedpriv.runs.budget import RunAccountant

CANARIES = 20_000
FIRST = {"dp2_sgd_steps": 2}
LOUD: dict[str, Any] = {"clients": CANARIES, "epsilon": 4.0, "rounds": 6, "sampling_rate": 0.2, "seed": 0}
LONG: dict[str, Any] = {**LOUD, "clients": 40_000}  # two parameters each: more than a piece of noise has
EVERYONE: dict[str, Any] = {**LOUD, "clients": 6000, "sampler": "everyone", "sampling_rate": 1.0}
DP2: dict[str, Any] = {**LOUD, **FIRST, "dp2_adaptive_steps": 1}

# Runs of each kind of query, cohort, unit and placement; the optimizers in full are slow. Where accounting is
# tight, the measured epsilon is the claimed one.
SOUND: dict[str, dict[str, Any]] = {
    "dynamic-dp-sgd": LOUD,
    "everyone": EVERYONE,
    "fixed size": {**LOUD, "sampler": "fixed-size"},
    "small cohorts": {**LOUD, "sampling_rate": 0.01, "rounds": 20},
    "distributed, cut cohorts": {**LOUD, "placement": "distributed"},
    "examples": {**LOUD, "unit": "example", "clients": 20, "examples_per_client": 1000},
    "local steps": {**LOUD, "clients": 3000, "work": "local-steps", "local_steps": 2},
    "adaptive clip norm": {**LOUD, "adaptive_quantile": 0.5, "optimizer": "dp-sgd"},
    "dp2-rmsprop": {**DP2, "optimizer": "dp2-rmsprop"},
    "dp-srm": {**LOUD, "optimizer": "dp-srm"},
    "adadp": {**LOUD, "optimizer": "adadp"},
}
# Slow: the sampler, its accounting, placements, silos, local steps and clip norms have tests of their own.
AGAIN = ("fixed size", "distributed, cut cohorts", "examples", "local steps", "adaptive clip norm")
OFTEN = ("distributed", "dp2, extra query", "adaptive-adp-sgd", "sqrt-clip")  # of SLOW
TIGHT = ("dynamic-dp-sgd", "everyone", "small cohorts", "dp2-rmsprop", "adadp")
SLOW: dict[str, dict[str, Any]] = {
    "distributed": {**LOUD, "sampler": "fixed-size", "placement": "distributed"},
    "dp2-adagrad": {**DP2, "optimizer": "dp2-adagrad"},
    "dp2-adam": {**DP2, "optimizer": "dp2-adam"},
    "dp2, noise first": {**DP2, "optimizer": "dp2-rmsprop", "dp2_variant": "noise-first"},
    "dp2, extra query": {**LOUD, "optimizer": "dp2-rmsprop", "dp2_variant": "extra-query", **FIRST},
    "adp-sgd": {**LOUD, "optimizer": "adp-sgd"},
    "adaptive-adp-sgd": {**LOUD, "optimizer": "adaptive-adp-sgd"},
    "dp-adam": {**LOUD, "optimizer": "dp-adam"},
    "dp-gd": {**EVERYONE, "optimizer": "dp-gd"},
    "averaged": {**LOUD, "averaging": 0.9},
    "sqrt-clip": {**LOUD, "noise_schedule": "sqrt-clip"},
    "adaclip": {**LOUD, "clients": 2000, "optimizer": "adaclip"},
    "dynamic-adaclip, replaced": {
        **LOUD,
        "clients": 2000,
        "optimizer": "dynamic-adaclip",
        "sampler": "fixed-size",
    },
}


def found_in(settings: dict[str, Any]) -> Finding:
    return audit(small(**settings))


def expect_sound(settings: dict[str, Any]) -> Finding:
    found = found_in(settings)
    assert not found.violated, found
    assert found.stopped == "rounds"
    assert found.measured_least <= found.claimed
    assert max(found.proved, found.proved_by_curves) < found.claimed
    return found


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in AGAIN else ())
        for kind in SOUND
        if kind not in TIGHT
    ],
)
def test_a_correct_run_passes_the_audit(kind: str) -> None:
    expect_sound(SOUND[kind])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.exhaustive) for kind in SLOW]
)
def test_a_correct_run_of_every_optimizer_passes_the_audit(kind: str) -> None:
    expect_sound(SLOW[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TIGHT)
def test_the_measured_epsilon_equals_the_claim_if_accounting_is_tight(kind: str) -> None:
    found = expect_sound(SOUND[kind])
    for true, most in found.true_rates.values():
        assert true == pytest.approx(most, abs=6 * math.sqrt(most / 2500))
    assert found.measured_most >= found.claimed
    # One standard deviation is 15 % of epsilon with small cohorts, and 3 to 8 % with the others.
    assert found.measured == pytest.approx(found.claimed, rel=0.5 if kind == "small cohorts" else 0.25)


# What could be wrong with a run: each a defect in the run's own code, which an audit has to find in a run in
# which, above, it finds nothing.


def _half_charged(right: Any, budget_gate: RunAccountant, events: Sequence[Event]) -> None:
    if budget_gate.releases % 2:
        budget_gate._charged += events  # counted, but not written down
    else:
        right(budget_gate, events)


FAULTS: dict[str, tuple[dict[str, Any], Any, str, Callable[..., Any]]] = {
    "less noise on the sum": (
        LOUD, Central, "server_stds", lambda right, *a: tuple(0.8 * std for std in right(*a)),
    ),
    "less noise of the parties": (
        {**LOUD, "sampler": "fixed-size", "placement": "distributed"},
        Distributed, "party_stds",
        lambda right, *a: None if right(*a) is None else tuple(0.4 * std for std in right(*a)),
    ),
    "noise for half the sensitivity": (
        LOUD, Query, "noise_stds", lambda right, query, z: right(query, 0.5 * z),
    ),
    "a clip that does not hold": (
        EVERYONE, Term, "bound", lambda right, term, layers: 1.25 * right(term, layers),
    ),
    "larger cohorts than accounted": (
        LOUD, Poisson, "draw", lambda right, s, g: right(replace(s, rate=1.4 * s.rate), g),
    ),
    "replaced units accounted as if they moved a sum by one clip norm": (
        {**LOUD, "sampler": "fixed-size"}, FixedSize, "event", lambda right, s, z: right(s, 2 * z),
    ),
    "releases that are not charged": (LOUD, RunAccountant, "charge", _half_charged),
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=() if f == "less noise on the sum" else pytest.mark.slow) for f in FAULTS],
)
def test_a_fault_is_found_by_guesses(fault: str) -> None:
    settings, owner, name, wrong = FAULTS[fault]
    assert settings in (*SOUND.values(), *SLOW.values())
    with patched(owner, name, wrong):
        found = found_in(settings)
    assert found.leaks, found
    assert found.measured_least > found.claimed


# What a guesser who trusts that noise is independent, and cohorts new, does not notice.


CALLS = itertools.count()
ODD: dict[str, tuple[dict[str, Any], Any, str, Callable[..., Any], str]] = {
    "one release without noise": (
        LOUD, Central, "server_stds",
        # It is asked twice a release: when noise is drawn ahead, and when it is added.
        lambda right, *a: tuple((next(CALLS) // 2 != 3) * std for std in right(*a)),
        "noise that is too small, in release 4",
    ),
    "noise missing at a few places": (
        LOUD, Rounded, "take",
        lambda right, draws: tuple(_holed(z) for z in right(draws)), "noise that is missing",
    ),
    "one number for all coordinates": (
        LOUD, Rounded, "take",
        lambda right, draws: tuple(z.flatten()[0].expand_as(z) for z in right(draws)), "noise that ",
    ),
    "the same noise every time": (
        LOUD, Rounded, "take",
        lambda right, draws: right(Rounded(Key.from_seed(0), ("once",), right(draws), draws.scales)),
        "noise that was used before",
    ),
    "the same cohort every time": (
        LOUD, CohortSampler, "draw",
        lambda right, cohorts, release, factor=1.0: right(cohorts, 0, factor), "cohort that was used before",
    ),
    "one noise for all pieces of a vector": (
        LONG, Rounded, "take", lambda right, draws: tuple(_in_pieces(z) for z in right(draws)),
        "noise that distant coordinates share",
    ),
    "an exact bit": (
        {**LOUD, "adaptive_quantile": 0.5}, Central, "server_stds",
        lambda right, *a: (right(*a)[0], 0.0), "noise that is ",
    ),
    "cohorts of one size, accounted as Poisson": (
        LOUD, Poisson, "draw",
        lambda right, s, g: FixedSize(s.population, round(s.rate * s.population)).draw(g),
        "cohort whose size is not random",
    ),
    "cohorts half as large again": (
        LOUD, Poisson, "draw", lambda right, s, g: right(replace(s, rate=1.5 * s.rate), g), "too large",
    ),
}  # fmt: skip


def _holed(normal: Tensor) -> Tensor:
    """With nothing at every fiftieth place."""
    normal = normal.clone()
    normal[::50] = 0.0
    return normal


def _in_pieces(normal: Tensor) -> Tensor:
    """With the first piece's numbers in all pieces."""
    return normal.flatten()[torch.arange(normal.numel()) % PIECE].view_as(normal)


def test_noise_that_repeats_itself_is_told_from_noise_that_does_not() -> None:
    noise = np.random.default_rng(0).standard_normal(6000)
    sound, repeated = Residuals(100), Residuals(100)
    sound.add([noise], np.arange(3), 0.5)
    repeated.add([np.concatenate([noise[:4500], noise[:1500]])], np.arange(3), 0.5)
    assert sound.p_value > 0.01
    assert repeated.p_value < 1e-9
    assert repeated.oddest == "noise that distant coordinates share, in release 1"


FEW = {"clients": 2000}  # the residuals tell more than guesses


@pytest.mark.slow
@pytest.mark.parametrize("fault", ODD)
def test_a_fault_is_found_in_the_residuals(fault: str) -> None:
    expect_found(ODD[fault], lambda settings: found_in(settings if settings is LONG else settings | FEW))


@pytest.mark.slow
def test_one_run_of_dp_sgd_proves_most_of_its_claim() -> None:
    """The run of docs/guides/audit.md, with canaries that have the largest influence that is allowed."""
    settings = {**LOUD, "optimizer": "dp-sgd", "sampler": "everyone", "sampling_rate": 1.0, "rounds": 5}
    found = audit(Config.parse({**settings, "delta": 1e-5}), confidence=0.95)
    assert 0.6 * found.claimed < found.proved_by_curves <= found.claimed
    assert not found.violated


@pytest.mark.slow
def test_one_round_is_audited_too() -> None:
    with patched(Central, "server_stds", lambda right, *a: tuple(0.3 * std for std in right(*a))):
        found = found_in({**LOUD, "rounds": 1})
    assert found.leaks
    assert found.allowed < 0.61


def test_a_run_without_its_noise_is_proved_to_leak() -> None:
    """The proof that assumes nothing takes more than a factor of a few."""
    with patched(Central, "server_stds", lambda right, *a: tuple(0.1 * std for std in right(*a))):
        found = found_in({**EVERYONE, "delta": 1e-8})
    assert found.proved > found.claimed


# The one-run bound by itself.


def test_without_delta_it_is_the_binomial_tail() -> None:
    for epsilon, guesses, right in ((0.0, 10, 7), (1.0, 100, 80), (3.0, 50, 50)):
        rate = math.exp(epsilon) / (1 + math.exp(epsilon))
        wanted = sum(stats.binom.pmf(k, guesses, rate) for k in range(right, guesses + 1))
        assert one_run_p_value(500, guesses, right, epsilon, 0.0) == pytest.approx(wanted)


def test_delta_costs_what_the_theorem_says() -> None:
    """Term by term, as theorem 5.2 of Steinke et al. 2023 is written."""
    coins, guesses, right, epsilon, delta = 60, 30, 24, 0.7, 1e-4
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    alpha = max(2 / i * sum(law.pmf(w) for w in range(max(0, right - i), right)) for i in range(1, coins + 1))
    wanted = sum(law.pmf(w) for w in range(right, guesses + 1)) + coins * delta * alpha
    assert one_run_p_value(coins, guesses, right, epsilon, delta) == pytest.approx(wanted)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-3)])
def test_it_holds_for_the_worst_mechanism(epsilon: float, delta: float) -> None:
    """Each coin is revealed outright with probability delta, else by randomised response: the exact tail."""
    guesses = 400
    rate = delta + (1 - delta) / (1 + math.exp(-epsilon))
    for right in range(200, guesses + 1, 10):
        exact = float(stats.binom.sf(right - 1, guesses, rate))
        assert exact <= one_run_p_value(guesses, guesses, right, epsilon, delta) * (1 + 1e-9)


def test_the_bound_for_randomised_response_is_close_to_its_epsilon() -> None:
    generator = np.random.default_rng(0)
    rate = 1 / (1 + math.exp(-2.0))
    proved = [proved_epsilon(generator.random(5000) < rate, 0.0, 0.99) for _ in range(20)]
    assert max(proved) <= 2.0
    assert min(proved) > 1.7


def test_the_most_certain_guesses_give_a_larger_bound() -> None:
    right = np.concatenate([np.ones(300, bool), np.arange(9700) % 2 == 0])
    assert proved_epsilon(right, 1e-6, 0.95) > 2 > proved_epsilon(right[::-1], 1e-6, 0.95)
    assert proved_epsilon(right[:0], 1e-6, 0.95) == 0


# What it takes and says.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"placement": "none"}, "placement is 'none'; it must add noise for an audit"),
        ({"clip_norm": 1e9}, "clip-norm is 1000000000.0; it must be at most 100000"),
        ({"optimizer": "adadps", "public_examples": 20}, "optimizer=adadps cannot be audited"),
        ({"optimizer": "noisy-adagrad", "public_examples": 20}, "optimizer=noisy-adagrad cannot be audited"),
    ],
)
def test_what_cannot_be_audited_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        audit(small(**settings))
    assert said in str(refused.value)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="confidence is 1"):
        audit(small(), confidence=1.0)
    for canaries in (-1, 401):
        with pytest.raises(ArgumentError, match=f"canaries is {canaries}"):
            audit(small(clients=400), canaries=canaries)


@pytest.mark.slow
def test_few_canaries_and_silos_of_any_size() -> None:
    assert audit(small(rounds=2), canaries=1).canaries == 1
    silos = small(unit="example", clients=1, examples_per_client=10**7, rounds=1)
    assert audit(silos, canaries=70).canaries == 70
    assert audit(small(rounds=1, work="local-steps", clients=10**6), canaries=0).canaries == 5000


def test_an_interrupted_run_is_judged_by_its_ledger() -> None:
    def stop(rounds: int) -> None:
        if rounds == 2:
            raise KeyboardInterrupt

    found = audit(small(clients=500), observe=stop)
    assert (found.stopped, found.releases, found.violated) == ("interrupted", 2, False)


def test_the_audited_run_has_the_configured_mechanism() -> None:
    """Delta and the sampling rate are those of the units that were configured, not of the canaries."""
    config = Config.parse({"dataset": "cifar-10", "clients": 3_000_000, "sampling-rate": 0.01, "rounds": 3})
    found = audit(config, canaries=500)
    assert (found.canaries, found.releases, found.delta) == (500, 3, 1 / 30_000_000)


SETTINGS = [part for text in ("epsilon=4", "rounds=5", "clients=5000", "sampling-rate=0.2")
            for part in ("--set", text)]  # fmt: skip


@pytest.mark.slow
def test_the_command_prints_the_verdict_and_exits_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(app, ["audit", *SETTINGS, "--seed", "1"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("audit run, not for use")
    assert "5,000 canaries in place of clients, dynamic-dp-sgd, 5 releases, central" in shown.stdout
    assert "consistent with its ledger, at 99 % confidence" in shown.stdout
    as_data = json.loads(CliRunner().invoke(app, ["audit", *SETTINGS, "--seed", "1", "--json"]).stdout)
    assert as_data["violated"] is False
    assert f"right {as_data['right'] / 5000:.2%} of the time" in shown.stdout
    with patched(Central, "server_stds", lambda right, *a: tuple(0.3 * std for std in right(*a))):
        shown = CliRunner().invoke(app, ["audit", *SETTINGS, "--seed", "1"])
    assert shown.exit_code == 1
    assert "VIOLATED: the run leaks more than its ledger says" in shown.stdout


def test_more_right_guesses_than_sampling_allows_measure_nothing() -> None:
    """A unit that is drawn once in a hundred runs is guessed right half of the time, whatever the noise."""
    found = audit(small(clients=400, rounds=1, sampling_rate=0.01, seed=7))
    assert found.measured_most == math.inf
    assert found.json()["measured_most"] == "infinity"
    json.dumps(found.json(), allow_nan=False)
    assert found.picture().startswith(b"\x89PNG")
    assert not found.violated


def test_the_command_refuses_in_one_line() -> None:
    shown = CliRunner().invoke(app, ["audit", "--set", "placement=none"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("fedpriv: placement is 'none'")

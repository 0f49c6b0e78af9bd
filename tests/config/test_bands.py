"""Correlated noise in a plan: what is refused, what auto chooses, and what a run spends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv import account
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, Event, Filter, epsilon
from fedpriv.accounting.ledger import Ledger, read
from fedpriv.config.bands import sum_noise
from fedpriv.config.plan import make_plan
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.flower import app_config
from fedpriv.node.factory import make_worker
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute
from fedpriv.simulation.run import resumed, simulate

RUN: dict[str, Any] = {
    "sampler": "cyclic-poisson",
    "optimizer": "dp-sgd",
    "engine": "in-process",
    "model": "logistic",
}
SMALL = {**RUN, "clients": 500, "sampling-rate": 0.1, "noise-bands": 4, "device": "cpu"}
SILOS = {"unit": "example", "clients": 4, "examples-per-client": 100}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"optimizer": "adadp"}, "optimizer is 'adadp'; it must be one of dp-sgd"),
        ({"optimizer": "dp-srm"}, "optimizer is 'dp-srm'; it must be one of dp-sgd"),
        ({"optimizer": "dynamic-dp-sgd"}, "optimizer is 'dynamic-dp-sgd'; it must be one of dp-sgd"),
        ({"adaptive-quantile": 0.5}, "adaptive-quantile is 0.5; it must be 0"),
        ({"placement": "local"}, "placement is 'local'; it must be central"),
        ({"placement": "distributed"}, "placement is 'distributed'; it must be central"),
        ({"level": "client", **SILOS}, "level is 'client'; it must be aggregation"),
        ({"nodes-own-data": True}, "nodes-own-data is True; it must be false"),
        (
            {"noise-bands": 8000, "sampling-rate": 1 / 8000, "rounds": 16000, "epsilon": 0.05},
            r"noise-draws is 'exact'; it must be fast, or noise-bands be fewer",
        ),
        (
            {"relation": "replace-one"},
            "relation is 'replace-one'; it must be add-remove with sampler cyclic-poisson",
        ),
        ({"noise-bands": 101}, "noise-bands is 101; it must be at most 1 / 0.01"),
    ],
)
def test_what_is_not_proved_is_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make_plan(Config.parse({**RUN, "noise-bands": 4, **changed}))


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_bands_need_groups(sampler: str) -> None:
    with pytest.raises(ArgumentError, match="noise-bands is 4, which needs sampler=cyclic-poisson"):
        make_plan(Config.parse({**RUN, "sampler": sampler, "noise-bands": 4}))


def test_flower_apps_refuse_groups() -> None:
    """An app's clients do not keep their numbers."""
    config = Config.parse({**RUN, "noise-bands": 4})
    with pytest.raises(ArgumentError, match="it must be another for a Flower app"):
        app_config.planned(config, 100)


def test_one_band_is_poisson_sampling_with_independent_noise() -> None:
    one = make_plan(Config.parse({**RUN, "noise-bands": 1, "optimizer": "adadp"}))
    other = make_plan(Config.parse({**RUN, "sampler": "poisson", "optimizer": "adadp"}))
    assert one.events == other.events


# Measured: 0.658 with 16 bands, 0.376 with 64, 0.862 with 100 (a fixed order).
@pytest.mark.parametrize(
    ("rate", "rounds", "budget", "bands", "most"),
    [(0.01, 150, 3.0, 0, 0.70), (0.001, 1500, 2.0, 0, 0.40), (0.01, 150, 3.0, 100, 0.90)],
)
def test_noise_on_sums_against_independent_noise(
    rate: float, rounds: int, budget: float, bands: int, most: float
) -> None:
    """At one certified epsilon and one expected cohort."""
    settings = {**RUN, "sampling-rate": rate, "rounds": rounds, "epsilon": budget, "noise-bands": bands}
    plan = make_plan(Config.parse(settings))
    spent = epsilon(plan.events, plan.config.delta).epsilon
    assert spent <= budget
    assert plan.mechanism.sampler.expected_size == pytest.approx(1e5 * rate)
    limit = Budget(budget, plan.config.delta)
    chosen, one = (sum_noise(plan.config, b, limit) for b in (plan.mechanism.sampler.bands, 1))
    assert chosen / one <= most


def test_auto_is_never_worse_than_independent_noise() -> None:
    """With everybody asked every time there is one group alone."""
    assert make_plan(Config.parse({**RUN, "sampling-rate": 1.0})).mechanism.sampler.bands == 1
    plan = make_plan(Config.parse({**RUN, "sampling-rate": 0.25, "rounds": 20}))
    budget = Budget(plan.config.epsilon, plan.config.delta)
    measured = {bands: sum_noise(plan.config, bands, budget) for bands in (1, 2, 4)}
    assert measured[plan.mechanism.sampler.bands] == min(measured.values())


def test_an_optimizer_object_is_refused_in_the_plan() -> None:
    """Nothing says whether its noise is constant."""
    from fedpriv.optimizers import dynamic_dp_sgd
    from fedpriv.optimizers.first_order import Sgd

    falling = dynamic_dp_sgd(Sgd(), 0.2, 2.0, 150, rho_c=1.0, rho_mu=2.0)
    with pytest.raises(ArgumentError, match=r"it must be one of dp-sgd.* or noise-bands be 1"):
        make_plan(Config.parse({**RUN, "noise-bands": 4}), falling)


def test_groups_of_two_runs_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """Group 0 of one run and group 1 of another may hold the same unit."""
    paths = []
    for group in (0, 1):
        paths.append(tmp_path / f"{group}.jsonl")
        with Ledger.create(paths[-1], {"unit": "client"}) as ledger:
            ledger.record([Event(2.0, "poisson", "add-remove", groups=2, group=group)])
    together = account(delta=1e-5, ledger=paths).epsilon
    assert together == pytest.approx(epsilon([Event(2.0, "none", "add-remove", count=2)], 1e-5).epsilon)


@pytest.mark.parametrize("method", ["rdp", "zcdp"])
def test_a_filter_charges_groups_in_parallel(method: str) -> None:
    budget = Budget(2.0, 1e-5, method)
    turns = [Event(8.0, "poisson", "add-remove", groups=3, group=t % 3) for t in range(300)]
    alone, grouped = Filter(budget), Filter(budget)
    afforded = 0
    while alone.affords([Event(8.0, "none", "add-remove")]):
        alone.charge([Event(8.0, "none", "add-remove")])
        afforded += 1
    made = 0
    while grouped.affords([turns[made]]):
        grouped.charge([turns[made]])
        made += 1
    assert made == 3 * afforded
    plain = [Event(8.0, "none", "add-remove")]
    assert not grouped.affords(plain)
    assert grouped.used == pytest.approx(alone.used)


def test_a_run_reports_its_costliest_group(tmp_path: Path) -> None:
    simulate(Config.parse({**SMALL, "rounds": 10}), folder=tmp_path / "run")
    record = read(tmp_path / "run" / "ledger.jsonl")
    assert [event.group for event in record.events] == [t % 4 for t in range(10)]
    [first] = {event.noise_multiplier for event in record.events}
    worst = epsilon([Event(first, "poisson", "add-remove", rate=0.4, count=3)], 2e-4).epsilon
    assert worst == pytest.approx(3.0, abs=0.06)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert f"{worst:.6g}" in {f"{v:.6g}" for v in _numbers(report)}
    assert max(part["epsilon"] for part in _epsilons(report)) <= 3.6  # the other methods' bounds, too
    assert "noise correlated over 4 releases" in (tmp_path / "run" / "report.md").read_text()


def test_a_run_s_folder_has_the_chosen_bands(tmp_path: Path) -> None:
    """So that it is resumed with them, whatever would be chosen by then."""
    config = Config.parse({**SMALL, "noise-bands": 0, "rounds": 4})
    chosen = make_plan(config).mechanism.sampler.bands
    assert chosen > 1
    simulate(config, folder=tmp_path / "run")
    assert Config.parse(read_run(tmp_path / "run")).table()["noise-bands"] == chosen


@pytest.mark.parametrize(("rounds", "done", "stopped"), [(10, 10, "rounds"), (8, 7, "budget")])
def test_a_resumed_run_goes_on_with_the_next_group(
    tmp_path: Path, rounds: int, done: int, stopped: str
) -> None:
    """Release 5 was charged and lost. A group that had fewer releases than another affords one more."""
    config = Config.parse({**SMALL, "rounds": rounds})
    plan, folder = make_plan(config), tmp_path / "run"

    class Failing:
        def __init__(self, fails_at: int) -> None:
            self.worker, self.fails_at = make_worker(config.table()), fails_at

        def gather(self, request: SumRequest) -> PartialSum:
            if request.release == self.fails_at:
                raise KeyboardInterrupt
            return self.worker.gather(request)

        def close(self) -> None:
            """Nothing to release."""

    execute(plan, Failing(5), RunFolder.create(folder))
    again, checkpoint, _ = resumed(folder)
    assert again.mechanism == plan.mechanism
    result = execute(again, Failing(-1), RunFolder(folder), resumed=checkpoint)
    events = read(folder / "ledger.jsonl").events
    assert [event.group for event in events] == [t % 4 for t in range(done + 1)]
    assert (result.stopped, result.report["result"]["rounds"]) == (stopped, done)
    assert epsilon(events, 2e-4).epsilon <= 3.0


def _epsilons(tree: Any) -> list[Any]:
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    own = [tree] if isinstance(tree, dict) and tree.get("kind") == "bound" and "epsilon" in tree else []
    return own + [one for part in parts for one in _epsilons(part)]


def _numbers(tree: Any) -> list[float]:
    if isinstance(tree, dict | list):
        return [n for part in (tree.values() if isinstance(tree, dict) else tree) for n in _numbers(part)]
    return [tree] if isinstance(tree, float) else []

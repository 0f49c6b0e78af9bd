"""Settings are chosen for each method by the same search, on examples that no reported score has."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedpriv
from fedpriv import ArgumentError
from fedpriv.accounting import epsilon
from fedpriv.config.builders import make_source, make_test
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.contrib.private_selection import Selection
from fedpriv.report import search_record, sweep_results
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.candidates import Tuning
from fedpriv.simulation.sweeps.definition import cells, read
from fedpriv.simulation.sweeps.tuning import Price, Search

pytestmark = pytest.mark.xdist_group("tuning")  # one process makes the sweep that slow tests look at

FEW = {"dataset": "digits", "model": "logistic", "clients": 400, "sampling-rate": 0.1, "rounds": 2}
TUNED = {
    "settings": FEW,
    "grid": {"placement": ["none", "central"], "seed": [1, 2]},
    "tune": {"learning-rate": [1e-6, 2.0], "private-selection": True},
}
PLACED = ["none", "central"]
RANGE = {"from": 0.1, "to": 10, "values": 4}


def changed(**parts: Any) -> dict[str, Any]:
    return {**TUNED, **parts}


def test_the_parts_of_the_test_set_are_disjoint_and_whole() -> None:
    config = Config.parse({"dataset": "digits"})
    source = make_source(config)
    parts = {
        part: make_test(config.changed(test_part=part), source, torch.device("cpu")).x
        for part in ("all", "tuning", "rest")
    }
    size = len(parts["all"])
    assert [len(parts[part]) for part in ("tuning", "rest")] == [size // 5, size - size // 5]
    both = torch.cat([parts["tuning"], parts["rest"]]).flatten(1).numpy()
    assert np.array_equal(np.sort(both, axis=0), np.sort(parts["all"].flatten(1).numpy(), axis=0))
    few = SimpleNamespace(test=lambda device: source.test(device)._replace(y=torch.zeros(4)))
    with pytest.raises(ArgumentError, match="test-part is 'rest'; it must be all"):
        make_test(config.changed(test_part="rest"), few, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidates", "search", "runs"),
    [(4, "grid", 4), (1, "halving", 1), (4, "halving", 4 + 2 * 2), (5, "halving", 5 + 3 * 2 + 2 * 4)],
)
def test_a_search_takes_so_many_runs(candidates: int, search: Any, runs: int) -> None:
    found = Tuning({"learning-rate": [float(1 + at) for at in range(candidates)]}, search)
    assert sum(left * seeds for left, seeds in found.rungs) == runs


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fedpriv.sweep(TUNED, tmp_path_factory.mktemp("tuned") / "out", jobs=2, progress=False)


@pytest.mark.slow
def test_the_better_candidate_is_chosen_and_scored_on_other_examples_and_seeds(tuned: Any) -> None:
    content = json.loads((tuned.folder / "tuning.json").read_text())
    assert content["candidates"] == [{"learning-rate": 1e-6}, {"learning-rate": 2.0}]
    assert [one["chosen"] for one in content["methods"]] == [{"learning-rate": 2.0}] * 2
    assert content["runs"] == 4
    runs = [fedpriv.load_result(path.parent) for path in tuned.folder.glob("tuning/*/*/report.json")]
    assert {(run.config.seed, run.config.test_part) for run in runs} == {(3, "tuning")}
    for one in tuned.ended:
        assert (one.run.config.learning_rate, one.run.config.test_part) == (2.0, "rest")
        assert "without the part" in one.run.report["result"]["measured on"]
        assert "without the part" in one.run.metrics[-1]["data"]
    assert {row["settings tried"] for row in tuned.rows} == {4}
    assert {row["learning-rate"] for row in tuned.rows} == {2.0}
    assert "the best of 2 for each method shown, chosen in 4 other runs" in repr(tuned)


@pytest.mark.slow
def test_the_price_of_a_private_choice_is_shown_beside_it(tuned: Any) -> None:
    text = "\n".join(search_record.lines(tuned.folder))
    plan = tuned.sweep.plans["placement=central,seed=1"]
    both = epsilon([*plan.events] * 2, plan.budget.delta).epsilon
    assert "placement=none: learning-rate=2 (accuracy " in text
    selection = Selection(tuple(plan.events), gamma=1 / 2).epsilon(plan.budget.delta).epsilon
    costs = f"the choice by private selection {selection:.4g}, one run of each candidate {both:.4g}"
    assert f"a run costs epsilon 3, {costs}" in text
    assert 3 < both < selection < 9
    assert search_record.lines(tuned.folder / "tuning") == []


def test_the_price_under_local_noise_is_that_of_the_worst_client() -> None:
    settings = {**FEW, "placement": "local", "sampler": "fixed-size", "rounds": 4, "max-participations": 1}
    plan = make_plan(Config.parse(settings))
    price = Price.of(plan, [plan])
    assert price is not None
    assert price.together == pytest.approx(3, rel=0.01)  # not of four releases
    none = make_plan(Config.parse({**FEW, "placement": "none"}))
    assert Price.of(none, [none]) is None
    assert Price.of(plan, [plan, none]) is None


def test_the_price_counts_every_candidates_run() -> None:
    plan = make_plan(Config.parse(FEW))
    price = Price.of(plan, [plan, plan])
    assert price is not None
    assert price.together == epsilon([*plan.events] * 2, plan.config.delta).epsilon > 3.3
    assert price.selection == Selection(tuple(plan.events), 1 / 2).epsilon(plan.config.delta).epsilon


def test_the_price_is_that_of_the_candidates_and_not_of_the_choice() -> None:
    """Candidates of 1 and of 40 rounds: whichever wins, both were run, and each was as likely."""
    few, many = (make_plan(Config.parse({**FEW, "rounds": rounds})) for rounds in (1, 40))
    both, delta = [few, many], few.config.delta
    prices = [Price.of(chosen, both) for chosen in both]
    assert prices[0] == prices[1]
    assert prices[0] is not None
    assert prices[0].together == epsilon([*few.events, *many.events], delta).epsilon
    alone = [Selection(tuple(plan.events), 1 / 2) for plan in both]
    selection = Selection(tuple(few.events), 1 / 2, others=(tuple(many.events),))
    assert prices[0].selection == selection.epsilon(delta).epsilon
    assert selection.approximate(delta).epsilon == max(one.approximate(delta).epsilon for one in alone)
    assert selection.renyi(delta).epsilon >= max(one.renyi(delta).epsilon for one in alone)
    mixed = make_plan(Config.parse({**FEW, "sampler": "fixed-size"}))
    assert Price.of(few, [few, mixed]) == Price(few.config.epsilon, None, None)


@pytest.mark.slow
def test_the_same_table_as_parquet(tuned: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tuned.folder / "results.parquet")
    assert table.to_pylist() == tuned.rows


def test_a_column_of_several_types_is_text() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert sweep_results.as_parquet([]) is None
    mixed = sweep_results.as_parquet([{"a": 1, "b": True, "c": None}, {"a": 0.5, "b": "x", "c": 2}])
    assert mixed is not None
    assert parquet.read_table(io.BytesIO(mixed)).to_pylist() == [
        {"a": 1.0, "b": "true", "c": None},
        {"a": 0.5, "b": "x", "c": 2},
    ]


def ended(rung: plans.Sweep, score: Mapping[str, float]) -> list[Any]:
    """Cells that scored as much as their learning rate, or as ``score`` says of their seed."""
    return [
        SimpleNamespace(
            run=SimpleNamespace(folder=Path(cell.name)),
            score=score.get(str(cell.config.seed), cell.config.learning_rate),
            measure=SimpleNamespace(fraction=True, key="accuracy"),
        )
        for cell in rung.cells
    ]


def test_halving_gives_the_better_half_twice_as_many_new_seeds() -> None:
    tune = {"learning-rate": [0.1, 0.2, 0.3, 0.4], "search": "halving"}
    search = Search(read(changed(grid={"seed": [1, 2]}, tune=tune)))
    seen = []
    while not search.done:
        rung = search.rung()
        seen.append([(cell.config.learning_rate, cell.config.seed) for cell in rung.cells])
        search.take(rung, ended(rung, {}))
    assert seen == [
        [(rate, 3) for rate in (0.1, 0.2, 0.3, 0.4)],
        [(r, s) for r in (0.3, 0.4) for s in (4, 5)],
    ]
    [chosen] = search.chosen()
    assert (chosen.settings, chosen.runs, search.runs) == ({"learning-rate": 0.4}, 8, 8)


def test_cells_and_candidates_share_no_seed_and_no_test_example() -> None:
    found = plans.prepare(TUNED)
    chosen = plans.tuned(found.definition, [({"placement": p}, {"learning-rate": 2.0}) for p in PLACED], 4)
    candidates = Search(found.definition).rung().cells
    for cells_ in (found.cells, chosen.cells):
        assert {(cell.config.seed, cell.config.test_part) for cell in cells_} == {(1, "rest"), (2, "rest")}
    assert {(cell.config.seed, cell.config.test_part) for cell in candidates} == {(3, "tuning")}
    assert {cell.config.learning_rate for cell in chosen.cells} == {2.0}
    assert (found.tried, chosen.tried) == (4, 4)


def test_a_candidate_that_diverged_loses() -> None:
    search = Search(read(changed(grid={"seed": [1]}, tune={"learning-rate": [0.1, 0.2]})))
    rung = search.rung()
    found = ended(rung, {})
    found[1].score = None
    search.take(rung, found)
    assert search.done
    assert search.chosen()[0].settings == {"learning-rate": 0.1}


def test_a_range_is_a_logarithmic_grid_and_the_file_is_kept() -> None:
    found = read(changed(tune={"learning_rate": RANGE, "clip-norm": [1, 2]}))
    assert found.tuning is not None
    assert found.tuning.axes == {"learning-rate": [0.1, 0.464, 2.15, 10.0], "clip-norm": [1, 2]}
    assert read(found.json()) == found
    assert len(cells(found)) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tune": {}}, "[tune] is missing"),
        ({"tune": 3}, "[tune] is 3"),
        ({"tune": {"learning-rat": [1]}}, "'learning-rat' in [tune]"),
        ({"tune": {"learning-rate": []}}, "[tune] learning-rate is []"),
        ({"tune": {"learning-rate": {"from": 1}}}, "from, to and values"),
        ({"tune": {"learning-rate": {**RANGE, "to": 0.01}}}, "be greater than from, 0.1"),
        ({"tune": {"seed": [1]}}, "[tune] has seed"),
        ({"tune": {"epsilon": [1]}}, "[tune] has epsilon"),
        ({"tune": {"rounds": [1]}}, "rounds is in [settings]"),
        ({"tune": {"clip-norm": [1], "search": "random"}}, "[tune] search is 'random'"),
        ({"tune": {"clip-norm": [1], "private-selection": 1}}, "[tune] private-selection is 1"),
        ({"settings": {**FEW, "test-part": "all"}}, "test-part is in [settings]"),
        ({"override": [{"when": {"seed": 1}, "learning-rate": 2}]}, "learning-rate, which is an axis"),
        ({"override": [{"when": {"seed": 1}, "test-part": "all"}]}, "test-part, which [tune] decides"),
    ],
)
def test_a_bad_search_is_refused_before_any_run(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read(changed(**changes))
    assert words in str(caught.value)


def test_a_search_that_has_no_seeds_of_its_own_is_refused() -> None:
    override = [{"when": {"seed": 1}, "clip-norm": 2}]
    with pytest.raises(ArgumentError, match="names seed"):
        plans.prepare(changed(override=override))
    with pytest.raises(ArgumentError, match="be grid where runs have no seed"):
        plans.prepare(changed(grid={"epsilon": [1]}, tune={"clip-norm": [1, 2], "search": "halving"}))

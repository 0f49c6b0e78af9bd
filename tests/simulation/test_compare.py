"""The comparison of placements: one budget each, read against the adversary it defends against."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.killed import begun_and_killed
from helpers.small import small

from fedpriv import ArgumentError
from fedpriv._internal import run_files
from fedpriv.accounting import epsilon
from fedpriv.accounting.ledger import read
from fedpriv.accounting.methods.relations import added_or_removed
from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.report.pictures.points import interval
from fedpriv.runs.run_dir import COMPARISON_FILES, FILES
from fedpriv.runs.runner import Status
from fedpriv.simulation import compare, compare_runs
from fedpriv.simulation.comparison import Comparison
from fedpriv.simulation.sweeps.driver import Watch

SWEEP_FILES = {"locks", "results.csv", "sweep.json", "sweep.png", "sweep.svg"}


def compared_here(
    chosen: Sequence[Plan],
    folder: Path | None = None,
    show: Callable[[str, Status], None] = lambda name, status: None,
    seeds: int = 0,
) -> list[compare.Row]:
    """The comparison of these plans, one run after the other in this process."""
    config = chosen[0].config
    found = compare_runs.as_sweep(config, chosen, compare_runs.seeds_of(config, seeds))
    if folder:
        compare_runs.begin(folder, found, config.overwrite)
    return compare_runs.run_here(found, folder, show)


def rows_of(config: Config, folder: Path | None = None) -> list[compare.Row]:
    return compared_here(compare.plans(config), folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[compare.Row]]:
    folder = tmp_path_factory.mktemp("compare") / "out"
    return folder, rows_of(small(clients=2000, rounds=4), folder)


def test_it_leaves_a_table_a_picture_and_every_run(compared: tuple[Path, list[compare.Row]]) -> None:
    folder = compared[0]
    names = {path.name for path in folder.iterdir()} - {"results.parquet"}  # where pyarrow is installed
    assert names == {*PLACEMENTS, *COMPARISON_FILES, *SWEEP_FILES}
    for placement in PLACEMENTS:
        # Who has given data under local noise is kept in memory only: that run cannot be resumed.
        left_out = {run_files.STATE} if placement == "local" else set()
        assert {path.name for path in (folder / placement).iterdir()} == set(FILES) - left_out
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "compare.json").read_text()) == [row.json() for row in compared[1]]


def test_each_budget_is_read_against_its_adversary(compared: tuple[Path, list[compare.Row]]) -> None:
    rows = {row.placement: row.json() for row in compared[1]}
    server, models = "epsilon against the server", "epsilon against who sees the models"
    assert rows["none"][server] is rows["none"][models] is None
    for placement in ("central", "distributed"):
        assert rows[placement]["defends against"] == "who sees the models"
        assert 0.99 * 3 <= rows[placement][models] <= 3
    assert rows["central"][server] is None
    assert rows["distributed"][server] > 100  # a message has a share of the noise, and sampling no credit
    assert rows["local"]["defends against"] == "the server"
    assert [rows[name]["neighbours"] for name in ("none", "central", "local")] == [
        None,
        "add-remove",
        "replace-one",
    ]
    assert 0.99 * 3 <= rows["local"][server] <= 3
    assert rows["local"][models] < 0.1  # much more noise on the sum than central


def test_the_table_has_both_views_and_says_what_distributed_needs(
    compared: tuple[Path, list[compare.Row]],
) -> None:
    text = (compared[0] / "compare.md").read_text()
    header, rule = (line for line in text.splitlines() if line.startswith("| placement") or "---" in line)
    assert header.count("|") == rule.count("|") == len(compare.header(compared[1])) + 1
    assert all(line.count("|") == header.count("|") for line in text.splitlines() if line.startswith("|"))
    assert "| test accuracy | epsilon against the server |" in text
    assert "epsilon against the server counts each message with its own share of the noise." in text
    assert "a client gives data to at most 1 release and sends" in text
    assert "not private: no noise is added" in text


def test_an_estimate_is_called_one_wherever_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.report.plots.curves", lambda *arguments: b"")
    shown: list[str] = []
    rows = compared_here(
        compare.plans(small(rounds=2, accounting="gdp-clt"), ["none", "central"]),
        show=lambda _, status: shown.append(str(status.estimated)),
    )
    assert [row.json()["epsilon is"] for row in rows] == [None, "estimate"]
    assert "(an ESTIMATE)" in compare.cells(rows[1])[-1]
    assert "ESTIMATE" not in "".join(compare.cells(rows[0]))
    assert shown == ["False", "False", "True", "True"]
    assert [record.get("epsilon is") for record in rows[1].result.metrics] == ["estimate"]
    bound = compared_here(compare.plans(small(rounds=2), ["central"]))[0]
    assert bound.json()["epsilon is"] == "bound"
    assert "ESTIMATE" not in "".join(compare.cells(bound))


def test_runs_that_ended_early_are_named_and_settings_apply_only_where_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = compare.plans(small(rounds=2, colluding_parties=5), ["none", "central", "distributed", "local"])
    assert [plan.config.colluding_parties for plan in chosen] == [1, 1, 5, 5]
    fixed = compare.plans(small(rounds=2, colluding_parties=5, sampler="fixed-size"), ["none", "central"])
    assert [plan.config.colluding_parties for plan in fixed] == [1, 5]
    rows = compared_here(chosen[:2])
    assert compare.left_out(chosen[:2], rows) == ""
    ended = [replace(row, results=(replace(row.result, stopped=StopReason.DIVERGED),)) for row in rows[:1]]
    text = "the model was no longer finite: none was last scored at round 2 of 2; not run: central"
    assert compare.left_out(chosen[:2], ended) == text


def test_the_picture_has_no_side_for_what_was_spent_within_a_run() -> None:
    figure = compare.draw(compared_here(compare.plans(small(rounds=2), ["none", "central"])))
    [axes] = figure.axes
    *lines, guessing = axes.lines
    assert [len(line.get_xdata()) for line in lines] == [2, 2]  # before round 1, and after round 2
    for looks in ({line.get_color() for line in lines}, {line.get_linestyle() for line in lines}):
        assert len(looks) == 2
    assert guessing.get_label() == "guessing"
    assert 5 < guessing.get_ydata()[0] < 20  # the most frequent of ten digits, in percent
    assert "pld, the privacy unit is one client" in " ".join(figure.get_suptitle().split())


def test_local_noise_uses_the_expected_number_of_participations_by_default() -> None:
    config = small(rounds=25)
    by_name = {plan.config.placement: plan for plan in compare.plans(config)}
    assert by_name["local"].max_participations == 3  # ceil(0.1 * 25)
    assert compare.plans(small(placement="local", max_participations=5), ["local"])[0].max_participations == 5
    assert by_name["central"].max_participations is None


def test_local_noise_has_the_replace_one_relation() -> None:
    for relation, local in {"add-remove": "auto", "replace-one": "replace-one"}.items():
        chosen = compare.plans(small(relation=relation), ["central", "local"])
        assert [plan.config.relation for plan in chosen] == [relation, local]
        events = [plan.events[0].relation for plan in chosen]
        assert events == [relation, "replace-one"]


def test_a_view_that_the_budgets_method_does_not_know_is_read_by_one_that_does() -> None:
    config = small(clients=2000, rounds=2, accounting="rdp", relation="replace-one")
    [row] = compared_here(compare.plans(config, ["local"]))
    server, models = (row.json()[f"epsilon against {who}"] for who in ("the server", "who sees the models"))
    assert 0 < models < 0.1 * server <= 0.3


def test_all_plans_are_checked_before_any_runs() -> None:
    with pytest.raises(ValueError, match="practically never empty"):
        compare.plans(small(sampling_rate=0.005))


def test_a_seed_marks_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr("matplotlib.figure.Figure.suptitle", lambda self, text, **_: titles.append(text))
    rows = compared_here(compare.plans(small(seed=1, rounds=2), ["none", "central"]), tmp_path / "out")
    mark = "reproducible, not private (seed 1)"
    assert all(mark in row.json()["remark"] for row in rows)
    assert mark in (tmp_path / "out" / "compare.md").read_text()
    assert mark in titles[0]


def test_ctrl_c_ends_the_comparison_with_what_it_has(tmp_path: Path) -> None:
    def stop(placement: str, status: Status) -> None:
        if placement == "central" and status.round == 2:
            raise KeyboardInterrupt

    rows = compared_here(compare.plans(small()), tmp_path / "out", stop)
    assert [(row.placement, row.result.stopped) for row in rows] == [
        ("none", "rounds"),
        ("central", "interrupted"),
    ]
    assert len(json.loads((tmp_path / "out" / "compare.json").read_text())) == 2
    assert "; not run: distributed, local" in (tmp_path / "out" / "compare.md").read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("point", [0, 1])
def test_a_comparison_that_is_killed_goes_on_to_the_same_table(tmp_path: Path, point: int) -> None:
    """Seeded, with two seeds a placement: nothing depends on when or how often the process was killed."""
    config = small(clients=200, rounds=12, evaluate_every=5, seed=1)
    chosen = compare.plans(config, ["none", "central"])
    found = compare_runs.as_sweep(config, chosen, compare_runs.seeds_of(config, 2))
    cut, whole = tmp_path / "cut", tmp_path / "whole"

    def compared_in(folder: Path) -> None:
        compare_runs.begin(folder, found, overwrite=False)
        compare_runs.run(found, folder, 2, Watch())

    compared_in(whole)
    waits = np.random.default_rng(point).uniform(0, 0.5, 3)
    killed = [begun_and_killed(lambda: compared_in(cut), cut, wait) for wait in waits]
    assert killed[0]
    compared_in(cut)
    for cell in found.cells:
        charged = sum(event.count for event in read(cut / cell.name / "ledger.jsonl").events)
        assert charged == found.plans[cell.name].rounds
    for name in ("results.csv", "compare.json"):
        assert (cut / name).read_text() == (whole / name).read_text()


def test_silos_that_train_by_themselves_are_compared_with_placements() -> None:
    """The same federation; the client level takes silo-steps, the others one release a round."""
    config = small(
        unit="example", clients=3, examples_per_client=60, rounds=2, level="client", silo_steps=3, delta=1e-4
    )
    central, silos = compared_here(compare.plans(config, ["central", "client"]))
    assert (central.plan.by_silo, silos.plan.by_silo) == (False, True)
    assert [row.result.report["privacy"]["releases"] for row in (central, silos)] == [2, 6]
    data = silos.json()
    assert (data["placement"], data["defends against"]) == ("client", "all but its own silo")
    for view in ("the server", "who sees the models"):
        assert 0.99 * 3 <= data[f"epsilon against {view}"] <= 3
    assert "| client | all but its own silo |" in compare.markdown([central, silos])
    assert compare.draw([central, silos]).axes


def test_the_runs_add_up_and_the_noiseless_one_is_not_private(
    compared: tuple[Path, list[compare.Row]],
) -> None:
    folder, rows = compared
    by_name = {row.placement: row for row in rows}
    charged = {
        name: read(folder / name / "ledger.jsonl").events for name in ("central", "distributed", "local")
    }
    local = by_name["local"].plan  # its charges are what the server sees; the models tell less
    charged["local"] = tuple(local.mechanism.observer_event(e.noise_multiplier) for e in charged["local"])
    events = [added_or_removed(event) for own in charged.values() for event in own]
    delta = by_name["central"].plan.config.delta
    total = epsilon(events, delta).epsilon
    assert 1.1 * 3 < total < epsilon([*events, *map(added_or_removed, local.events)], delta).epsilon
    none, together = compare.adding_up(rows)
    assert none.startswith("The run none is NOT PRIVATE: no noise is added. Do not publish its model, ")
    assert f"{folder / 'none' / 'model.safetensors'}" in none
    assert f": at most epsilon {total:.4g} at delta {delta:.3g}; neighbouring data differ by one" in together
    text = (folder / "compare.md").read_text()
    assert none in text
    assert together in text
    assert "| none (NOT PRIVATE) |" in text
    assert compare.adding_up([by_name["central"]]) == []
    assert "none (NOT PRIVATE)" in repr(Comparison(tuple(rows)))
    figure = compare.draw(rows)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "none (not private)" in labels
    assert "central (epsilon 3 against who sees the models, add-remove)" in labels
    assert [axes.get_xlabel() for axes in figure.axes] == ["round"]
    assert len(figure.texts) == 1  # the title: there are no bands
    two = replace(by_name["none"], results=by_name["none"].results * 2)
    models, *_ = compare.adding_up([two])
    assert models.startswith("The runs none are NOT PRIVATE: no noise is added. Do not publish their models,")
    assert models.count("model.safetensors") == 2
    assert "95 % confidence interval" in compare.draw([two]).texts[-1].get_text()


def test_a_run_that_somebody_stopped_counts_whole(compared: tuple[Path, list[compare.Row]]) -> None:
    """Else its releases so far would depend on its results."""
    central, local = (row for row in compared[1] if row.placement in ("central", "local"))
    cut = replace(central.result, ledger=_first_lines(central.result.ledger, 3))
    half = replace(central, results=(cut,))
    assert compare.adding_up([half, local]) != compare.adding_up([central, local])
    stopped = replace(half, results=(replace(cut, stopped=StopReason.INTERRUPTED),))
    assert compare.adding_up([stopped, local]) == compare.adding_up([central, local])


def _first_lines(ledger: bytes, count: int) -> bytes:
    return b"".join(ledger.splitlines(keepends=True)[:count])


def test_distributed_noise_is_compared_with_and_without_secure_aggregation() -> None:
    """The same silos and budget: only the server's epsilon differs, and the plain run's is much larger."""
    config = small(
        unit="example", clients=5, examples_per_client=40, sampler="everyone", sampling_rate=1.0, rounds=2,
        optimizer="dp-sgd", secure_aggregation=True, placement="distributed",
    )  # fmt: skip
    chosen = compare.plans(config, ["central", "distributed", "secure-aggregation", "local", "client"])
    assert [plan.config.aggregates_securely for plan in chosen] == [False, False, True, False, False]
    rows = {row.placement: row.json() for row in compared_here(chosen[1:3])}
    plain, secure = rows["distributed"], rows["secure-aggregation"]
    server, models = "epsilon against the server", "epsilon against who sees the models"
    assert 0.99 * 3 <= secure[models] <= 3
    assert 0.99 * 3 <= plain[models] <= 3
    assert secure[server] == pytest.approx(secure[models])
    assert plain[server] > 2 * plain[models]
    assert secure["defends against"] == "the server, and who sees the models"


def test_several_seeds_give_means_with_intervals_and_every_run_adds_up(tmp_path: Path) -> None:
    chosen = compare.plans(small(rounds=2), ["none", "central"])
    none, central = compared_here(chosen, tmp_path / "out", seeds=3)
    assert [result.config.seed for result in central.results] == [1, 2, 3]
    scores = [result.score for result in central.results]
    mean, half = interval(scores)
    data = central.json()
    assert data["accuracy"] == pytest.approx(mean)
    assert (data["runs"], data["95 % interval, half"]["accuracy"]) == (3, pytest.approx(half))
    assert half > 0
    assert compare.cells(central)[3] == f"{mean:.2%} +- {half:.2%}"
    assert compare.remarks(central) == "reproducible, not private (seeds 1, 2, 3)"
    assert compare.remarks(none).startswith("not private: no noise is added; reproducible")
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "Scores are means of 3 runs; +- is half the width of the 95 %" in text
    ledgers = [result.folder / "ledger.jsonl" for result in central.results if result.folder]
    events = [event for path in ledgers for event in read(path).events]
    total = epsilon(events, central.plan.config.delta).epsilon
    assert f"at most epsilon {total:.4g} at" in compare.adding_up([central])[0]
    figure = compare.draw([none, central])
    assert len(figure.axes[0].collections) == 2  # bands
    labels = [label.get_text() for label in figure.legends[0].get_texts()]
    assert labels[1].endswith("; n = 3)")
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert {(row["placement"], row["seed"]) for row in rows} == {
        (placement, seed) for placement in ("none", "central") for seed in "123"
    }


def test_a_comparison_goes_on_where_it_was_interrupted_and_runs_nothing_twice(tmp_path: Path) -> None:
    chosen = compare.plans(small(seed=1), ["central", "none"])
    whole = compared_here(chosen)

    def stop(name: str, status: Status) -> None:
        if name == "none" and status.round == 3:
            raise KeyboardInterrupt

    folder, seen = tmp_path / "out", list[str]()
    assert len(compared_here(chosen, folder, stop)) == 2
    charged = (folder / "central" / "ledger.jsonl").stat().st_mtime_ns
    rows = compared_here(chosen, folder, lambda name, status: seen.append(name))
    assert set(seen) == {"none"}
    assert (folder / "central" / "ledger.jsonl").stat().st_mtime_ns == charged
    assert [row.result.metrics[-1]["accuracy"] for row in rows] == [
        row.result.metrics[-1]["accuracy"] for row in whole
    ]
    with pytest.raises(ArgumentError, match="rounds is 6 there and 4 here"):
        compared_here(compare.plans(small(seed=1, rounds=4), ["central", "none"]), folder)
    again = compared_here(compare.plans(small(seed=1, rounds=4, overwrite=True), ["central", "none"]), folder)
    assert [row.result.metrics[-1]["round"] for row in again] == [4, 4]


@pytest.mark.parametrize(
    ("given", "placements", "words"),
    [
        (
            {"silo_steps": 3, "unit": "example", "clients": 3, "level": "client"},
            ["central"],
            "silo-steps is 3; it must be left out: none of central",
        ),
        ({"max_participations": 2, "placement": "local"}, ["central", "local"], "placement is 'local'"),
        ({"relation": "add-remove"}, ["local"], "relation is 'add-remove'"),
        ({"relation": "add-remove"}, ["central", "local"], ""),
        ({"placement": "local", "max_participations": 2}, ["local"], ""),
        ({"learning_rate": 0.5, "epsilon": 2.0, "delta": 1e-4, "seed": 3}, ["none"], ""),
    ],
)
def test_no_setting_is_ignored(given: dict[str, object], placements: list[str], words: str) -> None:
    config = small(**given)
    chosen = compare.plans(config, placements)
    keys = {key.replace("_", "-"): value for key, value in given.items()}
    if not words:
        compare_runs.require_used(keys, config, chosen)
        return
    with pytest.raises(ArgumentError, match=words):
        compare_runs.require_used(keys, config, chosen)


def test_the_relation_of_each_row_is_named_where_they_differ() -> None:
    rows = compared_here(compare.plans(small(rounds=2), ["central", "local"]))
    [note] = [text for text in compare.notes(rows) if "relations differ" in text]
    assert "(central add-remove; local replace-one)" in note
    labels = [text.get_text() for text in compare.draw(rows).legends[0].get_texts()]
    assert labels[0].endswith(", add-remove)")
    assert labels[1].endswith(", replace-one)")
    assert not [text for text in compare.notes(rows[:1]) if "relations differ" in text]

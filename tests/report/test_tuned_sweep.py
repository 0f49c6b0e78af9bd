"""Reports of a tuned sweep: its candidates are no rows, and what it tried and chose comes from its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedpriv
from fedpriv import ArgumentError
from fedpriv.cli.app import app
from fedpriv.report import search_record
from fedpriv.report.page import data, folders
from fedpriv.report.page.page import about, page
from fedpriv.report.run_folders import run_folders as found_in

pytestmark = pytest.mark.xdist_group("tuned sweep")  # one process makes the sweep that the tests look at

SETTINGS = {"dataset": "digits", "model": "logistic", "clients": 400, "sampling-rate": 0.1, "rounds": 2}
TUNED = {
    "settings": SETTINGS,
    "grid": {"placement": ["none", "central"], "epsilon": [1, 8], "seed": [1]},
    "tune": {"learning-rate": [1e-6, 2.0], "private-selection": True},
}
TRIED = "3 runs; 6 settings tried, the best of 2 for each method of a tuned sweep, chosen in 6 other runs"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep. Without noise epsilon has no effect: three methods, of two candidates each."""
    folder = tmp_path_factory.mktemp("tuned") / "sweep"
    fedpriv.sweep(TUNED, folder, jobs=2, progress=False)
    return folder


@pytest.fixture
def sweep(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "sweep")


def test_candidates_are_no_rows_and_count_as_tried(sweep: Path) -> None:
    for found in (folders.read([sweep]), folders.read_inside(sweep), folders.read([sweep.parent])):
        assert {run.config.test_part for run in found.runs} == {"rest"}
        assert about(found).startswith(TRIED)
        assert len(data.runs(found)) == 3
        assert not found.notes


def test_of_some_cells_all_settings_of_their_sweep_were_tried(sweep: Path) -> None:
    found = folders.read([path for path in found_in(sweep) if "central" in path.name])
    assert (len(found.runs), found.tried) == (2, 6)


def test_runs_beside_a_tuned_sweep_count_too(sweep: Path) -> None:
    shutil.copytree(found_in(sweep)[0], sweep.parent / "alone")
    found = folders.read([sweep.parent])
    assert (len(found.runs), found.tried) == (4, 7)


def test_candidates_are_shown_where_their_folder_is_named(sweep: Path) -> None:
    for folder, runs in ((sweep / "tuning", 6), (sweep / "tuning" / "rung-1", 6)):
        found = folders.read([folder])
        assert {run.config.test_part for run in found.runs} == {"tuning"}
        assert (len(found.runs), found.tried, found.searches) == (runs, 6, ())


def test_a_sweep_without_cells_yet_names_the_folder_of_its_candidates(sweep: Path) -> None:
    for cell in found_in(sweep):
        shutil.rmtree(cell)
    with pytest.raises(ArgumentError, match=r"those of a sweep's tuning; name .*/tuning to see them"):
        folders.read([sweep])
    found = folders.read_inside(sweep)
    assert not found.runs
    [note] = found.notes
    assert "tuning is left out: its runs are those of a sweep's tuning" in note
    assert len(folders.read_inside(sweep / "tuning").runs) == 6


def test_json_has_what_was_tried_and_chosen(sweep: Path) -> None:
    shutil.copytree(found_in(sweep)[0], sweep.parent / "alone")
    result = CliRunner().invoke(app, ["report", str(sweep), str(sweep.parent / "alone"), "--json"])
    rows = json.loads(result.stdout)
    assert [row["settings tried"] for row in rows] == [7] * 3
    methods = json.loads((sweep / "tuning.json").read_text())["methods"]
    for row in rows:
        assert row["tuning"]["sweep"] == str(sweep)
        assert [row["tuning"][key] for key in ("settings tried", "candidates", "runs")] == [6, 2, 6]
        own = {key: row["tuning"][key] for key in ("method", "chosen", "score", "private")}
        [found] = [one for one in methods if one["method"] == own["method"]]
        assert own == {key: found.get(key) for key in own}
    alone = folders.read([sweep.parent / "alone"]).json()
    assert [(row["settings tried"], row["tuning"]) for row in alone] == [(1, None)]


def test_the_table_ends_with_what_was_chosen_and_its_price(sweep: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(sweep), "--out", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    prices = json.loads((sweep / "tuning.json").read_text())["methods"][2]["private"]
    selection, together = (
        prices[f"epsilon {of}"] for of in ("by private selection", "of all candidates' runs")
    )
    assert (
        f"a run costs epsilon 1, the choice by private selection {selection:.4g}, one run of each candidate "
        f"{together:.4g}"
    ) in result.output
    assert "placement=central,epsilon=1: learning-rate=2 (accuracy " in result.output
    assert "2 candidates for each method, chosen by grid search in 6 runs" in result.output
    assert TRIED in result.output
    assert search_record.ADDS_UP in result.output
    html = (tmp_path / "r.html").read_text()
    for text in (
        TRIED,
        "their epsilons add up with those of the runs here",
        "2 candidates for each method, chosen by grid search in 6 runs",
        "<td>learning-rate=2</td>",
        f"<td>{selection:.4g}</td>",
        "epsilon by private selection",
    ):
        assert text in html


def test_a_damaged_file_of_the_search_is_said(sweep: Path) -> None:
    for content in ("{", "[]", '{"methods": 3, "candidates": [], "runs": 1}'):
        (sweep / "tuning.json").write_text(content)
        for found in (folders.read([sweep]), folders.read_inside(sweep)):
            assert (len(found.runs), found.tried) == (3, 3)
            [note] = found.notes
            assert "tuning.json is damaged" in note


def test_the_search_is_text_and_is_not_read_through_links(
    sweep: Path, tmp_path: Path, rendered_pictures: None
) -> None:
    content = (sweep / "tuning.json").read_text().replace("placement", "<img src=x>")
    (sweep / "tuning.json").write_text(content)
    assert "<img" not in page(folders.read_inside(sweep), "a sweep")
    elsewhere = tmp_path / "elsewhere.json"
    (sweep / "tuning.json").rename(elsewhere)
    (sweep / "tuning.json").symlink_to(elsewhere)
    assert folders.read_inside(sweep).searches == ()
    [cell, *_] = found_in(sweep)
    assert folders.read_inside(cell).searches == ()  # its sweep's files are outside of it


def test_before_a_cell_has_ended_all_methods_and_candidates_count(sweep: Path) -> None:
    (sweep / "results.csv").unlink()
    [record], notes = search_record.records([sweep / "any"])
    assert (record.tried, notes) == (8, [])  # epsilon without noise counts twice

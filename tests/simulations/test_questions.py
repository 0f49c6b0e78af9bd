"""The simulations that answer questions: their sweep files can be run, and a short form of each is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.scripts import SIMULATIONS, script

import fedpriv
from fedpriv.config.builders import make_test, make_view
from fedpriv.data import load
from fedpriv.report.notices import most_frequent
from fedpriv.simulation.sweeps import driver
from fedpriv.simulation.sweeps.definition import cells, read

QUESTIONS = ("central_vs_local", "silos", "cohorts", "optimizers", "non_iid", "du_figures")
FILES = [path for name in QUESTIONS for path in sorted((SIMULATIONS / name).glob("*.toml"))]
# They take step sizes that were chosen elsewhere.
UNTUNED = ("non_iid/averaging.toml", "du_figures/sweep.toml")
SHORT = {"dataset": "digits", "model": "logistic", "rounds": 2, "evaluate-every": 2}


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_the_file_can_be_read_and_tunes_all_methods_alike(path: Path) -> None:
    definition = read(path)
    assert definition.tuning is not None or named(path) in UNTUNED
    assert len(cells(definition)) >= 9
    assert len(definition.grid["seed"]) >= 3
    assert named(path).partition("/")[2] in (path.parent / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "cohorts" else pytest.mark.exhaustive) for name in QUESTIONS],
)
def test_a_short_form_runs(name: str, tmp_path: Path) -> None:
    """Two rounds on the digits that come with the package, the first values of each axis, and one seed."""
    table: dict[str, Any] = tomllib.loads((SIMULATIONS / name / "sweep.toml").read_text())
    grid = {key: [SHORT[key]] if key in SHORT else values for key, values in table["grid"].items()}
    settings = {key: v for key, v in {**table["settings"], **SHORT}.items() if key not in grid}
    if "clients" in grid:
        grid["clients"] = [1000]
    elif settings.get("unit") == "example":
        settings["examples-per-client"] = min(settings["examples-per-client"], 140)
    else:
        settings["clients"] = 1000 if settings.get("partition", "one-example") == "one-example" else 50
    grid = {key: values[:2] if key != "seed" else [1] for key, values in grid.items()}
    if "placement" in grid:
        grid["placement"] = ["none", "local"]
    parts = {"settings": settings, "grid": grid, "override": table.get("override", [])}
    if tune := table.get("tune"):
        tune = {key: values[:2] if isinstance(values, list) else values for key, values in tune.items()}
        parts["tune"] = {**tune, "learning-rate": [0.1, 1.0]}
    found = fedpriv.sweep(parts, tmp_path / "out", progress=False)
    assert found.failed == {}
    assert len(found.ended) == len(found.sweep.cells)


@pytest.mark.slow
def test_pictures_from_the_committed_results_have_the_scores_of_the_table() -> None:
    sweep, ended = script("pictures.py").read(SIMULATIONS / "silos" / "sweep.toml")
    assert [cell.run.folder.name for cell in ended] == [cell.name for cell in sweep.cells]
    [axes] = driver.draw(sweep, ended).axes
    lines = {str(line.get_label()).partition(" (")[0]: line.get_ydata() for line in axes.lines}
    assert lines["placement=central"] == pytest.approx([83.1, 85.8, 85.8], abs=0.06)
    assert lines["placement=local"] == pytest.approx([41.1, 70.6, 82.5], abs=0.06)
    assert lines["clipped, no noise"] == pytest.approx([85.8] * 2, abs=0.06)
    for cell in ended:
        last = cell.run.metrics[-1]["epsilon"]
        assert (cell.run.gate["epsilon"] if cell.run.gate else None) == (last and pytest.approx(last))


@pytest.mark.slow
def test_one_picture_of_two_sweeps_has_the_populations_of_both() -> None:
    module = script("pictures.py")
    folder = SIMULATIONS / "central_vs_local"
    ended = [cell for name in ("sweep", "million") for cell in module.read(folder / f"{name}.toml")[1]]
    figure = module.KINDS["population"][1](ended, "two sweeps")
    said = " ".join(text.get_text() for text in figure.texts)
    assert (
        "epsilon=8: local noise does not come to 5 points below central noise with up to 1,000,000 clients"
        in said
    )


def test_each_silo_alone_has_the_examples_that_it_shares_in_the_sweep() -> None:
    config = read(SIMULATIONS / "silos" / "sweep.toml")
    shared = make_view(cells(config)[0].config, load("digits")).batch(np.arange(1400))
    alone = [load(name) for name in read(SIMULATIONS / "silos" / "alone.toml").grid["dataset"]]
    assert len(alone) == 10
    for number, source in enumerate(alone):
        x, y = source.batch(np.arange(140))
        assert x.equal(shared.x[140 * number : 140 * (number + 1)])
        assert y.equal(shared.y[140 * number : 140 * (number + 1)])
        assert all(map(torch.equal, source.test(), load("digits").test()))
        assert source.size == 140


def test_the_readme_of_the_silos_has_the_table_of_its_script() -> None:
    text = (SIMULATIONS / "silos" / "README.md").read_text()
    made = script("silos/picture.py")
    *rows, together, alone = made.table().splitlines()
    assert len(rows) == 5
    assert "\n".join(rows) in text
    words = " ".join(text.split())
    ends = (line.rpartition(": ")[2] for line in (together, alone))
    assert "without noise: {} together, {} alone.".format(*ends) in words


def test_the_picture_of_the_silos_has_a_line_for_each_way() -> None:
    made = script("silos/picture.py")
    figure = made.draw()
    [axes] = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.partition(":")[0] for label in labels] == [
        "central", "distributed", "level=client", "local", "alone", "together", "alone", "guessing"
    ]  # fmt: skip
    assert all("(n = 5)" in label for label in labels[:-1])
    assert list(axes.lines[4].get_ydata()) == pytest.approx([30.8, 56.1, 72.1], abs=0.05)
    config = cells(read(SIMULATIONS / "silos" / "sweep.toml"))[0].config.changed(test_part="rest")
    labels_of_test = make_test(config, load("digits"), torch.device("cpu")).y.tolist()
    assert abs(made.GUESSING - 100 * most_frequent(labels_of_test)) < 0.05


def test_the_noise_of_local_messages_falls_with_the_square_root_of_the_cohort() -> None:
    rows = script("central_vs_local/noise.py").table((50, 200))
    noise = {(row["placement"], row["cohort"]): row["noise on the mean"] for row in rows}
    assert noise["central", 50] / noise["central", 200] == pytest.approx(4, rel=0.01)
    assert noise["local", 50] / noise["local", 200] == pytest.approx(2, rel=0.01)

"""The other pictures, from runs whose reports are made up: each is drawn only where its data exist."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.made_up_runs import ended, labels, texts

from fedpriv.accounting import Event, epsilon
from fedpriv.accounting.ledger import Ledger
from fedpriv.report import pictures
from fedpriv.report.comparison import grouped
from fedpriv.report.pictures import (
    epsilon_by_round,
    gain_matrix,
    noise_to_signal,
    population,
    score_by_round,
    score_by_setting,
)
from fedpriv.report.sweep_results import Ended, of_groups


def test_the_score_by_round_has_the_interval_of_its_repetitions() -> None:
    """Scores at round 7 are of an interruption, and not shown."""
    cells = [ended(score, optimizer="dp-sgd", seed=seed) for seed, score in enumerate((0.49, 0.51))]
    figure = score_by_round.draw(cells, "2 cells")
    assert figure is not None
    [axes] = figure.axes
    assert list(axes.lines[0].get_xdata()) == [10, 20]
    assert axes.lines[0].get_ydata() == pytest.approx([50, 50])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(50 + 12.7062 * math.sqrt(2) / math.sqrt(2), abs=1e-2)
    assert labels(figure)[0][0] == "epsilon=3, optimizer=dp-sgd (n = 2)"
    few = [ended(score, optimizer="dp-sgd", seed=seed) for seed, score in enumerate((0.01, 0.05))]
    figure = score_by_round.draw(few, "2 cells")
    assert figure is not None
    assert figure.axes[0].collections[0].get_paths()[0].vertices[:, 1].min() == 0
    once = [ended(0.4, **{"evaluate-every": 20})]
    assert score_by_round.draw(once, "1 cell") is None


def test_epsilon_by_round_is_what_the_methods_say_of_the_ledger(tmp_path: Path) -> None:
    event = Event(1.0, "poisson", "add-remove", 0.1)
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        for _ in range(20):
            ledger.record([event])
    cell = ended(0.5, FOLDER=tmp_path, optimizer="dp-sgd")
    figure = epsilon_by_round.draw([cell], "1 cell")
    assert figure is not None
    [axes] = figure.axes
    curves = {str(line.get_label()).split(" (")[0]: line for line in axes.lines}
    assert curves["pld"].get_xdata()[-1] == 20
    assert curves["pld"].get_ydata()[-1] == pytest.approx(epsilon([event] * 20, 1e-5, "pld").epsilon)
    assert curves["rdp"].get_ydata()[9] == pytest.approx(epsilon([event] * 10, 1e-5, "rdp").epsilon)
    assert epsilon_by_round.draw([ended(0.5, placement="none")], "1 cell") is None


def test_equal_noise_is_one_panel_that_names_all_methods(tmp_path: Path) -> None:
    """Shares of distributed noise are a little larger than a server's noise."""
    cells = []
    for placement, noise, truncation in (("central", 1.2686, 0.0), ("distributed", 1.26866, 1e-12)):
        event = Event(noise, "poisson", "add-remove", 0.1, truncation=truncation)
        (tmp_path / placement).mkdir()
        with Ledger.create(tmp_path / placement / "ledger.jsonl", {}) as ledger:
            for _ in range(20):
                ledger.record([event])
        for optimizer in ("dp-sgd", "dp-adam"):
            cells.append(
                ended(0.5, FOLDER=tmp_path / placement, optimizer=optimizer, placement=placement, seed=1)
            )
    figure = epsilon_by_round.draw(cells, "4 cells")
    assert figure is not None
    [axes] = figure.axes
    title = " ".join(axes.get_title().split())
    assert title == "epsilon=3, optimizer=dp-sgd or dp-adam, placement=central or distributed"
    assert "A panel stands for all runs whose noise multipliers agree in three figures." in texts(figure)


def test_a_limit_of_participations_never_understates(tmp_path: Path) -> None:
    """The costliest releases come first, whatever the order in which they were charged."""
    events = [Event(z, "none", "replace-one") for z in (9.0, 8.0, 4.0, 2.0)]
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        for event in events:
            ledger.record([event])
    cell = ended(0.5, FOLDER=tmp_path, placement="central")
    cell.run.report["privacy"]["max participations"] = 2
    assert epsilon_by_round._events(cell) == ((events[3], events[2]), 4)
    figure = epsilon_by_round.draw([cell], "1 cell")
    assert figure is not None
    [line] = [one for one in figure.axes[0].lines if str(one.get_label()).startswith("pld")]
    assert list(line.get_xdata()[-2:]) == [10, 20]  # two of four releases are half of the 20 rounds
    assert (
        line.get_ydata()[-2] == line.get_ydata()[-1] == epsilon([events[3], events[2]], 1e-5, "pld").epsilon
    )


def test_gains_are_differences_of_means_with_welchs_interval() -> None:
    scores = {"dp-sgd": (0.5, 0.6, 0.7), "dp-adam": (0.8, 0.9, 1.0)}
    cells = [
        ended(score, budget, optimizer=optimizer, seed=seed, **{"learning-rate": len(optimizer)})
        for optimizer, found in scores.items()
        for budget in (1.0, 3.0)
        for seed, score in enumerate(found)
    ]
    figure = gain_matrix.draw(cells, "12 cells")
    assert figure is not None
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert drawn == ["60.0 %", "60.0 %", "+30.0\n± 22.7", "+30.0\n± 22.7"]
    assert "reproducible, not private (seeds 0, 1, 2)" in texts(figure)
    assert gain_matrix.draw(cells[:6], "6 cells") is None  # one optimizer
    of_data = {"dp-sgd": "one", "dp-adam": "another"}
    apart = [
        replace(cell, settings={**cell.settings, "dataset": of_data[cell.run.config.optimizer]})
        for cell in cells
    ]
    assert gain_matrix.draw(apart, "12 cells") is None  # scores on different data
    alone = [cell for cell in cells if cell.budget == 1.0]
    assert gain_matrix.draw(alone, "6 cells") is None  # one budget


def test_an_error_that_falls_is_a_gain() -> None:
    measure = ended(0.5).measure
    error = type(measure)("mse", "mean squared error")
    matrix = {("dp-sgd", 1.0): [2.0], ("dp-adam", 1.0): [1.5]}
    assert gain_matrix.gains(matrix, "dp-sgd", error)["dp-adam", 1.0] == (0.5, math.inf)
    assert gain_matrix.gains(matrix, "dp-sgd", measure)["dp-adam", 1.0][0] == -0.5


def of_population(*local: float, **settings: Any) -> list[Ended]:
    sizes = (1000, 10_000, 100_000)
    return [
        ended(score, placement=placement, clients=size, sampler=sampler, **settings)
        for placement, sampler, scores in (("central", "poisson", (0.8,) * 3), ("local", "fixed-size", local))
        for size, score in zip(sizes, scores, strict=True)
    ]


@pytest.mark.parametrize(
    ("local", "said"),
    [
        ((0.2, 0.7, 0.8), "at about 32,000 clients"),  # 5 points short at 10^4, 5 too many at 10^5
        ((0.2, 0.3, 0.4), "does not come to 5 points below central noise with up to 100,000"),
        ((0.79, 0.79, 0.8), "with 1,000 clients already"),
        ((0.79, 0.7, 0.8), "at about 32,000 clients"),  # it falls behind again
    ],
)
def test_where_local_noise_comes_close(local: tuple[float, ...], said: str) -> None:
    figure = population.draw(of_population(*local), "6 cells")
    assert figure is not None
    assert said in " ".join(texts(figure).split())


def test_a_population_of_silos_is_said_to_be_one() -> None:
    silos = {"unit": "example", "UNIT": "example: one example of one silo"}
    figure = population.draw(of_population(0.2, 0.7, 0.8, **silos), "6 cells")
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "silos"
    assert "at about 32,000 silos." in texts(figure)
    assert "client" not in texts(figure)


def of_cohorts(*rates: float, **settings: Any) -> list[Ended]:
    return [
        ended(
            score, **{"clients": 10_000, "clip-norm": clip, "sampling-rate": rate, "seed": seed, **settings}
        )
        for clip in (1.0, 2.0)
        for rate in rates
        for seed, score in enumerate((0.5 + clip / 10, 0.52 + clip / 10))
    ]


def test_the_expected_cohort_of_silos_is_one_of_examples() -> None:
    silos = {"unit": "example", "clients": 10, "examples-per-client": 100}
    figure = score_by_setting.draw(of_cohorts(0.005, 1.0, 0.02, **silos), "12 cells")
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "expected cohort (examples x sampling-rate)"
    assert list(figure.axes[0].lines[0].get_xdata()) == [5, 20, 1000]


def test_the_score_by_sampling_rate_is_drawn_by_expected_cohort() -> None:
    """A line for each value of the other setting, with the interval of its repetitions."""
    without_noise = ended(0.9, placement="none")
    figure = score_by_setting.draw([*of_cohorts(0.005, 1.0, 0.02), without_noise], "13 cells")
    assert figure is not None
    [axes] = figure.axes
    assert axes.get_xlabel() == "expected cohort (clients x sampling-rate)"
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["50", "200", "10,000"]
    one, other, level = axes.lines
    assert list(one.get_xdata()) == [50, 200, 10_000]
    assert one.get_ydata() == pytest.approx([61] * 3)
    assert other.get_ydata() == pytest.approx([71] * 3)
    assert level.get_linestyle() == ":"
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(61 + 12.7062, abs=1e-3)
    assert "The vertical axis is cut" in " ".join(texts(figure).split())


def test_two_values_of_a_setting_are_no_curve() -> None:
    assert score_by_setting.draw(of_cohorts(0.005, 0.02), "8 cells") is None
    methods = zip(("dp-sgd", "dp-adam", "dp-yogi"), (1.0, 2.0, 3.0), strict=True)
    tuned = [ended(0.5, optimizer=name, **{"clip-norm": clip}) for name, clip in methods]
    assert score_by_setting.draw(tuned, "3 cells") is None


def test_one_placement_has_no_picture_of_populations() -> None:
    assert population.draw(of_population(0.2, 0.7, 0.8)[:3], "3 cells") is None


def test_equal_noise_is_one_line() -> None:
    ratios = [(1, 0.5), (20, 2.0)]
    cells = [ended(0.5, optimizer=name, RATIOS=ratios) for name in ("dp-sgd", "dp-adam")]
    figure = noise_to_signal.draw(cells, "2 cells")
    assert figure is not None
    [axes] = figure.axes
    assert labels(figure)[0] == ["epsilon=3, optimizer=dp-sgd or dp-adam", "noise = largest signal"]
    assert np.allclose(axes.lines[0].get_ydata(), [0.5, 2])
    assert noise_to_signal.draw([ended(0.5)], "1 cell") is None


def test_a_line_has_one_colour_in_all_panels_of_noise_to_signal() -> None:
    cells = [
        ended(0.5, epsilon=epsilon, optimizer=name, RATIOS=[(1, ratio / epsilon), (20, ratio / epsilon)])
        for epsilon in (1.0, 2.0, 4.0)
        for name, ratio in (("dp-sgd", 1.0), ("dp-adam", 1.0 if epsilon == 1 else 1.7), ("dp-yogi", 3.3))
    ]
    figure = noise_to_signal.draw(cells, "9 cells")
    assert figure is not None
    colours: dict[str, set[object]] = {}
    for axes in figure.axes:
        own = {str(line.get_label()): line.get_color() for line in axes.lines}
        assert len(set(own.values())) == len(own)
        for label, colour in own.items():
            colours.setdefault(label, set()).add(colour)
    assert len(colours) == 5  # dp-sgd, dp-adam, both, dp-yogi, the level
    assert all(len(found) == 1 for found in colours.values())


def test_a_panel_of_noise_to_signal_has_eight_lines_with_the_level() -> None:
    rates = [0.01 * (n + 1) for n in range(9)]
    cells = [ended(0.5, RATIOS=[(1, rate), (20, rate)], **{"sampling-rate": rate}, seed=1) for rate in rates]
    figure = noise_to_signal.draw(cells, "9 cells")
    assert figure is not None
    assert [len(axes.lines) for axes in figure.axes] == [8, 3]
    assert "reproducible, not private (seed 1)" in texts(figure)


def test_settings_that_follow_from_others_are_left_out() -> None:
    cells = of_population(0.2, 0.7, 0.8)
    found = of_groups(grouped([cell.run for cell in cells]))
    assert [tuple(cell.settings) for cell in found] == [("placement", "clients", "seed")] * 6
    names = [name for name, _, _ in pictures.drawn(found, "6 cells")]
    assert names == ["score-by-epsilon", "population", "score-by-setting", "score-by-round"]


def test_a_run_that_was_cut_is_no_repetition_of_those_that_ended() -> None:
    """It is a line of its own, as in the table, which says how it ended."""
    whole = [ended(0.8, FOLDER=Path(name)).run for name in "abc"]
    cut = ended(0.2, FOLDER=Path("d")).run
    result = {**cut.report["result"], "stopped": "interrupted"}
    cut = replace(cut, metrics=cut.metrics[:0], report={**cut.report, "result": result})
    found = of_groups(grouped([*whole, cut]))
    assert [cell.settings.get("ended") for cell in found] == [None, None, None, "interrupted"]
    figure = score_by_round.draw(found[:3], "3 runs")
    assert figure is not None
    diverged = replace(cut, report={**cut.report, "result": {**result, "stopped": "diverged"}})
    assert all("ended" not in cell.settings for cell in of_groups(grouped([*whole, diverged])))

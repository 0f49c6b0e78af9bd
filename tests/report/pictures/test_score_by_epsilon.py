"""The picture and the table of a sweep, from runs whose reports are made up."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from helpers.made_up_runs import MODELS, ended, labels, texts

from fedpriv._internal import plotting
from fedpriv.report import sweep_results
from fedpriv.report.pictures import methods, points, score_by_epsilon


def test_the_band_is_students_interval_of_the_mean() -> None:
    cells = [
        ended(score + rise, epsilon, optimizer="dp-sgd", seed=seed)
        for epsilon, rise in ((1.0, 0.0), (4.0, 0.2))
        for seed, score in enumerate((0.5, 0.6, 0.7))
    ]
    figure = score_by_epsilon.draw(cells, "6 cells, 2 settings tried")
    [axes] = figure.axes
    [line] = axes.lines
    assert list(line.get_xdata()) == [1.0, 4.0]
    assert line.get_ydata() == pytest.approx([60, 80])
    [band] = axes.collections[:1]
    heights = band.get_paths()[0].vertices[:, 1]
    half = 4.302653 * 10 / math.sqrt(3)  # t with two degrees of freedom at 0.975
    assert 80 + half > 100
    assert (heights.min(), heights.max()) == pytest.approx((60 - half, 100), abs=1e-3)
    assert axes.get_ylim()[1] <= 100
    assert "Intervals that reach beyond 0 or 100 % end there." in texts(figure)
    assert labels(figure) == [["optimizer=dp-sgd (n = 3)"]]
    assert "6 cells, 2 settings tried." in texts(figure)
    assert "95 % confidence interval of the mean" in texts(figure)
    assert "NOT" not in texts(figure)


@pytest.mark.parametrize(("value", "mean", "half"), [([2.0], 2.0, 0.0), ([1.0, 3.0], 2.0, 12.7062)])
def test_an_interval_of_few_runs(value: list[float], mean: float, half: float) -> None:
    assert points.interval(value) == pytest.approx((mean, half), abs=1e-3)


def test_of_one_budget_it_is_dots_with_intervals() -> None:
    cells = [
        ended(score, optimizer=optimizer, seed=seed)
        for optimizer in ("dp-sgd", "dp-adam")
        for seed, score in enumerate((0.5, 0.6))
    ] + [ended(0.9, placement="none", optimizer="dp-sgd")]
    figure = score_by_epsilon.draw(cells, "5 cells, 3 settings tried")
    [axes] = figure.axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert [name.split(" (")[0] for name in names] == [
        "optimizer=dp-sgd", "optimizer=dp-adam", "clipped, no noise, optimizer=dp-sgd",
    ]  # fmt: skip
    assert [container.lines[0].get_xdata()[0] for container in axes.containers] == pytest.approx([55, 55, 90])
    assert "Runs without noise are references; they are not private." in texts(figure)
    assert "last evaluation" in axes.get_xlabel()
    assert "horizontal axis is cut" not in texts(figure)  # with two runs an interval reaches 0


@pytest.mark.parametrize(("scores", "low"), [((0.8, 0.9), "79.5"), ((0.1, 0.9), "")])
def test_an_axis_of_dots_that_does_not_start_at_0_is_said_to_be_cut(
    scores: tuple[float, float], low: str
) -> None:
    cells = [
        ended(score, optimizer=optimizer, CHANCE=0.1)
        for optimizer, score in zip(("dp-sgd", "dp-adam"), scores, strict=True)
    ]
    figure = score_by_epsilon.draw(cells, "2 cells")
    [axes] = figure.axes
    assert (f"The horizontal axis is cut: it starts at {low} %, not at 0." in texts(figure)) == bool(low)
    assert any(one.get_gid() == plotting.CUT for one in axes.collections) == bool(low)
    assert ("which is outside the picture" in texts(figure)) == bool(low)
    assert (axes.get_xlim()[0] > 0) == bool(low)


def test_dots_have_one_colour_because_their_row_names_the_method() -> None:
    clips = [0.1 * n for n in range(1, 12)]
    cells = [*(ended(0.5, **{"clip-norm": clip}) for clip in clips), ended(0.9, placement="none")]
    [axes] = score_by_epsilon.draw(cells, "12 cells").axes
    colors = [container.lines[0].get_color() for container in axes.containers]
    assert len(set(colors[:-1])) == 1
    assert colors[-1] != colors[0]


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        (
            "AGAINST",
            ("the server, for the unit that lost most", MODELS),
            ["adversary", "the server", "anyone who"],
        ),
        ("DELTA", (1e-5, 1e-6), ["delta", "1e-05", "1e-06"]),
        ("HELD", ("pld", "rdp"), ["accounting", "pld", "rdp"]),
        ("RELATION", ("add-remove", "replace-one"), ["neighbouring relation", "add-remove", "replace-one"]),
    ],
)
def test_what_epsilon_means_is_said_where_it_differs(
    key: str, values: tuple[Any, Any], words: list[str]
) -> None:
    cells = [
        ended(0.5, epsilon, optimizer=optimizer, **{key: value})
        for optimizer, value in zip(("dp-sgd", "dp-adam"), values, strict=True)
        for epsilon in (1.0, 3.0)
    ]
    text = " ".join(texts(score_by_epsilon.draw(cells, "4 cells, 4 settings tried")).split())
    assert f"Epsilon does NOT mean the same for all curves. The {words[0]} differs: " in text
    for word, optimizer in zip(words[1:], ("dp-sgd", "dp-adam"), strict=True):
        assert word in text
        assert f"(optimizer={optimizer})" in text
    column = {"AGAINST": "against", "HELD": "accounting"}.get(key, key.lower())
    table = sweep_results.rows(cells, 4)
    assert len({row[column] for row in table}) == 2
    same = sweep_results.rows([cell for cell in cells if cell.settings["optimizer"] == "dp-sgd"], 4)
    assert column not in same[0]


@pytest.mark.parametrize("unit", ["client", "example"])
def test_the_adversary_is_described_for_the_privacy_unit(unit: str) -> None:
    meaning = {"AGAINST": "the server, for the unit that lost most", "UNIT": f"{unit}: one of them"}
    text = texts(score_by_epsilon.draw([ended(0.5, epsilon, **meaning) for epsilon in (1.0, 3.0)], "2 cells"))
    assert f"adversary = the server, for the {unit} with the largest privacy loss." in " ".join(text.split())


def test_a_panel_has_at_most_eight_lines_in_styles_of_their_own() -> None:
    cells = [
        ended(0.5, epsilon, optimizer=optimizer, **{"clip-norm": clip})
        for optimizer in ("dp-sgd", "dp-adam", "dp-yogi")
        for clip in (0.1, 0.2, 0.5, 1.0, 2.0)
        for epsilon in (1.0, 3.0)
    ]
    figure = score_by_epsilon.draw(cells, "30 cells, 30 settings tried")
    assert [axes.get_title() for axes in figure.axes] == [
        "optimizer=dp-sgd", "optimizer=dp-adam", "optimizer=dp-yogi",
    ]  # fmt: skip
    assert labels(figure)[0][0] == "clip-norm=0.1 (n = 1)"
    for axes in figure.axes:
        styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}
        assert len(styles) == len(axes.lines) == 5
    colors, dashes, markers = zip(*plotting.STYLES, strict=True)
    assert len(set(colors)) == len(set(map(str, dashes))) == len(set(markers)) == methods.MOST_LINES == 8


def test_more_lines_than_any_axis_divides_are_chunks_of_eight() -> None:
    clips = [0.1 * n for n in range(1, 12)]
    cells = [ended(0.5, epsilon, **{"clip-norm": clip}) for clip in clips for epsilon in (1.0, 3.0)]
    figure = score_by_epsilon.draw(cells, "22 cells, 22 settings tried")
    assert [len(axes.lines) for axes in figure.axes] == [8, 3]


def test_runs_without_noise_are_levels_and_diverged_ones_are_told() -> None:
    cells = [
        ended(0.9, placement="none"),
        *(ended(score, epsilon, placement="central") for epsilon, score in ((1.0, 0.5), (3.0, None))),
    ]
    figure = score_by_epsilon.draw(cells, "3 cells, 3 settings tried")
    level, line = figure.axes[0].lines
    assert list(level.get_ydata()) == pytest.approx([90, 90])
    assert level.get_linestyle() == ":"
    assert math.isnan(line.get_ydata()[1])
    assert "A point with a run that diverged is left out." in texts(figure)
    assert [row["accuracy"] for row in sweep_results.rows(cells, 4)][-1] is None
    assert (
        sweep_results.as_csv(sweep_results.rows(cells[2:], 4)).splitlines()[-1] == "central,-1,3.0,20,,3.0,4"
    )


def test_an_evaluation_at_an_interruption_is_no_row() -> None:
    [first, *_] = rows = sweep_results.rows([ended(0.5, **{"evaluate-every": 10})], 1)
    assert [row["round"] for row in rows] == [10, 20]
    assert list(first)[-4:] == ["round", "accuracy", "epsilon spent", "settings tried"]
    assert statistics.fmean(row["epsilon spent"] for row in rows) == 2.25


def test_the_svg_is_the_same_for_the_same_figure(rendered_pictures: None) -> None:
    cells = [ended(0.5, epsilon) for epsilon in (1.0, 3.0)]
    one, other = (plotting.svg(score_by_epsilon.draw(cells, "2 cells")) for _ in range(2))
    assert one == other
    assert b"<svg" in one


def test_references_are_in_each_panel_and_are_told_apart() -> None:
    cells = [
        ended(0.5, epsilon, optimizer=optimizer, **{"clip-norm": clip})
        for optimizer in ("dp-sgd", "dp-adam")
        for clip in (0.1, 0.2, 0.5, 1.0)
        for epsilon in (1.0, 3.0)
    ]
    for clip in (1.0, math.inf):
        cell = ended(0.9, placement="none", **{"clip-norm": clip})
        cells.append(cell)
        cell.settings.pop("optimizer", None)
    figure = score_by_epsilon.draw(cells, "18 cells")
    assert [axes.get_title() for axes in figure.axes] == ["optimizer=dp-sgd", "optimizer=dp-adam"]
    for names in labels(figure):
        assert [name.partition("(")[0].strip() for name in names[4:]] == [
            methods.CLIPPED,
            methods.NON_PRIVATE,
        ]


def test_the_title_tells_the_noise_of_silos_from_that_of_a_server() -> None:
    silos = {"unit": "example", "clients": 10, "examples-per-client": 100}
    titles = [methods.shared([ended(0.5, 1.0, **silos, level=level)]) for level in ("aggregation", "client")]
    assert [(title[1], title[-1]) for title in titles] == [
        ("10 silos", "central noise"),
        ("10 silos", "central noise in each silo"),
    ]


@pytest.mark.parametrize(
    ("scores", "guessing", "cut", "drawn"),
    [
        ((0.05, 0.2), 0.1, "", True),
        ((0.9, 0.95), 0.1, "starts at 89.7 %", False),
        ((0.5, 0.6), 0.46, "starts at", True),
    ],
)
def test_the_axis_fits_the_data_and_says_where_it_is_cut(
    scores: tuple[float, float], guessing: float, cut: str, drawn: bool
) -> None:
    cells = [
        ended(score, epsilon, CHANCE=guessing) for score, epsilon in zip(scores, (1.0, 3.0), strict=True)
    ]
    figure = score_by_epsilon.draw(cells, "2 cells")
    [axes] = figure.axes
    text = " ".join(texts(figure).split())
    assert ("axis is cut: it starts at" in text) == bool(cut)
    assert cut in text
    assert any(one.get_gid() == plotting.CUT for one in axes.collections) == bool(cut)
    assert any(line.get_label() == "guessing" for line in axes.lines) == drawn
    assert ("outside the picture" in text) != drawn
    low, high = axes.get_ylim()
    assert low < 100 * min(scores) < 100 * max(scores) < high

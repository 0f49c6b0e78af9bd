"""What optimizers gain over a baseline at each epsilon: a heat map with figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv.report.pictures import methods
from fedpriv.report.sweep_results import Ended
from fedpriv.tasks.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Gain of optimizers over the baseline"
_BASELINE = "dp-sgd"
_MOST, _COLUMNS = 6, 2
_TASK = ("dataset", "partition", "clients", "unit", "model")  # scores of different ones are not compared

Scores = Mapping[tuple[str, float], Sequence[float]]  # by optimizer and epsilon
Gains = Mapping[tuple[str, float], tuple[float, float]]


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture; None without two optimizers that have two budgets in common with the baseline."""
    measure, drawn = ended[0].measure, methods.of_one_measure(ended)
    private = [cell for cell in drawn if cell.budget is not None]
    optimizers = list(dict.fromkeys(cell.run.config.optimizer for cell in private))
    if len(optimizers) < 2:
        return None
    baseline = _BASELINE if _BASELINE in optimizers else optimizers[0]
    matrices = [(name, matrix) for name, matrix in _matrices(private, baseline) if len(_budgets(matrix)) > 1]
    if not matrices:
        return None
    shown = matrices[:_MOST]
    tables = [gains(matrix, baseline, measure) for _, matrix in shown]
    bound = max((abs(gain) for table in tables for gain, _ in table.values()), default=1.0) or 1.0
    columns = min(_COLUMNS, len(shown))
    width = columns * (2.2 + 0.95 * max(len(_budgets(matrix)) for _, matrix in shown))
    height = math.ceil(len(shown) / columns) * (1.5 + 0.5 * len(optimizers))
    figure, all_axes = plotting.panels(max(7.0, width), height, len(shown), columns, share=False)
    image: Any = None
    for axes, (name, matrix), table in zip(all_axes, shown, tables, strict=True):
        image = _draw(axes, matrix, table, bound, measure)
        axes.set_title(name, fontsize=10)
    unit = "points" if measure.fraction else measure.words
    figure.colorbar(image, ax=all_axes, label=f"gain over {baseline} ({unit})")
    plotting.title(figure, [", ".join(methods.shared(private)), *methods.marks(private)])
    footer = [
        f"{about[:1].upper()}{about[1:]}.",
        f"Figures: the mean score minus that of {baseline} at the same epsilon"
        + ("" if measure.fraction else ", with the sign turned, so that a gain is a smaller error")
        + "; below, half the width of the 95 % confidence interval of the difference (Welch). Bold, in full "
        "colour: the interval excludes 0. Pale: it does not, or there is one run. Empty: a run diverged, or "
        f"there is none. The row of {baseline} has its scores.",
        *methods.meaning(private),
    ]
    if len(matrices) > len(shown):
        footer.append(f"{len(matrices) - len(shown)} more groups of settings are not shown.")
    plotting.footer(figure, footer)
    return figure


def gains(matrix: Scores, baseline: str, measure: Metric) -> dict[tuple[str, float], tuple[float, float]]:
    """For each optimizer and epsilon, (the gain over the baseline, half the width of its 95 % interval).

    The half width is infinite where one of both has a single run.
    """
    found = {}
    for (optimizer, epsilon), scores in matrix.items():
        base = matrix.get((baseline, epsilon))
        if base is None or optimizer == baseline:
            continue
        gain, half = difference(scores, base)
        if not math.isnan(gain):
            found[optimizer, epsilon] = (gain if measure.fraction else -gain, half)
    return found


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """(the difference of the means, half the width of its 95 % interval by Welch's t).

    >>> mean, half = difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    >>> mean, round(half, 3)  # 2.776 sqrt(2 / 3), with 4 degrees of freedom
    (2.0, 2.267)
    """
    from scipy.stats import t

    mean = statistics.fmean(one) - statistics.fmean(other)
    if min(len(one), len(other)) < 2 or math.isnan(mean):
        return mean, math.inf
    parts = [statistics.variance(values) / len(values) for values in (one, other)]
    if not sum(parts):
        return mean, 0.0
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (one, other), strict=True)
    )
    return mean, float(t.ppf(0.975, degrees)) * math.sqrt(sum(parts))


def _matrices(private: Sequence[Ended], baseline: str) -> list[tuple[str, Scores]]:
    """The scores by optimizer and budget, for each combination of the settings that the baseline has too.

    Settings that only tell an optimizer's own runs apart from the baseline's, such as its step size, are left
    out where each optimizer has one value of them. Those of the task never are.
    """
    keys = [
        key
        for key in dict.fromkeys(k for cell in private for k in cell.settings)
        if key not in ("optimizer", "epsilon", "seed") and (key in _TASK or _free(private, key))
    ]
    found: dict[str, dict[tuple[str, float], list[float]]] = {}
    for cell in private:
        name = methods.words({key: cell.settings[key] for key in keys if key in cell.settings})
        scores = found.setdefault(name, {})
        place = (cell.run.config.optimizer, float(cell.budget or 0))
        scores.setdefault(place, []).extend(cell.measure.heights([cell.run.metrics[-1]]))
    named = {name: {optimizer for optimizer, _ in matrix} for name, matrix in found.items()}
    return [(name, found[name]) for name, those in named.items() if baseline in those and len(those) > 1]


def _free(cells: Sequence[Ended], key: str) -> bool:
    """Whether some optimizer has several values of this setting."""
    values: dict[str, set[Any]] = {}
    for cell in cells:
        values.setdefault(cell.run.config.optimizer, set()).add(cell.settings.get(key))
    return any(len(of) > 1 for of in values.values())


def _sure(found: tuple[float, float] | None) -> bool:
    """Whether the interval of a gain excludes 0."""
    return found is not None and abs(found[0]) > found[1]


def _budgets(matrix: Scores) -> list[float]:
    return sorted({epsilon for _, epsilon in matrix})


def _draw(axes: Axes, matrix: Scores, table: Gains, bound: float, measure: Metric) -> Any:
    """One panel; the baseline's row has its scores."""
    optimizers, budgets = list(dict.fromkeys(name for name, _ in matrix)), _budgets(matrix)
    cells = [[table.get((name, at), (math.nan, 0.0))[0] for at in budgets] for name in optimizers]
    sure = [[_sure(table.get((name, at))) for at in budgets] for name in optimizers]
    opacity = [[1.0 if known else 0.35 for known in row] for row in sure]
    image = axes.imshow(cells, cmap="PuOr", vmin=-bound, vmax=bound, aspect="auto", alpha=opacity)
    for row, name in enumerate(optimizers):
        for column, at in enumerate(budgets):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
            if (name, at) in table:
                gain, half = table[name, at]
                text = f"{gain:+z.1f}" if measure.fraction else f"{gain:+z.3g}"
                if math.isfinite(half):
                    text += f"\n± {half:.1f}" if measure.fraction else f"\n± {half:.2g}"
                style["color"] = "white" if sure[row][column] and abs(gain) > 0.6 * bound else "black"
                style["weight"] = "bold" if sure[row][column] else "normal"
            elif (name, at) in matrix and not math.isnan(mean := statistics.fmean(matrix[name, at])):
                text, style["color"] = (f"{mean:.1f} %" if measure.fraction else f"{mean:.3g}"), "#444444"
            else:
                continue
            axes.text(column, row, text, **style)
    axes.set_xticks(range(len(budgets)), [f"{at:g}" for at in budgets])
    axes.set_yticks(range(len(optimizers)), optimizers)
    axes.set_xlabel("epsilon of the whole budget")
    return image

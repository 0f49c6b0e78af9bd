"""Shared parts of the pictures: methods with their repetitions, panels, references and footers.

A method is a set of settings besides epsilon and seed. Runs that differ in their seed are repetitions
(:mod:`fedpriv.report.pictures.points`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting
from fedpriv._internal.settings import assignments, shown_word
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.units import Level
from fedpriv.report.comparison import Group, remarks
from fedpriv.report.notices import NO_NOISE, noise, noise_cohorts
from fedpriv.report.pictures.points import Point
from fedpriv.report.summary import CHANCE
from fedpriv.report.sweep_results import Ended, differing_meanings
from fedpriv.tasks.metrics import Metric, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = len(plotting.STYLES)  # in a panel
NON_PRIVATE, CLIPPED = "non-private training: no noise, no clipping", "clipped, no noise"
_CHARACTERS = 13.5  # in an inch of a legend
_MOST_NAMED = 3  # methods in a sentence
_PARTS = {
    "unit": "privacy unit",
    "relation": "neighbouring relation",
    "delta": "delta",
    "accounting": "accounting",
    "against": "adversary",
}


@dataclass(frozen=True)
class Line:
    """A method: its settings, its points in order, and what it is a reference of, if it is one."""

    settings: Mapping[str, Any]
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    reference: str = ""

    def label(self, left_out: str = "") -> str:
        """The settings but one, with the number of runs of a point."""
        idle = {left_out, *(("placement", "clip-norm") if self.reference else ())}
        own = {key: value for key, value in self.settings.items() if key not in idle}
        name = ", ".join(filter(None, [self.reference, words(own)])) or "all runs"
        return self.counted(name)

    def counted(self, name: str) -> str:
        """A name with the number of runs of a point, and the notes."""
        numbers = sorted({point.runs for point in self.points})
        runs = " to ".join(dict.fromkeys(map(str, (numbers[0], numbers[-1]))))
        return f"{name} ({'; '.join([f'n = {runs}', *self.notes])})"


def of_one_measure(ended: Sequence[Ended]) -> list[Ended]:
    """The cells that are scored as the first one is."""
    return [cell for cell in ended if cell.measure.key == ended[0].measure.key]


def lines(
    ended: Sequence[Ended], but: Sequence[str], points: Callable[[Sequence[Ended]], Sequence[Point]]
) -> tuple[list[Line], str]:
    """The methods in the order of the cells, and the remarks that hold for all of them.

    Args:
        ended: the cells.
        but: the settings that tell the points of a line apart, or repetitions.
        points: what a method's cells give.
    """
    by_method: dict[tuple[str, tuple[tuple[str, Any], ...]], list[Ended]] = {}
    for cell in ended:
        by_method.setdefault((reference(cell.run.config), _method(cell, but)), []).append(cell)
    groups = [Group(dict(key), tuple(cell.run for cell in cells)) for (_, key), cells in by_method.items()]
    alike, own = remarks(groups)
    return [
        Line(
            group.settings,
            tuple(points(cells)),
            tuple(note for note in notes if note != NO_NOISE),
            reference(cells[0].run.config),
        )
        for group, cells, notes in zip(groups, by_method.values(), own, strict=True)
    ], alike


def marks(ended: Sequence[Ended]) -> list[str]:
    """For a title: why runs with noise are not private, such as their seeds."""
    line, _ = remarks([Group({}, tuple(cell.run for cell in ended))])
    return [line] if line else []


def _method(cell: Ended, but: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in cell.settings.items() if key not in but)


def reference(config: Config) -> str:
    """What a run without noise is a reference of; empty with noise.

    >>> reference(Config.parse({"placement": "none"})), reference(Config.parse({}))
    ('clipped, no noise', '')
    """
    if PLACEMENTS[config.placement].adds_noise:
        return ""
    table, idle = config.table(), config.without_effect()
    norms = [table[key] for key in table if key.endswith("clip-norm") and key not in idle]
    # 0 stands for a norm that follows from clip-norm.
    unclipped = math.inf in norms and all(norm in (0, math.inf) for norm in norms)
    return NON_PRIVATE if unclipped else CLIPPED


def chance(ended: Sequence[Ended]) -> float | None:
    """The accuracy of guessing in percent, where it is known and the same for all cells."""
    return accuracy_of_guessing([cell.run.report for cell in ended], ended[0].measure)


def accuracy_of_guessing(reports: Sequence[Mapping[str, Any]], measure: Metric) -> float | None:
    """In percent, of runs that are scored by ``measure``; None unless their reports have one and the same."""
    found = {report["result"].get(CHANCE) for report in reports}
    if len(found) != 1 or measure.key != "accuracy":
        return None
    [share] = found
    return None if share is None else 100 * float(share)


def panels(found: Sequence[Line], most: int = MOST_LINES) -> list[tuple[str, list[Line]]]:
    """The lines of each panel, at most ``most``, with the setting that a panel's lines share, if any.

    A reference that has not this setting is in each panel. Panels whose lines share none have all references,
    if that makes not too many panels.
    """
    if len(found) <= most:
        return [("", list(found))]
    splits = []
    for key in dict.fromkeys(key for line in found for key in line.settings):
        everywhere = [line for line in found if line.reference and key not in line.settings]
        parts: dict[Any, list[Line]] = {}
        for line in found:
            if not any(line is one for one in everywhere):
                parts.setdefault(line.settings.get(key), []).append(line)
        if max(map(len, parts.values())) + len(everywhere) <= most:
            splits.append([(key, [*part, *everywhere]) for part in parts.values()])
    if by_data := [split for split in splits if split[0][0] == "dataset"]:
        return by_data[0]
    chunks = math.ceil(len(found) / most)
    if splits and len(best := min(splits, key=len)) <= 2 * chunks:  # not a panel for each line
        return best
    references, others = (
        [line for line in found if line.reference],
        [one for one in found if not one.reference],
    )
    room = most - len(references)
    if room <= 0 or math.ceil(len(others) / room) > 2 * chunks:
        references, others, room = [], list(found), most
    return [("", [*others[at : at + room], *references]) for at in range(0, len(others), room)]


def capacity(guessing: float | None) -> int:
    """How many lines a panel has room for beside the one of guessing."""
    return MOST_LINES - (guessing is not None)


def fit(
    all_axes: Sequence[Axes], measure: Metric, values: Sequence[float], guessing: float | None
) -> list[str]:
    """Fit the vertical axes to the values, and draw guessing where it is near; says where they are cut."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    near = guessing is not None and min(guessing, low) >= low - 0.6 * (high - low + pad)
    if near and guessing is not None:
        low, high = min(low, guessing), max(high, guessing)
    low, high = max(0.0, low - pad), high + pad
    low = 0.0 if low < 0.25 * (high - low) else low
    high = min(high, 100.0) if measure.fraction else high
    for axes in all_axes:
        axes.set_ylim(low, high)
        if low:
            plotting.cut(axes)
        if near and guessing is not None:
            plotting.level(axes, guessing, "guessing")
    return axis_notes("vertical", low, measure, guessing, near)


def axis_notes(axis: str, low: float, measure: Metric, guessing: float | None, near: bool) -> list[str]:
    """Where an axis of scores starts, if not at 0, and what guessing gives, in sentences."""
    percent = " %" if measure.fraction else ""
    found = [f"The {axis} axis is cut: it starts at {low:.3g}{percent}, not at 0."] if low else []
    if guessing is not None:
        where = "" if near else ", which is outside the picture"
        found.append(f"Guessing the most frequent label gives {guessing:.3g} %{where}.")
    return found


def band(axes: Axes, points: Sequence[Point], color: str) -> None:
    """The intervals along a line."""
    at = [point.at for point in points if point.at is not None]
    lowest, highest = zip(*(point.range for point in points), strict=True)
    axes.fill_between(at, lowest, highest, color=color, alpha=0.13, linewidth=0)


def grid(number: int, height: float = 4.2, columns: int = 3, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of this many panels of this height, in rows of at most ``columns``."""
    rows = math.ceil(number / columns)
    columns = math.ceil(number / rows)  # rows of one length, where that is possible
    return plotting.panels(max(7.0, 4.6 * columns), height * rows, number, columns, share)


def finish(figure: Figure, all_axes: Sequence[Axes], label: str) -> None:
    """Label the vertical axes, and give each panel a legend; the figure grows by their height.

    A legend is below its panel, where the layout counts its height; a figure's could lie on the footer.
    """
    layout: Any = all_axes[0].get_gridspec()
    width, height = figure.get_size_inches()
    room = int(_CHARACTERS * (width / layout.ncols - 1.1))
    most = 0
    for number, axes in enumerate(all_axes):
        first = number % layout.ncols == 0
        scales = axes.get_shared_y_axes().get_siblings(axes)
        axes.set_ylabel(label if first else "")
        axes.tick_params(labelbottom=True, labelleft=first or len(scales) == 1)
        handles, names = axes.get_legend_handles_labels()
        names = [_filled(name, room) for name in names]
        most = max(most, sum(name.count("\n") + 1 for name in names))
        axes.legend(handles, names, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.set_size_inches(width, height + layout.nrows * (0.17 * most + 0.2))


def _filled(text: str, width: int) -> str:
    """The text in lines, which do not end within "n = 3"."""
    joined = text.replace(" = ", "\xa0=\xa0")
    return fill(joined, width, subsequent_indent="  ", break_on_hyphens=False).replace("\xa0", " ")


def shared(ended: Sequence[Ended]) -> list[str]:
    """The data set, the clients, the model and the optimizer, as far as all cells share them."""
    tables = [cell.run.config for cell in ended]
    texts = [
        {config.dataset for config in tables},
        {counted(config.clients, "silo" if config.privacy_unit.in_silos else "client") for config in tables},
        {config.model for config in tables},
        {config.optimizer for config in tables},
        {
            noise(config.placement, Level(config.level).by_silo)
            for config in tables
            if PLACEMENTS[config.placement].adds_noise
        },
    ]
    return [plain(next(iter(values))) for values in texts if len(values) == 1]


def footer(ended: Sequence[Ended], points: Sequence[Point], about: str) -> list[str]:
    """How many settings were tried, what intervals are, and what epsilon means, in sentences."""
    found = [f"{about[:1].upper()}{about[1:]}."]
    if any(point.runs > 1 for point in points):
        found.append("Points: the mean of n runs; bands and bars: the 95 % confidence interval of the mean.")
    if any(point.beyond for point in points):
        beyond = "beyond 0 or 100 %" if ended[0].measure.fraction else "below 0"
        found.append(f"Intervals that reach {beyond} end there.")
    if any(math.isnan(point.mean) for point in points):
        found.append("A point with a run that diverged is left out.")
    if any(reference(cell.run.config) for cell in ended):
        found.append("Runs without noise are references; they are not private.")
    return [*found, *meaning(ended)]


def meaning(ended: Sequence[Ended]) -> list[str]:
    """What epsilon means, and where cells differ in it, in sentences."""
    found = simulated(ended)
    differing = differing_meanings(ended)
    first = next((cell.meaning for cell in ended if cell.meaning), {})
    if same := {part: value for part, value in first.items() if part not in differing}:
        values = "; ".join(f"{_PARTS[part]} = {_value(value)}" for part, value in same.items())
        found.append(f"Epsilon: {values}.")
    for part, values_of in differing.items():
        each = "; ".join(f"{_value(value)} ({_which(cells, ended)})" for value, cells in values_of.items())
        found.append(f"Epsilon does NOT mean the same for all curves. The {_PARTS[part]} differs: {each}.")
    return found


def simulated(ended: Sequence[Ended]) -> list[str]:
    """That the noise of cells is that of larger cohorts, in a sentence; none where that of no cell is."""
    marked = [cell for cell in ended if cell.run.config.simulates_noise]
    if not marked:
        return []
    which = "" if len(marked) == len(ended) else f" ({len(marked)} of {len(ended)} runs)"
    cohorts = " or ".join(dict.fromkeys(noise_cohorts(cell.run.config) for cell in marked))
    return [f"SIMULATED, NOT PRIVATE{which}: noise and epsilon are those of {cohorts}, not of the runs' own."]


def left_out(ended: Sequence[Ended], drawn: Sequence[Ended]) -> list[str]:
    """Which cells have another score than the picture's."""
    others = sorted({cell.measure.words for cell in ended if cell not in drawn})
    return [f"Cells that are scored by {' and '.join(others)} are not shown."] if others else []


def together(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Settings that share a line or a panel as one: of each setting all of its values.

    >>> together([{"epsilon": 1.0, "optimizer": "dp-sgd"}, {"epsilon": 1.0, "optimizer": "dp-adam"}])
    {'epsilon': '1', 'optimizer': 'dp-sgd or dp-adam'}
    """
    return {
        key: " or ".join(dict.fromkeys(shown_word(own[key]) for own in settings if key in own))
        for key in dict.fromkeys(key for own in settings for key in own)
    }


def alike(value: float) -> float:
    """The value with three figures. Lines that agree in them lie on each other."""
    return float(f"{value:.3g}")


def _which(cells: Sequence[Ended], ended: Sequence[Ended]) -> str:
    """The setting that tells these cells from the others; their methods where there is no such setting."""
    others = [cell for cell in ended if cell.meaning and all(cell is not one for one in cells)]
    for key in cells[0].settings:
        values = dict.fromkeys(cell.settings.get(key) for cell in cells)
        if not any(cell.settings.get(key) in values for cell in others):
            return " or ".join(words({key: value}) for value in values)
    methods = list(dict.fromkeys(words(dict(_method(cell, ("epsilon", "seed")))) for cell in cells))
    more = f" or {len(methods) - _MOST_NAMED} more" if len(methods) > _MOST_NAMED else ""
    return " or ".join(methods[:_MOST_NAMED]) + more


def _value(value: Any) -> str:
    """A part of epsilon's meaning; of a unit its description alone."""
    return f"{value:.3g}" if isinstance(value, float) else str(value).rpartition(": ")[2]


def words(settings: Mapping[str, Any]) -> str:
    """Settings as key=value; a dash for one that has no effect. A dollar sign begins no formula."""
    text = ", ".join(assignments({key: "-" if value is None else value for key, value in settings.items()}))
    return plain(text)


def plain(text: str) -> str:
    """Text for matplotlib, which takes what is between two dollar signs as a formula."""
    return text.replace("$", r"\$")

"""Epsilon against rounds by accounting method: what each method says of the releases in a run's ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting, run_files
from fedpriv.accounting import METHODS, plots
from fedpriv.accounting.events import Event
from fedpriv.accounting.local_view import costliest
from fedpriv.accounting.record import parse
from fedpriv.report.pictures import methods
from fedpriv.report.sweep_results import Ended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Epsilon against rounds by accounting method"
_MOST, _COLUMNS, _POINTS = 4, 2, 20
_NOTHING = 0.01  # of delta, where a curve cannot show it


def draw(ended: Sequence[Ended], about: str) -> Figure | None:
    """The picture: a panel for each of at most four schedules of noise; None where no ledger has releases."""
    found = list(_schedules(ended))
    if not found:
        return None
    shown = found[:_MOST]
    figure, all_axes = methods.grid(len(shown), columns=_COLUMNS, share=False)
    for axes, (cells, events, a_round) in zip(all_axes, shown, strict=True):
        cell = cells[0]
        by = [*METHODS.only(lambda method: method.in_reports), str(cell.meaning["accounting"])]
        curves = plots.curves(events, float(cell.meaning["delta"]), list(dict.fromkeys(by)), _POINTS)
        curves = curves.until(round(a_round * float(cell.run.report["result"]["rounds"])))
        plots.draw_on(axes, curves, [step / a_round for step in curves.steps])
        if cell.budget is not None:
            plotting.level(axes, cell.budget, "budget")
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xlabel("round")
        axes.set_title(_name(cells), fontsize=9)
    all_cells = [cell for cells, _, _ in shown for cell in cells]
    deltas = dict.fromkeys(f"{cell.meaning['delta']:.3g}" for cell in all_cells)
    methods.finish(figure, all_axes, f"epsilon at delta {' or '.join(deltas)}")
    plotting.title(figure, [", ".join(methods.shared(all_cells)), *methods.marks(all_cells)])
    lines = [
        "Each curve is for the releases that were charged. It holds for runs that end on their own. An "
        "estimate can understate epsilon several-fold.",
        *methods.meaning(all_cells),
    ]
    if any(len({_method(cell) for cell in cells}) > 1 for cells, _, _ in shown):
        lines.insert(1, "A panel stands for all runs whose noise multipliers agree in three figures.")
    if len(found) > len(shown):
        lines.append(
            f"{len(found) - len(shown)} more schedules of noise are not shown; `fedpriv account --ledger` "
            "computes them."
        )
    plotting.footer(figure, lines)
    return figure


def _name(cells: Sequence[Ended]) -> str:
    """The settings of a panel's cells, and their budget."""
    own = methods.together(
        [{key: value for key, value in cell.settings.items() if key != "seed"} for cell in cells]
    )
    budget = {} if "epsilon" in own or cells[0].budget is None else {"epsilon": cells[0].budget}
    return fill(methods.words({**own, **budget}), 56, break_on_hyphens=False)


def _method(cell: Ended) -> str:
    return methods.words({k: v for k, v in cell.settings.items() if k not in ("epsilon", "seed")})


def _schedules(ended: Sequence[Ended]) -> Iterator[tuple[list[Ended], Sequence[Event], float]]:
    """(cells, the releases that count for one unit, all releases of a round) for each schedule of noise.

    Of each method the cells with the largest budget come first.
    """
    found: dict[tuple[Any, ...], tuple[list[Ended], Sequence[Event], float]] = {}
    for cell in sorted(ended, key=lambda cell: -(cell.budget or 0)):
        if not cell.meaning or (counted := _events(cell)) is None:
            continue
        (events, releases), rounds = counted, float(cell.run.report["result"]["rounds"])
        delta = float(cell.meaning["delta"])
        same = tuple(_alike(event, delta / len(events)) for event in events)
        meaning = (delta, cell.meaning["accounting"], cell.meaning.get("against"))
        same_panel = (same, rounds, cell.budget, meaning)
        found.setdefault(same_panel, ([], events, releases / rounds))[0].append(cell)
    told, later = set[str](), []
    for one in found.values():
        own = set(map(_method, one[0]))
        if own <= told:
            later.append(one)
        else:
            told |= own
            yield one
    yield from later


def _alike(event: Event, delta: float) -> Event:
    """The event with three figures of its noise, and without a truncation that is nothing to its share of
    delta: shares of distributed noise are a little larger than a server's noise."""
    small = event.truncation < _NOTHING * delta
    noise = methods.alike(event.noise_multiplier)
    return replace(event, noise_multiplier=noise, truncation=0.0 if small else event.truncation)


def _events(cell: Ended) -> tuple[tuple[Event, ...], int] | None:
    """(the releases that count for one unit, how many were charged); None where the ledger is not there.

    Of silos it is the one that was charged most.

    With a limit of participations a client takes part in at most so many. The costliest ones come first, in
    the first rounds, so that no client has spent more by any round.
    """
    path = cell.run.folder / run_files.LEDGER
    try:
        record = parse(path.read_bytes(), str(path))
    except (OSError, ValueError):
        return None
    events = record.events
    if cell.run.config.by_silo:
        events = max(record.by_silo().values(), key=lambda of: sum(e.count for e in of), default=())
    if not events or not cell.run.report["result"]["rounds"]:
        return None
    most = cell.run.report["privacy"].get("max participations")
    if most is not None and most < len(events):
        return costliest(events, most), len(events)
    return events, len(events)

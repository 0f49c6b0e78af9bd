"""Choosing settings for each method of a sweep before its cells run: the same search for every method.

A candidate is scored on a fixed fifth of the public test examples, which the cells' scores leave out
(``test-part``). It trains on the clients' data, in runs of its own with other seeds than the cells. So the
choice costs nothing beyond these runs, but they add up with the cells where they are not simulations:
:class:`Price` says what choosing costs in private.

``search = "halving"`` is sequential halving (Karnin, Koren & Somekh 2013): a rung gives each candidate that
is left twice as many new seeds as the last one, and the better half goes on.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import atomic
from fedpriv._internal.settings import Scalar
from fedpriv.accounting import PrivacyGuarantee, UnsupportedEvent, epsilon
from fedpriv.config.plan import Plan, make_plan
from fedpriv.contrib.private_selection import Selection
from fedpriv.report.run_folders import CANDIDATES, TUNING
from fedpriv.report.sweep_results import Ended
from fedpriv.simulation.sweeps import definition as definitions
from fedpriv.simulation.sweeps import driver, plans
from fedpriv.simulation.sweeps.candidates import TUNING_PART, Tuning
from fedpriv.simulation.sweeps.definition import Definition
from fedpriv.simulation.sweeps.driver import Board, Watch
from fedpriv.simulation.sweeps.plans import Sweep
from fedpriv.tasks.metrics import counted

Point = Mapping[str, Scalar]


@dataclass(frozen=True)
class Price:
    """What the choice of one method's settings would cost on private data, at the delta of the budget.

    Attributes:
        budget: epsilon of one run of the choice.
        selection: of private selection (Liu & Talwar 2019) that expects as many runs as there are
            candidates; None where no accounting method supports it.
        together: of one run of each candidate, all of which may be published; None as above.
    """

    budget: float
    selection: float | None
    together: float | None

    @classmethod
    def of(cls, chosen: Plan, candidates: Sequence[Plan]) -> Price | None:
        """The price of a choice among candidates' plans; None where one has no noise, or that of larger
        cohorts. Candidates may differ in what they charge, such as in their rounds."""
        budget = chosen.budget
        if budget is None or any(p.budget is None or p.config.simulates_noise for p in candidates):
            return None
        runs = [tuple(plan.of_worst_client(plan.events)) for plan in candidates]
        events = [event for run in runs for event in run]
        if len({event.relation for event in events}) > 1:
            return cls(budget.epsilon, None, None)  # guarantees of two kinds have no common price
        first, *others = dict.fromkeys(runs)
        selection = Selection(first, 1 / len(runs), others=tuple(others))
        return cls(
            budget.epsilon,
            _known(lambda: selection.epsilon(budget.delta, budget.method)),
            _known(lambda: epsilon(events, budget.delta, budget.method)),
        )

    def json(self) -> dict[str, float | None]:
        """As in tuning.json."""
        return {
            "epsilon of one run": self.budget,
            "epsilon by private selection": self.selection,
            "epsilon of all candidates' runs": self.together,
        }


def _known(price: Callable[[], PrivacyGuarantee]) -> float | None:
    """The price; None where the accounting method does not support it."""
    try:
        return price().epsilon
    except (UnsupportedEvent, validation.ArgumentError):
        return None


@dataclass(frozen=True)
class Chosen:
    """What was chosen for one method.

    Attributes:
        method: its place on the axes.
        settings: the chosen ones.
        score: their mean score on the part that is set aside.
        runs: how many runs the search took for this method.
        price: what the choice would cost in private, where it was asked for.
    """

    method: Point
    settings: Point
    score: float
    runs: int
    price: Price | None

    def json(self) -> dict[str, Any]:
        """As in tuning.json."""
        score = None if math.isinf(self.score) else abs(self.score)
        found = {
            "method": dict(self.method),
            "chosen": dict(self.settings),
            "score": score,
            "runs": self.runs,
        }
        return found | ({"private": self.price.json()} if self.price else {})


class Search:
    """The rungs of a search, and who is left.

    Args:
        definition: of the sweep, with a tuning.
    """

    def __init__(self, definition: Definition) -> None:
        assert definition.tuning is not None
        self._tuning = definition.tuning
        self._base = max(plans.seeds(definition)) + 1
        grid = {key: values for key, values in definition.grid.items() if key != "seed"}
        self._without_seed = replace(definition, grid=grid, tuning=None)
        self.methods = definitions.points(self._without_seed)
        self._left = {at: list(range(len(self._tuning.candidates))) for at in range(len(self.methods))}
        self._scores: dict[tuple[int, int], list[float]] = {}
        self.measure: str | None = None  # of the candidates, by its name; None before one was scored
        self.number = 1
        self.runs = 0

    @property
    def done(self) -> bool:
        """Whether there is no further rung."""
        return self.number > len(self._tuning.rungs)

    def rung(self) -> Sweep:
        """The runs of the next rung, checked. Raises ArgumentError or DataError for impossible candidates."""
        plain = self._plain()
        wanted = {mark for marks in self._marks(plain).values() for mark in marks}
        cells = [cell for cell in definitions.cells(plain) if definitions.mark(cell.config) in wanted]
        return plans.checked(plain, cells)

    def take(self, rung: Sweep, ended: Sequence[Ended]) -> None:
        """Score the candidates of a rung that has ended, and keep the better half."""
        by_name = {one.run.folder.name: one for one in ended}
        by_mark = {definitions.mark(cell.config): by_name.get(cell.name) for cell in rung.cells}
        self.runs += len(rung.cells)
        self.measure = next((one.measure.key for one in ended), self.measure)
        for (at, candidate), marks in self._marks(self._plain()).items():
            self._scores.setdefault((at, candidate), []).extend(_height(by_mark[mark]) for mark in marks)
        left = [number for number, _ in self._tuning.rungs[self.number :]] or [1]
        for at, candidates in self._left.items():
            self._left[at] = sorted(candidates, key=lambda candidate: -self._mean(at, candidate))[: left[0]]
        self.number += 1

    def chosen(self) -> list[Chosen]:
        """What was chosen for each method."""
        found = []
        for at, method in enumerate(self.methods):
            best = self._left[at][0]
            settings = self._tuning.candidates[best]
            runs = sum(len(scores) for (number, _), scores in self._scores.items() if number == at)
            price = None
            if self._tuning.private_selection:
                plans_of = [
                    make_plan(definitions.configured(self._without_seed, {**method, **candidate}))
                    for candidate in self._tuning.candidates
                ]
                price = Price.of(plans_of[best], plans_of)
            found.append(Chosen(method, settings, self._mean(at, best), runs, price))
        return found

    def _mean(self, at: int, candidate: int) -> float:
        return statistics.fmean(self._scores[at, candidate])

    def _plain(self) -> Definition:
        """The grid of the next rung: methods, candidates and new seeds."""
        definition, seeded = self._without_seed, self._base > 0
        *earlier, (_, count) = self._tuning.rungs[: self.number]
        first = self._base + sum(number for _, number in earlier)
        seeds = list(range(first, first + count))
        settings = {k: v for k, v in definition.settings.items() if k != "seed"} | {TUNING_PART: "tuning"}
        grid = {**definition.grid, **self._tuning.axes, **({"seed": seeds} if seeded else {})}
        return replace(definition, settings=settings, grid=grid)

    def _marks(self, plain: Definition) -> dict[tuple[int, int], list[str]]:
        """The runs of each method and candidate that is left."""
        seeds: list[dict[str, Scalar]] = [{"seed": seed} for seed in plain.grid.get("seed", ())] or [{}]
        candidates = self._tuning.candidates
        return {
            (at, candidate): [
                definitions.mark(
                    definitions.configured(plain, {**self.methods[at], **candidates[candidate], **seed})
                )
                for seed in seeds
            ]
            for at, left in self._left.items()
            for candidate in left
        }


def _height(ended: Ended | None) -> float:
    """The score, higher is better; minus infinity for a model that diverged or was never scored."""
    if ended is None or ended.score is None or not math.isfinite(ended.score):
        return -math.inf
    return ended.score if ended.measure.fraction else -ended.score


@dataclass(frozen=True)
class Outcome:
    """How far a sweep came.

    Attributes:
        sweep: the cells that ran last: a rung of the search, or the sweep's own.
        folder: where these are.
        board: how far they are.
        interrupted: whether it was interrupted.
    """

    sweep: Sweep
    folder: Path
    board: Board
    interrupted: bool

    @property
    def tuning(self) -> bool:
        """Whether it ended in the search."""
        return self.sweep.definition.settings.get(TUNING_PART) == "tuning"


def run(sweep: Sweep, folder: Path, jobs: int = 0, watch: Watch | None = None) -> Outcome:
    """Tune what is to be tuned, then run the cells, as :func:`fedpriv.simulation.sweeps.driver.run` does.

    The same call continues both. Where a candidate's run fails the cells are not begun.
    """
    watch = watch or Watch()
    if sweep.definition.tuning is None:
        return Outcome(sweep, folder, *driver.run(sweep, folder, jobs, watch))
    plans.claim(folder, sweep.definition)
    search = Search(sweep.definition)
    while not search.done:
        rung, own = search.rung(), folder / CANDIDATES / f"rung-{search.number}"
        watch.stage(f"tuning, rung {search.number}: {counted(len(rung.cells), 'run')}")
        board, interrupted = driver.run(rung, own, jobs, watch)
        if interrupted or board.failed:
            return Outcome(rung, own, board, interrupted)
        search.take(rung, driver.read_ended(rung, own))
    chosen = search.chosen()
    _write(folder, sweep.definition.tuning, search, chosen)
    final = plans.tuned(sweep.definition, [(one.method, one.settings) for one in chosen], search.runs)
    watch.stage(final.about)
    return Outcome(final, folder, *driver.run(final, folder, jobs, watch))


def _write(folder: Path, tuning: Tuning, search: Search, chosen: Sequence[Chosen]) -> None:
    content = {
        "search": tuning.search,
        "candidates": [*tuning.candidates],
        "runs": search.runs,
        "scored by": search.measure,
        "scored on": "a fifth of the public test examples, which the sweep's scores leave out",
        "methods": [one.json() for one in chosen],
    }
    with atomic(folder / TUNING) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())

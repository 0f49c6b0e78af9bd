"""Running a sweep: which cells are left, which of them run, and what is written of those that have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv._internal import plotting, run_files
from fedpriv._internal.files import atomic
from fedpriv.federated.stop_reason import StopReason, divergence
from fedpriv.report import sweep_results
from fedpriv.report.comparison import read_one
from fedpriv.report.pictures import score_by_epsilon
from fedpriv.report.run_folders import SWEEP, TABLE
from fedpriv.report.sweep_results import Ended
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.cell import ended, held
from fedpriv.simulation.sweeps.plans import Sweep
from fedpriv.simulation.sweeps.pool import Pool

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpriv.simulation.sweeps.cluster import ClusterPool

PARQUET, PICTURES = "results.parquet", ("sweep.png", "sweep.svg")
LOCKS, _LOGS = "locks", "logs"
_TICK = 0.2  # seconds between looks at what goes on


@dataclass(frozen=True)
class Running:
    """A cell that runs, as of its last message: texts for people."""

    round: int = 0
    rounds: int = 0
    score: str = ""
    epsilon: str = ""


@dataclass
class Board:
    """How far a sweep is.

    Attributes:
        cells: how many there are.
        waiting: the names of those that have not begun.
        running: those that run, by name.
        done: how each of those that have ended did so, by name.
        failed: why cells failed, by name.
        rounds: all rounds that were left when this sweep was started or continued.
        began: when that was, as time.monotonic() has it.
    """

    cells: int
    waiting: list[str]
    rounds: int
    running: dict[str, Running] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    rounds_done: int = 0
    began: float = 0.0

    def left(self, now: float) -> float | None:
        """The seconds that are left at the pace so far; None before a cell has ended.

        Until then most of the time went to what happens once, such as imports.
        """
        if not self.rounds_done:
            return None
        current = self.rounds_done + sum(cell.round for cell in self.running.values())
        return max(0.0, (now - self.began) / current * (self.rounds - current))


class Watch:
    """What is told of a running sweep; nothing here."""

    def stage(self, text: str) -> None:
        """A part of the sweep begins: the search for settings, or the cells."""

    def show(self, board: Board) -> None:
        """Called several times a second."""

    def ended(self, board: Board, cell: str, text: str) -> None:
        """A cell has ended, or failed: ``text`` says how, in a line."""

    def check(self) -> None:
        """Called as often as show; raises KeyboardInterrupt to interrupt the sweep."""


def run(sweep: Sweep, folder: Path, jobs: int = 0, watch: Watch | None = None) -> tuple[Board, bool]:
    """Run the cells that have not ended, and write the table and the picture.

    Returns:
        how far the sweep is, and whether it was interrupted.

    Raises ArgumentError where the folder is another sweep's, or another process runs this one.
    """
    jobs = sweep.jobs(jobs)
    plans.claim(folder, sweep.definition)
    with held(folder / LOCKS / "sweep.lock"):
        for name in (TABLE, PARQUET, *PICTURES, SWEEP):
            for draft in folder.glob(f".{name}.*"):  # what a kill left half written
                draft.unlink(missing_ok=True)
        board = _board(sweep, folder)
        interrupted = False
        try:
            if board.waiting:
                interrupted = _run(sweep, folder, jobs, board, watch or Watch())
        finally:
            write(sweep, folder)
        return board, interrupted


def _board(sweep: Sweep, folder: Path) -> Board:
    found = {cell.name: ended(folder / cell.name) for cell in sweep.cells}
    left = [cell for cell in sweep.cells if found[cell.name] is None]
    board = Board(len(sweep.cells), [cell.name for cell in left], sum(cell.config.rounds for cell in left))
    board.done = {name: str(how) for name, how in found.items() if how is not None}
    board.began = time.monotonic()
    return board


def _run(sweep: Sweep, folder: Path, jobs: int, board: Board, watch: Watch) -> bool:
    """Run the waiting cells; says whether the sweep was interrupted."""
    (folder / _LOGS).mkdir(exist_ok=True)
    with _open_pool(sweep, min(jobs, len(board.waiting)), folder) as pool:
        driver = _Driver(sweep, folder, board, watch, pool)
        try:
            while board.waiting or board.running:
                while board.waiting and len(board.running) < jobs:
                    driver.start(board.waiting.pop(0))
                driver.follow()
                watch.check()
        except KeyboardInterrupt:
            driver.ending = True
            pool.end()
            try:
                while board.running:
                    driver.follow()
            except KeyboardInterrupt:  # a second one ends the cells at once
                pass
            return True
    return False


def _open_pool(sweep: Sweep, jobs: int, folder: Path) -> Pool | ClusterPool:
    """Where cells run: on the Ray cluster, if one is named; cells that start actors there run here."""
    if not sweep.on_cluster:
        return Pool(jobs)
    from fedpriv.simulation.sweeps.cluster import ClusterPool

    return ClusterPool(jobs, folder)


class _Driver:
    """What a sweep does with its cells' messages."""

    def __init__(
        self, sweep: Sweep, folder: Path, board: Board, watch: Watch, pool: Pool | ClusterPool
    ) -> None:
        self._cells = {cell.name: cell for cell in sweep.cells}
        self._sweep, self._folder, self._board, self._watch, self._pool = sweep, folder, board, watch, pool
        self._known: dict[str, Ended] = {}
        self._stopped: dict[str, StopReason] = {}
        self.ending = False

    def start(self, name: str) -> None:
        cell, lock, log = self._cells[name], f"{name}.lock", self._log(name)
        self._board.running[name] = Running()
        settings = cell.config.table()
        self._pool.start(name, self._folder / name, self._folder / LOCKS / lock, log, settings)

    def follow(self) -> None:
        """Take the messages that there are."""
        for message in self._pool.messages(_TICK):
            name = message["cell"]
            if "exit" in message:
                self._ended(name, message["exit"])
            elif "failed" in message:
                self._board.failed[name] = message["failed"]
            elif "stopped" in message:
                self._stopped[name] = StopReason(message["stopped"])
            else:
                parts = {key: message[key] for key in ("round", "rounds", "score", "epsilon")}
                self._board.running[name] = Running(**parts)
        self._watch.show(self._board)

    def _ended(self, name: str, code: int) -> None:
        """A cell's process is gone."""
        board, log = self._board, self._log(name)
        del board.running[name]
        board.rounds_done += self._cells[name].config.rounds
        empty = not log.exists() or not log.stat().st_size
        if empty:
            log.unlink(missing_ok=True)
        how = self._stopped.pop(name, StopReason.INTERRUPTED)
        if how != StopReason.INTERRUPTED:
            board.done[name] = how
            _write_table(self._sweep, self._folder, read_ended(self._sweep, self._folder, self._known))
            self._watch.ended(board, name, self._how(name))
            return
        if self.ending and name not in board.failed:  # interrupted, and be it before its first round
            return
        why = board.failed.setdefault(
            name, f"its process ended with code {code}" if code >= 0 else _killed(code)
        )
        where = "" if empty else f" ({log} has its output)"
        self._watch.ended(board, name, f"FAILED: {why}{where}")

    def _how(self, name: str) -> str:
        """A cell's score and epsilon in a line, and how it ended where that is not by itself."""
        if name not in self._known:
            return "ended before its first evaluation"
        cell = self._known[name]
        found, last = cell.run, cell.run.metrics[-1]
        texts = [cell.measure.labelled(cell.score)]
        texts += (
            [f"epsilon {last['epsilon']:.3f} of {cell.budget:g}"] if cell.budget is not None else ["no noise"]
        )
        texts += [] if found.ended == StopReason.ROUNDS else [found.ended.sentence]
        return "  ".join([*texts, *filter(None, [divergence(found.ended, found.metrics)])])

    def _log(self, name: str) -> Path:
        return self._folder / _LOGS / f"{name}.log"


def _killed(code: int) -> str:
    hint = "; perhaps memory was short, and fewer jobs side by side need less" if code == -9 else ""
    return f"its process was killed by signal {-code}{hint}"


def read_ended(sweep: Sweep, folder: Path, known: dict[str, Ended] | None = None) -> list[Ended]:
    """The cells that have ended, in order.

    Args:
        sweep: whose cells.
        folder: the sweep's.
        known: those that were read before; the others are added.

    Raises ArgumentError where a cell's files are damaged.
    """
    known = {} if known is None else known
    cells, overridden = sweep.cells, sweep.axes
    for cell in cells:
        own = folder / cell.name
        if cell.name not in known and ended(own) is not None and _has_metrics(own):
            known[cell.name] = Ended(cell.settings, read_one(own), overridden)
    return [known[cell.name] for cell in cells if cell.name in known]


def _has_metrics(folder: Path) -> bool:
    """Whether the run was evaluated; one that ended before its first round was not."""
    path = folder / run_files.METRICS
    return path.is_file() and path.stat().st_size > 0


def draw(sweep: Sweep, found: Sequence[Ended]) -> Figure:
    """The picture of the cells that have ended, at least one."""
    left = len(sweep.cells) - len(found)
    return score_by_epsilon.draw(found, sweep.about + (f"; {left} not ended, and not shown" if left else ""))


def _write_table(sweep: Sweep, folder: Path, found: Sequence[Ended]) -> None:
    """Both forms of the table; the second one where its package is installed."""
    table = sweep_results.rows(found, sweep.tried)
    parquet = sweep_results.as_parquet(table)
    for name, content in ((TABLE, sweep_results.as_csv(table).encode()), (PARQUET, parquet)):
        if content is not None:
            with atomic(folder / name) as file:
                file.write(content)


def write(sweep: Sweep, folder: Path) -> None:
    """The table and the picture of what has ended."""
    found = read_ended(sweep, folder)
    _write_table(sweep, folder, found)
    if found:
        figure = draw(sweep, found)
        for name, content in zip(PICTURES, (plotting.png(figure), plotting.svg(figure)), strict=True):
            with atomic(folder / name) as file:
                file.write(content)

"""How far a sweep is: a live table on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import typer
from rich import box
from rich.live import Live
from rich.table import Table

from fedpriv.cli.bar import clock
from fedpriv.simulation.sweeps.driver import Board, Watch

_MOST_ROWS = 12  # of cells that run; a terminal has 24 lines


class Silent(Watch):
    """Shows nothing; standard output is for a program.

    Args:
        check_end: raises KeyboardInterrupt once the command was asked to end.
    """

    def __init__(self, check_end: Callable[[], None]) -> None:
        self._check_end = check_end

    def check(self) -> None:
        """As of Watch."""
        self._check_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Lines(Silent):
    """A line for each cell that ends."""

    def stage(self, text: str) -> None:
        """As of Watch."""
        typer.echo(text)

    def ended(self, board: Board, cell: str, text: str) -> None:
        """As of Watch."""
        typer.echo(line_of(board, cell, text))


class LiveTable(Silent):
    """A table of the cells that run, below the lines of those that have ended."""

    def __init__(self, check_end: Callable[[], None]) -> None:
        super().__init__(check_end)
        self._live = Live(transient=True, refresh_per_second=5)

    def stage(self, text: str) -> None:
        """As of Watch."""
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, board: Board) -> None:
        """As of Watch."""
        self._live.update(view(board, time.monotonic()))

    def ended(self, board: Board, cell: str, text: str) -> None:
        """As of Watch."""
        self._live.console.print(line_of(board, cell, text), markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def view(board: Board, now: float) -> Table:
    """The cells that run, below a line on all of them."""
    table = Table(box=box.SIMPLE_HEAD, title=summary(board, now), title_justify="left")
    for name in ("running", "round", "score", "epsilon"):
        table.add_column(name, no_wrap=name != "running", overflow="fold")
    for name, cell in list(board.running.items())[:_MOST_ROWS]:
        table.add_row(
            name, f"{cell.round}/{cell.rounds}" if cell.rounds else "loading", cell.score, cell.epsilon
        )
    return table


def line_of(board: Board, cell: str, text: str) -> str:
    """A cell that has ended, in a line."""
    return f"{len(board.done) + len(board.failed)}/{board.cells}  {cell}  {text}"


def summary(board: Board, now: float) -> str:
    """How many cells are where, and the time that is left, in a line.

    >>> board = Board(8, ["a", "b"], rounds=40, rounds_done=10, began=100.0)
    >>> summary(board, 130.0)
    '0 of 8 done, 0 running, 2 waiting, elapsed 0:30, left 1:30'
    """
    failed = f", {len(board.failed)} FAILED" if board.failed else ""
    left = board.left(now)
    time_left = "" if left is None else f", left {clock(left)}"
    return (
        f"{len(board.done)} of {board.cells} done, {len(board.running)} running, {len(board.waiting)} waiting"
        f"{failed}, elapsed {clock(now - board.began)}{time_left}"
    )

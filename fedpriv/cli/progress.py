"""How far a command is: a bar on a terminal, plain lines elsewhere, nothing where output is for a program.

>>> with shown("first round") as bar:
...     bar.advance(10, 150, "round 10/150", "epsilon 0.257 of 3")
...     bar.write("round 10/150  accuracy 81.67%  epsilon 0.257 of 3")
round 10/150  accuracy 81.67%  epsilon 0.257 of 3
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import typer


class Bar(Protocol):
    """What a command tells of its progress."""

    def wait(self, what: str) -> None:
        """Say what the command waits for, when it cannot say for how long."""

    def advance(self, done: int, total: int, label: str, text: str = "") -> None:
        """Say that so many of all steps are done; ``label`` names the step, ``text`` follows the times."""

    def write(self, line: str) -> None:
        """Write a line that stays, above the bar."""


class PlainLines:
    """The lines that stay, and no bar."""

    def wait(self, what: str) -> None:
        """Nothing."""

    def advance(self, done: int, total: int, label: str, text: str = "") -> None:
        """Nothing."""

    def write(self, line: str) -> None:
        """Print the line."""
        typer.echo(line)


class Silence(PlainLines):
    """Nothing at all."""

    def write(self, line: str) -> None:
        """Nothing."""


@contextmanager
def shown(what: str, quiet: bool = False, err: bool = False, still: bool = False) -> Iterator[Bar]:
    """The bar while a command works; it is gone before anything else is printed.

    Args:
        what: what the command waits for at first.
        quiet: show nothing, since standard output is for a program.
        err: show the bar on standard error, and no lines that stay.
        still: draw the bar only when it advances, and at most twice a second, so that it takes no time from
            what is being measured.
    """
    stream = sys.stderr if err else sys.stdout
    if not quiet and stream.isatty():
        from fedpriv.cli.bar import drawn  # Rich is imported where something is drawn

        with drawn(stream, what, still) as bar:
            yield bar
    else:
        yield Silence() if quiet or err else PlainLines()

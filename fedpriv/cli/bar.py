"""The bar of :mod:`fedpriv.cli.progress` on a terminal: one line of at most 80 characters, drawn by Rich.

round 34/150 ━━━━━━╸━━━━━━━━━ elapsed 0:12  left 0:41  epsilon 0.413 of 3
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

_BAR_WIDTH = 16
_STILL_SECONDS = 0.5  # between two drawings of a bar that takes no time


class Clock:
    """The time since a command began, and what is left at the pace since its first step.

    Args:
        now: in seconds.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float, int] | None = None

    def advance(self, done: int, total: int, now: float) -> None:
        """Note that so many steps are done."""
        if self._first is None:
            self._first = done, now
        self._last = done, now, total

    def text(self, now: float) -> str:
        """Both times in words; what is left only where two steps have been timed.

        >>> clock = Clock(0.0)
        >>> clock.advance(1, 11, 5.0)
        >>> clock.text(6.0)
        'elapsed 0:06'
        >>> clock.advance(3, 11, 7.0)
        >>> clock.text(7.0), clock.text(9.5)
        ('elapsed 0:07  left 0:08', 'elapsed 0:09  left 0:05')
        """
        elapsed = f"elapsed {clock(now - self._began)}"
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return elapsed
        (first, began), (done, at, total) = self._first, self._last
        left = (at - began) / (done - first) * (total - done) - (now - at)
        return f"{elapsed}  left {clock(max(0.0, left))}"


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, with hours where there are any.

    >>> clock(9.99), clock(75), clock(3725)
    ('0:09', '1:15', '1:02:05')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _Times(ProgressColumn):
    """Elapsed and left, by name."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Column(no_wrap=True))
        self._clock = clock

    def render(self, task: Task) -> Text:
        return Text(self._clock.text(time.monotonic()))


class _Rest(ProgressColumn):
    """The text after the times. It alone gives way where the line is too long: its column may be narrowed,
    since it is not ``no_wrap``, and its text is then cut, not wrapped."""

    def __init__(self) -> None:
        super().__init__(Column())

    def render(self, task: Task) -> Text:
        return Text(task.fields["text"], no_wrap=True, overflow="ellipsis")


class DrawnBar:
    """A bar on a terminal; see :class:`fedpriv.cli.progress.Bar`."""

    def __init__(self, progress: Progress, clock: Clock, what: str, still: bool) -> None:
        self._progress, self._clock, self._still = progress, clock, still
        self._task = progress.add_task(what, total=None, text="")
        self._drawn = 0.0

    def wait(self, what: str) -> None:
        """As of Bar."""
        self._progress.update(self._task, description=what, total=None, text="")
        if self._still:
            self._progress.refresh()

    def advance(self, done: int, total: int, label: str, text: str = "") -> None:
        """As of Bar."""
        now = time.monotonic()
        self._clock.advance(done, total, now)
        self._progress.update(self._task, completed=done, total=total, description=label, text=text)
        if self._still and now - self._drawn > _STILL_SECONDS:
            self._progress.refresh()
            self._drawn = now

    def write(self, line: str) -> None:
        """As of Bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def drawn(stream: TextIO, what: str, still: bool) -> Iterator[DrawnBar]:
    """The bar, on this stream, until the block ends; arguments as of :func:`fedpriv.cli.progress.shown`."""
    clock = Clock(time.monotonic())
    progress = Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(_BAR_WIDTH, table_column=Column(no_wrap=True)),
        _Times(clock),
        _Rest(),
        console=Console(file=stream),
        transient=True,
        auto_refresh=not still,
    )
    bar = DrawnBar(progress, clock, what, still)
    with progress:
        yield bar

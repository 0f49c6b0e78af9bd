"""The bar: what it waits for, the times by name, lines that stay above it, and no more than 80 columns."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.cli import bar as bars
from fedpriv.cli import display, progress
from fedpriv.runs.runner import Status


class Terminal(io.StringIO):
    """A text stream that says it is a person's terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output, as a terminal of 80 columns."""
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stdout=stream))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def plain(text: str) -> list[str]:
    """The lines that were drawn, without colours and movements."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    return [line.rstrip() for part in text.split("\n") for line in part.split("\r") if line.strip()]


def status(round_: int, evaluated: int = 0, **changes: Any) -> Status:
    values: dict[str, Any] = {
        "score": 0.8889,
        "epsilon": 2.5,
        "budget": 3.0,
        "spent": 2.512,
        "estimated": True,
    }
    return Status(round_, 2000, evaluated, **{**values, **changes})


def test_the_bar_says_what_it_waits_for_and_has_the_times_by_name(terminal: Terminal) -> None:
    with progress.shown("starting 2 Ray actors") as bar:
        bar._progress.refresh()  # type: ignore[attr-defined]
        show = display.follow(bar)
        for number in (1998, 1999):
            show(status(number))
        bar._progress.refresh()  # type: ignore[attr-defined]
    lines = plain(terminal.getvalue())
    assert lines[0].startswith("starting 2 Ray actors ")
    assert lines[0].endswith("elapsed 0:00")
    last = next(line for line in reversed(lines) if "round 1999/2000" in line)
    assert last.startswith("round 1999/2000 ")
    assert "elapsed 0:00  left 0:00" in last
    assert all(len(line) <= 80 for line in lines)


def test_evaluations_stay_above_the_bar(terminal: Terminal) -> None:
    with progress.shown("first round") as bar:
        show = display.follow(bar)
        show(status(10, evaluated=10, estimated=False))
        show(status(11, evaluated=10))
    lines = plain(terminal.getvalue())
    assert lines.count("round 10/2000  accuracy 88.89%  epsilon 2.500 of 3") == 1


def test_a_run_without_noise_has_no_epsilon_on_its_bar(terminal: Terminal) -> None:
    with progress.shown("first round") as bar:
        display.follow(bar)(status(1, budget=None, spent=None, epsilon=None))
    assert "epsilon" not in terminal.getvalue()


def test_a_still_bar_is_drawn_when_it_advances_alone(terminal: Terminal) -> None:
    with progress.shown("first round", still=True) as bar:
        assert not bar._progress.live.auto_refresh  # type: ignore[attr-defined]
        bar.advance(1, 2, "round 1/2")
    assert any(line.startswith("round 1/2") for line in plain(terminal.getvalue()))


def test_lines_are_plain_where_there_is_no_terminal_and_none_where_a_program_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet, err in ((False, False), (True, False), (False, True)):
        with progress.shown("first round", quiet, err) as bar:
            display.follow(bar)(status(10, evaluated=10))
    assert capsys.readouterr().out == "round 10/2000  accuracy 88.89%  epsilon 2.500 of 3 (an ESTIMATE)\n"


def test_the_remaining_time_follows_from_the_pace_of_the_rounds() -> None:
    clock = bars.Clock(0.0)
    for done in range(41, 51):  # a run that was resumed after round 40
        clock.advance(done, 100, 100.0 + done)
    assert clock.text(150.0) == "elapsed 2:30  left 0:50"

"""The search of a tuned sweep, from the sweep's files: the settings it tried, those it chose, the price.

The search is that of ``[tune]`` (:mod:`fedpriv.simulation.sweeps.tuning`), which writes ``tuning.json``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal.files import read_json
from fedpriv._internal.settings import assignments
from fedpriv.report.run_folders import CANDIDATES, SWEEP, TABLE, TUNING
from fedpriv.report.sweep_results import TRIED
from fedpriv.tasks.metrics import METRICS, Metric, counted

# The prices in tuning.json, with the words of a line.
_PRICES = {
    "epsilon of one run": "a run costs epsilon",
    "epsilon by private selection": "the choice by private selection",
    "epsilon of all candidates' runs": "one run of each candidate",
}


ADDS_UP = (
    "The runs of the search trained on the private data, too: without a seed their epsilons add up with "
    "those of the runs here."
)


@dataclass(frozen=True)
class Choice:
    """What the search chose for one method, as texts.

    Attributes:
        method: its place on the axes.
        chosen: the tuned settings.
        score: their mean score on the part of the test set that is set aside.
        runs: how many runs the search took for this method.
        prices: what the choice would cost on private data; empty where the sweep did not compute it.
        record: the same as tuning.json has it.
    """

    method: str
    chosen: str
    score: str
    runs: str
    prices: tuple[str, ...]
    record: Mapping[str, Any]

    @property
    def line(self) -> str:
        """The choice in a line."""
        text = f"{self.method}: {self.chosen} ({self.score})"
        if not self.prices:
            return text
        costs = (f"{words} {price}" for words, price in zip(_PRICES.values(), self.prices, strict=True))
        return f"{text}; {', '.join(costs)}"


@dataclass(frozen=True)
class SearchRecord:
    """The search of one sweep.

    Attributes:
        folder: the sweep's.
        tried: how many settings it tried, the candidates that were not chosen included.
        candidates: how many of them each method had.
        runs: how many runs the search took.
        about: how they were chosen, in a sentence.
        choices: what was chosen, a method after the other.
    """

    folder: Path
    tried: int
    candidates: int
    runs: int
    about: str
    choices: tuple[Choice, ...]

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a table of the choices."""
        priced = any(choice.prices for choice in self.choices)
        return ("method", "chosen", "score", "runs", *(_PRICES if priced else ()))

    @property
    def rows(self) -> list[list[str]]:
        """The cells of this table."""
        prices = len(self.header) - 4
        return [
            [one.method, one.chosen, one.score, one.runs, *(one.prices or ("",) * prices)]
            for one in self.choices
        ]

    @property
    def lines(self) -> list[str]:
        """The record in lines for people."""
        return [f"{self.folder}: {self.about}:", *(f"  {choice.line}" for choice in self.choices), ADDS_UP]

    def choice_of(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """How the search chose for the run with these settings, which are all of its settings, for JSON."""
        records = [choice.record for choice in self.choices]
        own = next((one for one in records if one["method"].items() <= settings.items()), {})
        return {
            "sweep": str(self.folder),
            "settings tried": self.tried,
            "candidates": self.candidates,
            "runs": self.runs,
            "chosen": {key: settings[key] for key in records[0]["chosen"]},
            **{key: own.get(key) for key in ("method", "score", "private")},
        }

    def has(self, run: Path) -> bool:
        """Whether a run is a cell of this sweep, or one of its candidates'."""
        own, place = self.folder.resolve(), run.resolve()
        return place.parent == own or own / CANDIDATES in place.parents


def records(
    runs: Iterable[Path], allowed: Callable[[Path], bool] = lambda path: True
) -> tuple[list[SearchRecord], list[str]]:
    """The searches of the sweeps whose cells these runs are, and what could not be read, in sentences.

    Args:
        runs: folders of runs.
        allowed: whether a file may be read.
    """
    found, notes = list[SearchRecord](), list[str]()
    sweeps = {run.resolve().parent: run.parent for run in runs}
    for folder in sweeps.values():
        files = [folder / name for name in (SWEEP, TUNING, TABLE)]
        if not all(file.is_file() for file in files[:2]) or not all(map(allowed, files)):
            continue
        try:
            found.append(_read(folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            notes.append(
                f"{folder / TUNING} is damaged: the settings that the sweep tried are not all counted"
            )
    return found, notes


def lines(sweep: Path) -> list[str]:
    """What a sweep's search chose, in lines for people; empty where there was none, or it has not ended."""
    return _read(sweep).lines[:-1] if (sweep / TUNING).is_file() else []


def _read(folder: Path) -> SearchRecord:
    content = read_json((folder / TUNING).read_bytes())
    methods, candidates, runs = content["methods"], len(content["candidates"]), int(content["runs"])
    about = (
        f"{counted(candidates, 'candidate')} for each method, chosen by {content['search']} search in "
        f"{counted(runs, 'run')}, scored on {content['scored on']}"
    )
    tried = _tried(folder) or candidates * len(methods)
    measure = next((one for one in METRICS if one.key == content.get("scored by")), None)
    choices = tuple(_choice(one, measure) for one in methods)
    return SearchRecord(folder, tried, candidates, runs, about, choices)


def _tried(folder: Path) -> int | None:
    """The number of settings as the sweep's table has it; None before its first cell has ended.

    The product of methods and candidates can be larger: methods that differ only in settings without effect
    share their runs.
    """
    try:
        with (folder / TABLE).open(newline="") as file:
            row = next(csv.DictReader(file), None)
    except FileNotFoundError:
        return None
    return None if row is None else int(row[TRIED])


def _choice(one: Mapping[str, Any], measure: Metric | None) -> Choice:
    if (number := one["score"]) is None:
        score = "diverged"
    else:
        score = measure.labelled(number) if measure else f"{number:.4g}"
    prices = one.get("private") or {}
    return Choice(
        _words(one["method"]) or "all runs",
        _words(one["chosen"]),
        score,
        str(int(one["runs"])),
        tuple("not known" if prices[key] is None else f"{prices[key]:.4g}" for key in _PRICES if prices),
        one,
    )


def _words(settings: Mapping[str, Any]) -> str:
    return ",".join(assignments(settings))


def summed_up(found: Sequence[SearchRecord]) -> str:
    """What a sentence about the number of settings adds where searches chose some of them; else empty."""
    if not found:
        return ""
    runs = counted(sum(record.runs for record in found), "other run")
    best = " or ".join(dict.fromkeys(str(record.candidates) for record in found))
    of = "each method of a tuned sweep"
    return f", the best of {best} for {of}, chosen in {runs} on other public test examples"

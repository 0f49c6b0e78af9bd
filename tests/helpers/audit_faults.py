"""The least number of units with which an audit finds each fault of its tests, by adversary.

    python tests/helpers/audit_faults.py [NAME ...]            # prints a Markdown table
    python tests/helpers/audit_faults.py --write [NAME ...]    # and writes it to tests/audits.json

The audit guide has the table. A number of units counts as enough if the audits of three seeds all find the
fault. NAMEs are words in faults' names; without one all are tried, which takes an hour or two. Numbers of
units are tried from small to large: a larger one is not tried once both columns have a number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from auditing import (
    test_auditor,
    test_correlated_releases,
    test_neighbours,
    test_own_units,
    test_protocol,
    test_views,
)

import fedpriv
from fedpriv._internal.validation import ArgumentError
from fedpriv.auditing import judgement
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.views import View, view_of
from fedpriv.federated.worker import Worker
from helpers.patching import patched, remembering
from helpers.small import SMALL, small

RESULTS = Path(__file__).parents[1] / "audits.json"
SIZES, SEEDS = tuple(50 * 2**k for k in range(8)), 3  # 50, 100, ... 6,400
LONGER = tuple(50 * 2**k for k in range(8, 11))  # where the vectors of a fault's test are long: to 51,200
MOST_MESSAGES = 1_600  # where each client's message is computed by itself
MOST_OF_OWN, OWN_COINS = 1_600, 30  # of a run's own clients, and coins among them
DELTA = 1e-5  # the same for all numbers of units, so that the claim is, too


@dataclass(frozen=True)
class Fault:
    """A fault of the audit's tests.

    Attributes:
        name: what is wrong.
        view: the adversary of its test.
        settings: the run of its test.
        plant: puts it in place.
        own_data: whether the run has its own data and model.
    """

    name: str
    view: str
    settings: dict[str, Any]
    plant: Callable[[], AbstractContextManager[Any]]
    own_data: bool = False

    @property
    def sees(self) -> View:
        """What the adversary sees."""
        settings = {key: value for key, value in self.run().items() if not callable(value)}
        return view_of(small(**settings), self.view)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of units that are tried, ascending."""
        most = MOST_OF_OWN if self.own_data else SIZES[-1]
        if self.sees is View.SERVER and "examples_per_client" not in self.settings:
            most = MOST_MESSAGES
        more = LONGER if self.settings.get("clients", 0) > test_auditor.CANARIES else ()
        return (*(size for size in SIZES if size <= most), *more)

    def run(self, units: int | None = None, seed: int = 0) -> dict[str, Any]:
        """The settings of a run with so many units; None: with those of its test."""
        own = {key: value for key, value in self.settings.items() if key not in ("canaries", "view")}
        own |= {"delta": DELTA, "seed": seed}
        if units is None:
            return own
        if "examples_per_client" in own:
            return own | {"examples_per_client": -(-units // own["clients"])}
        # As many colluders among fewer units as among the test's; at least one party more must be there.
        if own.get("colluding_parties"):
            own["colluding_parties"] = own["colluding_parties"] * units // own["clients"]
        if own.get("min_replies"):
            own["min_replies"] = min(own["min_replies"], max(1, round(units * own["sampling_rate"] / 3)))
        return own | {"clients": units}

    def audited(self, units: int, seed: int) -> Finding | None:
        """The finding about the faulty run; None if a run of so few units is refused."""
        run: dict[str, Any] = {key.replace("-", "_"): value for key, value in SMALL.items()}
        run |= self.run(units, seed)
        coins: dict[str, Any] = {"canaries": min(units, OWN_COINS), "own_data": True} if self.own_data else {}
        try:
            with _verdict_alone(), patched(Worker, "gather", remembering), self.plant():
                return fedpriv.audit(**run, **coins, view=self.view)
        except ArgumentError:
            return None


@dataclass(frozen=True)
class Least:
    """How many units an audit needs to find a fault.

    Attributes:
        fault: its name.
        adversary: the value of its :class:`View`.
        own_data: whether the run had its own data and model.
        releases: of the run.
        units: the least number with which the audit finds it; None: none of the numbers.
        guesses: the same for the adversary's guesses alone.
        tried: the largest number that was tried.
        finding: what the audit says.
    """

    fault: str
    adversary: str
    own_data: bool
    releases: int
    units: int | None
    guesses: int | None
    tried: int
    finding: str

    @classmethod
    def of(cls, fault: Fault) -> Least:
        """Tries numbers of units until both columns have one, or all have been tried."""
        least: dict[str, int | None] = {"violated": None, "leaks": None}
        said, releases, tried = "", 0, 0
        for units in fault.sizes:
            open_ones, tried = {what for what in least if least[what] is None}, units
            seen = list[Finding]()
            for seed in range(SEEDS):
                found = fault.audited(units, seed)
                if found is None:
                    open_ones.clear()
                    break
                seen.append(found)
                open_ones = {what for what in open_ones if getattr(found, what)}
                if not open_ones:
                    break
            for what in open_ones:
                least[what] = units
            if "violated" in open_ones:
                said, releases = _said(seen[0]), seen[0].releases
            if None not in least.values():
                break
        enough = least["violated"], least["leaks"]
        return cls(fault.name, fault.sees.value, fault.own_data, releases, *enough, tried=tried, finding=said)


def _said(found: Finding) -> str:
    """What the audit says, without the number of a release."""
    return found.oddest.split(", in release")[0] if found.irregular else "more right guesses than allowed"


@contextmanager
def _verdict_alone() -> Iterator[None]:
    """Leaves out the bounds on epsilon, which take most of an audit's time and do not change its verdict."""
    with (
        patched(judgement, "_measured", lambda right, *given: 0.0),
        patched(judgement, "proved_by_curves", lambda right, *given: 0.0),
    ):
        yield


def _planted(owner: Any, name: str, wrong: Callable[..., Any]) -> AbstractContextManager[Any]:
    """The fault in place, of a function or of a property."""
    test_auditor.CALLS = itertools.count()  # of each run
    if not isinstance(getattr(owner, name), property):
        return patched(owner, name, wrong)
    stack = ExitStack()
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(owner, name, property(lambda self: wrong(None, self)))
    return stack


def faults() -> Iterator[Fault]:
    """The faults of all tests."""
    plain: list[dict[str, Any]] = [
        test_auditor.FAULTS,
        test_auditor.ODD,
        test_neighbours.FAULTS,
        test_neighbours.SILO_FAULTS,
        test_correlated_releases.FAULTS,
    ]
    for name, (settings, *where) in itertools.chain(*(table.items() for table in plain)):
        yield Fault(name, "auto", settings, partial(_planted, *where[:3]))
    seen: dict[str, Any] = {**test_views.FAULTS, **test_views.GUESSED}
    for name, (view, settings, *where) in seen.items():
        yield Fault(name, view, settings, partial(_planted, *where[:3]))
    for name, (settings, *where) in test_own_units.FAULTS.items():
        yield Fault(name, "auto", settings, partial(_planted, *where[:3]), own_data=True)
    for name in test_protocol.FAULTS:
        yield Fault(name, "server", test_protocol.RUN, partial(test_protocol.planted, name))


def main() -> None:
    """Prints the table, and writes it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="words in the faults' names; all by default")
    parser.add_argument("--write", action="store_true", help=f"write the rows to {RESULTS.name}, too")
    given = parser.parse_args()
    print("| fault | adversary | releases | units | by guesses alone | what the audit says |")
    print("|---|---|---|---|---|---|")
    for fault in faults():
        if given.names and not any(name in fault.name for name in given.names):
            continue
        row = Least.of(fault)
        cells = (row.fault, row.adversary, row.releases, row.units, row.guesses, row.finding)
        print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
        if given.write:
            _write(row)


def _write(row: Least) -> None:
    """Puts the row in the place of an older one, in the order of :func:`faults`."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = {old["fault"]: old for old in results.get("faults", [])} | {row.fault: asdict(row)}
    ordered = [rows[fault.name] for fault in faults() if fault.name in rows]
    RESULTS.write_text(json.dumps({**results, "faults": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()

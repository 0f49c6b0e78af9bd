"""How many units an audit needs to find each fault of its tests.

    python tests/helpers/audit_faults.py                # prints a Markdown table; an hour
    python tests/helpers/audit_faults.py --as-tested    # with the numbers of the tests; at once

A fault counts as found by a number of units if the audits of three seeds all find it. The tests find each
fault with one seed; their numbers of units are enough, and perhaps more than enough. Faults of secure
aggregation are in the second table alone: they are in messages, and any number of units finds them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from auditing import test_auditor, test_neighbours, test_protocol, test_views

from fedpriv._internal.validation import ArgumentError
from fedpriv.auditing.auditor import audit
from fedpriv.auditing.views import View, view_of
from fedpriv.federated.worker import Worker
from helpers.patching import patched
from helpers.small import small

SIZES, SEEDS = (20, 60, 200, 600, 2_000, 6_000, 20_000), 3


def faulty(owner: Any, name: str, wrong: Callable[..., Any]) -> AbstractContextManager[Any]:
    """The fault in place, of a function or of a property."""
    if not isinstance(getattr(owner, name), property):
        return patched(owner, name, wrong)
    patch = pytest.MonkeyPatch()
    patch.setattr(owner, name, property(lambda self: wrong(None, self)))
    return patch.context()


def faults() -> Iterator[tuple[str, str, dict[str, Any], Any, str, Callable[..., Any]]]:
    """(fault, view, settings, owner, name, wrong) of all tests."""
    tables: list[dict[str, Any]] = [test_auditor.FAULTS, test_auditor.ODD, test_neighbours.FAULTS]
    for name, (settings, owner, where, wrong, *_) in (item for table in tables for item in table.items()):
        yield name, "auto", settings, owner, where, wrong
    for name, (view, settings, owner, where, wrong, _) in test_views.FAULTS.items():
        yield name, view, settings, owner, where, wrong


def found(view: str, settings: dict[str, Any], owner: Any, name: str, wrong: Any, units: int) -> bool:
    """Whether audits with so many units find the fault, with each seed."""
    silos = "examples_per_client" in settings
    size = {"examples_per_client": -(-units // settings["clients"])} if silos else {"clients": units}
    for seed in range(SEEDS):
        try:
            with patched(Worker, "gather", test_neighbours._spying), faulty(owner, name, wrong):
                if not audit(small(**{**settings, **size, "seed": seed}), view=view).violated:
                    return False
        except ArgumentError:
            return False  # a run of so few units is refused
    return True


def as_tested() -> Iterator[tuple[str, str, str]]:
    """(fault, adversary, the units in its test) of all tests, those of one adversary together."""
    rows = [(fault, view, settings) for fault, view, settings, *_ in faults()]
    told = [
        (fault, view_of(small(**settings), view).sees, f"{small(**settings).units:,}")
        for fault, view, settings in rows
    ]
    units = f"{small(**test_protocol.RUN).units:,}"
    told += [(fault, View.PROTOCOL.sees, units) for fault in test_protocol.FAULTS]
    adversaries = list(dict.fromkeys(row[1] for row in told))
    yield from sorted(told, key=lambda row: adversaries.index(row[1]))


def measured() -> Iterator[tuple[str, str, str]]:
    """(fault, adversary, the smallest of SIZES that finds it)."""
    for title, view, settings, owner, name, wrong in faults():
        sizes = (units for units in SIZES if found(view, settings, owner, name, wrong, units))
        enough = next(sizes, None)
        seen = view_of(small(**settings), view).sees
        yield title, seen, f"{enough:,}" if enough else "none of these numbers"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as-tested", action="store_true", help="the numbers of units in the tests")
    print("| fault | adversary | units that find it |\n|---|---|---|")
    for row in as_tested() if parser.parse_args().as_tested else measured():
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

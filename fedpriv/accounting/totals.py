"""What several runs on the same data cost together, from their ledgers.

>>> import tempfile, pathlib
>>> from fedpriv.accounting.ledger import Ledger
>>> paths = [pathlib.Path(tempfile.mkdtemp()) / "ledger.jsonl" for _ in range(2)]
>>> for path in paths:
...     with Ledger.create(path, {"unit": "client"}) as ledger:
...         ledger.record([Event(2.0, "none", "add-remove")])
>>> total = add_up([replay(path) for path in paths])
>>> len(total.events), total.unit
(2, 'client')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv.accounting import local_view, parallel_composition
from fedpriv.accounting.events import Event, Relation, of_costliest_group, tally
from fedpriv.accounting.methods import relations
from fedpriv.accounting.methods.base import PrivacyGuarantee
from fedpriv.accounting.methods.registry import epsilon
from fedpriv.accounting.record import Record, read


@dataclass(frozen=True)
class Replayed:
    """One ledger.

    Attributes:
        path: the file.
        record: its content.
        events: its events as they count for the unit that loses most.
    """

    path: Path
    record: Record
    events: tuple[Event, ...]

    @property
    def releases(self) -> int:
        """The number of charged releases."""
        return sum(event.count for event in self.record.events)

    @property
    def cap(self) -> int | None:
        """The most releases that a client gave data to, where the run limited them."""
        cap: int | None = self.record.header.get(local_view.LABEL)
        return cap

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about this ledger, in sentences."""
        remark = self.record.header.get("remark")
        unsealed = (
            f"{self.path} was written by version 0.1.0 and has no head, so lines that are missing at its end "
            "cannot be detected"
        )
        counted = sum(event.count for event in self.events)
        disjoint = (
            f"{counted} of the {self.releases} releases in {self.path} count: those of the silo that loses "
            "most, since a unit is in one silo and stays there"
        )
        found = [remark] if remark else []
        found += [] if self.record.has_head else [unsealed]
        return (*found, *([disjoint] if self.record.of_silos and counted < self.releases else []))

    def to_json(self) -> dict[str, Any]:
        """The ledger as a JSON-serialisable dict."""
        return {"path": str(self.path), "releases": self.releases, "head": self.record.head.to_json()}


@dataclass(frozen=True)
class Total:
    """Several ledgers together.

    Attributes:
        ledgers: the ledgers.
        events: all their events, under one relation.
        assumptions: what must hold for the total, in sentences.
    """

    ledgers: tuple[Replayed, ...]
    events: tuple[Event, ...]
    assumptions: tuple[str, ...]

    @property
    def unit(self) -> str:
        """The privacy unit of all ledgers; "unit" where none names it."""
        return next(iter(_units(self.ledgers)), "unit")

    @property
    def of_two_adversaries(self) -> bool:
        """Whether some runs count as who sees the models sees them, and others as the server does."""
        return 0 < sum(local_view.LABEL in one.record.header for one in self.ledgers) < len(self.ledgers)

    def epsilon(self, delta: float, method: str) -> PrivacyGuarantee:
        """Epsilon by a method; of two adversaries' events no lower bound holds against either."""
        found = epsilon(self.events, delta, method)
        return replace(found, epsilon_lower=None) if self.of_two_adversaries else found

    @property
    def notes(self) -> list[str]:
        """What to know about the ledgers, in sentences."""
        if len(self.ledgers) == 1:
            return list(self.ledgers[0].notes)
        return [
            note if str(one.path) in note else f"{one.path}: {note}"
            for one in self.ledgers
            for note in one.notes
        ]


def replay(
    path: str | Path, anchor: str | Path | None = None, command: str | None = None, name: str = "ledger"
) -> Replayed:
    """The ledger in a file or in a run's folder, checked as :func:`fedpriv.accounting.record.read` does.

    Raises ArgumentError, which calls the argument ``name``, if the file is missing or is no ledger, and
    LedgerError if it was changed or cut.
    """
    path = Path(path)
    if path.is_dir():
        path = path / run_files.LEDGER
    if not path.is_file():
        raise validation.fail(name, str(path), "be an existing ledger file, or the folder of a run")
    with path.open("rb") as file:
        start = file.read(4096)
    if not any(word in start for word in (b'"ledger"', b'"chain"')):
        raise validation.fail(name, str(path), "be the ledger.jsonl of a run", "it has nothing of one")
    record = read(path, anchor, command)
    cap = record.header.get(local_view.LABEL)
    if record.of_silos:
        events = parallel_composition.of_any(record.by_silo())
    else:
        events = record.events if cap is None else local_view.costliest(record.events, cap)
    return Replayed(path, record, _of_one_unit(events))


def _of_one_unit(events: Sequence[Event]) -> tuple[Event, ...]:
    """Without groups: a unit may be in the costliest group of every run, whatever its number there."""
    if all(event.groups == 1 for event in events):
        return tuple(events)
    [counts] = of_costliest_group([tally(events)])
    return tuple(replace(event, count=n) for event, n in counts.items())


def of_files(
    paths: Sequence[str | Path],
    anchor: str | Path | None = None,
    command: str | None = None,
    name: str = "ledger",
) -> Total:
    """The total over ledger files. Arguments and errors are those of :func:`replay` and :func:`add_up`."""
    if anchor is not None and len(paths) > 1:
        raise validation.fail("anchor", str(anchor), "be left out with several ledgers")
    return add_up([replay(path, anchor, command, name) for path in paths], name)


def add_up(ledgers: Sequence[Replayed], name: str = "ledger") -> Total:
    """The total over the ledgers of runs on the same data.

    Raises ArgumentError if a file is given twice, or if the ledgers have different privacy units.
    """
    places = [one.path.resolve() for one in ledgers]
    for one, place in zip(ledgers, places, strict=True):
        if places.count(place) > 1:
            raise validation.fail(name, str(one.path), "be given once", "each run counts once")
    if len(units := _units(ledgers)) > 1:
        pairs = ", ".join(f"{one.path}: {one.record.header['unit']}" for one in ledgers if _unit(one))
        raise validation.fail(
            name, " and ".join(sorted(units)), "be of one privacy unit", f"account for each alone; {pairs}"
        )
    events = tuple(relations.under_one_relation([event for one in ledgers for event in one.events]))
    total = Total(tuple(ledgers), events, ())
    return replace(total, assumptions=tuple(_assumptions(total)))


def _unit(ledger: Replayed) -> str | None:
    unit: str | None = ledger.record.header.get("unit")
    return unit


def _units(ledgers: Sequence[Replayed]) -> set[str]:
    return {unit for one in ledgers if (unit := _unit(one)) is not None}


def _assumptions(total: Total) -> list[str]:
    ledgers, events = total.ledgers, total.events
    if len(ledgers) == 1:
        return ["the run was not stopped because of its results (else count its full budget)"]
    unit = next(iter(_units(ledgers)), "unit")
    found = [
        f"all runs used the same data: the total is that of one {unit} whose data is in every run",
        neighbours(unit, [event for one in ledgers for event in one.events], events),
        "the total holds against everyone who sees the released models of all runs",
        "no run was stopped because of its results (else count its full budget), and none was chosen by the "
        "results of another (only a filter, such as a node's epsilon-limit, bounds such runs)",
    ]
    if total.of_two_adversaries:
        found.append(
            "runs whose clients add all noise count as the server sees them: against who sees the models "
            "alone the total is smaller, and no lower bound holds"
        )
    if unknown := [str(one.path) for one in ledgers if _unit(one) is None]:
        found.append(f"the privacy unit, which is not named in {', '.join(unknown)}, is the same in all runs")
    heads = [one.record.head for one in ledgers]
    if alike := [str(one.path) for one in ledgers if heads.count(one.record.head) > 1]:
        found.append(f"{', '.join(alike)} are different runs with the same charges, not copies of one run")
    return found


def neighbours(unit: str, named: Sequence[Event], events: Sequence[Event]) -> str:
    """What the total protects from: the relation of ``events``, and whether ``named`` have another one.

    >>> one = Event(2.0, "none", "replace-one")
    >>> neighbours("client", [one], [one])
    'neighbouring data differ by one client replaced'
    """
    replaced = any(event.relation == Relation.REPLACE_ONE for event in events)
    text = f"neighbouring data differ by one {unit} {'replaced' if replaced else 'added or removed'}"
    if len({event.relation for event in named}) < 2:
        return text
    other = "replace-one" if not replaced else "add-remove"
    return f"{text}, also for the runs whose own budget is under {other}"

"""What ``fedpriv account`` says of ledgers: their heads, their total, and what it assumes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.totals import Total
from fedpriv.cli.app import note, say
from fedpriv.config.reading import read_file
from fedpriv.tasks.metrics import counted


def delta_of(ledgers: Sequence[Path]) -> float:
    """The delta of the runs whose ledgers, or folders, these are.

    Raises ArgumentError unless all have one, and it is the same.
    """
    found = {str(path): _delta(path if path.is_dir() else path.parent) for path in ledgers}
    deltas = set(found.values())
    if len(deltas) == 1 and (delta := deltas.pop()):
        return delta
    if unknown := [path for path, delta in found.items() if not delta]:
        why = f"no run with a delta is in the folder of {unknown[0]}"
    else:
        why = f"the runs have {', '.join(f'{delta:.3g} ({path})' for path, delta in found.items())}"
    raise ArgumentError(f"--delta is missing: {why}; give the delta of the total")


def _delta(folder: Path) -> float | None:
    """The delta of the run in this folder; None where there is none."""
    try:
        found = read_file(folder / run_files.CONFIG).get("delta")
    except (ArgumentError, OSError):
        return None
    return found if isinstance(found, float) and found > 0 else None


def title(total: Total) -> str:
    """What a table of the ledgers' epsilons is titled."""
    if len(total.ledgers) > 1:
        releases = counted(sum(one.releases for one in total.ledgers), "release")
        return f" of the {releases} in {counted(len(total.ledgers), 'ledger')} together"
    [one] = total.ledgers
    text = f" of the {counted(one.releases, 'release')} in {one.path}"
    if one.cap is None:
        return text
    whom = f"for a client that gave data to the {len(one.events)} costliest"
    return f"{text}, against the server, {whom}"


def as_json_data(total: Total) -> dict[str, Any]:
    """What is to be known about the ledgers, as report data."""
    found: dict[str, Any] = {"ledgers": [one.to_json() for one in total.ledgers]}
    if remarks := [one.record.header["remark"] for one in total.ledgers if "remark" in one.record.header]:
        found["remark"] = "; ".join(dict.fromkeys(remarks))
    for key, sentences in (("assumptions", total.assumptions), ("notes", total.notes)):
        if sentences:
            found[key] = list(sentences)
    return found


def print_ledgers(total: Total) -> None:
    """The ledgers' heads, what their total assumes, and what to know about them."""
    for one in total.ledgers:
        head, size = one.record.head, f"{one.path}: {counted(one.releases, 'release')}; "
        say(f"{size}head {head.length} {head.link}")
    for sentence in total.assumptions:
        say(f"assumed: {sentence}")
    for sentence in total.notes:
        note(sentence)

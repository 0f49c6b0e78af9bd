"""What ``fedpriv account`` says of ledgers: their heads, their total, and what it assumes."""

from __future__ import annotations

from typing import Any

from fedpriv.accounting.totals import Total
from fedpriv.cli.app import note, say
from fedpriv.tasks.metrics import counted


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

"""Sets a node up: its ledger, sealed by an anchor in another folder, before its first run.

The node itself never makes a ledger: then one that was deleted, or a container without its volume, would
begin again with the whole limit.
"""

from __future__ import annotations

from fedpriv._internal import validation
from fedpriv._internal.files import quoted
from fedpriv.accounting.anchor import FileAnchor
from fedpriv.accounting.ledger import Record, read, require_not_deleted
from fedpriv.node.ledger_file import content, locked, on_disk, opened
from fedpriv.node.policy_file import Policy


def set_up(policy: Policy) -> int:
    """Makes the node's ledger and its anchor; returns the number of events that the ledger has.

    An earlier ledger of this data without an anchor is sealed as it is, and what it has counts.

    Raises ArgumentError if the node is set up already, and LedgerError if its ledger was deleted or cut.
    """
    path, anchor = policy.ledger, policy.anchor
    for file in (path, anchor):
        file.parent.mkdir(parents=True, exist_ok=True)
    with on_disk(path), locked(path):
        if path.exists() and anchor.exists():
            raise validation.ArgumentError(
                f"this node is set up: it has the ledger {path} and its anchor {anchor}; start it with "
                "`fedpriv node run`"
            )
        if not path.exists():
            opened(path, policy.unit, anchor)[0].close()
            return 0
        record = read(path)
        if record.header.get("unit") != policy.unit:
            raise validation.fail(
                "unit", policy.unit, "be that of the ledger", f"{path} counts {record.header.get('unit')}s"
            )
        FileAnchor(anchor).seal(record.head)
        return len(record.events)


def require_set_up(policy: Policy) -> Record:
    """The content of the node's ledger.

    Raises ArgumentError if there is none, and LedgerError if it was edited, cut, put back to an earlier state
    or deleted.
    """
    if policy.ledger.exists():
        with locked(policy.ledger):
            return content(policy.ledger, policy.anchor)
    require_not_deleted(policy.ledger, policy.anchor)
    raise validation.ArgumentError(
        f"this node has no ledger at {policy.ledger}; `fedpriv node init {quoted(policy.path)}` makes it, "
        "once. If it had one, restore it and its anchor from a copy: without them the limit would begin anew"
    )

"""What a node has spent, answered and refused, from its ledger and its journal; and the same as metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.accounting import Budget, UnsupportedEvent, epsilon
from fedpriv.accounting.events import Event
from fedpriv.accounting.ledger import Record
from fedpriv.accounting.owner_limit import share
from fedpriv.accounting.totals import of_files
from fedpriv.mechanism.units import PrivacyUnit
from fedpriv.node.journal import ANSWERED, read_journal
from fedpriv.node.ledger import ON_WORD
from fedpriv.node.policy_file import Policy
from fedpriv.node.setup import require_set_up


@dataclass(frozen=True)
class RunCharges:
    """What one run was charged: releases with the node's own noise, and releases on the server's word."""

    run: str
    own: int
    on_word: int


@dataclass(frozen=True)
class Status:
    """A node's status.

    Attributes:
        policy: the owner's policy.
        runs: the charges of each run.
        own: the share of the owner's limit that the node's own noise spent.
        on_word: the share that rests on the server's word.
        spent: both together; the share of which the limit allows 1, and infinity beyond it.
        epsilon: what all charges cost at the limit's delta by PLD, if no run was chosen by another's results;
            None where PLD does not support them.
        last_answer: the time of the last answer, or None.
        answers: the number of answers.
        refusals: the journal's lines of refusals and failures.
    """

    policy: Policy
    runs: tuple[RunCharges, ...]
    own: float
    on_word: float
    spent: float
    epsilon: float | None
    last_answer: str | None
    answers: int
    refusals: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """The status as a JSON-serialisable dict."""
        return {
            "policy": str(self.policy.path),
            "ledger": str(self.policy.ledger),
            "unit": self.policy.unit,
            "epsilon-limit": self.policy["epsilon-limit"],
            "delta-limit": self.policy["delta-limit"],
            "spent": self.spent,
            "left": max(0.0, 1 - self.spent),
            "epsilon of the charges": self.epsilon,
            "spent with own noise": self.own,
            "spent on the server's word": self.on_word,
            "runs": [vars(run) for run in self.runs],
            "answers": self.answers,
            "last answer": self.last_answer,
            "refusals": list(self.refusals),
        }


def status_of(policy: Policy) -> Status:
    """The status of a policy's node.

    Raises LedgerError if its ledger was edited, cut, put back to an earlier state or deleted, and
    ArgumentError if it has none.
    """
    record = require_set_up(policy)
    lines = read_journal(policy.journal)
    answers = [line for line in lines if line["event"] == ANSWERED]
    limit = Budget(policy["epsilon-limit"], policy["delta-limit"])
    parts = [_events(record, word) for word in (False, True)]
    own, on_word = (share(limit, part) for part in parts)
    return Status(
        policy=policy,
        runs=tuple(_runs(record)),
        own=own,
        on_word=on_word,
        spent=share(limit, record.events),
        epsilon=_epsilon(policy, limit.delta) if record.events else 0.0,
        last_answer=answers[-1]["time"] if answers else None,
        answers=len(answers),
        refusals=tuple(line for line in lines if "why" in line),
    )


def _epsilon(policy: Policy, delta: float) -> float | None:
    try:
        return epsilon(of_files([policy.ledger]).events, delta).epsilon
    except UnsupportedEvent:
        return None


def _events(record: Record, on_word: bool) -> list[Event]:
    pairs = zip(record.events, record.labels, strict=True)
    return [event for event, labels in pairs if (labels.get("rests") == ON_WORD) == on_word]


def _runs(record: Record) -> Sequence[RunCharges]:
    counts: dict[str, list[int]] = {}
    for event, labels in zip(record.events, record.labels, strict=True):
        both = counts.setdefault(str(labels.get("run", "unknown")), [0, 0])
        both[labels.get("rests") == ON_WORD] += event.count
    return [RunCharges(run, *both) for run, both in counts.items()]


def prometheus(status: Status) -> str:
    """The status in Prometheus' text format: public values only.

    Where the unit is a client, it is private how often this client was sampled; then the counts of answers
    and the spent share are left out.
    """
    values: dict[str, tuple[str, float]] = {
        "fedpriv_node_up": ("gauge", 1),
        "fedpriv_node_epsilon_limit": ("gauge", status.policy["epsilon-limit"]),
        "fedpriv_node_delta_limit": ("gauge", status.policy["delta-limit"]),
        "fedpriv_node_runs_refused_total": ("counter", _refused_runs(status.refusals)),
    }
    if status.policy.unit != PrivacyUnit.CLIENT:
        values |= {
            "fedpriv_node_limit_spent_ratio": ("gauge", status.spent),
            "fedpriv_node_limit_spent_on_word_ratio": ("gauge", status.on_word),
            "fedpriv_node_runs_total": ("counter", len(status.runs)),
            "fedpriv_node_answers_total": ("counter", status.answers),
        }
    return "".join(f"# TYPE {name} {kind}\n{name} {value:g}\n" for name, (kind, value) in values.items())


def _refused_runs(refusals: Sequence[Mapping[str, Any]]) -> int:
    """How many runs the policy refused, which does not depend on private draws."""
    return len({line.get("run") for line in refusals if line.get("stage") == "policy"})

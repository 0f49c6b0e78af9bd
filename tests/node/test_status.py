"""What leaves an owner's machine: logs and metrics have public values only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from helpers.owner_policy import write_policy

from fedpriv.accounting import Event
from fedpriv.node.journal import Journal, read_journal, shareable
from fedpriv.node.ledger_file import opened
from fedpriv.node.metrics import serving
from fedpriv.node.policy_file import Policy, read_policy
from fedpriv.node.setup import set_up
from fedpriv.node.status import prometheus, status_of


def a_policy(folder: Path, unit: str) -> Policy:
    policy = read_policy(write_policy(folder, ('unit = "example"', f'unit = "{unit}"')))
    set_up(policy)
    return policy


def used(policy: Policy, count: int) -> Policy:
    """The policy, whose node answered so many messages and refused a run."""
    ledger, _ = opened(policy.ledger, policy.unit, policy.anchor)
    with ledger:
        ledger.record([Event(4.0, "none", "add-remove")] * count, run="7")
    journal = Journal(policy.journal)
    for _ in range(count):
        journal.note("answered", 7, message="train")
    journal.note("refused", 8, stage="policy", why="the run's model is cnn")
    return policy


def test_metrics_of_examples_have_counts_and_the_spent_share(tmp_path: Path) -> None:
    text = prometheus(status_of(used(a_policy(tmp_path, "example"), 3)))
    lines = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert lines["fedpriv_node_answers_total"] == "3"
    assert lines["fedpriv_node_runs_refused_total"] == "1"
    assert 0 < float(lines["fedpriv_node_limit_spent_ratio"]) < 1
    assert len(lines) == sum(line.startswith("# TYPE") for line in text.splitlines())


def test_metrics_of_a_client_do_not_tell_how_often_it_was_sampled(tmp_path: Path) -> None:
    texts = set()
    for count in (1, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        texts.add(prometheus(status_of(used(a_policy(folder, "client"), count))))
    assert len(texts) == 1


def test_logs_of_a_client_do_not_tell_how_often_it_was_sampled() -> None:
    answered = {"time": "t", "event": "answered", "run": "7"}
    full = {"time": "t", "event": "refused", "stage": "message", "why": "93% is spent"}
    policy = {"time": "t", "event": "refused", "stage": "policy", "why": "the run's model is cnn"}
    assert shareable(answered, "client") is None
    assert "why" not in (shareable(full, "client") or {})
    assert shareable(policy, "client") == policy
    assert [shareable(line, "example") for line in (answered, full)] == [answered, full]


def test_a_flood_of_refusals_does_not_fill_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(5_000):
        journal.note("refused", 8, stage="message", why=f"round {number} was answered before")
    lines = read_journal(tmp_path / "journal")
    assert len(lines) < 40
    assert lines[-1]["number"] == 4096


def test_a_line_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.note("answered", 7)
    with (tmp_path / "journal").open("a") as file:
        file.write(json.dumps({"time": "t"})[:-3] + "\n" + "[" * 100_000)
    assert len(read_journal(tmp_path / "journal")) == 1
    journal.note("answered", 8)  # not at the end of the damaged line
    assert [line["run"] for line in read_journal(tmp_path / "journal")] == ["7", "8"]


def test_metrics_are_given_on_loopback_without_the_text_of_errors() -> None:
    def failing() -> str:
        raise ValueError("SECRET")

    with serving(0, lambda: "up 1\n") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.read() == b"up 1\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd")
    with serving(0, failing) as port, pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
    assert (error.value.code, b"SECRET" in error.value.read()) == (500, False)

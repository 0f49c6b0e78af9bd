"""``fedpriv node``: a policy is checked, a node is set up once, its ledger is guarded, its status shown."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.owner_policy import write_policy
from typer.testing import CliRunner, Result

from fedpriv.accounting import Event
from fedpriv.cli import app, node
from fedpriv.node.journal import Journal
from fedpriv.node.ledger import ON_WORD
from fedpriv.node.ledger_file import opened
from fedpriv.node.policy_file import Policy, read_policy
from fedpriv.node.secure_parties import read_identity

EVENT = Event(4.0, "none", "add-remove")


def fedpriv(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["node", *map(str, arguments)])


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    path = write_policy(tmp_path)
    assert fedpriv("init", path).exit_code == 0
    (tmp_path / "data" / "silo.npz").write_bytes(b"")
    return read_policy(path)


def charge(policy: Policy, count: int = 3, **labels: object) -> None:
    for number in range(count):
        ledger, _ = opened(policy.ledger, policy.unit, policy.anchor)
        with ledger:
            ledger.record([EVENT], run="7", **({"round": number} | labels))


def test_a_policy_is_shown(policy: Policy) -> None:
    shown = json.loads(fedpriv("policy", policy.path, "--json").output)
    assert shown["limits"]["epsilon-limit"] == 20.0
    assert shown["allow"]["model"] == ["logistic"]
    assert "max-clip-norm" in fedpriv("policy", policy.path).output


def test_an_identity_key_is_made_once_and_its_public_half_is_shown(tmp_path: Path) -> None:
    made = fedpriv("identity", tmp_path / "key")
    assert made.exit_code == 0
    assert read_identity(tmp_path / "key").public.hex() == made.output.strip()
    again = fedpriv("identity", tmp_path / "key")
    assert again.exit_code == 2
    assert "it must be a new file" in again.output


def test_a_node_is_set_up_once(policy: Policy) -> None:
    again = fedpriv("init", policy.path)
    assert again.exit_code == 2
    assert "this node is set up" in again.output


def test_an_earlier_ledger_of_a_trial_is_sealed_as_it_is(tmp_path: Path) -> None:
    policy = read_policy(write_policy(tmp_path))
    policy.ledger.parent.mkdir()
    with opened(policy.ledger, policy.unit)[0] as ledger:
        ledger.record([EVENT] * 3, run="1")
    assert "keeps no head of it" not in fedpriv("init", policy.path).output
    assert json.loads(fedpriv("status", policy.path, "--json").output)["runs"][0]["own"] == 3


def test_a_missing_anchor_is_refused(policy: Policy) -> None:
    charge(policy)
    policy.anchor.unlink()
    for command in ("status", "run", "init"):
        refused = fedpriv(command, policy.path)
        assert (refused.exit_code, "keeps no head of it" in refused.output) == (2, True)


@pytest.mark.parametrize("command", ["status", "run"])
def test_a_node_without_a_ledger_does_not_begin_anew(policy: Policy, command: str) -> None:
    for path in (policy.ledger, policy.anchor):
        path.unlink()
    result = fedpriv(command, policy.path)
    assert result.exit_code == 2
    assert "this node has no ledger" in result.output


@pytest.mark.parametrize("command", ["status", "run"])
@pytest.mark.parametrize("fault", ["deleted", "cut", "rolled back"])
def test_a_changed_ledger_is_refused(policy: Policy, command: str, fault: str) -> None:
    """Also where the head beside the ledger was changed with it."""
    head = policy.ledger.with_name(policy.ledger.name + ".head")
    charge(policy, 2)
    earlier = [path.read_bytes() for path in (policy.ledger, head)]
    charge(policy, 1, round=2)
    if fault == "deleted":
        policy.ledger.unlink()
        head.unlink()
    elif fault == "cut":
        policy.ledger.write_bytes(b"".join(policy.ledger.read_bytes().splitlines(keepends=True)[:-1]))
    else:
        for path, content in zip((policy.ledger, head), earlier, strict=True):
            path.write_bytes(content)
    result = fedpriv(command, policy.path)
    assert result.exit_code == 2
    assert {"deleted": "was deleted", "cut": "its end was cut", "rolled back": "its end was cut"}[
        fault
    ] in result.output
    assert len(result.output.splitlines()) == 1


def test_a_restored_copy_of_everything_is_accepted(policy: Policy, tmp_path: Path) -> None:
    charge(policy)
    kept = tmp_path / "copy"
    shutil.copytree(policy.ledger.parent, kept)
    shutil.rmtree(policy.ledger.parent)
    assert fedpriv("status", policy.path).exit_code == 2
    shutil.copytree(kept, policy.ledger.parent)
    assert fedpriv("status", policy.path).exit_code == 0


def test_the_status_is_one_number_of_two_parts(policy: Policy) -> None:
    charge(policy)
    charge(policy, 1, rests=ON_WORD)
    journal = Journal(policy.journal)
    journal.note("answered", 7, message="train")
    journal.note("refused", 8, why="the run's model is cnn")
    found = json.loads(fedpriv("status", policy.path, "--json").output)
    assert found["spent"] == pytest.approx(4 / 3 * found["spent with own noise"])
    assert found["spent"] == pytest.approx(4 * found["spent on the server's word"])
    assert found["runs"] == [{"run": "7", "own": 3, "on_word": 1}]
    assert (found["answers"], len(found["refusals"])) == (1, 1)
    text = fedpriv("status", policy.path).output
    assert "on the server's word" in text
    assert "run 8: the run's model is cnn" in text


def test_a_run_names_what_is_missing(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "data" / "silo.npz").unlink()
    result = fedpriv("run", policy.path)
    assert result.exit_code == 2
    assert "data-file is" in result.output


STOPPING = """
import sys, time
from fedpriv.cli import node
node._GRACE = 0.2
begun = time.monotonic()
with node._stopping(lambda: time.monotonic() - begun < float(sys.argv[1])) as stopped:
    print("ready", flush=True)
    while True:  # as Flower's code, which does not look
        time.sleep(0.05)
"""


@pytest.mark.parametrize("busy", [0.0, 2.5])
def test_a_node_that_waits_for_a_server_that_is_gone_stops_all_the_same(busy: float) -> None:
    """After the first SIGTERM, but not while it computes."""
    command = [sys.executable, "-c", STOPPING, str(busy)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        begun = time.monotonic()
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM
        assert time.monotonic() - begun > (1.5 if busy else 0.1)
    finally:
        process.kill()
        process.wait()


def test_a_node_that_looks_stops_by_itself() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGALRM)]
    with node._stopping(lambda: False) as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGTERM)
        assert stopped()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGALRM)] == before

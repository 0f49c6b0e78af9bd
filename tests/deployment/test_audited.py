"""`fedpriv audit --deployment`: on loopback, with three nodes whose owner is the auditor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.deployments import Deployment
from typer.testing import CliRunner

from fedpriv.accounting.ledger import read
from fedpriv.cli import app

NODES, EXAMPLES = 3, 120
SETTINGS = [f"--set={text}" for text in (f"examples-per-client={EXAMPLES}", "rounds=2", "epsilon=2.5")]


def allow_audits(node: Path) -> None:
    """Has a node's owner allow audits, and nothing but audits."""
    path = node / "policy.toml"
    path.write_text(path.read_text().replace("[limits]", 'audit-file = "audit.txt"\n\n[limits]'))


@contextmanager
def begun(folder: Path, allowed: Sequence[int]) -> Iterator[Deployment]:
    """A deployment in which the owners of these nodes allow audits."""
    with Deployment(folder, nodes=NODES, examples=EXAMPLES) as made:
        for place in allowed:
            allow_audits(made.folder / f"node-{place}")
        made.start_server()
        made.start_nodes(range(NODES))
        yield made


def audit(deployed: Deployment, name: str, *options: str) -> tuple[int, str]:
    """(exit code, output) of an audit of an example's run."""
    file = str(deployed.server.folder / f"{name}.toml")
    sure = ("--confidence", "0.9999")  # at 99 %, one in a hundred sound audits fails
    command = ["audit", file, "--deployment", str(deployed.folder), *sure, *SETTINGS, *options]
    done = deployed.command(*command)
    return done.returncode, done.stdout


OWN = ("without units that coins left out", "60 of the run's own examples with a coin each")
# the run's file, who sees what, what is said of training and coins, options
Case = tuple[str, str, tuple[str, str], tuple[str, ...]]
CRAFTED: Case = (
    "local",
    "the server, which sees each message",
    ("on canaries", "60 canaries planted among the run's own examples"),
    ("--set=planted-canaries=60",),
)
INSIDE = ("--canaries=60", "--set=level=client", "--set=silo-steps=2")
OTHERS: tuple[Case, ...] = (
    ("local", "the server, which sees each message", OWN, ("--canaries=60",)),
    ("secure", "who sees the released", OWN, ("--canaries=60",)),
    ("central", "who sees the released", OWN, INSIDE),
)


def require_sound(
    deployed: Deployment, name: str, sees: str, said: tuple[str, str], changes: tuple[str, ...]
) -> None:
    code, output = audit(deployed, name, *changes)
    assert code == 0, output + deployed.log("node-2")[-2000:]
    trained, coins = said
    assert f"audit run, not for use: its model was trained {trained}" in output
    assert f"the adversary: {sees}" in output
    assert coins in output
    assert "consistent with its ledger" in output


@pytest.mark.slow
@pytest.mark.processes
def test_a_deployment_is_audited_where_every_owner_allows_it(tmp_path: Path) -> None:
    with begun(tmp_path / "d", (0, 1)) as deployed:
        require_consent(deployed)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_every_kind_of_audit_finds_nothing_in_a_sound_deployment(tmp_path: Path) -> None:
    with begun(tmp_path / "d", range(NODES)) as deployed:
        for case in OTHERS:
            require_sound(deployed, *case)
        require_charged(deployed, 8)


def require_charged(deployed: Deployment, releases: int) -> None:
    """Audits are charged to each node as runs are."""
    ledgers = [read(deployed.folder / f"node-{place}/ledger/ledger.jsonl") for place in range(NODES)]
    assert [len(ledger.events) for ledger in ledgers] == [releases] * NODES
    assert not list(deployed.folder.glob("node-*/*.steps"))


def require_consent(deployed: Deployment) -> None:
    """An audit needs each owner's consent, which a node reads as it starts; its nodes do nothing else."""
    code, output = audit(deployed, "local")
    assert code == 2, output
    assert "node-2/policy.toml has no audit-file" in output
    allow_audits(deployed.folder / "node-2")  # but the node, which goes on, does not know it
    code, output = audit(deployed, "local")
    assert code == 1, output
    assert "the audit wrote no finding" in output
    assert not (deployed.server.folder / "audit/plan.json").exists()
    deployed.end("node-2")
    deployed.start_nodes([2])
    require_sound(deployed, *CRAFTED)
    finding = json.loads((deployed.server.folder / "audit/finding.json").read_text())
    assert finding["note"] == "audit run, not for use"
    require_charged(deployed, 2)
    file = str(deployed.server.folder / "central.toml")
    plain = deployed.command("deploy", "run", str(deployed.folder), file, *SETTINGS)
    assert plain.returncode == 1, plain.stdout
    assert "answers audits alone" in deployed.log("node-0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--own-data"], "--own-data is True; it must be left out with --deployment"),
        (["--runs", "3"], "--runs is 3; it must be left out"),
        ([], "be a deployment, or hold party.toml"),
    ],
)
def test_what_is_no_audit_of_a_deployment_is_refused(options: list[str], said: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["audit", "--deployment", str(tmp_path), *options])
    assert shown.exit_code == 2
    assert said in " ".join(shown.stderr.split())

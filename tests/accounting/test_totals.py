"""Totals over the ledgers of runs on the same data, from the command line and from Python."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import fedpriv
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event, Ledger, LedgerError, epsilon, local_view
from fedpriv.accounting import anchor as anchors
from fedpriv.accounting.head import head_path
from fedpriv.accounting.ledger import read
from fedpriv.cli import app

DELTA = 1e-5
SAMPLED = [Event(3.0 - i / 10, "poisson", "add-remove", rate=0.02) for i in range(5)]
LOCAL = [Event(30.0, "none", "replace-one")] * 3
FIXED = [Event(4.0, "without-replacement", "replace-one", rate=0.05)] * 4


def write(path: Path, events: Sequence[Event], **header: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.create(path, {"unit": "client", **header}) as ledger:
        ledger.record(events)
    return path


def write_silos(path: Path, rounds: int, rates: Sequence[float]) -> Path:
    """The ledger of a run of the client level over disjoint silos, each sampled at its own rate."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.create(path, {"unit": "example", "level": "client"}) as ledger:
        for _ in range(rounds):
            for silo, rate in enumerate(rates):
                ledger.record([Event(1.5, "poisson", "add-remove", rate=rate)], silos=[silo])
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["account", "--delta", str(DELTA), *map(str, arguments)])


def of(*paths: Path) -> list[object]:
    return [part for path in paths for part in ("--ledger", path)]


def told(*arguments: object) -> dict[str, object]:
    result = call(*arguments, "--method", "pld", "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


def pld(document: dict[str, object]) -> float:
    return float(document["methods"]["pld"]["epsilon"])  # type: ignore[index]


def refused(*arguments: object) -> str:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    return line.removeprefix("fedpriv: ")


def test_the_total_of_two_runs_is_that_of_all_their_releases(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.jsonl", SAMPLED), write(tmp_path / "b.jsonl", SAMPLED[1:])
    document = told(*of(one, other))
    exact = epsilon([*SAMPLED, *SAMPLED[1:]], DELTA).epsilon
    assert pld(document) == exact
    assert exact > max(pld(told(*of(one))), pld(told(*of(other))))
    assert [ledger["releases"] for ledger in document["ledgers"]] == [5, 4]  # type: ignore[attr-defined]
    answer = fedpriv.account(delta=DELTA, ledger=[one, str(other)], methods=["pld"])
    assert (answer.epsilon, list(answer.assumptions)) == (exact, document["assumptions"])
    assert "assumed: all runs used the same data" in repr(answer)
    text = call(*of(one, other), "--method", "rdp").stdout
    assert text.startswith("epsilon at delta 1e-05 of the 9 releases in 2 ledgers together")
    assert f"{one}: 5 releases; head 5 {read(one).head.link}" in text
    for said in (
        "all runs used the same data",
        "one client added or removed",
        "none was chosen by the results",
    ):
        assert said in text
    alone = fedpriv.account(delta=DELTA, ledger=one, methods=["pld"])
    assert alone.assumptions == (
        "the run was not stopped because of its results (else count its full budget)",
    )


def test_runs_that_count_against_two_adversaries_have_no_lower_bound(tmp_path: Path) -> None:
    """Local noise counts as the server sees it: who sees the models alone may learn less than the total."""
    local = write(tmp_path / "local.jsonl", LOCAL, **{local_view.LABEL: 1})
    sampled = write(tmp_path / "sampled.jsonl", SAMPLED)
    both = fedpriv.account(delta=DELTA, ledger=[local, sampled], methods=["pld"])
    assert both.guarantees["pld"].epsilon_lower is None
    assert any("no lower bound holds" in text for text in both.assumptions)
    assert "epsilon_lower" not in told(*of(local, sampled))["methods"]["pld"]  # type: ignore[index]
    assert "epsilon_lower" in told(*of(sampled))["methods"]["pld"]  # type: ignore[index]


RELATIONS = {
    "local and sampled": (LOCAL, [replace(LOCAL[0], relation="add-remove")] * 3, SAMPLED, "added or removed"),
    "fixed and sampled": (FIXED, FIXED, [replace(e, relation="replace-one") for e in SAMPLED], "replaced"),
}


@pytest.mark.parametrize("which", RELATIONS)
def test_ledgers_of_two_relations_count_under_one_and_it_is_said(tmp_path: Path, which: str) -> None:
    events, counted, others, neighbours = RELATIONS[which]
    paths = write(tmp_path / "a.jsonl", events), write(tmp_path / "b.jsonl", SAMPLED)
    document = told(*of(*paths))
    assert pld(document) == epsilon([*counted, *others], DELTA).epsilon
    said = f"neighbouring data differ by one client {neighbours}, also for the runs whose own budget is under"
    assert any(text.startswith(said) for text in document["assumptions"])  # type: ignore[attr-defined]


def test_of_disjoint_silos_the_one_that_loses_most_counts(tmp_path: Path) -> None:
    """Parallel composition, as the run's own report has it; and again beside the ledger of another run."""
    path = write_silos(tmp_path / "a" / "ledger.jsonl", 4, (0.05, 0.2, 0.1))
    worst = [Event(1.5, "poisson", "add-remove", rate=0.2)] * 4
    found = told(*of(path))
    assert pld(found) == epsilon(worst, DELTA, "pld").epsilon
    assert found["notes"] == [
        f"4 of the 12 releases in {path} count: those of the silo that loses most, "
        "since a unit is in one silo and stays there"
    ]
    other = write(tmp_path / "b" / "ledger.jsonl", SAMPLED, unit="example")
    both = told(*of(path, other))
    assert pld(both) == pytest.approx(epsilon([*worst, *SAMPLED], DELTA, "pld").epsilon, rel=1e-6)


def test_where_no_silo_is_the_costliest_all_that_may_be_it_count(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    quieter, more, less = (
        Event(noise, "poisson", "add-remove", rate=rate)
        for noise, rate in ((3.0, 0.5), (1.5, 0.2), (1.5, 0.1))
    )
    with Ledger.create(path, {"unit": "example", "level": "client"}) as ledger:
        for silo, event in enumerate((quieter, more, less)):
            ledger.record([event], silos=[silo])
    assert pld(told(*of(path))) == epsilon([quieter, more], DELTA, "pld").epsilon


def test_ledgers_of_two_units_or_of_one_run_are_refused(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.jsonl", SAMPLED), write(tmp_path / "b.jsonl", SAMPLED, unit="example")
    said = refused(*of(one, other))
    assert said.startswith("--ledger is 'client and example'; it must be of one privacy unit")
    assert "be given once (each run counts once)" in refused(*of(one, other.parent / "." / "a.jsonl"))
    with pytest.raises(ArgumentError, match=r"ledger is .* be given without a schedule"):
        fedpriv.account(delta=DELTA, ledger=one, steps=3)
    with pytest.raises(ArgumentError, match="steps is None; it must be given, or a ledger"):
        fedpriv.account(delta=DELTA)
    shutil.copy(one, tmp_path / "copy.jsonl")
    shutil.copy(head_path(one), head_path(tmp_path / "copy.jsonl"))
    copies = told(*of(one, tmp_path / "copy.jsonl"))
    assert "are different runs with the same charges" in str(copies["assumptions"])
    assert pld(copies) > pld(told(*of(one)))


def test_a_ledger_cut_between_two_lines_is_refused(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.jsonl", SAMPLED), write(tmp_path / "b.jsonl", SAMPLED)
    other.write_bytes(b"".join(other.read_bytes().splitlines(keepends=True)[:3]))
    for given in (of(other), of(one, other)):
        assert f"{other}: its end was cut. It ends after event 2" in refused(*given)
    with pytest.raises(LedgerError, match="its end was cut"):
        fedpriv.account(delta=DELTA, ledger=other)


def test_a_remark_names_its_ledger(tmp_path: Path) -> None:
    seeded = write(tmp_path / "a.jsonl", SAMPLED, remark="reproducible, not private (seed 3)")
    text = call(*of(seeded, write(tmp_path / "b.jsonl", LOCAL)), "--method", "rdp").stdout
    assert text.splitlines()[-1] == f"NOTE: {seeded}: reproducible, not private (seed 3)"


def test_an_anchor_is_looked_at(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    path = write(tmp_path / "run" / "ledger.jsonl", SAMPLED, **{anchors.FILE: str(anchor)})
    shutil.copytree(path.parent, tmp_path / "earlier")
    assert pld(told(*of(path))) == epsilon(SAMPLED, DELTA).epsilon
    with Ledger.resume(path)[0] as ledger:
        ledger.record(SAMPLED[:2])
    earlier = tmp_path / "earlier" / "ledger.jsonl"
    assert f"ends after event 5, and its anchor, {anchor}, says 7" in refused(*of(earlier))
    anchor.rename(tmp_path / "moved")
    assert "Restore the anchor, or name its place as --anchor" in refused(*of(path))
    moved = ["--anchor", tmp_path / "moved"]
    assert told(*of(path), *moved)["ledgers"][0]["releases"] == 7  # type: ignore[index]
    assert "its anchor" in refused(*of(earlier), *moved)
    assert "left out with several ledgers" in refused(*of(path, earlier), *moved)
    assert refused("--anchor", "x").startswith("--anchor is 'x'; it must be given with --ledger")


def test_the_command_of_an_anchor_is_given_and_not_taken_from_the_file(tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "keeper.py").write_text(
        f"import sys\nopen({str(started)!r}, 'w')\n"
        'print(\'\' if \'"seal"\' in sys.stdin.read() else \'{"length": 9, "chain": ""}\')'
    )
    command = shlex.join([sys.executable, str(tmp_path / "keeper.py")])
    (tmp_path / "quiet.py").write_text("")
    quiet = shlex.join([sys.executable, str(tmp_path / "quiet.py")])
    path = write(tmp_path / "ledger.jsonl", SAMPLED, **{anchors.COMMAND: quiet})
    said = refused(*of(path))
    assert "Give it as --anchor-command" in said
    assert not started.exists()
    assert "its anchor, the command" in refused(*of(path), "--anchor-command", command)
    assert started.exists()

"""What version 0.1.0 wrote is still read: a finished run, an interrupted one, and a ledger on its own.

Only the command line is used. Figures are close, not equal: their last bits depend on the machine.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedpriv.cli import main

STORED = Path(__file__).parent / "fixtures" / "v0_1_0"
EXPECTED: dict[str, Any] = json.loads((STORED / "expected.json").read_text())

Ask = Callable[..., Any]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stored files, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(STORED, tmp_path / "stored"))


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a command answers in JSON."""

    def answer(*arguments: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["fedpriv", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        assert end.value.code == 0, printed.err
        return json.loads(printed.out)

    return answer


@pytest.mark.parametrize("name", EXPECTED["account"])
def test_ledgers_cost_what_they_cost(name: str, stored: Path, ask: Ask) -> None:
    document = ask("account", "--ledger", stored / name, "--delta", "1e-4")
    assert f"{stored / name} was written by version 0.1.0 and has no head, so lines" in document["notes"][-1]
    methods = document["methods"]
    wanted = EXPECTED["account"][name]
    assert {method: methods[method]["epsilon"] for method in wanted} == pytest.approx(wanted, rel=1e-6)


def test_an_edited_ledger_is_refused(
    stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = stored / "dp-srm-ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:2] + lines[3:]))
    monkeypatch.setattr(sys, "argv", ["fedpriv", "account", "--ledger", str(ledger), "--delta", "1e-4"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "line 3" in capsys.readouterr().err


def test_the_finished_run_is_listed(stored: Path, ask: Ask) -> None:
    [row] = ask("report", stored / "finished")
    [wanted] = EXPECTED["results"]
    assert row["folders"] == [str(stored / "finished")]
    for key in ("settings", "measure", "kind", "ended"):
        assert row[key] == wanted[key]
    for key in ("mean", "epsilon", "delta"):
        assert row[key] == pytest.approx(wanted[key], rel=1e-6)


def test_the_interrupted_run_goes_on_to_the_same_end(stored: Path, ask: Ask) -> None:
    report, wanted = ask("resume", stored / "interrupted"), EXPECTED["resume"]
    sealed = ask("account", "--ledger", stored / "interrupted" / "ledger.jsonl", "--delta", "1e-4")
    assert sealed["ledgers"][0]["head"] == report["privacy"]["ledger head"]
    assert not any("has no head" in note for note in sealed["notes"])
    result = report["result"]
    for key in ("rounds", "stopped", "resumed after rounds"):
        assert result[key] == wanted["result"][key]
    for key in ("accuracy", "loss"):
        assert result[key] == pytest.approx(wanted["result"][key], rel=1e-3)
    assert report["privacy"]["releases"] == wanted["releases"]
    epsilon = report["privacy"]["views"][0]["epsilon"]["pld"]["epsilon"]
    assert epsilon == pytest.approx(wanted["epsilon"], rel=1e-6)
    tensors = load_file(stored / "interrupted" / "model.safetensors")
    parameters = wanted["parameters"]
    assert tensors.keys() == parameters.keys()
    for name, tensor in tensors.items():
        assert float(tensor.double().norm()) == pytest.approx(parameters[name]["norm"], rel=1e-4)
        assert tensor.flatten()[::250].tolist() == pytest.approx(parameters[name]["every 250th"], abs=1e-4)

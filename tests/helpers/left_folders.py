"""What the commands that read a run's folder say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.report.summary import enforced_guarantee
from fedpriv.runs.result import Result, load_result


def spent(folder: Path) -> float:
    """Epsilon of what is in the ledger, by `fedpriv account --ledger`."""
    config = Config.parse(read_run(folder))
    ledger = ["--ledger", str(folder / "ledger.jsonl"), "--delta", str(config.delta)]
    answer = CliRunner().invoke(app, ["account", *ledger, "--method", config.accounting, "--json"])
    assert answer.exit_code == 0, answer.output
    return float(json.loads(answer.stdout)["methods"][config.accounting]["epsilon"])


def require_ended(folder: Path, stopped: StopReason, resumed: int = 0) -> Result:
    """The result in a folder, of which report, account and load_result say how the run ended and its cost.

    ``resumed`` is how often the run was resumed.
    """
    config = Config.parse(read_run(folder))
    report = json.loads((folder / "report.json").read_text())
    guarantee, result = enforced_guarantee(report), load_result(folder)
    alone = stopped.complete and not resumed  # else somebody may have ended it because of its results
    epsilon = guarantee["epsilon"] if alone else config.epsilon
    assert (result.stopped, len(report["result"]["resumed after rounds"])) == (stopped, resumed)
    assert result.epsilon == epsilon
    assert bool(torch.isfinite(result.params).all())
    answer = CliRunner().invoke(app, ["report", str(folder), "--json"])
    assert answer.exit_code == 0, answer.output
    [group] = json.loads(answer.stdout)
    assert (group["ended"], group["epsilon"]) == ([stopped], epsilon)
    assert group["folders"] == [str(folder)]
    assert spent(folder) == pytest.approx(guarantee["epsilon"])
    _require_not_simulated(folder)
    return result


def require_unfinished(folder: Path) -> float:
    """Epsilon in a folder without a report, of which the commands say what continues it and what it cost.

    `fedpriv report` makes its page of what there is.
    """
    config: dict[str, Any] = read_run(folder)
    answer = CliRunner().invoke(app, ["report", str(folder)])
    assert answer.exit_code == 0, answer.output
    assert str(folder) in (folder / "report.html").read_text()
    wanted = (
        "it has no report.json",
        "`fedpriv deploy resume` continues",
        f"`fedpriv account --ledger {folder / 'ledger.jsonl'} --delta {config['delta']:.3g}`",
    )
    assert all(text in answer.output for text in wanted), answer.output
    with pytest.raises(ArgumentError, match="has no report") as refused:
        load_result(folder)
    assert all(text in str(refused.value) for text in wanted)
    _require_not_simulated(folder)
    epsilon = spent(folder)
    assert 0 < epsilon <= config["epsilon"]
    return epsilon


def _require_not_simulated(folder: Path) -> None:
    """`fedpriv resume` names the command that continues a deployment's run."""
    answer = CliRunner().invoke(app, ["resume", str(folder)])
    assert answer.exit_code == 2, answer.output
    assert "`fedpriv deploy resume` continues a deployment's run" in answer.stderr

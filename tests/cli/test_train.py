"""``fedpriv train``: the command line, output folder and refusals of ``fedpriv simulate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.reading import read_file
from fedpriv.runs.run_dir import FILES

QUICK = {"dataset": "digits", "model": "logistic", "rounds": 4, "sampling-rate": 0.1, "evaluate-every": 2}
SETTINGS = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_it_prints_plain_lines_and_leaves_a_folder_that_it_can_run_again(tmp_path: Path) -> None:
    result = call("train", *SETTINGS, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "1,437 examples of digits, logistic, dynamic-dp-sgd, 4 rounds, central noise"
    assert [line.split("  ")[0] for line in lines[2:4]] == ["round 2/4", "round 4/4"]
    assert lines[4].startswith("all rounds done; test accuracy ")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)
    config = read_file(tmp_path / "out" / "config.toml")
    assert (config["unit"], config["clients"], config["examples-per-client"]) == ("example", 1, 1437)
    again = call("train", tmp_path / "out" / "config.toml", "--out", tmp_path / "again", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["privacy"]["units"] == 1437
    as_federation = call("simulate", tmp_path / "out" / "config.toml", "--out", tmp_path / "simulated")
    assert as_federation.exit_code == 0, as_federation.output


def test_a_seed_repeats_it(tmp_path: Path) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        assert call("train", *SETTINGS, "--seed", 3, "--out", out).exit_code == 0
    one, two = ((out / "metrics.jsonl").read_text() for out in outs)
    assert one == two
    assert "reproducible, not private (seed 3)" in one


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("clients=5", "clients is 5; it must be 1 without federation (leave it out, or use"),
        ("placement=local", "placement is 'local'"),
        ("dataset=infinite-digits", "examples-per-client is 1; it must be given for infinite-digits"),
        ("dataset=mnist", "run `fedpriv data fetch mnist`"),
        ("device=abacus", "device is 'abacus'"),
    ],
)
def test_refusals_are_one_line_and_come_before_any_work(
    setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path / "nowhere"))
    key = setting.partition("=")[0]
    others = [f"{name}={value}" for name, value in QUICK.items() if name != key]
    chosen = [part for text in (*others, setting) for part in ("--set", text)]
    result = call("train", *chosen, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("fedpriv: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_setting() -> None:
    text = call("train", "--help").stdout
    assert "examples-per-client = 1" in text
    assert "train" in call("--help").stdout

"""The command ``fedpriv sweep``: what it prints, its exit codes, and its live table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.cli.sweep_display import line_of, view
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.definition import read
from fedpriv.simulation.sweeps.driver import Board, Running

SWEEP = """
[settings]
dataset = "digits"
model = "logistic"
clients = 400
sampling-rate = 0.1
rounds = 2

[grid]
placement = ["none", "local"]
seed = [1]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def test_a_dry_run_shows_the_cells_and_their_noise_and_runs_nothing(file: Path) -> None:
    command = ["sweep", str(file), "--out", str(file.parent / "out"), "--dry-run"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("placement=")] == [
        "placement=none", "placement=local",
    ]  # fmt: skip
    assert "no noise" in shown.stdout
    assert lines[-2] == "2 cells, 2 settings tried. Nothing was kept."
    assert re.fullmatch(
        r"About \d:\d\d for 2 runs on this machine, 2 side by side, by a few rounds of 2 kinds of cells\.",
        lines[-1],
    )
    assert not (file.parent / "out").exists()
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found["settings tried"] == 2
    assert found["cells"][0]["noise multiplier"] is None
    assert found["cells"][1]["noise multiplier"] > 0
    assert found["cells"][1]["noise on the mean"] > 0
    assert 0 < found["seconds"] < 600


def test_the_command_prints_a_line_a_cell_a_table_and_the_number_of_settings(file: Path) -> None:
    out = file.parent / "out"
    done = CliRunner().invoke(app, ["sweep", str(file), "--out", str(out), "--jobs", "2"])
    assert done.exit_code == 0, done.output
    assert "NOTE: All cells are reproducible, not private (seed 1)." in done.stdout
    assert "2 cells, 2 settings tried; 2 side by side" in done.stdout
    assert "2/2  placement=" in done.stdout
    assert "epsilon spent" in done.stdout
    assert "2 cells, 2 settings tried: the best of many is optimistic." in done.stdout
    assert f"{out}/results.csv has all evaluations" in done.stdout
    again = CliRunner().invoke(app, ["sweep", str(file), "--out", str(out), "--json"])
    found = json.loads(again.stdout)
    assert (found["cells"], found["settings tried"], found["ended"], found["failed"]) == (2, 2, 2, {})
    assert [row["placement"] for row in found["rows"]] == ["none", "local"]
    shown = CliRunner().invoke(app, ["sweep", str(file), "--out", str(out), "--dry-run"])
    assert shown.stdout.count("all rounds") == 2
    assert shown.stdout.splitlines()[-1] == "All runs have ended."
    file.write_text(SWEEP.replace("[1]", "[2]"))
    refused = CliRunner().invoke(app, ["sweep", str(file), "--out", str(out)])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"fedpriv: {out} holds another sweep, in which [grid] seed is [1] there")


@pytest.mark.slow
def test_a_failing_cell_makes_the_exit_code_1(file: Path) -> None:
    out = file.parent / "out"
    plans.claim(out, read(file))
    (out / "placement=local").write_text("in the way of the cell's folder")
    done = CliRunner().invoke(app, ["sweep", str(file), "--out", str(out)])
    assert done.exit_code == 1, done.output
    assert "placement=local FAILED: out is" in done.stdout
    assert (out / "placement=none" / "report.json").is_file()
    assert (
        f"`fedpriv sweep {file} --out {out}` continues the sweep: it runs the failed cells again"
        in done.stdout
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rounds = 2", "rounds = 0"), ["rounds is 0"]),
        (("[1]", "[]"), ["[grid] seed is []"]),
        (("clients = 400", "clients = 400\ndelta = 0.5"), ["Cell placement=local cannot be run", "delta"]),
        (("[grid]", "[tune]\nlearning-rate = [1, -1]\n[grid]"), ["Cell placement=none,seed=1 cannot", "-1"]),
        (
            ("[grid]", "[tune]\nclip-norm = [1.0, inf]\n[grid]"),
            ["Cell placement=local with clip-norm=inf cannot be run", "be finite where noise is added"],
        ),
    ],
)
def test_a_bad_sweep_is_refused_before_any_folder_is_made(
    file: Path, change: tuple[str, str], words: list[str]
) -> None:
    file.write_text(SWEEP.replace(*change))
    refused = CliRunner().invoke(app, ["sweep", str(file), "--out", str(file.parent / "out")])
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    for word in words:
        assert word in refused.stderr
    assert not (file.parent / "out").exists()


def test_the_live_table_shows_what_runs_and_how_much_is_left() -> None:
    board = Board(8, ["x"] * 5, rounds=80, running={"seed=1": Running(5, 10, "accuracy 50.00%", "0.5 of 3")})
    board.running["seed=2"], board.done, board.failed = Running(), {"seed=3": "rounds"}, {"seed=4": "no"}
    console = Console(width=100)
    with console.capture() as captured:
        console.print(view(board, 0.0))
    text = captured.get()
    assert "1 of 8 done, 2 running, 5 waiting, 1 FAILED" in text
    assert "5/10" in text
    assert "accuracy 50.00%" in text
    assert "loading" in text
    assert line_of(board, "seed=3", "accuracy 1.00%") == "2/8  seed=3  accuracy 1.00%"

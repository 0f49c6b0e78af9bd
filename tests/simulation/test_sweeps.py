"""Sweeps run, continue after interruptions and kills, and write one table and one picture."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.killed import begun_and_killed

import fedpriv
from fedpriv import ArgumentError
from fedpriv.accounting import LedgerError
from fedpriv.accounting import ledger as ledgers
from fedpriv.config.schema import Config
from fedpriv.runs.run_dir import FILES
from fedpriv.simulation.run import simulate
from fedpriv.simulation.sweeps import cell, driver, plans, tuning
from fedpriv.simulation.sweeps.driver import Board, Running, Watch
from fedpriv.simulation.sweeps.pool import Pool

pytestmark = pytest.mark.xdist_group("sweeps")  # one process makes the sweeps that several tests look at

FEW = {"dataset": "digits", "model": "logistic", "clients": 400, "sampling-rate": 0.1}
TINY = {
    "settings": {**FEW, "rounds": 4, "evaluate-every": 2},
    "grid": {"optimizer": ["dp-sgd", "dp-adam"], "seed": [1, 2]},
    "override": [{"when": {"optimizer": "dp-adam"}, "learning-rate": 0.05}],
}
# Long enough to be killed in, with releases between evaluations; runs of local noise cannot be resumed.
LONG = {
    "settings": {**FEW, "rounds": 100, "evaluate-every": 7, "seed": 1},
    "grid": {"placement": ["none", "local"]},
    "override": [{"when": {"placement": "local"}, "max-participations": 20}],
}
LONGER = {**LONG, "grid": {"placement": ["central", "none", "local"]}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> fedpriv.simulation.sweeps.api.SweepResult:
    return fedpriv.sweep(TINY, tmp_path_factory.mktemp("sweep") / "tiny", jobs=2, progress=False)


def uninterrupted(definition: dict[str, Any], folder: Path) -> str:
    """The table of a sweep without any interruption."""
    tuning.run(plans.prepare(definition), folder, jobs=2)
    return (folder / "results.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return uninterrupted(LONG, tmp_path_factory.mktemp("whole") / "long")


@pytest.fixture(scope="module")
def longer_whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return uninterrupted(LONGER, tmp_path_factory.mktemp("whole") / "longer")


def test_each_cell_is_an_ordinary_run(tiny: Any) -> None:
    assert tiny.failed == {}
    assert not tiny.interrupted
    for one in tiny.sweep.cells:
        assert {path.name for path in (tiny.folder / one.name).iterdir()} == set(FILES)
    settings = {**FEW, "rounds": 4, "evaluate-every": 2, "seed": 2, "engine": "in-process"}
    alone = simulate({**settings, "optimizer": "dp-sgd"})
    assert tiny["optimizer=dp-sgd,seed=2"].metrics == alone.metrics
    assert tiny["optimizer=dp-sgd,seed=1"].metrics != alone.metrics
    with pytest.raises(KeyError):
        _ = tiny["optimizer=dp-sgd,seed=3"]


def test_the_table_has_a_row_for_each_cell_and_evaluation(tiny: Any) -> None:
    with (tiny.folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "optimizer", "seed", "learning-rate", "epsilon", "round", "accuracy", "epsilon spent",
        "settings tried",
    ]  # fmt: skip
    assert [(row["optimizer"], row["seed"], row["round"]) for row in rows] == [
        (optimizer, seed, number)
        for optimizer in ("dp-sgd", "dp-adam") for seed in "12" for number in "24"
    ]  # fmt: skip
    assert {row["learning-rate"] for row in rows[4:]} == {"0.05"}
    assert float(rows[0]["learning-rate"]) > 0  # what the run used, where none was given
    last = tiny["optimizer=dp-adam,seed=2"].metrics[-1]
    assert (float(rows[-1]["accuracy"]), float(rows[-1]["epsilon spent"])) == (
        last["accuracy"],
        last["epsilon"],
    )
    assert {float(row["epsilon"]) for row in rows} == {3.0}
    assert len(tiny.to_pandas()) == len(tiny.rows) == 8


def test_the_result_says_how_many_settings_were_tried(tiny: Any) -> None:
    assert "4 cells, 2 settings tried; 4 ended" in repr(tiny)
    assert "4 cells, 2 settings tried" in tiny._repr_html_()
    assert tiny._repr_html_().count("<tr>") == 5
    assert (tiny.folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tiny.folder / "sweep.svg").read_bytes()
    assert len(tiny.plot().axes) == 1


def test_finished_cells_are_not_run_again(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(jobs: int) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(driver, "Pool", refuse)
    table = (tiny.folder / "results.csv").read_text()
    (tiny.folder / "results.csv").unlink()
    again = fedpriv.sweep(TINY, tiny.folder, progress=False)
    assert (tiny.folder / "results.csv").read_text() == table
    assert len(again.ended) == 4


def test_a_sweep_that_goes_on_is_not_begun_twice(tiny: Any) -> None:
    with (
        cell.held(tiny.folder / "locks" / "sweep.lock"),
        pytest.raises(ArgumentError, match="another process holds it"),
    ):
        fedpriv.sweep(TINY, tiny.folder, progress=False)


class EndAfter(Watch):
    """Interrupts a sweep once so many rounds of all cells have been seen."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.seen, self.lines = rounds, 0, list[str]()

    def show(self, board: Board) -> None:
        self.seen = max(self.seen, board.rounds_done + sum(one.round for one in board.running.values()))

    def ended(self, board: Board, cell: str, text: str) -> None:
        self.lines.append(f"{cell} {text}")

    def check(self) -> None:
        if self.seen >= self.rounds:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_to_the_same_table(tmp_path: Path, whole: str) -> None:
    found, folder = plans.prepare(LONG), tmp_path / "long"
    board, interrupted = driver.run(found, folder, 1, EndAfter(1))
    assert (board.done, board.failed, interrupted) == ({}, {}, True)
    report = json.loads((folder / "placement=none" / "report.json").read_text())
    assert report["result"]["stopped"] == "interrupted"
    assert (folder / "results.csv").read_text() == ""
    watch = EndAfter(10**9)
    board, interrupted = driver.run(found, folder, 2, watch)
    assert (len(board.done), interrupted) == (2, False)
    assert (folder / "results.csv").read_text() == whole
    assert len(watch.lines) == 2
    resumed = json.loads((folder / "placement=none" / "report.json").read_text())["result"]
    assert resumed["resumed after rounds"] != []


def running(definition: dict[str, Any], folder: Path) -> Callable[[], object]:
    """What runs a sweep, all of its cells checked."""
    found = plans.prepare(definition)
    return lambda: tuning.run(found, folder, jobs=2)


def require_the_same(definition: dict[str, Any], folder: Path, waits: list[float], whole: str) -> None:
    for wait in waits:
        assert begun_and_killed(running(definition, folder), folder, wait), "it ended before it was killed"
    outcome = tuning.run(plans.prepare(definition), folder, jobs=2)
    assert outcome.board.failed == {}
    found = outcome.sweep
    for one in found.cells:  # a seeded cell charges every release once, whatever interrupted it
        charged = sum(event.count for event in ledgers.read(folder / one.name / "ledger.jsonl").events)
        assert charged == found.plans[one.name].rounds
    assert (folder / "results.csv").read_text() == whole
    assert not list(folder.glob(".*"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_table(tmp_path: Path, whole: str) -> None:
    require_the_same(LONG, tmp_path / "long", [0.02, 0.2], whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [0, *(pytest.param(point, marks=pytest.mark.exhaustive) for point in range(1, 20))]
)
def test_a_sweep_killed_at_any_moment_goes_on_to_the_same_table(
    tmp_path: Path, longer_whole: str, point: int
) -> None:
    wait = np.random.default_rng(point).uniform(0, 2)
    require_the_same(LONGER, tmp_path / "longer", [float(wait)], longer_whole)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_tuned_sweep_killed_in_its_search_and_after_it_goes_on_to_the_same_table(tmp_path: Path) -> None:
    grid, tune = {"placement": ["central"]}, {"learning-rate": [0.5, 2.0]}
    tuned = {"settings": {**LONG["settings"], "rounds": 40}, "grid": grid, "tune": tune}
    whole = uninterrupted(tuned, tmp_path / "whole")
    require_the_same(tuned, tmp_path / "killed", [0.1, 0.0], whole)


@pytest.mark.slow
def test_cells_end_with_their_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    begun_and_killed(running(LONG, folder), folder, 0.0)
    deadline = time.monotonic() + 10
    while True:
        try:
            for path in folder.glob("*/ledger.jsonl"):
                ledgers.require_unused(path)
            break
        except LedgerError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    before = {path: path.stat().st_size for path in folder.glob("*/ledger.jsonl")}
    assert before
    time.sleep(0.3)
    assert {path: path.stat().st_size for path in folder.glob("*/ledger.jsonl")} == before


BRITTLE = """
import sys
import torch

def loss(outputs, y):
    if "pytest" not in sys.modules:
        raise ZeroDivisionError("the loss is brittle")
    return torch.nn.functional.cross_entropy(outputs, y, reduction="none")
"""


@pytest.fixture
def brittle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a loss that fails in every process but this one."""
    (tmp_path / "brittle.py").write_text(BRITTLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("brittle", None)


@pytest.mark.slow
def test_a_cell_that_fails_does_not_stop_the_others(brittle: Path) -> None:
    grid = {"loss": ["brittle:loss", ""], "seed": [1]}
    found, watch = plans.prepare({"settings": {**FEW, "rounds": 2}, "grid": grid}), EndAfter(10**9)
    board, interrupted = driver.run(found, brittle / "out", 1, watch)
    [failed] = board.failed
    assert failed.startswith("loss=brittle_loss-")
    assert "ZeroDivisionError: the loss is brittle" in board.failed[failed]
    assert watch.lines[0].startswith(f"{failed} FAILED: ")
    assert "\n" not in watch.lines[0]
    assert "the loss is brittle" in (brittle / "out" / "logs" / f"{failed}.log").read_text()
    assert list(board.done) == ["loss="]
    assert not interrupted
    rows = list(csv.DictReader((brittle / "out" / "results.csv").open()))
    assert [row["loss"] for row in rows] == [""]


def test_without_a_seed_nothing_that_was_charged_is_forgotten(tmp_path: Path) -> None:
    settings = {**FEW, "rounds": 4, "sampler": "fixed-size", "placement": "local", "max-participations": 2}
    config = Config.parse({**settings, "engine": "in-process"})
    folder, lock = tmp_path / "cell", tmp_path / "lock"

    def end(status: Any) -> None:
        raise KeyboardInterrupt

    assert cell.run(folder, config, lock, end) == "interrupted"
    ledger = (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(ArgumentError, match="hold a run that can be resumed"):
        cell.run(folder, config, lock, lambda status: None)
    assert (folder / "ledger.jsonl").read_bytes() == ledger


def test_a_cell_waits_for_its_earlier_process_and_then_says_so(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        cell.held(tmp_path / "lock"),
        pytest.raises(ArgumentError, match="wait until that process has ended"),
        cell.held(tmp_path / "lock", patience=0.2),
    ):
        pass
    assert time.monotonic() - began >= 0.2


def test_a_process_of_cells_that_is_gone_is_told(tmp_path: Path) -> None:
    with Pool(1) as pool:
        os.kill(pool._process.pid, signal.SIGKILL)
        with pytest.raises(fedpriv.FedprivError, match="fewer jobs side by side need less memory"):
            pool.messages(60)


def test_the_time_that_is_left_follows_the_rounds() -> None:
    board = Board(4, ["c", "d"], rounds=40, began=100.0)
    board.running = {"a": Running(5, 10), "b": Running(3, 10)}
    assert board.left(108.0) is None  # no cell has ended
    board.rounds_done, board.running = 10, {"a": Running(6, 10), "b": Running()}
    assert board.left(108.0) == 12
    board.rounds_done, board.running = 40, {}
    assert board.left(120.0) == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ctrl_c_ends_a_command_that_says_how_to_continue(tmp_path: Path) -> None:
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**FEW, "rounds": 3000}.items())
    (tmp_path / "sweep.toml").write_text(f"[settings]\n{text}[grid]\nseed = [1, 2]\n")
    command = [sys.executable, "-m", "fedpriv", "sweep", "sweep.toml", "--out", "out"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("out/*/ledger.jsonl"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "`fedpriv sweep sweep.toml --out out` continues the sweep" in stdout
    assert "Traceback" not in stderr
    for seed in (1, 2):
        report = json.loads((tmp_path / f"out/seed={seed}/report.json").read_text())
        assert report["result"]["stopped"] == "interrupted"

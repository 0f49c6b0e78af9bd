"""Callbacks follow a run, get public values, and never lose a charge or an output of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedpriv
from fedpriv.accounting.record import read
from fedpriv.runs.exporters.base import numbers
from fedpriv.runs.result import MissingDependencyError, Result
from fedpriv.runs.status import Status

SMALL = {
    "model": "logistic",
    "clients": 300,
    "sampling_rate": 0.1,
    "rounds": 4,
    "evaluate_every": 2,
    "engine": "in-process",
}


class Following(fedpriv.Callback):
    """Keeps all that it is told."""

    def __init__(self, folder: Path | None = None) -> None:
        self.calls: list[Any] = []
        self.folder = folder

    def on_round(self, status: Status) -> None:
        self.calls.append(("round", status.round, status.spent))

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        self.calls.append(("evaluation", dict(record)))
        if self.folder:
            last = (self.folder / "metrics.jsonl").read_text().splitlines()[-1]
            assert json.loads(last) == record  # it is on disk by now
            assert len(read(self.folder / "ledger.jsonl").events) == record["releases"]  # and charged

    def on_end(self, result: Result) -> None:
        self.calls.append(("end", str(result.stopped), result.epsilon))
        if self.folder:
            assert (self.folder / "report.json").is_file()


def test_a_callback_gets_what_the_runs_files_hold(tmp_path: Path) -> None:
    following = Following(tmp_path / "run")
    result = fedpriv.simulate(SMALL, folder=tmp_path / "run", callbacks=[following])
    assert result.notes == fedpriv.simulate(SMALL).notes  # no assertion of the callback failed
    assert [call[:2] if call[0] == "round" else call[0] for call in following.calls] == [
        ("round", 1), "evaluation", ("round", 2), ("round", 3), "evaluation", ("round", 4), "end",
    ]  # fmt: skip
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [call[1] for call in following.calls if call[0] == "evaluation"] == [
        json.loads(one) for one in lines
    ]
    assert following.calls[-1] == ("end", "rounds", result.epsilon)
    assert all(call[2] <= 3 for call in following.calls if call[0] == "round")


@pytest.mark.parametrize("method", ["on_round", "on_evaluation", "on_end"])
def test_an_error_in_a_callback_loses_nothing(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(fedpriv.Callback):
        calls = 0

    def fails(self: Failing, told: object) -> None:
        Failing.calls += 1
        raise RuntimeError("the tracker is away")

    setattr(Failing, method, fails)
    following = Following()
    with caplog.at_level(logging.WARNING):
        result = fedpriv.simulate(SMALL, folder=tmp_path / "run", callbacks=[Failing(), following])
    assert (result.stopped, Failing.calls) == ("rounds", 1)
    assert len(read(tmp_path / "run" / "ledger.jsonl").events) == 4
    assert (tmp_path / "run" / "report.json").is_file()
    assert len(following.calls) == 7  # others are told everything
    [note] = [note for note in result.notes if "callback" in note]
    assert f"Failing.{method} failed" in note
    assert "RuntimeError: the tracker is away, at " in note
    assert "test_callbacks.py" in caplog.text


def test_a_callback_cannot_change_a_record(tmp_path: Path) -> None:
    class Changing(fedpriv.Callback):
        def on_evaluation(self, record: Mapping[str, Any]) -> None:
            record["epsilon"] = 0.0  # type: ignore[index]

    result = fedpriv.simulate(SMALL, folder=tmp_path / "run", callbacks=[Changing()])
    assert result.metrics[-1]["epsilon"] > 0
    assert any("Changing.on_evaluation failed" in note for note in result.notes)


def test_ctrl_c_in_a_callback_ends_the_run_after_its_round(tmp_path: Path) -> None:
    class Ending(fedpriv.Callback):
        def on_round(self, status: Status) -> None:
            if status.round == 2:
                raise KeyboardInterrupt

    result = fedpriv.simulate(SMALL, folder=tmp_path / "run", callbacks=[Ending()])
    assert result.stopped == "interrupted"
    assert result.epsilon == 3  # a run that somebody ends costs its whole budget
    following = Following()
    again = fedpriv.resume(tmp_path / "run", callbacks=[following])
    assert again.stopped == "rounds"
    assert [call[1] for call in following.calls if call[0] == "round"] == [3, 4]


def test_a_failed_run_is_told_as_failed() -> None:
    following = Following()

    def breaks(status: Status) -> None:
        raise ValueError("a display broke")

    with pytest.raises(ValueError, match="a display broke"):
        fedpriv.simulate(SMALL, progress=breaks, callbacks=[following])
    assert following.calls[-1][:2] == ("end", "failed")


def test_what_is_no_callback_is_refused_before_the_run() -> None:
    with pytest.raises(fedpriv.ArgumentError, match=r"callbacks is .*subclass fedpriv.Callback"):
        fedpriv.simulate(SMALL, callbacks=[print])  # type: ignore[list-item]


def test_trackers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from fedpriv.runs.exporters import MLflow, TensorBoard, WandB

    for name, make in (("tensorboard", lambda: TensorBoard(tmp_path)), ("mlflow", MLflow), ("wandb", WandB)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingDependencyError, match=rf"pip install 'fedpriv\[{name}\]'"):
            make()


def test_exporters_hand_over_measurements_alone() -> None:
    result = fedpriv.simulate(SMALL)
    assert set(numbers(result.metrics[-1])) == {"accuracy", "loss", "epsilon"}


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own
def test_tensorboard_has_the_runs_values(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fedpriv.runs.exporters import TensorBoard

    result = fedpriv.simulate(SMALL, callbacks=[TensorBoard(tmp_path)])
    assert not any("callback" in note for note in result.notes)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    scores = [(event.step, event.value) for event in found.Scalars("accuracy")]
    assert scores == [(one["round"], pytest.approx(one["accuracy"])) for one in result.metrics]
    assert [event.step for event in found.Scalars("epsilon_spent")] == [1, 2, 3, 4]
    assert found.Scalars("epsilon")[-1].value == pytest.approx(result.epsilon)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_mlflow_has_the_runs_values(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from fedpriv.runs.exporters import MLflow

    uri = f"sqlite:///{tmp_path}/runs.db"
    result = fedpriv.simulate(SMALL, callbacks=[MLflow("ours", uri)])
    assert not any("callback" in note for note in result.notes)
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
    scores = [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "accuracy")]
    assert scores == [(one["round"], pytest.approx(one["accuracy"])) for one in result.metrics]
    assert run.info.status == "FINISHED"
    assert run.data.params["clients"] == "300"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of W&B's own
def test_wandb_has_the_runs_values(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    from fedpriv.runs.exporters import WandB

    class Looking(WandB):
        def on_end(self, result: Result) -> None:
            self.last = dict(self._run.summary)
            super().on_end(result)
            self.config = dict(self._run.config)

    exporter = Looking("ours", mode="offline", dir=str(tmp_path))
    result = fedpriv.simulate(SMALL, callbacks=[exporter])
    assert not any("callback" in note for note in result.notes)
    assert exporter.last["accuracy"] == pytest.approx(result.score)
    assert exporter.last["round"] == 4
    assert exporter.config["clients"] == "300"
    assert list(tmp_path.rglob("*.wandb"))

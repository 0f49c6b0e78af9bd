"""A run's folder: whole, marked, never overwritten by chance, valid after failures, and silent on data."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.small import small, write_mnist
from safetensors import safe_open
from safetensors.torch import load_file

from fedpriv._internal import run_files
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import LedgerError
from fedpriv.accounting import ledger as ledgers
from fedpriv.accounting.events import Event
from fedpriv.config.builders import make_source, make_task
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data import DataError
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.query import NoisyAnswer
from fedpriv.node.factory import make_worker
from fedpriv.optimizers import PrivateOptimizer
from fedpriv.optimizers.base import State
from fedpriv.report.summary import CHANCE
from fedpriv.runs import checkpoints
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import COMPARISON_FILES, FILES, RunFolder
from fedpriv.runs.runner import Status, execute

PLACEMENTS = ("none", "central", "local", "distributed")


class Engine:
    """The node in this process, with something happening at each gathering."""

    def __init__(self, config: Config, happens: Callable[[SumRequest], None] = lambda request: None) -> None:
        self.side: Worker = make_worker(config.table())
        self.happens = happens
        self.closed = 0

    def gather(self, request: SumRequest) -> PartialSum:
        self.happens(request)
        return self.side.gather(request)

    def close(self) -> None:
        self.closed += 1


def run_in(
    folder: Path, config: Config, happens: Callable[[SumRequest], None] = lambda request: None
) -> Result:
    return execute(make_plan(config), Engine(config, happens), RunFolder.create(folder))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config, Result]:
    folder, config = tmp_path_factory.mktemp("run") / "out", small(seed=3)
    return folder, config, run_in(folder, config)


def test_the_folder_holds_every_file_and_nothing_else(finished: tuple[Path, Config, Result]) -> None:
    assert {path.name for path in finished[0].iterdir()} == set(FILES)


def test_the_configuration_is_resolved_and_runs_again(finished: tuple[Path, Config, Result]) -> None:
    folder, config, result = finished
    values = tomllib.loads((folder / "config.toml").read_text())
    again = Config.parse(values)
    assert again == config.resolved()
    assert values["rho-mu"] == 2.0
    assert values["delta"] == 1 / 4000
    assert torch.equal(execute(make_plan(again), Engine(again)).params, result.params)


def test_the_ledger_holds_the_charged_releases(finished: tuple[Path, Config, Result]) -> None:
    folder, config, _ = finished
    assert ledgers.read(folder / "ledger.jsonl").events == make_plan(config).mechanism.planned_events()


def test_the_model_is_the_last_one(finished: tuple[Path, Config, Result]) -> None:
    folder, config, result = finished
    task = make_task(config, make_source(config))
    params = task.layout.join(load_file(folder / "model.safetensors"))
    assert torch.equal(params, result.params)
    scores = task.evaluate(params, *make_source(config).test("cpu"))
    assert scores["accuracy"] == result.metrics[-1]["accuracy"]
    with safe_open(folder / "model.safetensors", "pt") as file:  # type: ignore[no-untyped-call]
        assert file.metadata()["round"] == "6"


def test_metrics_are_public_and_nothing_else(finished: tuple[Path, Config, Result]) -> None:
    """No timing, no cohort or reply counts, nothing of training clients."""
    records = lines(finished[0] / "metrics.jsonl")
    assert [record["round"] for record in records] == [2, 4, 6]
    keys = {"round", "releases", "accuracy", "loss", "data", "epsilon", "remark"}
    assert all(set(record) == keys for record in records)
    assert {record["data"] for record in records} == {"public test set"}
    spent = [float(str(record["epsilon"])) for record in records]
    assert spent == sorted(spent)
    assert 0.99 * 3 <= spent[-1] <= 3


def test_reports_and_picture_are_whole(finished: tuple[Path, Config, Result]) -> None:
    folder, _, result = finished
    assert json.loads((folder / "report.json").read_text()) == result.report
    assert (folder / "report.md").read_text().startswith("# Run report")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "mark"),
    [({"seed": 3}, "reproducible, not private"), ({"placement": "none"}, "not private: no noise is added")],
)
def test_every_file_of_a_run_that_is_not_private_says_so(
    tmp_path: Path, changes: dict[str, object], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda self, text, **_: titles.append(text))
    run_in(tmp_path / "out", small(**changes))
    for name in set(FILES) - {"curves.png", "metrics.jsonl", "ledger.jsonl.head"}:
        assert mark in (tmp_path / "out" / name).read_bytes().decode("utf-8", "ignore"), name
    assert all(mark in str(record["remark"]) for record in lines(tmp_path / "out" / "metrics.jsonl"))
    assert mark in titles[0]


def test_one_seed_writes_the_same_files(finished: tuple[Path, Config, Result], tmp_path: Path) -> None:
    """Byte for byte: in each process safetensors orders metadata in its own way."""
    folder, config, _ = finished
    run_in(tmp_path / "out", config)
    for name in ("config.toml", "metrics.jsonl", "ledger.jsonl", "model.safetensors", run_files.STATE):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_private_run_carries_no_such_mark(tmp_path: Path) -> None:
    run_in(tmp_path / "out", small())
    for name in set(FILES) - {"curves.png"}:
        assert "not private" not in (tmp_path / "out" / name).read_bytes().decode("utf-8", "ignore"), name


def test_an_existing_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="or give --overwrite"):
        RunFolder.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(ArgumentError, match="be a folder, not a file"):
        RunFolder.create(tmp_path / "notes.txt")
    deeper = tmp_path / "notes.txt" / "deeper"
    with pytest.raises(ArgumentError, match=f"^out is '{deeper}'; it must be a folder to write to"):
        RunFolder.create(deeper)


def test_overwriting_removes_a_runs_files_and_touches_nothing_else(tmp_path: Path) -> None:
    for name in (*FILES, *COMPARISON_FILES, "notes.txt"):
        (tmp_path / name).write_text("old")
    (tmp_path / "central").mkdir()
    RunFolder.create(tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "central"}


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "out")
    folder.write("report.md", "old")
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        folder.write("report.md", "new")
    assert (tmp_path / "out" / "report.md").read_text() == "old"


def test_the_charge_is_on_disk_before_anyone_is_asked(tmp_path: Path) -> None:
    seen = []

    def look(request: SumRequest) -> None:
        seen.append((request.release + 1, len(ledgers.read(tmp_path / "out" / "ledger.jsonl").events)))

    run_in(tmp_path / "out", small(), look)
    assert seen == [(n, n) for n in range(1, 7)]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("error", "stopped"), [(RuntimeError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_a_run_that_breaks_off_leaves_a_valid_folder(
    tmp_path: Path, error: type[BaseException], stopped: str, placement: str
) -> None:
    """The failure is in round 4's gathering: 4 releases are charged, 3 were made."""
    config, sampler = small(), {"sampler": "fixed-size"} if placement in ("local", "distributed") else {}
    config = small(placement=placement, **sampler)

    def breaks(request: SumRequest) -> None:
        if request.release == 3:
            raise error("broken off")

    engine, folder = Engine(config, breaks), RunFolder.create(tmp_path / "out")
    if stopped == "failed":
        with pytest.raises(error, match="broken off"):
            execute(make_plan(config), engine, folder)
    else:
        assert execute(make_plan(config), engine, folder).stopped == stopped
    assert engine.closed == 1
    assert {path.name for path in folder.path.iterdir()} == set(FILES)
    report = json.loads((folder.path / "report.json").read_text())
    assert (report["result"]["stopped"], report["privacy"]["releases"]) == (stopped, 4)
    assert len(ledgers.read(folder.path / "ledger.jsonl").events) == 4
    with safe_open(folder.path / "model.safetensors", "pt") as file:  # type: ignore[no-untyped-call]
        assert file.metadata()["round"] == "3"


def test_a_run_interrupted_before_its_first_round_leaves_a_valid_folder(tmp_path: Path) -> None:
    def stop(request: SumRequest) -> None:
        raise KeyboardInterrupt

    result = run_in(tmp_path / "out", small(), stop)
    assert (result.stopped, result.metrics) == ("interrupted", [])
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)
    assert "No model was evaluated" in (tmp_path / "out" / "report.md").read_text()


def test_ctrl_c_while_a_charge_is_written_counts_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small()
    engine, folder = Engine(config), RunFolder.create(tmp_path / "out")
    record = ledgers.Ledger.record

    def interrupted(self: ledgers.Ledger, events: Sequence[Event]) -> None:
        record(self, events)
        if len(self) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(ledgers.Ledger, "record", interrupted)
    result = execute(make_plan(config), engine, folder)
    assert result.stopped == "interrupted"
    assert result.report["privacy"]["releases"] == 4
    assert len(ledgers.read(folder.path / "ledger.jsonl").events) == 4


def test_ctrl_c_while_the_last_model_is_evaluated_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(rounds=3, evaluate_every=2)
    engine, folder = Engine(config), RunFolder.create(tmp_path / "out")
    calls: list[int] = []

    def interrupted(self: object, *arguments: object) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"accuracy": 0.5, "loss": 1.0}

    monkeypatch.setattr("fedpriv.tasks.task.Task.evaluate", interrupted)
    assert execute(make_plan(config), engine, folder).stopped == "interrupted"
    assert {path.name for path in folder.path.iterdir()} == set(FILES)


def test_more_rounds_than_were_calibrated_stop_at_the_budget(tmp_path: Path) -> None:
    """A lost reply costs its charge: the budget then ends the run before its rounds do."""
    config = small(placement="distributed", sampler="fixed-size")

    class Lossy(Engine):
        def gather(self, request: SumRequest) -> PartialSum:
            reply = super().gather(request)
            return PartialSum(reply.sums, reply.parties - 1) if request.release == 1 else reply

    result = execute(make_plan(config), Lossy(config), RunFolder.create(tmp_path / "out"))
    assert result.stopped == "budget"
    assert result.report["privacy"]["releases"] == 6
    assert result.report["result"]["rounds"] == 5
    models, _ = result.report["privacy"]["views"]
    assert models["epsilon"]["pld"]["epsilon"] <= 3


def test_nothing_in_the_outputs_depends_on_the_data_but_what_was_released(tmp_path: Path) -> None:
    """Two data sets, other cohorts each time: the same ledger, and the same report but for accuracy."""
    outputs = []
    for seed in (1, 2):
        data = write_mnist(tmp_path / f"data{seed}", seed, train=400 + 100 * seed)
        out = tmp_path / f"out{seed}"
        run_in(out, small(dataset="mnist", data_folder=str(data)))
        report = json.loads((out / "report.json").read_text())
        scores = tuple(report["result"].pop(key) for key in ("accuracy", "loss", "before round 1", CHANCE))
        metrics = lines(out / "metrics.jsonl")
        for record in metrics:
            del record["accuracy"], record["loss"]
        config = (out / "config.toml").read_text().replace(str(data), "")
        outputs.append(((out / "ledger.jsonl").read_text(), report, metrics, config, scores))
    for one, two in zip(outputs[0][:4], outputs[1][:4], strict=True):
        assert one == two
    assert outputs[0][4] != outputs[1][4]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small(placement=placement, rounds=2)
    seen: list[Status] = []
    result = execute(make_plan(config), Engine(config), show=seen.append)
    assert list(tmp_path.iterdir()) == []
    assert [status.round for status in seen] == [1, 2]
    assert seen[-1].score == result.metrics[-1]["accuracy"]
    assert seen[-1].budget == (None if placement == "none" else 3.0)
    shown = [status.spent for status in seen]
    assert shown == [None, None] if placement == "none" else 0 < shown[0] < shown[1] <= 3


def test_the_model_is_on_disk_from_the_first_evaluation_on(tmp_path: Path) -> None:
    """A killed run cannot write its state, so the rounds after its last evaluation are lost."""
    kept: dict[int, bool] = {}
    path = tmp_path / "out" / "model.safetensors"

    def look(status: Status) -> None:
        kept[status.round] = path.exists()
        if status.round == 2:
            with safe_open(path, "pt") as file:
                assert file.metadata()["round"] == "2"

    config = small(evaluate_every=2, rounds=3)
    execute(make_plan(config), make_worker(config.table()), RunFolder.create(tmp_path / "out"), look)
    assert kept == {1: False, 2: True, 3: True}


def test_a_model_that_is_no_longer_finite_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rest of the budget is spent on models that cannot learn again."""
    plan = make_plan(small(rounds=40, evaluate_every=4))
    update = type(plan.mechanism.optimizer).update

    def overflowing(self: PrivateOptimizer, state: State, answer: NoisyAnswer) -> State:
        after = update(self, state, answer)
        return replace(after, params=after.params / 0 if after.step == 3 else after.params)

    monkeypatch.setattr(type(plan.mechanism.optimizer), "update", overflowing)
    result = execute(plan, Engine(plan.config), RunFolder.create(tmp_path / "run"))
    assert result.stopped == "diverged"
    assert (len(result.metrics), result.metrics[0]["round"]) == (1, 4)
    assert result.metrics[0]["accuracy"] is result.metrics[0]["loss"] is None  # not that of label 0
    with pytest.raises(ArgumentError, match="hold a finite model"):
        checkpoints.read(tmp_path / "run", plan)
    assert result.report["privacy"]["releases"] == 4
    assert "the model was no longer finite" in (tmp_path / "run" / "report.md").read_text()


def test_a_run_that_goes_on_is_not_overwritten(tmp_path: Path) -> None:
    def overwrites(request: SumRequest) -> None:
        if request.release == 2:
            with pytest.raises(LedgerError, match="in use: another run writes to it"):
                RunFolder.create(tmp_path / "run", overwrite=True)

    result = run_in(tmp_path / "run", small(), overwrites)
    charged = ledgers.read(tmp_path / "run" / "ledger.jsonl").events
    assert len(charged) == result.report["privacy"]["releases"] == 6
    (tmp_path / "run" / ".model.safetensors.0123").write_text("half of it")  # as a kill leaves it
    RunFolder.create(tmp_path / "run", overwrite=True)
    assert not list((tmp_path / "run").iterdir())


def test_a_comparison_that_goes_on_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "all" / "local").mkdir(parents=True)
    (tmp_path / "all" / "compare.md").write_text("what there is")
    with (
        ledgers.Ledger.create(tmp_path / "all" / "local" / "ledger.jsonl", {}),
        pytest.raises(LedgerError, match="in use"),
    ):
        RunFolder.create(tmp_path / "all", overwrite=True)
    assert (tmp_path / "all" / "compare.md").exists()


def test_of_two_runs_that_begin_at_once_in_a_folder_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first opens its ledger after the second found the folder empty: nothing of it is removed."""
    with ledgers.Ledger.create(tmp_path / run_files.LEDGER, {}) as first:
        monkeypatch.setattr(RunFolder, "check", staticmethod(lambda path, overwrite: Path(path)))
        RunFolder.create(tmp_path)
        with pytest.raises(FileExistsError):
            ledgers.Ledger.create(tmp_path / run_files.LEDGER, {})
        with pytest.raises(LedgerError, match="another run writes to it"):
            RunFolder.create(tmp_path, overwrite=True)
        first.record([Event(1.0, "none", "add-remove")])
    assert len(ledgers.read(tmp_path / run_files.LEDGER).events) == 1


def test_the_picture_ends_at_what_was_charged_also_where_nobody_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Sequence[tuple[int, float]]] = []

    def draws(summary: object, metrics: object, spending: Sequence[tuple[int, float]]) -> bytes:
        drawn.append(spending)
        return b""

    monkeypatch.setattr("fedpriv.report.plots.curves", draws)

    def fails(request: SumRequest) -> None:
        if request.release == 3:
            raise KeyboardInterrupt

    result = run_in(tmp_path / "run", small(), fails)
    [view] = result.report["privacy"]["views"]
    assert result.report["privacy"]["releases"] == 4
    assert drawn[0][-1] == (3, view["epsilon"]["pld"]["epsilon"])
    assert drawn[0][-2][1] < drawn[0][-1][1]


def test_what_fails_before_the_first_round_begins_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: Config) -> None:
        raise DataError("not there")

    config = small()
    engine, folder = make_worker(config.table()), RunFolder.create(tmp_path / "run")
    monkeypatch.setattr("fedpriv.runs.runner.make_source", broken)
    with pytest.raises(DataError):
        execute(make_plan(config), engine, folder)
    assert not list((tmp_path / "run").iterdir())


def test_an_error_is_not_hidden_by_one_of_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise OSError("disk full")

    def fails(request: SumRequest) -> None:
        raise RuntimeError("the reason")

    monkeypatch.setattr("fedpriv.report.markdown.markdown", broken)
    with pytest.raises(RuntimeError, match="the reason") as caught:
        execute(make_plan(small()), Engine(small(), fails), RunFolder.create(tmp_path / "run"))
    assert caught.value.__notes__ == ["and its report could not be written: disk full"]

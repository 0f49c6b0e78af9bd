"""Runs of silos that go on: as if undisturbed, and a lost round is charged once and asked no second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from helpers.small import SMALL_SILOS, small

from fedpriv._internal import run_files
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Ledger, epsilon
from fedpriv.accounting.ledger import read
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.node.silo import ModelDelta, SiloWorker, TrainRequest, make_silo_worker, round_events
from fedpriv.runs import checkpoints
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute

STEPS, ROUNDS = 2, 6
SETTINGS: dict[str, object] = {
    **SMALL_SILOS,
    "clients": 3,
    "silo_steps": STEPS,
    "rounds": ROUNDS,
    "evaluate_every": 2,
}
KINDS: dict[str, dict[str, object]] = {
    "momentum": {},
    "dp-srm": {"optimizer": "dp-srm", "momentum": 0.0},
    "unequal silos": {"client_sizes": "lognormal", "partition": "dirichlet", "silo_sampling": "same-size"},
}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.report.plots.curves", lambda *arguments: b"")


class Killed(BaseException):
    """What ends a run as kill -9 does: neither state nor report is written any more."""


class Silos(SiloWorker):
    """The silos in this process; ``happens`` is called before each round is trained."""

    asked: list[int]

    @classmethod
    def of(cls, config: Config, happens: Callable[[int], None] = lambda number: None) -> Silos:
        made = make_silo_worker(config.table())
        silos = cls(made.plan, made.side)
        object.__setattr__(silos, "asked", [])
        object.__setattr__(silos, "happens", happens)
        return silos

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        self.happens(request.round)  # type: ignore[attr-defined]
        self.asked.append(request.round)
        return super().train(request)


def begin(folder: Path, config: Config, end_after: int) -> Result:
    def show(status: Status) -> None:
        if status.round == end_after:
            raise KeyboardInterrupt

    return execute(make_plan(config), Silos.of(config), RunFolder.create(folder), show)


def killed(folder: Path, config: Config, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed while its silos train in this round."""

    def kill(now: int) -> None:
        if now == number:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("fedpriv.runs.runner._Job.finish", lambda job, stopped: None)
        with pytest.raises(Killed):
            execute(make_plan(config), Silos.of(config, kill), RunFolder.create(folder))


def go_on(folder: Path, config: Config, silos: Silos | None = None) -> Result:
    plan = make_plan(config)
    resumed = checkpoints.read(folder, plan)
    return execute(plan, silos or Silos.of(config), RunFolder(folder), resumed=resumed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_an_interrupted_run_of_silos_goes_on_as_if_it_had_not_been(tmp_path: Path, kind: str) -> None:
    """Bit for bit: the silos' states are kept with the server's."""
    config = small(**{**SETTINGS, **KINDS[kind]})
    whole = execute(make_plan(config), Silos.of(config), RunFolder.create(tmp_path / "whole"))
    assert begin(tmp_path / "run", config, 3).stopped == "interrupted"
    last = go_on(tmp_path / "run", config)
    assert last.stopped == "rounds"
    assert torch.equal(last.params, whole.params)
    ledgers = [read(tmp_path / name / "ledger.jsonl") for name in ("whole", "run")]
    assert ledgers[0].by_silo() == ledgers[1].by_silo()
    assert last.report["privacy"] == whole.report["privacy"]
    assert last.report["result"]["resumed after rounds"] == [3]
    with pytest.raises(ArgumentError, match="have rounds left"):
        checkpoints.read(tmp_path / "run", make_plan(config))


def test_a_round_that_was_charged_and_lost_is_neither_asked_nor_charged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in round 3, after the evaluation at 2: rounds 2 and 3 are paid for and gone."""
    config, folder = small(**SETTINGS), tmp_path / "run"
    plan = make_plan(config)
    killed(folder, config, 3, monkeypatch)
    assert read(folder / "ledger.jsonl").events == plan.events[: 4 * STEPS]
    checkpoint = checkpoints.read(folder, plan)
    assert (checkpoint.state.step, checkpoint.begun, checkpoint.unanswered(plan)) == (2, 4, 2)
    silos = Silos.of(config)
    result = go_on(folder, config, silos)
    assert silos.asked == [4, 5]
    assert result.stopped == "rounds"
    assert read(folder / "ledger.jsonl").events == plan.events
    assert [record["round"] for record in result.metrics] == [2, 4, 6]
    budget = plan.budget
    assert budget is not None
    spent = epsilon(plan.events, budget.delta, budget.method).epsilon
    assert result.metrics[-1]["epsilon"] == pytest.approx(spent, rel=1e-3)
    assert spent <= result.report["privacy"]["views"][0]["epsilon"]["pld"]["epsilon"] + 1e-9 <= budget.epsilon


def test_the_model_does_not_move_in_a_lost_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = small(**SETTINGS), tmp_path / "run"
    killed(folder, config, 2, monkeypatch)
    before = checkpoints.read(folder, make_plan(config)).state.params
    seen: list[torch.Tensor] = []

    class Seen(Silos):
        def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
            seen.append(request.params)
            return super().train(request)

    go_on(folder, config, Seen.of(config))
    assert torch.equal(seen[0], before)


@pytest.mark.parametrize("left", ["other silos alone", "a part of a round"])
def test_a_round_that_a_crash_left_charged_in_part_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """No silo's charges pass its planned ones, and no round is charged twice to any of them."""
    config, folder = small(**{**SETTINGS, **KINDS["unequal silos"]}), tmp_path / "run"
    plan = make_plan(config)
    killed(folder, config, 2, monkeypatch)
    assert checkpoints.read(folder, plan).begun == 3
    worst, *others = plan.schedules
    assert others, "the silos lose differently"
    with Ledger.resume(folder / "ledger.jsonl")[0] as ledger:
        if left == "a part of a round":
            ledger.record(round_events(plan, 3, others[0].events)[:1], silos=list(others[0].silos))
        else:
            for schedule in others:
                ledger.record(round_events(plan, 3, schedule.events), silos=list(schedule.silos))
    assert checkpoints.read(folder, plan).begun == 4
    silos = Silos.of(config)
    result = go_on(folder, config, silos)
    assert silos.asked == [4, 5]
    assert result.stopped == "rounds"
    charged = read(folder / "ledger.jsonl").by_silo()
    for schedule in plan.schedules:
        for silo in schedule.silos:
            own = charged[str(silo)]
            lacks = len(schedule.events) - len(own)
            assert 0 <= lacks <= STEPS
            assert own == (*schedule.events[: 4 * STEPS - lacks], *schedule.events[4 * STEPS :])
    assert len(charged[str(worst.silos[0])]) == (ROUNDS - 1) * STEPS


def test_an_unseeded_run_goes_on_with_new_noise(tmp_path: Path) -> None:
    config = small(**{**SETTINGS, "seed": -1})
    begin(tmp_path / "run", config, 3)
    assert go_on(tmp_path / "run", config).stopped == "rounds"


def test_silos_of_ray_actors_are_not_resumed(tmp_path: Path) -> None:
    plan: Plan = make_plan(small(**{**SETTINGS, "engine": "ray"}))
    with pytest.raises(ArgumentError, match="states of its silos were in its actors' memory only"):
        checkpoints.read(tmp_path, plan)


def test_a_run_whose_silos_are_elsewhere_writes_no_state_that_lacks_theirs(tmp_path: Path) -> None:
    """Flower's simulation engine, say, whatever ``engine`` says."""
    config = small(**SETTINGS)

    class Elsewhere:
        def __init__(self) -> None:
            self.silos = make_silo_worker(config.table())

        def train(self, request: TrainRequest) -> Sequence[ModelDelta]:
            return self.silos.train(request)

        def close(self) -> None:
            """Nothing to release."""

    execute(make_plan(config), Elsewhere(), RunFolder.create(tmp_path / "run"))
    assert not (tmp_path / "run" / run_files.STATE).exists()


def test_a_silo_whose_first_round_failed_goes_on_with_the_first_state() -> None:
    """It has no tensors, and an optimizer with slots would take none of them for another optimizer's."""
    assert checkpoints._silos({}, {"0": 1})[0].slots is None

"""A run that is resumed: the same run, charged for all that it asked, with noise that is new."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small import SMALL, SMALL_SILOS, small
from typer.testing import CliRunner

from fedpriv._internal import run_files, user_code
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Ledger, LedgerError, epsilon
from fedpriv.accounting import ledger as ledgers
from fedpriv.accounting.head import HeadFile
from fedpriv.accounting.record import parse
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.node.factory import make_worker
from fedpriv.optimizers import METHODS
from fedpriv.report.summary import round_0
from fedpriv.runs import checkpoints
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import FILES, RunFolder
from fedpriv.runs.runner import Status, execute


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than the runs, and tests/test_runs.py looks at them."""
    monkeypatch.setattr("fedpriv.report.plots.curves", lambda *arguments: b"")


# A run that is planned and accounted for in an instant: every release has the same noise.
PLAIN = small(optimizer="dp-sgd", seed=5)


class Engine:
    """The node in this process, with something happening at each gathering."""

    def __init__(self, config: Config, happens: Callable[[SumRequest], None] = lambda request: None) -> None:
        self.side: Worker = make_worker(config.table())
        self.happens = happens
        self.releases: list[int] = []

    def gather(self, request: SumRequest) -> PartialSum:
        self.happens(request)
        self.releases.append(request.release)
        return self.side.gather(request)

    def close(self) -> None:
        """Nothing to release."""


def begin(folder: Path, config: Config, end_after: int) -> Result:
    """A run that is interrupted after so many rounds."""

    def show(status: Status) -> None:
        if status.round == end_after:
            raise KeyboardInterrupt

    return execute(make_plan(config), Engine(config), RunFolder.create(folder), show)


def go_on(folder: Path, config: Config, engine: Engine | None = None) -> Result:
    plan = make_plan(config)
    return execute(plan, engine or Engine(config), RunFolder(folder), resumed=checkpoints.read(folder, plan))


class KilledError(RuntimeError):
    pass


def killed(folder: Path, config: Config, release: int) -> None:
    """What is on disk of a run whose process is gone while it gathers this release."""
    alive = folder.with_name("alive")

    def happens(request: SumRequest) -> None:
        if request.release == release:
            shutil.copytree(alive, folder)
            raise KilledError

    with pytest.raises(KilledError):
        execute(make_plan(config), Engine(config, happens), RunFolder.create(alive))
    assert not (folder / "report.json").exists()


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


PUBLIC = {"dataset": "digits", "public_examples": 40, "clients": 400}
WAYS: dict[str, dict[str, object]] = {
    **{
        name: {"optimizer": name}
        for name in ("dp-sgd", "dp-adam", "dp-rmsprop", "dp-adagrad", "dp-yogi", "dynamic-dp-adam", "adp-sgd",
                     "adaptive-adp-sgd", "adadp", "dp-srm", "rrpsgd")
    },
    **{name: {"optimizer": name, "dp2_sgd_steps": 2, "dp2_adaptive_steps": 2}
       for name in ("dp2-rmsprop", "dp2-adagrad", "dp2-yogi", "dp2-adam")},
    "momentum": {"momentum": 0.9},
    "extra-query": {"optimizer": "dp2-rmsprop", "dp2_variant": "extra-query", "dp2_sgd_steps": 2},
    "noise-first": {"optimizer": "dp2-yogi", "dp2_variant": "noise-first", "dp2_sgd_steps": 2},
    "adadps": {"optimizer": "adadps", "public_batch": 8, **PUBLIC},
    "pda-dpmd": {"optimizer": "pda-dpmd", "public_batch": 8, **PUBLIC},
    "adaptive clip norm": {"adaptive_quantile": 0.5, "optimizer": "dp-sgd"},
    "averaged": {"averaging": 0.9},
    "random iterate": {"optimizer": "dp-srm", "srm_random_iterate": True},
    "regularised": {"regulariser": "l2", "optimizer": "dp-srm"},
    "local": {"placement": "local", "sampler": "fixed-size"},
    "distributed": {"placement": "distributed", "sampler": "fixed-size"},
    "none": {"placement": "none"},
    "everyone": {"sampler": "everyone", "sampling_rate": 1.0},
    "local steps": {"work": "local-steps", "partition": "iid", "examples_per_client": 3, "local_steps": 2},
    "silos": {"unit": "example", "clients": 4, "examples_per_client": 100},
    "per layer": {"clipping": "per-layer"},
}  # fmt: skip


# The others are slow: a run is a second, and there are many ways.
ALWAYS = ("adadp", "dp-srm", "adaptive clip norm")
# Every optimizer's state is stored half way in tests/conformance, too.
SLOW, AGAIN = [pytest.mark.slow], [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("way", "end_after"),
    [
        *((way, 3) for way in ALWAYS),
        *(pytest.param(way, n, marks=pytest.mark.slow) for way in ("adadp", "dp-srm") for n in (1, 4)),
        *(pytest.param(w, 3, marks=AGAIN if w in METHODS else SLOW) for w in WAYS if w not in ALWAYS),
    ],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path, way: str, end_after: int) -> None:
    """Bit for bit: the state holds all that an optimizer remembers."""
    config = small(seed=5, **WAYS[way])
    whole = execute(make_plan(config), Engine(config))
    begun = begin(tmp_path / "parts", config, end_after)
    if whole.metrics[-1]["round"] <= end_after:
        assert way == "rrpsgd"  # whose last round was drawn
        return
    assert begun.stopped == "interrupted"
    last = go_on(tmp_path / "parts", config)
    assert torch.equal(last.params, whole.params)
    assert ledgers.read(tmp_path / "parts" / "ledger.jsonl").events == make_plan(config).events
    scores = {m["round"]: m for m in whole.metrics}
    assert all(scores.get(m["round"], m) == m for m in last.metrics)
    assert [m for m in records(tmp_path / "parts") if m["round"] in scores] == whole.metrics
    assert last.report["privacy"] == whole.report["privacy"]
    assert last.report["result"]["resumed after rounds"] == [end_after]
    assert "resumed after round" in (tmp_path / "parts" / "report.md").read_text()


@pytest.mark.slow
def test_a_run_may_be_resumed_several_times(tmp_path: Path) -> None:
    config = small(seed=5, momentum=0.9, evaluate_every=1)
    whole = execute(make_plan(config), Engine(config))
    begin(tmp_path / "run", config, 1)
    for _ in range(2):
        plan, rounds = make_plan(config), list[int]()

        def show(status: Status, rounds: list[int] = rounds) -> None:
            rounds.append(status.round)
            if len(rounds) == 2:
                raise KeyboardInterrupt

        checkpoint = checkpoints.read(tmp_path / "run", plan)
        execute(plan, Engine(config), RunFolder(tmp_path / "run"), show, checkpoint)
    last = go_on(tmp_path / "run", config)
    assert torch.equal(last.params, whole.params)
    assert last.report["result"]["resumed after rounds"] == [1, 3, 5]
    assert {path.name for path in (tmp_path / "run").iterdir()} == set(FILES)


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dynamic-dp-sgd"])
def test_releases_that_were_charged_and_lost_are_charged_again(tmp_path: Path, optimizer: str) -> None:
    """Killed in release 5, after the evaluation at 4: 4 and 5 are paid for, and made again while they fit."""
    config = small(seed=5, rounds=12, evaluate_every=4, optimizer=optimizer)
    killed(tmp_path / "run", config, 5)
    assert len(ledgers.read(tmp_path / "run" / "ledger.jsonl").events) == 6
    checkpoint = checkpoints.read(tmp_path / "run", make_plan(config))
    assert (checkpoint.state.step, checkpoint.charged, checkpoint.lost) == (4, 6, 2)
    engine = Engine(config)
    result = go_on(tmp_path / "run", config, engine)
    assert result.stopped == "budget"
    events = ledgers.read(tmp_path / "run" / "ledger.jsonl").events
    planned = make_plan(config).events
    assert events[:6] == planned[:6]
    assert events[6:] == planned[4 : 4 + len(events) - 6]  # on from the state, and with its own noise
    assert engine.releases == list(range(6, len(events)))  # whose numbers nothing has used
    budget = make_plan(config).budget
    assert budget is not None
    assert result.metrics[-1]["epsilon"] <= budget.epsilon
    assert epsilon(events, budget.delta, "pld").epsilon <= budget.epsilon
    following = planned[4 + len(events) - 6]
    assert epsilon([*events, following], budget.delta, "pld").epsilon > budget.epsilon


OWNED = SMALL_SILOS | {
    "level": "aggregation",
    "nodes_own_data": True,
    "clients": 3,
    "momentum": 0.0,
    "evaluate_every": 1,
}


@pytest.mark.parametrize("placement", ["central", "local", "distributed"])
def test_a_deployments_release_without_an_answer_stays_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    """The run fails in release 2, and its continuation is killed before it has made anything."""
    config, folder = small(**OWNED | {"placement": placement}), tmp_path / "run"
    plan, nodes = make_plan(config), config.changed(nodes_own_data=False)

    def fails(request: SumRequest) -> None:
        if request.release == 2:
            raise KilledError

    with pytest.raises(KilledError):
        execute(plan, Engine(nodes, fails), RunFolder.create(folder))
    assert json.loads((folder / "report.json").read_text())["result"]["stopped"] == "failed"

    def is_killed(*arguments: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("fedpriv.runs.runner._Job._loop", is_killed)
        patched.setattr("fedpriv.runs.runner._Job.finish", is_killed)
        with pytest.raises(KilledError):
            go_on(folder, config, Engine(nodes))
    checkpoint = checkpoints.read(folder, plan)
    assert (checkpoint.state.step, checkpoint.charged, checkpoint.lost) == (2, 3, 1)
    engine = Engine(nodes)
    result, record = go_on(folder, config, engine), ledgers.read(folder / "ledger.jsonl")
    assert engine.releases == list(range(3, len(record.events)))
    if placement == "distributed":  # a release needs replies, so it is made again
        assert result.stopped == "budget"
        assert record.events[3] == plan.events[2]
    else:  # it is made of noise alone
        assert result.stopped == "rounds"
        assert record.events == plan.events


def test_every_round_says_no_less_than_what_was_spent(tmp_path: Path) -> None:
    config = small(seed=5, rounds=12, evaluate_every=1)
    killed(tmp_path / "run", config, 5)
    plan, told = make_plan(config), list[tuple[float, float]]()

    def show(status: Status) -> None:
        assert status.spent is not None
        assert status.epsilon is not None
        told.append((status.spent, status.epsilon))

    checkpoint = checkpoints.read(tmp_path / "run", plan)
    execute(plan, Engine(config), RunFolder(tmp_path / "run"), show, checkpoint)
    assert len(told) > 3
    assert all(epsilon * (1 - 1e-9) <= spent <= 3 for spent, epsilon in told)


def test_the_score_before_round_1_is_kept_when_a_run_is_resumed(tmp_path: Path) -> None:
    config = PLAIN.changed(seed=-1)  # so that the first parameters cannot be drawn again
    first = begin(tmp_path / "run", config, 2)
    resumed = go_on(tmp_path / "run", config)
    [untrained] = round_0(first.report)
    assert untrained["round"] == 0
    assert 0 <= untrained["accuracy"] <= 1
    assert round_0(resumed.report) == [untrained]
    assert records(tmp_path / "run")[0]["round"] > 0


def test_without_a_seed_what_follows_is_new(tmp_path: Path) -> None:
    config = PLAIN.changed(seed=-1)
    begin(tmp_path / "one", config, 4)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    one, other = (go_on(tmp_path / name, config) for name in ("one", "other"))
    assert not torch.equal(one.params, other.params)


def test_a_run_killed_before_its_first_evaluation_begins_from_where_it_began(tmp_path: Path) -> None:
    config = PLAIN
    killed(tmp_path / "run", config, 1)
    begun = checkpoints.read(tmp_path / "run", make_plan(config))
    assert (begun.state.step, begun.lost) == (0, 2)
    assert go_on(tmp_path / "run", config).metrics[-1]["round"] >= 2


def test_what_was_cut_off_while_it_was_written_is_dropped(tmp_path: Path) -> None:
    config = PLAIN
    killed(tmp_path / "run", config, 3)
    with (tmp_path / "run" / "ledger.jsonl").open("a") as file:
        file.write('{"event": {"noise')
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "lo')
    checkpoint = checkpoints.read(tmp_path / "run", make_plan(config))
    assert checkpoint.charged == 4
    assert [record["round"] for record in checkpoint.metrics] == [2]
    go_on(tmp_path / "run", config)
    assert [record["round"] for record in records(tmp_path / "run")][:2] == [2, 4]
    assert ledgers.read(tmp_path / "run" / "ledger.jsonl").torn is None


def test_a_record_newer_than_the_state_is_made_again(tmp_path: Path) -> None:
    config = PLAIN
    begin(tmp_path / "run", config, 3)  # at 3 the state was written, and an evaluation
    older = begin(tmp_path / "older", config, 2)
    shutil.copy(tmp_path / "older" / run_files.STATE, tmp_path / "run" / run_files.STATE)
    checkpoint = checkpoints.read(tmp_path / "run", make_plan(config))
    assert [record["round"] for record in checkpoint.metrics] == [older.metrics[-1]["round"]] == [2]
    assert checkpoint.lost == 1


_DRAWN_BEFORE = "drawn before round 1 was in memory only"
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "participations": (
        {"placement": "local", "sampler": "fixed-size", "max_participations": 3},
        "max-participations",
    ),
    "random iterate": (
        {"optimizer": "dp-srm", "srm_random_iterate": True},
        _DRAWN_BEFORE,
    ),
    "random end": ({"optimizer": "rrpsgd"}, _DRAWN_BEFORE),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_runs_that_remember_more_than_their_state_are_refused(tmp_path: Path, kind: str) -> None:
    settings, why = REFUSED[kind]
    config = small(**settings)
    plan = make_plan(config)
    begin(tmp_path / "run", config, 1)
    assert not (tmp_path / "run" / run_files.STATE).exists()
    with pytest.raises(ArgumentError, match=why):
        checkpoints.read(tmp_path / "run", plan)


def test_a_run_interrupted_after_its_last_round_has_no_resume_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(config: Config) -> Engine:
        return Engine(config, stop)

    def stop(request: SumRequest) -> None:
        if request.release == wanted:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("fedpriv.simulation.run.make_engine", interrupted)
    flags = [f"--set={key}={value}" for key, value in SMALL.items()]
    for wanted, goes_on in ((3, True), (5, False)):
        told = CliRunner().invoke(app, ["simulate", *flags, "--out", str(tmp_path / str(wanted))])
        assert "interrupted" in told.output
        assert ("continues the run" in told.output) == goes_on


def test_a_run_that_has_ended_is_refused(tmp_path: Path) -> None:
    config = PLAIN
    execute(make_plan(config), Engine(config), RunFolder.create(tmp_path / "done"))
    with pytest.raises(ArgumentError, match="must have rounds left \\(all 6 were run\\)"):
        checkpoints.read(tmp_path / "done", make_plan(config))
    killed(tmp_path / "spent", config, 5)
    assert go_on(tmp_path / "spent", config).stopped == "budget"
    with pytest.raises(ArgumentError, match="ended at its budget"):
        checkpoints.read(tmp_path / "spent", make_plan(config))


def _edit_config(folder: Path) -> None:
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("learning-rate = 1.0", "learning-rate = 2.0"))


def _edit_ledger(folder: Path) -> None:
    text = (folder / "ledger.jsonl").read_text()
    (folder / "ledger.jsonl").write_text(text.replace('"rate":0.1', '"rate":0.01'))


def _flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / run_files.STATE).read_bytes())
    content[-3] ^= 1
    (folder / run_files.STATE).write_bytes(content)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "edited configuration": (_edit_config, "was changed"),
    "edited ledger": (_edit_ledger, "line 2 was edited"),
    "no ledger": (lambda folder: (folder / "ledger.jsonl").unlink(), "must hold a run's ledger.jsonl"),
    "no state": (lambda folder: (folder / run_files.STATE).unlink(), "must hold a run's state.safetensors"),
    "half a state": (
        lambda folder: (folder / run_files.STATE).write_bytes(b"12345678"),
        "an intact state.safetensors",
    ),
    "a flipped bit": (_flip_a_bit, "an intact state.safetensors"),
    "no metrics": (lambda folder: (folder / "metrics.jsonl").unlink(), "an intact metrics.jsonl"),
    "no configuration": (lambda folder: (folder / "config.toml").unlink(), "no config.toml is in it"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_changed_run_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    breaks, said = BROKEN[what]
    begin(tmp_path / "run", PLAIN, 2)
    breaks(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    told = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert told.exit_code == 2
    assert said in told.stderr
    assert told.stderr.count("\n") == 1
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_folders_without_a_run_are_named_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def told(folder: str) -> str:
        result = CliRunner().invoke(app, ["resume", folder])
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        start = f"fedpriv: FOLDER is {folder!r}; it must be the output folder of a run ("
        assert result.stderr.startswith(start)
        return result.stderr.removeprefix(start).removesuffix(")\n")

    Path("file").touch()
    for run in ("compared/central", "compared/local", *(f"runs/{n}" for n in range(1, 6))):
        Path(run).mkdir(parents=True)
        Path(run, "config.toml").touch()
    assert told("nowhere") == "there is no such folder"
    assert told("file") == "it is a file"
    assert told("compared") == "it holds central, local: give the folder of one run"
    assert told("runs") == "it holds several runs: give the folder of one, such as runs/5"
    assert told(".") == "no config.toml is in it"


def test_a_run_that_charged_nothing_yet_is_to_be_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its configuration and its first state."""

    def happens(*arguments: object) -> None:
        raise KilledError

    monkeypatch.setattr(checkpoints, "packed", happens)
    config = small(out=str(tmp_path / "run"))
    with pytest.raises(KilledError):
        execute(make_plan(config), Engine(config), RunFolder.create(tmp_path / "run"))
    said = r"state.safetensors \(nothing was charged: begin the run again, with --overwrite\)$"
    with pytest.raises(ArgumentError, match=said):
        checkpoints.read(tmp_path / "run", make_plan(config))


def _without_its_end(folder: Path) -> None:
    """As a backup has it that took the ledger before the state."""
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:2]))


def _of_another_run(folder: Path) -> None:
    begin(folder.with_name("other"), small(seed=5, rounds=12), 5)
    shutil.copy(folder.with_name("other") / "ledger.jsonl", folder / "ledger.jsonl")


def _seal(folder: Path) -> None:
    """A head that agrees with the ledger as it is now."""
    data = (folder / "ledger.jsonl").read_bytes()
    HeadFile.create(folder / "ledger.jsonl.head", parse(data, "ledger").head).close()


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    ("swap", "said"),
    [(_without_its_end, "ends after event 1, and its head"), (_of_another_run, "is that of another ledger")],
)
def test_a_ledger_of_another_run_than_the_checkpoints_is_refused(
    tmp_path: Path, swap: Callable[[Path], None], said: str, sealed: bool
) -> None:
    """Else release numbers, and with them noise, would be used again."""
    config = PLAIN
    begin(tmp_path / "run", config, 4)
    plan = make_plan(config)
    earlier = checkpoints.read(tmp_path / "run", plan)
    swap(tmp_path / "run")
    if sealed:
        _seal(tmp_path / "run")
        said = "not of the run that the state is of"
    with pytest.raises(LedgerError, match=said):
        checkpoints.read(tmp_path / "run", plan)
    with pytest.raises(LedgerError, match=said):  # swapped after the look
        execute(plan, Engine(config), RunFolder(tmp_path / "run"), resumed=earlier)


def test_a_model_that_is_another_now_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    config = PLAIN
    begin(tmp_path / "run", config, 2)
    plan = make_plan(config)
    other = replace(checkpoints.read(tmp_path / "run", plan), model="another layout")
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(ArgumentError, match="model is 'logistic'; it must be the one that the run began"):
        execute(plan, Engine(config), RunFolder(tmp_path / "run"), resumed=other)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


MINE = """
from torch import nn


def net(inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, 4), nn.{activation}(), nn.Linear(4, 10))
"""


def test_changed_user_code_gives_a_note_and_another_model_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = tmp_path / "net_of_mine.py"
    config = PLAIN.changed(model="net_of_mine:net", rounds=8)

    def write(**form: str) -> None:
        module.write_text(MINE.format(**{"inputs": "784", "activation": "ReLU"} | form))

    def resume() -> Any:
        """As in a process that has not imported the module."""
        sys.modules.pop("net_of_mine", None)
        user_code.source_digest.cache_clear()
        return CliRunner().invoke(app, ["resume", "run"])

    write()
    begin(tmp_path / "run", config, 2)
    told = resume()
    assert told.exit_code == 0, told.output
    assert "not as it was" not in told.stdout
    shutil.rmtree("run")
    begin(tmp_path / "run", config, 2)
    write(activation="Tanh")
    told = resume()
    assert told.exit_code == 0, told.output
    assert (
        "NOTE: the file of model=net_of_mine:net has changed since the run was interrupted\n" in told.stdout
    )
    shutil.rmtree("run")
    begin(tmp_path / "run", config, 2)
    write(inputs="784", activation="ReLU(), nn.Linear(4, 4), nn.ReLU")
    refused = resume()
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "model is 'net_of_mine:net'; it must be the one that the run began with" in refused.stderr


def test_no_report_says_less_than_was_spent_since(tmp_path: Path) -> None:
    """A run that is resumed and killed has no report of the time before."""
    config = PLAIN
    begin(tmp_path / "run", config, 2)
    assert all((tmp_path / "run" / name).is_file() for name in run_files.REPORTS)

    def happens(request: SumRequest) -> None:
        assert not any((tmp_path / "run" / name).exists() for name in run_files.REPORTS)

    assert go_on(tmp_path / "run", config, Engine(config, happens)).stopped == "rounds"
    assert all((tmp_path / "run" / name).is_file() for name in run_files.REPORTS)


@pytest.mark.parametrize("missing", run_files.REPORTS)
def test_a_run_killed_while_it_wrote_its_report_gets_it(tmp_path: Path, missing: str) -> None:
    config = PLAIN
    whole = execute(make_plan(config), Engine(config), RunFolder.create(tmp_path / "run"))
    (tmp_path / "run" / missing).unlink()
    engine = Engine(config)
    last = go_on(tmp_path / "run", config, engine)
    assert engine.releases == []
    assert torch.equal(last.params, whole.params)
    assert last.report["privacy"] == whole.report["privacy"]
    assert (tmp_path / "run" / missing).is_file()


def test_a_run_is_its_ledgers_only_writer_until_its_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, looked = PLAIN, list[str]()

    def curves(*arguments: object) -> bytes:
        with pytest.raises(LedgerError, match="is in use"):
            Ledger.resume(tmp_path / "run" / "ledger.jsonl")
        looked.append("yes")
        return b""

    monkeypatch.setattr("fedpriv.report.plots.curves", curves)
    begin(tmp_path / "run", config, 2)
    assert looked == ["yes"]


@pytest.mark.slow
def test_without_a_cap_a_client_may_have_given_data_to_every_release(tmp_path: Path) -> None:
    """Under local noise repeated releases are charged again, in the report and in the ledger."""
    config = small(
        seed=5, placement="local", sampler="fixed-size", max_participations=12, rounds=12, evaluate_every=6,
        optimizer="dynamic-dp-sgd",
    )  # fmt: skip
    killed(tmp_path / "run", config, 5)
    result = go_on(tmp_path / "run", config)
    record = ledgers.read(tmp_path / "run" / "ledger.jsonl")
    assert "max participations" not in record.header
    assert result.report["privacy"]["max participations"] == len(record.events)
    [server] = [view for view in result.report["privacy"]["views"] if "server" in view["against"]]
    spent = epsilon(record.events, config.resolved().delta, "pld").epsilon
    assert server["epsilon"]["pld"]["epsilon"] == pytest.approx(spent, rel=1e-9)


def test_a_run_in_progress_is_not_resumed_by_another_process(tmp_path: Path) -> None:
    config = PLAIN
    begin(tmp_path / "run", config, 2)
    with Ledger.resume(tmp_path / "run" / "ledger.jsonl")[0], pytest.raises(LedgerError, match="is in use"):
        go_on(tmp_path / "run", config)
    assert go_on(tmp_path / "run", config).stopped == "rounds"


def test_the_command_goes_on_and_says_so(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    killed(tmp_path / "run", small(out=out, rounds=12, evaluate_every=4), 5)
    told = CliRunner().invoke(app, ["resume", out])
    assert told.exit_code == 0, told.output
    assert "resumed after round 4; 6 releases charged, 2 of them after that round: paid for" in told.output
    assert "stopped before the release that would have passed the budget; test accuracy" in told.output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["result"]["resumed after rounds"] == [4]

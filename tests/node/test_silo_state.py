"""A silo's state on its node's disk: killed, lost, put back or damaged, it costs no privacy."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small import SMALL_SILOS, small
from safetensors.torch import load_file

from fedpriv._internal import tensor_io
from fedpriv.accounting import LedgerError
from fedpriv.accounting.head import Head, head_path
from fedpriv.accounting.ledger import read
from fedpriv.config.builders import initial_params, make_source
from fedpriv.data import Silos
from fedpriv.data.client_files import write_client_file
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.node.policy import RefusedError
from fedpriv.node.silo import SiloWorker, TrainRequest, make_silo_worker, round_events
from fedpriv.node.silo_state import SiloState, SiloStateFile
from fedpriv.rng import Key

RUN, STEPS, ROUNDS = 7, 2, 4
SETTINGS: dict[str, object] = {
    **SMALL_SILOS,
    "clients": 2,
    "silo_steps": STEPS,
    "rounds": ROUNDS,
    "nodes_own_data": True,
    "accounting": "gdp-clt",
}


@dataclass(frozen=True)
class Watched(Worker):
    """Records the releases of a silo's steps, and does something in each."""

    releases: list[int] = field(default_factory=list)
    happens: Callable[[int], None] = lambda release: None

    def gather(self, request: SumRequest) -> PartialSum:
        self.releases.append(request.release)
        self.happens(request.release)
        return super().gather(request)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The file of silo 1's examples."""
    source, path = make_source(small(**SETTINGS)), tmp_path / "node" / "data.npz"
    path.parent.mkdir()
    write_client_file(path, source, Silos(2, 60, source.first).examples(np.array([1]))[0])
    return path


def started(
    data: Path, run: int = RUN, happens: Callable[[int], None] = lambda release: None, **changes: object
) -> SiloWorker:
    """The node's worker, as its process has it after it was started."""
    node = {"partition-id": 1, "num-partitions": 2, "data-file": str(data), "accept-seed": True}
    made = make_silo_worker(small(**{**SETTINGS, **changes}).table(), node, run)
    same = {f.name: getattr(made.side, f.name) for f in fields(made.side)}
    return SiloWorker(
        made.plan, Watched(**same, happens=happens), budget_gate=made.budget_gate, state_file=made.state_file
    )


def asked(worker: SiloWorker, number: int, theta: int = 0) -> torch.Tensor:
    """The answer to a round, for one of several models."""
    params = initial_params(worker.side.task, Key.from_seed(theta))
    [change] = worker.train(TrainRequest(params, number, round_events(worker.plan, number), (1,)))
    return change.delta


def ledger_of(data: Path) -> Path:
    return Path(f"{data}.ledger.jsonl")


def charged(data: Path) -> list[int]:
    """The numbers of the charged rounds."""
    return [labels["round"] for labels in read(ledger_of(data)).labels][::STEPS]


def state_of(data: Path, run: int = RUN) -> Path:
    return SiloStateFile(ledger_of(data), run).path


def in_memory(data: Path, missed: tuple[int, ...], until: int, theta: int = 0) -> torch.Tensor:
    """The answer to round ``until`` of a silo that was never restarted and was not asked in some rounds."""
    worker = started(data)
    worker = SiloWorker(worker.plan, worker.side)
    for number in range(until):
        if number not in missed:
            asked(worker, number)
    return asked(worker, until, theta)


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp-srm", "dp-adam"])
def test_a_node_that_is_started_again_for_each_round_answers_as_if_it_had_not_been(
    data: Path, optimizer: str
) -> None:
    changes = {"optimizer": optimizer, **({"momentum": 0.0} if optimizer != "dp-sgd" else {})}
    whole = started(data, **changes)
    whole = SiloWorker(whole.plan, whole.side)
    for number in range(ROUNDS):
        # From round 2 on the run goes on under another number of Flower's.
        going_on = {"run": 100 + number, "continues": str(RUN)} if number >= 2 else {}
        worker = started(data, **changes, **going_on)  # type: ignore[arg-type]
        assert worker.look_ahead() == ""
        assert torch.equal(asked(worker, number), asked(whole, number))
        assert state_of(data).exists() == (number < ROUNDS - 1), "it is deleted after the last round"
    assert charged(data) == list(range(ROUNDS))
    assert {labels["run"] for labels in read(ledger_of(data)).labels} == {str(RUN)}


def test_only_the_owner_can_read_the_state_and_it_has_noisy_tensors_alone(data: Path) -> None:
    asked(started(data), 0)
    path = state_of(data)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert set(load_file(path)) == {"velocity"}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def killed_in(data: Path, number: int, when: str) -> None:
    """A node's process that is killed by the kernel, ``when`` it answers this round."""
    child = os.fork()
    if not child:
        try:

            def kill(*arguments: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            if when == "answered":
                worker = started(data)
                asked(worker, number)
                kill()
            if when == "charged":
                asked(started(data, happens=kill), number)
            if when == "half written":
                worker = started(data)
                tensor_io.packed = kill  # type: ignore[assignment]
                asked(worker, number)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("when", ["charged", "half written"])
def test_a_node_that_is_killed_before_it_answers_has_charged_and_goes_on_with_the_next_round(
    data: Path, when: str
) -> None:
    asked(started(data), 0)
    killed_in(data, 1, when)
    assert charged(data) == [0, 1]
    worker = started(data)
    assert worker.look_ahead() == ""
    with pytest.raises(RefusedError, match="round 1 was answered before"):
        asked(worker, 1)
    with pytest.raises(RefusedError, match="round 1 was answered before"):
        asked(started(data, run=8, continues=str(RUN)), 1, theta=3)
    assert torch.equal(asked(worker, 2), in_memory(data, (1,), 2))


def test_a_node_that_is_killed_after_its_answer_has_the_state_of_it(data: Path) -> None:
    asked(started(data), 0)
    killed_in(data, 1, "answered")
    worker = started(data, run=8, continues=str(RUN))
    with pytest.raises(RefusedError, match="round 1 was answered before"):
        asked(worker, 1, theta=3)
    assert torch.equal(asked(worker, 2), in_memory(data, (), 2))


def test_a_state_that_was_put_back_makes_no_noise_again(data: Path) -> None:
    """With a seed a round's noise follows from its number: answered again, for another model, the
    difference of two answers would have none."""
    asked(started(data), 0)
    shutil.copy(state_of(data), data.parent / "earlier")
    for number in (1, 2):
        asked(started(data), number)
    shutil.copy(data.parent / "earlier", state_of(data))
    worker = started(data, run=8, continues=str(RUN))
    before = read(ledger_of(data)).events
    for number in (0, 1, 2):
        with pytest.raises(RefusedError, match=f"round {number} was answered before"):
            asked(worker, number, theta=3)
    assert read(ledger_of(data)).events == before
    assert isinstance(worker.side, Watched)
    assert worker.side.releases == []
    answer = asked(worker, 3, theta=3)
    assert worker.side.releases == [3 * STEPS, 3 * STEPS + 1]
    assert torch.equal(answer, in_memory(data, (1, 2), 3, theta=3)), "as a silo that missed rounds"


def test_a_node_without_its_state_begins_afresh_under_what_is_left(data: Path) -> None:
    for number in (0, 1):
        asked(started(data), number)
    state_of(data).unlink()
    worker = started(data, run=8, continues=str(RUN))
    assert "has charged rounds of run 7" in worker.look_ahead()
    assert "begins afresh, under what is left of the budget" in worker.look_ahead()
    for number in (0, 1):
        with pytest.raises(RefusedError, match="answered before"):
            asked(worker, number, theta=3)
    assert torch.equal(asked(worker, 2), in_memory(data, (0, 1), 2))
    assert charged(data) == [0, 1, 2]
    assert started(data, run=9).look_ahead() == "", "of a run that has not begun nothing is lost"


def edited(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def relabelled(path: Path) -> None:
    about = {"round": 1, "charged": {"length": True, "link": "x"}}
    path.write_bytes(tensor_io.packed(load_file(path), {"fedpriv": str(about)}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "one bit": edited,
    "other facts": relabelled,
    "no tensors": lambda path: path.write_bytes(b"text"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused_before_anything_is_charged(data: Path, damage: str) -> None:
    asked(started(data), 0)
    DAMAGES[damage](state_of(data))
    worker = started(data)
    for wanted in (lambda: asked(worker, 1), worker.look_ahead):
        with pytest.raises(LedgerError, match="cannot be read or is damaged: restore a copy, or delete it"):
            wanted()
    assert charged(data) == [0]


def test_the_state_of_another_model_or_optimizer_is_refused_before_anything_is_charged(data: Path) -> None:
    asked(started(data), 0)
    for changes in ({"momentum": 0.0, "optimizer": "dp-adam"}, {"model": "mlp"}):
        worker = started(data, run=8, continues=str(RUN), **changes)
        with pytest.raises(RefusedError, match="another model or optimizer"):
            asked(worker, 1)
    assert charged(data) == [0]


@pytest.mark.parametrize("what", ["put back", "deleted"])
def test_a_ledger_that_is_older_than_the_state_is_refused(data: Path, what: str) -> None:
    """Without an anchor and together with its head it would forget what was answered."""
    files = [ledger_of(data), head_path(ledger_of(data))]
    asked(started(data), 0)
    for file in files:
        shutil.copy(file, f"{file}.copy")
    asked(started(data), 1)
    for file in files:
        file.unlink()
        if what != "deleted":
            shutil.copy(f"{file}.copy", file)
    worker = started(data)
    for wanted in (worker.look_ahead, lambda: asked(worker, 2)):
        with pytest.raises(LedgerError, match=r"[Rr]estore the ledger from a copy"):
            wanted()
    assert isinstance(worker.side, Watched)
    assert worker.side.releases == []


def test_an_answer_waits_for_its_charge_and_its_state_on_disk(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[object] = []
    write = SiloStateFile.write

    def noting(file: SiloStateFile, state: SiloState) -> None:
        assert state.charged == read(ledger_of(data)).head == Head(STEPS, read(ledger_of(data)).links[-1])
        write(file, state)
        order.append("state")

    monkeypatch.setattr(SiloStateFile, "write", noting)
    asked(started(data, happens=order.append), 0)
    assert order == [0, 1, "state"]


def test_a_round_whose_state_cannot_be_written_is_charged_and_not_answered(data: Path) -> None:
    state_of(data).parent.write_text("no folder")
    with pytest.raises(LedgerError, match="cannot be written"):
        asked(started(data), 0)
    assert charged(data) == [0]


def test_the_states_of_the_newest_unfinished_runs_are_kept(data: Path) -> None:
    for run in range(10):
        SiloStateFile(ledger_of(data), run).write(SiloState(1, {}, Head(2, "a hash")))
        os.utime(state_of(data, run), ns=(run, run))
    kept = {int(path.stem) for path in state_of(data).parent.iterdir()}
    assert kept == set(range(2, 10))

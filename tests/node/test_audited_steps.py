"""What a silo of an audit notes of its steps: what it sent, for its owner alone, and in audits alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small import SMALL_SILOS, small

from fedpriv.config.builders import initial_params, make_source
from fedpriv.data import Silos
from fedpriv.data.client_files import write_client_file
from fedpriv.data.source import DataError
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.node.audited_steps import Step, StepNotes
from fedpriv.node.silo import SiloWorker, TrainRequest, make_silo_worker, round_events
from fedpriv.optimizers.base import State
from fedpriv.rng import Key

STEPS, GONE = 3, 7
SETTINGS: dict[str, object] = {
    **SMALL_SILOS,
    "clients": 2,
    "silo_steps": STEPS,
    "rounds": 2,
    "nodes_own_data": True,
    "accounting": "gdp-clt",
    "sampling_rate": 0.5,
}


def node_of(folder: Path, audit: bool = True, audit_file: bool = True, **changes: object) -> SiloWorker:
    """The worker of silo 1, whose example GONE is left out where there is an audit file."""
    source, path = make_source(small(**SETTINGS)), folder / "data.npz"
    write_client_file(path, source, Silos(2, 60, source.first).examples(np.array([1]))[0])
    (folder / "audit.txt").write_text(f"{GONE}\n")
    node = {"partition-id": 1, "num-partitions": 2, "data-file": str(path), "accept-seed": True}
    node |= {"audit-file": str(folder / "audit.txt")} if audit_file else {}
    return make_silo_worker(small(**{**SETTINGS, "audit": audit, **changes}).table(), node, 7)


def test_the_change_of_a_round_follows_from_its_notes(tmp_path: Path) -> None:
    worker, notes = node_of(tmp_path), StepNotes.beside(tmp_path / "audit.txt")
    optimizer = worker.plan.mechanism.optimizer
    params = initial_params(worker.side.task, Key.from_seed(0))
    state = optimizer.init(params)
    for number in range(2):
        request = TrainRequest(params, number, round_events(worker.plan, number), (1,))
        [change] = worker.train(request)
        steps = notes.read(number)
        assert len(steps) == STEPS
        state = State(params, number * STEPS, state.slots)
        for step in steps:
            state = optimizer.update(state, step.answer)
            assert set(step.cohort.tolist()) < set(range(60, 120))
        assert torch.equal(state.params.double() - params.double(), change.delta)


def test_a_cohort_in_the_notes_is_that_of_the_answer(tmp_path: Path) -> None:
    """What is left of the answer without the exact sum over this cohort is noise of the charged length."""
    worker, notes = node_of(tmp_path, epsilon=1e4, accounting="pld"), StepNotes.beside(tmp_path / "audit.txt")
    params, plan = initial_params(worker.side.task, Key.from_seed(0)), worker.plan
    worker.train(TrainRequest(params, 0, round_events(plan, 0), (1,)))
    step = notes.read(0)[0]
    query, size = plan.mechanism.optimizer.query(State(params)), plan.mechanism.sampler.expected_size

    def left(ids: np.ndarray) -> float:
        """As a multiple of the noise's expected length."""
        [total] = worker.side.answer(SumRequest(query, 0, (Shard(0, ids, parties=1, home=1),))).sums
        [std] = query.noise_stds(plan.events[0].noise_multiplier)
        return float((size * step.answer[0].double() - total).norm()) / (std * math.sqrt(len(params)))

    assert left(step.cohort) == pytest.approx(1, abs=0.1)
    assert left(np.setdiff1d(np.arange(60, 120), step.cohort)) > 1.3


def test_notes_are_the_owners_alone(tmp_path: Path) -> None:
    notes = StepNotes(tmp_path / "notes")
    notes.write(0, [Step(np.arange(3), (torch.ones(2),))])
    assert [oct(path.stat().st_mode)[-3:] for path in (notes.folder, *notes.folder.iterdir())] == [
        "700",
        "600",
    ]


@pytest.mark.parametrize(("audit", "audit_file"), [(False, False), (False, True), (True, False)])
def test_nothing_is_noted_but_in_an_audit_that_the_owner_allows(
    audit: bool, audit_file: bool, tmp_path: Path
) -> None:
    """Cohorts are private, and no other run has a use for them."""
    worker = node_of(tmp_path, audit, audit_file)
    params = initial_params(worker.side.task, Key.from_seed(0))
    worker.train(TrainRequest(params, 0, round_events(worker.plan, 0), (1,)))
    assert worker.notes is None
    assert not list(tmp_path.rglob("*.steps"))


@pytest.mark.parametrize("content", [b"", b"{}", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 40])
def test_notes_that_are_damaged_are_refused_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    notes = StepNotes(tmp_path)
    (tmp_path / "0.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="a node's notes of its steps, cannot be read"):
        notes.read(0)


def test_notes_of_another_round_are_refused(tmp_path: Path) -> None:
    notes = StepNotes(tmp_path)
    notes.write(0, [])
    (tmp_path / "0.safetensors").rename(tmp_path / "1.safetensors")
    with pytest.raises(DataError, match="cannot be read"):
        notes.read(1)


def test_a_disk_that_takes_no_notes_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no folder")
    with pytest.raises(
        DataError, match=r"notes, this node's notes for the audit, cannot be written \(File e"
    ):
        StepNotes(tmp_path / "notes").write(0, [])

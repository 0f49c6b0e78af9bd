"""simulations/batches.py: what was run is not run again, and what ended is kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from helpers.scripts import script

JOBS = [{"cell": {"step": step, "shape": (2, 3)}, "seed": seed} for step in (0.1, 0.2) for seed in (0, 1)]


def squared(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "score": job["cell"]["step"] ** 2, "note": "seeded"}


@pytest.mark.parametrize("workers", [None, 2])
def test_only_what_has_no_record_is_run(workers: int | None, tmp_path: Path) -> None:
    batches, path = script("batches.py"), tmp_path / "results.jsonl"
    batches.collect(path, JOBS[:3], squared, workers)
    batches.collect(path, JOBS, squared, workers)
    records = batches.read(path)
    assert [(one["cell"]["step"], one["seed"]) for one in records] == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    assert records[0]["score"] == 0.1**2


def test_runs_that_ended_before_an_error_are_kept(tmp_path: Path) -> None:
    batches, path = script("batches.py"), tmp_path / "results.jsonl"

    def fails_once(job: dict[str, Any]) -> dict[str, Any]:
        return {**job, "score": 1 / (job["seed"] + job["cell"]["step"] - 0.2)}

    with pytest.raises(ZeroDivisionError):
        batches.collect(path, JOBS, fails_once)
    assert len(batches.read(path)) == 2


def test_a_trace_is_the_run_measured_on_its_way() -> None:
    batches = script("batches.py")
    config = {
        "dataset": "digits",
        "model": "logistic",
        "sampling-rate": 0.1,
        "rounds": 5,
        "epsilon": 2.0,
        "delta": 1e-5,
        "evaluate-every": 5,
        "averaging": 0.0,
    }
    cell = batches.Cell("test", "DP-SGD", config)
    found = batches.trace(
        cell, 3, 2, lambda task, params, test: {"loss": task.evaluate(params, *test)["loss"]}
    )
    assert [one["step"] for one in found] == [0, 2, 4, 5]
    assert found[0]["loss"] == pytest.approx(math.log(10), rel=0.1)
    assert found[-1]["loss"] == pytest.approx(batches.run(cell, 3)["loss"], rel=1e-6)

"""simulations/batches.py: what was run is not run again, and what ended is kept."""

from __future__ import annotations

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

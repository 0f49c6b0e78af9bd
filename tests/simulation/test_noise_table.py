"""The noise and the epsilons of placements before any run."""

from __future__ import annotations

import math

import pytest
from helpers.small import small

from fedpriv.simulation import compare, compare_runs, noise_table

SILOS = {
    "unit": "example", "clients": 5, "examples_per_client": 40, "sampler": "everyone", "sampling_rate": 1.0,
    "rounds": 2, "optimizer": "dp-sgd", "colluding_parties": 0,
}  # fmt: skip


def test_a_run_has_the_epsilons_that_were_shown_before_it() -> None:
    chosen = compare.plans(small(rounds=3), ["none", "central", "distributed", "local"])
    ran = compare_runs.run_here(compare_runs.as_sweep(chosen[0].config, chosen))
    for before, row in zip(noise_table.rows(chosen), ran, strict=True):
        after = row.json()
        for key in ("placement", "defends against", "neighbours"):
            assert before[key] == after[key]
        for key in (noise_table.SERVER, noise_table.MODELS):
            assert (before[key] is None) == (after[key] is None)
            assert before[key] is None or before[key] == pytest.approx(after[key])


def test_equal_epsilon_costs_the_square_root_of_the_cohort_and_equal_noise_the_servers_epsilon() -> None:
    names = ["central", "distributed", "secure-aggregation", "local", "client"]
    rows = {row["placement"]: row for row in noise_table.rows(compare.plans(small(**SILOS), names))}
    mean, server = "noise on the mean", noise_table.SERVER
    message = rows["local"]["noise of a message"]
    assert rows["local"][mean] == pytest.approx(message * math.sqrt(5) / 200)
    assert rows["distributed"][mean] == pytest.approx(rows["central"][mean])
    assert rows["distributed"]["noise of a message"] * math.sqrt(5) / 200 == pytest.approx(
        rows["central"][mean]
    )
    assert rows["local"][server] == pytest.approx(3, rel=0.01)
    assert rows["central"][server] is None
    assert rows["distributed"][server] > 1.5 * rows["secure-aggregation"][server]
    assert rows["secure-aggregation"][server] == rows["secure-aggregation"][noise_table.MODELS]
    assert rows["client"][mean] is None
    assert rows["client"][server] == pytest.approx(3, rel=0.01)
    assert noise_table.cells(rows["central"])[-2:] == [
        "infinite",
        f"{rows['central'][noise_table.MODELS]:.3g}",
    ]

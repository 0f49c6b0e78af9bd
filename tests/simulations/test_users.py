"""The user-level benchmark: its sweeps can be read, a short form of one runs, and its tables are current."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.scripts import script

from fedpriv.data.files import data_folder
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.definition import cells, read

users = script("users/run.py")
HERE = Path(users.__file__).parent
MADE = ("synthetic",)  # needs no file


@pytest.mark.parametrize("table", users.TABLES)
def test_a_tables_sweeps_can_be_read_and_have_five_seeds_that_tuning_has_not(table: str) -> None:
    for definition in (users.private(table), users.non_private(users.private(table))):
        found = read(definition)
        assert found.tuning is not None
        assert len(found.grid["seed"]) == 5
        configs = [cell.config for cell in cells(found)]
        assert {config.unit for config in configs} == {"client"}
        assert set(users.FIXED) <= set(users.private(table)["grid"]["optimizer"])
    plain = cells(read(users.non_private(users.private(table))))
    assert {(cell.config.clip_norm, cell.config.placement) for cell in plain} == {(math.inf, "none")}
    assert f"`{table}.toml`" in (HERE / "README.md").read_text()


def test_the_cifar_table_has_pfl_researchs_noise_and_says_it_is_simulated() -> None:
    configs = [cell.config for cell in cells(read(users.private("cifar")))]
    [kind] = {
        (c.noise_cohort, c.noise_population, c.epsilon, c.delta, c.clip_norm, c.rounds) for c in configs
    }
    assert kind == (1000, 10**6, 2.0, 1e-6, 0.4, 1500)
    assert {c.dirichlet_alpha for c in configs if c.partition == "dirichlet"} == {0.1}
    remark = {"remark": "simulated, not private: the noise of"}
    text = users.markdown([{**one, **remark} for one in rows_of("cifar")[:5]], "cifar")
    assert "2 (simulated, not private)" in text


def rows_of(table: str) -> list[dict[str, Any]]:
    """Made-up rows of a search and two seeds, with noise and without; one is of a step size not chosen."""
    made = {"table": table, "part": users.SCORED, "partition": "iid", "rounds": 9, "measure": "accuracy"}
    made |= {"optimizer": "dp-sgd", "method": "dp-sgd", "remark": None, "learning-rate": 0.5, "epsilon": 2.0}
    without = {**made, "method": users.NON_PRIVATE, "epsilon": None}
    return [
        {**made, "part": users.TUNING, "score": 0.6},
        {**made, "part": users.TUNING, "score": 0.5, "learning-rate": 5.0},
        {**made, "score": 0.5, "epsilon": 1.9},
        {**made, "score": 0.9, "learning-rate": 5.0},
        {**made, "score": 0.6},
        {**without, "part": users.TUNING, "score": 0.8},
        {**without, "score": 0.9},
    ]


def test_a_table_has_means_intervals_and_the_largest_epsilon() -> None:
    first, second = users.markdown(rows_of("synthetic"), "synthetic").splitlines()[2:]
    half = 100 * 12.7062 * 0.05 * math.sqrt(2) / math.sqrt(2)
    assert first == f"| dp-sgd | iid | 9 | 0.5 | 2 | 55.0 ± {half:.1f} % | 2 |"
    assert second.endswith("| iid | 9 | 0.5 | 1 | 90.0 % | infinite |")
    assert users.markdown([], "cifar") == "not run"


def test_the_readmes_tables_are_those_of_the_results() -> None:
    text = (HERE / "README.md").read_text()
    for table in users.TABLES:
        assert f"<!-- {table} -->\n{users.markdown(users.results(), table)}\n" in text


@pytest.mark.parametrize("table", MADE)
def test_the_plans_of_a_table_without_files_are_made(table: str) -> None:
    assert len(plans.prepare(users.private(table, seeds=1)).cells) == 5


@pytest.mark.slow
def test_a_short_form_tunes_on_examples_that_no_score_has_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = users.private

    def short(name: str, seeds: int, rounds: int) -> dict[str, Any]:
        found: dict[str, Any] = own(name, seeds, rounds)
        found["grid"]["optimizer"] = [*users.FIXED]
        found["tune"] = {"learning-rate": [0.1, 1.0]}
        found.pop("override", None)
        return found

    monkeypatch.setattr(users, "private", short)
    monkeypatch.setattr(users, "RESULTS", tmp_path / "results.jsonl")
    users.run("synthetic", 1, 2)
    rows = users.results()
    assert [one["part"] for one in rows] == 4 * [users.TUNING, users.TUNING, users.SCORED]
    scored = [one for one in rows if one["part"] == users.SCORED]
    assert [one["method"] for one in scored] == ["dp-sgd", "dp-adam", users.NON_PRIVATE, users.NON_PRIVATE]
    assert all(one["epsilon"] <= 8 and one["kind"] == "bound" for one in scored[:2])
    for at in range(0, 12, 3):
        best = min(rows[at : at + 2], key=users.rank)
        assert rows[at + 2]["learning-rate"] == best["learning-rate"]
    users.run("synthetic", 1, 2)
    assert users.results() == rows


@pytest.mark.data
def test_a_role_is_a_user_and_public_roles_are_none() -> None:
    if not (data_folder(None) / "shakespeare-roles").is_dir():
        pytest.skip("needs shakespeare-roles under FEDPRIV_DATA")
    import user_data

    source = user_data.shakespeare()
    counts = np.bincount(source.owners)
    assert len(counts) == users.private("shakespeare")["settings"]["clients"] == 1030
    assert counts.max() == user_data.MOST
    assert source.shape == (user_data.LENGTH,)

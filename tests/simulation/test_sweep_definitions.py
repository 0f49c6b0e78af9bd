"""What a sweep's file may say, which cells follow from it, and what is refused before any cell runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv import ArgumentError
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.definition import cells, read

FEW = {"dataset": "digits", "model": "logistic", "clients": 400, "sampling-rate": 0.1, "rounds": 2}
CONTRADICTING = {"when": {"optimizer": "dp-sgd"}, "clip-norm": 3}
TWO = {"optimizer": ["dp-sgd", "dp-adam"], "seed": [1, 2]}


def sweep(**parts: Any) -> dict[str, Any]:
    return {"settings": FEW, "grid": TWO, **parts}


def test_cells_are_the_product_of_the_axes_in_their_order() -> None:
    found = cells(read(sweep()))
    assert [cell.name for cell in found] == [
        "optimizer=dp-sgd,seed=1",
        "optimizer=dp-sgd,seed=2",
        "optimizer=dp-adam,seed=1",
        "optimizer=dp-adam,seed=2",
    ]
    assert [(cell.config.optimizer, cell.config.seed) for cell in found[1:3]] == [
        ("dp-sgd", 2),
        ("dp-adam", 1),
    ]
    assert {cell.config.engine for cell in found} == {"in-process"}
    assert {cell.config.clients for cell in found} == {400}


def test_the_toml_file_says_the_same_as_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        '[settings]\ndataset = "digits"\nmodel = "logistic"\nclients = 400\nsampling_rate = 0.1\nrounds = 2\n'
        '[grid]\noptimizer = ["dp-sgd", "dp-adam"]\nseed = [1, 2]\n'
        '[[override]]\nwhen = {optimizer = "dp-adam", seed = 2}\nlearning-rate = 0.5\n'
    )
    override = {"when": {"optimizer": "dp-adam", "seed": 2}, "learning-rate": 0.5}
    found = read(tmp_path / "sweep.toml")
    assert found == read(sweep(override=[override])) == read(found.json())
    assert [cell.config.learning_rate for cell in cells(found)] == [0, 0, 0, 0.5]


def test_an_override_holds_for_all_cells_that_match_and_two_may_agree() -> None:
    override = [
        {"when": {"optimizer": "dp-adam"}, "learning-rate": 0.5, "beta2": 0.9},
        {"when": {"seed": 2, "rounds": 2}, "clip-norm": 0.5},
        {"when": {"optimizer": "dp-adam", "seed": 2}, "learning-rate": 0.5},
    ]
    found = [cell.config for cell in cells(read(sweep(override=override)))]
    assert [(c.learning_rate, c.beta2, c.clip_norm) for c in found] == [
        (0, 0, 1), (0, 0, 0.5), (0.5, 0.9, 1), (0.5, 0.9, 0.5),
    ]  # fmt: skip


def test_cells_that_differ_where_it_has_no_effect_are_one() -> None:
    grid = {"placement": ["none", "central"], "epsilon": [1, 3], "seed": [1, 2]}
    names = [cell.name for cell in cells(read(sweep(grid=grid)))]
    assert names[:3] == [
        "placement=none,seed=1",
        "placement=none,seed=2",
        "placement=central,epsilon=1,seed=1",
    ]
    assert len(names) == 2 + 4


def test_names_are_folders_of_their_own_on_every_file_system() -> None:
    grid = {"initial-weights": ["a/b.safetensors", "a:b.safetensors"], "learning-rate-schedule": ["constant"]}
    names = [cell.name for cell in cells(read({"grid": grid}))]
    assert len(set(names)) == 2
    assert all(name.startswith("initial-weights=a_b.safetensors-") for name in names)
    assert cells(read({"grid": {"seed": [7]}}))[0].name == "cell"
    long = cells(read({"grid": {"data-folder": ["x" * 300, "y"]}}))
    assert len(long[0].name) == 120
    assert [cell.name for cell in cells(read({"grid": {"epsilon": [3.0, 0.5]}}))] == [
        "epsilon=3",
        "epsilon=0.5",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grids": {}}, ["'grids'", "settings, grid, override"]),
        ({"epsilon": 3}, ["'epsilon'", "below [settings]", "below [grid]"]),
        ({"grid": {}}, ["[grid] is missing", "seed = [1, 2]"]),
        ({"grid": {"sead": [1]}}, ["'sead'", "[grid]", "'seed'"]),
        ({"settings": {"optimiser": "dp-sgd"}}, ["'optimiser'", "[settings]", "'optimizer'"]),
        ({"grid": {"seed": []}}, ["[grid] seed", "[]", "at least one value"]),
        ({"grid": {"seed": 3}}, ["[grid] seed", "3", "write [3]"]),
        ({"grid": {"seed": [1, [2]]}}, ["[grid] seed", "[2]", "a number"]),
        ({"grid": {"epsilon": [1, 2, 1.0]}}, ["[grid] epsilon", "1.0 comes twice"]),
        ({"grid": {"model": ["cnn"]}}, ["model", "in [settings] and in [grid]"]),
        ({"settings": {"seed": [1]}, "grid": {"epsilon": [1]}}, ["[settings] seed", "belongs to [grid]"]),
        ({"settings": 3}, ["[settings] is 3", "a table"]),
        ({"settings": {"out": "x"}}, ["[settings] has out", "its own folder"]),
        ({"grid": {"ledger-anchor": ["a", "b"]}}, ["[grid] has ledger-anchor", "each cell has its own"]),
        ({"override": {"when": {"seed": 1}}}, ["override", "[[override]]"]),
        ({"override": [{"clip-norm": 2}]}, ["[[override]] has no when"]),
        ({"override": [{"when": {"seed": 1}}]}, ["when seed=1", "changes nothing"]),
        ({"override": [{"when": {"seed": 1}, "optimizer": "adadp"}]}, ["when seed=1", "an axis"]),
        ({"override": [{"when": {"seed": 9}, "clip-norm": 2}]}, ["when seed=9", "matches no cell"]),
        ({"override": [{"when": {"seed": True}, "clip-norm": 2}]}, ["when seed=true", "matches no cell"]),
        (
            {
                "grid": {"optimizer": ["dp-sgd", "dp-adem"]},
                "override": [{"when": {"optimizer": "dp-adam"}, "clip-norm": 2}],
            },
            ["optimizer is 'dp-adem'", "did you mean 'dp-adam'"],
        ),
        ({"override": [{"when": {"sed": 1}, "clip-norm": 2}]}, ["'sed'", "when", "'seed'"]),
        (
            {"override": [{"when": {"seed": n}, "clip-norm": n + 1} for n in (1, 2)] + [CONTRADICTING]},
            ["optimizer=dp-sgd,seed=1", "contradict", "clip-norm is 2", "3 by"],
        ),
        ({"grid": {"seed": [1], "epsilon": [3, -1]}}, ["seed=1,epsilon=-1", "epsilon is -1"]),
        ({"grid": {"optimizer": ["dp-sgd", "sgd"]}}, ["optimizer=sgd", "did you mean 'dp-sgd'"]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_a_sentence_that_names_the_key(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ArgumentError) as refused:
        cells(read(sweep(**changes)))
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"optimizer": ["dp-adam", "dp-sgd"], "beta2": [0.9]}, ["optimizer=dp-sgd", "beta2", "which needs"]),
        ({"delta": [0.0, 0.1]}, ["delta=0.1", "1 / units"]),
        ({"placement": ["central", "local"], "relation": ["add-remove"]}, ["placement=local", "relation"]),
        (
            {"dataset": ["digits"], "examples-per-client": [1, 5], "partition": ["iid"]},
            ["examples-per-client=5"],
        ),
        ({"nodes-own-data": [True]}, ["nodes-own-data"]),
    ],
)
def test_every_cells_consistency_is_checked_first(grid: dict[str, Any], words: list[str]) -> None:
    settings = {key: value for key, value in FEW.items() if key not in grid}
    with pytest.raises(ArgumentError) as refused:
        plans.prepare({"settings": settings, "grid": grid})
    assert str(refused.value).startswith(("Cell ", "The sweep's one cell "))
    for word in words:
        assert word in str(refused.value)


def test_cells_that_differ_in_their_seed_share_a_plan_and_count_as_one_setting() -> None:
    found = plans.prepare(sweep())
    names = [cell.name for cell in found.cells]
    assert found.plans[names[0]] is found.plans[names[1]]
    assert found.plans[names[0]] is not found.plans[names[2]]
    assert found.about == "4 cells, 2 settings tried"
    assert found.notes[0] == "All cells are reproducible, not private (seeds 1, 2)."
    unseeded = plans.prepare(sweep(grid={"epsilon": [1, 3]}))
    assert "their epsilons add up" in unseeded.notes[0]


def test_notes_that_differ_in_their_numbers_are_given_once() -> None:
    """Each cell of local noise has a ratio of noise to signal of its own."""
    few = {**FEW, "placement": "local", "relation": "replace-one"}
    for last, cells_said in ((3, "All cells"), (10**7, "2 of 3 cells")):
        found = plans.prepare(sweep(settings=few, grid={"epsilon": [1, 2, last]}))
        [note] = [note for note in found.notes if "drown" in note]
        assert note.startswith(f"{cells_said}, as epsilon=1: the noise may drown the signal")
        assert note.endswith(" (other cells have other numbers)")


def test_cells_on_ray_run_one_after_another() -> None:
    found = plans.prepare(sweep(settings={**FEW, "engine": "ray"}))
    assert found.jobs() == 1
    assert plans.prepare(sweep()).jobs(3) == 3
    with pytest.raises(ArgumentError, match=r"jobs is 2; it must be 1 where cells have engine=ray"):
        found.jobs(2)


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    definition = read(sweep())
    plans.claim(tmp_path / "own", definition)
    plans.claim(tmp_path / "own", read(sweep(settings={**FEW, "sampling-rate": 0.1})))
    others = {
        "[grid] seed is [1, 2] there and [1, 2, 3] here": sweep(grid={**TWO, "seed": [1, 2, 3]}),
        "[settings] epsilon is not there and 2 here": sweep(settings={**FEW, "epsilon": 2}),
        "axes in another order": sweep(grid=dict(reversed(TWO.items()))),
        "other overrides": sweep(override=[{"when": {"seed": 1}, "clip-norm": 2}]),
    }
    for words, other in others.items():
        with pytest.raises(ArgumentError) as refused:
            plans.claim(tmp_path / "own", read(other))
        assert "holds another sweep" in str(refused.value)
        assert words in str(refused.value)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    for name, words in {"full": "new or empty folder", "full/letter.txt": "a folder, not a file"}.items():
        with pytest.raises(ArgumentError, match=words):
            plans.claim(tmp_path / name, definition)
    (tmp_path / "own" / "sweep.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"an intact sweep\.json"):
        plans.claim(tmp_path / "own", definition)

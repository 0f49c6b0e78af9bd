"""simulations/side_by_side.py: its gradients are the models', and its runs are those of `fedpriv train`."""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.scripts import script
from torch import Tensor

from fedpriv.mechanism.query import Term
from fedpriv.models import build
from fedpriv.tasks.task import Task

COHORT = 20
needs_ratings = pytest.mark.skipif(
    not os.environ.get("FEDPRIV_DATA"), reason="needs MovieLens-100k under FEDPRIV_DATA"
)


@pytest.fixture(scope="module")
def together() -> ModuleType:
    script("dp2_movielens/run.py")  # brings the scripts' folder onto the path
    import side_by_side

    return side_by_side


def clipped(task: Task, point: Tensor, x: Tensor, y: Tensor, term: Term) -> Tensor:
    """The sum of clipped rows, each formed."""
    rows = task.gradients(point, x, y) / (1.0 if term.divisor is None else term.divisor)
    return (rows * (term.clip_norm / rows.norm(dim=1)).clamp(max=1.0)[:, None]).sum(0)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_softmax_has_the_clipped_sums_of_the_model(together: ModuleType) -> None:
    task = Task(build("logistic", (6,), 4))
    x, y = numbers(0, 2 * COHORT, 6), torch.arange(2 * COHORT) % 4
    ids, points = torch.arange(0, 2 * COHORT, 2), [numbers(k, task.dimension) for k in (1, 2, 3)]
    terms = [Term(1e9), Term(0.5), Term(2.0)]
    found = together.Softmax(x, y, 4).sums(points, ids, terms)
    for point, term, total in zip(points, terms, found, strict=True):
        torch.testing.assert_close(total, clipped(task, point, x[ids], y[ids], term), rtol=1e-4, atol=1e-5)


def test_the_perceptron_has_the_clipped_sums_of_the_model(together: ModuleType) -> None:
    model = build("mlp-no-bias-3", (6,), 4)
    task = Task(model)
    x, y = numbers(0, 2 * COHORT, 6), torch.arange(2 * COHORT) % 4
    ids, points = torch.arange(0, 2 * COHORT, 2), [numbers(k, task.dimension) / 8 for k in (1, 2)]
    terms = [Term(1e9), Term(0.5)]
    shapes = [tuple(weight.shape) for weight in model.parameters()]
    found = together.Perceptron(x, y, shapes).sums(points, ids, terms)
    for point, term, total in zip(points, terms, found, strict=True):
        expected = clipped(task, point, x[ids], y[ids], term)
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_factorisation_has_the_clipped_sums_of_the_model(together: ModuleType) -> None:
    users, items = 5, 7
    task = Task(build("factors", (2,), 1, tokens=(users, items)), "squared-error")
    draw = torch.Generator().manual_seed(0)
    x = torch.stack([torch.randint(size, (2 * COHORT,), generator=draw) for size in (users, items)], dim=1)
    y, ids = numbers(1, 2 * COHORT), torch.arange(COHORT)
    divisor = numbers(2, task.dimension).abs() + 0.1
    terms = [Term(1e9), Term(0.5), Term(2.0, divisor=divisor)]
    points = [numbers(3 + k, task.dimension) for k in range(3)]
    found = together.Factorisation(x, y, users).sums(points, ids, terms)
    for point, term, total in zip(points, terms, found, strict=True):
        torch.testing.assert_close(total, clipped(task, point, x[ids], y[ids], term), rtol=1e-4, atol=1e-5)


def test_finished_runs_are_skipped_and_the_others_are_those_of_fedpriv_train(
    together: ModuleType, tmp_path: Any
) -> None:
    """Methods with several blocks, points and schedules on the bundled digits, 30 releases."""
    from batches import Cell, read, run

    base = {
        "dataset": "digits",
        "model": "logistic",
        "sampling-rate": 0.1,
        "rounds": 30,
        "learning-rate": 0.5,
        "clip-norm": 0.5,
        "epsilon": 2.0,
        "delta": 1e-5,
        "evaluate-every": 30,
        "noise-draws": "fast",
    }
    methods = {
        "dp-sgd": {"averaging": 0.5},
        "dp-adam": {"learning-rate": 0.01},
        "adp-sgd": {},
        "adaptive-adp-sgd": {"adp-beta": 8.0, "adp-period": 5, "adp-c": 0.1},
        "adadp": {},
    }
    cells = [Cell("test", name, {**base, "optimizer": name, **keys}) for name, keys in methods.items()]
    path = tmp_path / "results.jsonl"
    together.run_together(path, cells[:2], 3, together.Softmax.of)
    together.run_together(path, cells, 3, together.Softmax.of)
    records = read(path)
    assert [record["cell"]["method"] for record in records] == list(methods)
    for cell, record in zip(cells, records, strict=True):
        alone = run(cell, 3)
        assert record["loss"] == pytest.approx(alone["loss"], rel=1e-4), cell.method
        assert record["accuracy"] == pytest.approx(alone["accuracy"], abs=0.003), cell.method
        assert record["epsilon"]["pld"]["epsilon"] == pytest.approx(alone["epsilon"]["pld"]["epsilon"])
        assert record["noise multiplier"] == alone["noise multiplier"]


@needs_ratings
@pytest.mark.slow
@pytest.mark.data
def test_factorisation_side_by_side_is_fedpriv_train(together: ModuleType) -> None:
    """All methods of MovieLens and both ablations, 20 plain steps and 20 adaptive ones, or both at once."""
    from batches import make_plan, run

    movielens = script("dp2_movielens/run.py")

    def short(made: Any) -> Any:
        few = {"rounds": 40, "evaluate-every": 40, "learning-rate": 5.0, "noise-draws": "fast"}
        delays = {"dp2-sgd-steps": 20, "dp2-adaptive-steps": 20, "dp2-adaptive-learning-rate": 0.5}
        changes = few | {key: value for key, value in delays.items() if key in made.config}
        return replace(made, config={**made.config, **changes})

    ablations = [few[0] for few in movielens.ABLATIONS.values()]
    cells = [short(made) for made in (*movielens.PUBLISHED, *ablations)]
    both = together.side_by_side([make_plan(made, 3) for made in cells], 3, together.Factorisation.of)
    for made, scores in zip(cells, both, strict=True):
        assert scores["mse"] == pytest.approx(run(made, 3)["mse"], rel=1e-5), made.method

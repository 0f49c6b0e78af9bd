"""Runs on this machine: the ladder of equal runs at the level of whole configurations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.small import small

from fedpriv._internal import hardware
from fedpriv._internal.validation import ArgumentError
from fedpriv.config.builders import initial_params, make_source, make_task, make_view
from fedpriv.config.plan import make_plan, number_of_actors
from fedpriv.config.schema import Config
from fedpriv.data import DataError
from fedpriv.node.factory import make_worker
from fedpriv.runs.runner import Status
from fedpriv.simulation.run import check, make_engine, simulate


def plain_sgd(config: Config, momentum: float) -> torch.Tensor:
    """A straight line of torch on the same cohorts: no clipping, no noise, nothing of the loop."""
    plan = make_plan(config)
    config, key = plan.config, plan.key()
    source = make_source(config)
    task, view = make_task(config, source), make_view(config, source)
    params = initial_params(task, key).requires_grad_()
    optimizer = torch.optim.SGD([params], lr=config.learning_rate, momentum=momentum)
    for t in range(config.rounds):
        cohort = plan.mechanism.sampler.draw(key.generator("cohort", t))
        x, y, _ = view.batch(cohort)
        optimizer.zero_grad()
        loss = task.losses(params, x, y).sum() / plan.mechanism.sampler.expected_size
        loss.backward()
        optimizer.step()
    return params.detach()


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_noise_and_clipping_it_is_plain_sgd(model: str, momentum: float) -> None:
    config = small(
        placement="none",
        clip_norm=math.inf,
        optimizer="dp-sgd",
        momentum=momentum,
        seed=2,
        model=model,
        learning_rate=0.05,
        clients=200,
    )
    torch.testing.assert_close(simulate(config).params, plain_sgd(config, momentum), rtol=1e-4, atol=1e-5)


EVERYONE = {"sampler": "everyone", "sampling_rate": 1.0}


@pytest.mark.parametrize("placement", ["none", "central"])
@pytest.mark.parametrize("sampling", [{}, {"sampler": "fixed-size"}, EVERYONE])
@pytest.mark.slow
def test_one_example_a_client_is_example_level(placement: str, sampling: dict[str, object]) -> None:
    """300 clients of one example, or 3 silos of 100: the same units, cohorts, noise and parameters."""
    alike = {"placement": placement, "seed": 4, **sampling}
    if placement == "central" and sampling == {"sampler": "fixed-size"}:  # a silo knows of more than a client
        alike["colluding_parties"] = 0
    clients = small(clients=300, **alike)
    silos = small(unit="example", clients=3, examples_per_client=100, **alike)
    one, other = simulate(clients), simulate(silos)
    torch.testing.assert_close(one.params, other.params, rtol=1e-5, atol=1e-6)
    # The logistic model learns, so the two are not merely both untrained.
    assert one.metrics[-1]["accuracy"] > 0.3


def test_one_local_step_is_one_gradient() -> None:
    """K = 1 from theta: the model change is the step size times the gradient, and so is its clip norm."""
    several: dict[str, object] = {
        "partition": "iid",
        "examples_per_client": 4,
        "clients": 200,
        "seed": 6,
        "optimizer": "dp-sgd",
    }
    gradient = small(**several, clip_norm=0.8, learning_rate=1.0)
    local = small(**several, work="local-steps", local_learning_rate=0.25, clip_norm=0.2, learning_rate=4.0)
    torch.testing.assert_close(simulate(gradient).params, simulate(local).params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", ["central", "local", "distributed"])
def test_a_nodes_chunking_changes_nothing_but_where_parties_add_noise(placement: str) -> None:
    """The sums are the same however they are cut; the parties' noise is drawn by chunk."""
    one = simulate(small(placement=placement, sampler="fixed-size", seed=1, chunk_size=512)).params
    cut = simulate(small(placement=placement, sampler="fixed-size", seed=1, chunk_size=7)).params
    same = torch.allclose(one, cut, rtol=1e-4, atol=1e-5)
    assert same == (placement == "central")


def test_seeds_repeat_and_entropy_does_not() -> None:
    assert torch.equal(simulate(small(seed=9)).params, simulate(small(seed=9)).params)
    assert not torch.equal(simulate(small(rounds=1)).params, simulate(small(rounds=1)).params)


LEARNING: dict[str, dict[str, object]] = {
    "dp-sgd": {},
    "dp-adam": {"learning_rate": 0.02},
    "dp-rmsprop": {"learning_rate": 0.02},
    "dp-adagrad": {"learning_rate": 0.05},
    "dp-yogi": {"learning_rate": 0.02},
    "dynamic-dp-sgd": {},
    "dynamic-dp-adam": {"learning_rate": 0.02},
    "adp-sgd": {"learning_rate": 10.0},
    "adaptive-adp-sgd": {"learning_rate": 10.0, "adp_c": 0.1},
    "dp2-rmsprop": {"dp2_sgd_steps": 5, "dp2_adaptive_steps": 5},
    "adadp": {},
    "dp-srm": {"srm_gamma": 0.5},
}


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [pytest.param(*row, marks=pytest.mark.slow if row[0] != "dp-srm" else ()) for row in LEARNING.items()],
)
def test_every_optimizer_learns_privately(optimizer: str, changes: dict[str, object]) -> None:
    result = simulate(small(clients=5000, rounds=20, seed=1, optimizer=optimizer, **changes))
    assert result.metrics[-1]["accuracy"] > 0.7
    assert result.metrics[-1]["epsilon"] <= 3


@pytest.mark.slow
def test_the_demo_reaches_its_goal() -> None:
    """`fedpriv simulate` as it comes: N = 100,000, epsilon <= 3 and at least 90 %."""
    seen: list[Status] = []
    result = simulate(Config.parse({"engine": "in-process"}), seen.append)
    assert result.report["privacy"]["units"] == 100_000
    assert result.report["privacy"]["views"][0]["epsilon"]["pld"]["epsilon"] <= 3
    assert result.metrics[-1]["accuracy"] >= 0.9
    assert len(seen) == 150


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_own_data": True}, "nodes-own-data"),
        ({"dataset": "mnits"}, "dataset is 'mnits'"),
        ({"dataset": "digits", "clients": 2000}, "clients is 2000; it must be at most 1437"),
        (
            {"dataset": "digits", "partition": "iid", "clients": 50, "examples_per_client": 10**6},
            r"^examples-per-client is 1000000; .*be left out: all 1437 examples of digits .* 28\.7 each\)$",
        ),
        (
            {"dataset": "digits", "partition": "shards", "clients": 50, "labels_per_client": 11},
            "^labels-per-client is 11; it must be at most 10, the labels of digits$",
        ),
        (
            {"dataset": "digits", "unit": "example", "clients": 10, "examples_per_client": 10**5},
            "^examples-per-client is 100000; it must be at most 143 for 10 clients: digits",
        ),
        ({"model": "transformer"}, "model is 'transformer'"),
        ({"device": "abacus"}, "device is 'abacus'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check(small(**changes))


def test_missing_data_says_how_to_get_it(tmp_path: object) -> None:
    with pytest.raises(DataError, match="fedpriv data fetch mnist"):
        check(small(dataset="mnist", data_folder=str(tmp_path)))


def test_engines_and_actors() -> None:
    assert type(make_engine(small())) is type(make_worker(small().table()))
    here = hardware.usable()
    for changes, number in (({}, here), ({"cpus_per_actor": 1e9}, 1), ({"cpus_per_actor": 0.5}, 2 * here)):
        config = small(engine="ray", **changes)
        assert number_of_actors(config) == number
        assert make_plan(config).chunk_size == max(16, math.ceil(40 / number))  # one chunk for each
    assert number_of_actors(small()) == 1  # in this process


@pytest.mark.parametrize(
    ("changes", "there", "actors", "share"),
    [
        ({}, 2, 2, 1.0),  # an actor a GPU
        ({"device": "cuda"}, 1, 1, 1.0),
        ({"actors": 1}, 2, 1, 1.0),
        ({"actors": 4}, 2, 4, 0.5),
        ({"actors": 3}, 2, 3, 0.5),  # two thirds would leave no GPU room for a third actor
        ({"gpus_per_actor": 0.1}, 2, 20, 0.1),
        ({"gpus_per_actor": 0.4}, 2, 4, 0.4),
        ({"gpus_per_actor": 2}, 4, 2, 2.0),
        ({"gpus_per_actor": 0.5, "actors": 3}, 2, 3, 0.5),
        ({"device": "cpu", "actors": 3}, 2, 3, 0.0),
        ({"actors": 3}, 0, 3, 0.0),
    ],
)
def test_actors_get_a_share_of_the_gpus_that_the_device_means(
    changes: dict[str, object], there: int, actors: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, float]] = []

    class Grid:
        def __init__(
            self, nodes: int, config: object, num_cpus: float, num_gpus: float, stateless: bool
        ) -> None:
            asked.append((nodes, num_gpus))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setattr("fedpriv.flower.grids.ray.RayGrid", Grid)
    make_engine(small(engine="ray", **changes))
    assert asked == [(actors, share)]


def test_settings_may_be_a_mapping_and_the_folder_a_path(tmp_path: Path) -> None:
    settings = {"clients": 300, "sampling_rate": 0.1, "rounds": 2, "engine": "in-process"}
    result = simulate(settings, folder=str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.json").is_file()
    assert result.metrics[-1]["round"] == 2
    with pytest.raises(ArgumentError, match=r"out is .*be a new or empty folder"):
        simulate(settings, folder=tmp_path / "run")
    simulate({**settings, "overwrite": True}, folder=tmp_path / "run")
    with pytest.raises(ArgumentError, match="unknown key 'ronds'"):
        simulate({"ronds": 2}, folder=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_folder_that_is_none_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.simulation.run.check", lambda config: pytest.fail("work was begun"))
    with pytest.raises(ArgumentError, match=r"^folder is 3; it must be a path, a RunFolder or None$"):
        simulate(small(), folder=3)  # type: ignore[arg-type]

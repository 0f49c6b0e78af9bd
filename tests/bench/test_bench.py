"""What a benchmark splits adds up, on either engine, and its advice follows from the settings."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedpriv._internal.timing import Stopwatch, Timed
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Ledger
from fedpriv.bench import PARTS, Comparison, Figures, gradients, ledger_place, measure
from fedpriv.bench.advice import advise
from fedpriv.bench.engines import _Watched
from fedpriv.bench.figures import shares, split
from fedpriv.bench.gradients import _others, typical_queries, why_by_rows
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.client_update import LocalSteps, OneGradient, Work, clipped_sum
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.factory import make_worker
from fedpriv.tasks.task import Task

SMALL: dict[str, object] = {"clients": 1000, "sampling-rate": 0.04, "model": "logistic", "epsilon": 8.0}


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark writes its ledger below the current folder; other tests package the project's folder."""
    monkeypatch.chdir(tmp_path)


def figures(settings: dict[str, object], rounds: int = 10) -> Figures:
    return measure(Config.parse({**SMALL, **settings}), rounds)


def test_parts_add_up_to_rounds_in_this_process() -> None:
    measured = figures({"engine": "in-process"})
    assert set(measured.parts) == set(measured.shares) == set(PARTS)
    assert all(seconds >= 0 for seconds in measured.parts.values())
    assert sum(measured.parts.values()) == pytest.approx(measured.round)
    assert measured.parts["transport"] == 0
    assert min(measured.parts["clipped sum"], measured.evaluation, measured.memory) > 0
    compared = measured.compared
    assert (compared.examples, compared.units, compared.by_rows, compared.instead) == (40, 40, "", {})
    assert not compared.alone
    assert min(compared.ordinary, compared.clipped) > 0
    assert measured.examples_per_second == pytest.approx(40 / measured.round)
    assert (measured.device, measured.actors, measured.actors_memory) == ("cpu", 0, 0)


@pytest.mark.slow  # actors of its own
def test_nodes_say_where_their_time_went_and_whether_one_is_idle(ray_instance: None) -> None:
    apart = {"placement": "distributed", "sampler": "fixed-size"}
    measured = figures({"actors": 2, "cpus-per-actor": 0.5, "chunk-size": 500, **apart})
    assert min(measured.parts["transport"], measured.parts["data"], measured.parts["clipped sum"]) > 0
    assert (measured.actors, measured.threads) == (2, 1)
    assert measured.actors_memory > 2 * 2**20
    assert any("chunk-size=20" in line for line in measured.advice)


def test_shares_are_of_the_same_rounds() -> None:
    """Medians of a part and of the whole can be of two rounds, and leave more than other parts take."""
    splits = [{"clipped sum": busy, "noise": 0.1 * busy} for busy in (1.0, 1.0, 1.0, 9.0, 9.0)]
    assert shares(splits) == pytest.approx({"clipped sum": 10 / 11, "noise": 1 / 11})
    uneven = [{"clipped sum": 8.0, "noise": n, "data": d} for n, d in ((2.0, 0.0), (0.0, 2.0), (0.1, 0.1))]
    assert sum(shares(uneven).values()) == pytest.approx(1)


def test_noise_that_parties_add_is_no_part_of_the_clipped_sum() -> None:
    lap = {"gather": 9.0, "answer": 8.0, "data": 1.0, "sampling": 0.5, "update": 0.25, "accounting": 0.25}
    assert split({**lap, "round": 11.0}) == {
        **dict.fromkeys(("transport", "noise", "data"), 1.0),
        "clipped sum": 7.0,
        "sampling": 0.5,
        "update": 0.25,
        "accounting": 0.25,
    }
    noisy = split({**lap, "round": 11.0, "party noise": 3.0})
    assert (noisy["clipped sum"], noisy["noise"]) == (4.0, 4.0)
    assert split({**lap, "round": 11.0, "party noise": 30.0})["clipped sum"] == 0.0


def test_the_parties_noise_is_drawn_again_on_no_units() -> None:
    asks, watch = list[SumRequest](), Stopwatch()

    class Inner:
        def gather(self, request: SumRequest) -> PartialSum:
            asks.append(request)
            return PartialSum((), parties=5)

        def close(self) -> None:
            pass

    query = Query((torch.zeros(3),), (SumBlock((Term(1.0),)),))
    shards = (Shard(0, np.arange(3), 3), Shard(1, np.arange(3, 5), 2))
    _Watched(Inner(), watch).gather(SumRequest(query, 7, shards))
    assert set(watch.take()) == {"gather"}
    assert _Watched(Inner(), watch).gather(SumRequest(query, 7, shards, (2.0,))).parties == 5
    assert [[len(shard.ids) for shard in request.shards] for request in asks] == [[3, 2], [3, 2], [0, 0]]
    assert [shard.parties for shard in asks[2].shards] == [3, 2]
    spent = watch.take()
    assert spent["party noise"] == spent["aside"] > 0


@pytest.mark.slow
def test_silos_that_train_by_themselves_are_refused_and_one_can_be_timed() -> None:
    silos = {"unit": "example", "clients": 2, "examples-per-client": 300, "sampling-rate": 0.1}
    with pytest.raises(ArgumentError, match=r"level is 'client'.*level=aggregation with clients=1"):
        figures({**silos, "level": "client"})
    alone = {**silos, "level": "aggregation", "clients": 1, "silo-steps": 1, "engine": "in-process"}
    assert figures(alone, 3).compared.units == 30
    with pytest.raises(ArgumentError, match="rounds"):
        figures({}, rounds=0)


SEVERAL: dict[str, object] = {
    "clients": 40,
    "sampling-rate": 0.2,
    "partition": "dirichlet",
    "examples-per-client": 4,
    "client-sizes": "lognormal",
    "engine": "in-process",
}


@pytest.mark.parametrize(
    ("settings", "work", "points", "divided"),
    [
        ({}, OneGradient(), [1], [False]),
        ({"work": "local-steps", "local-steps": 2}, LocalSteps(2, 0.1), [1], [False]),
        ({"optimizer": "dp-srm"}, OneGradient(), [2, 1], [False, False]),
        (
            {"optimizer": "dp2-rmsprop", "dp2-sgd-steps": 2, "dp2-adaptive-steps": 4},
            OneGradient(),
            [1, 1],
            [True, False],
        ),
    ],
)
@pytest.mark.slow
def test_the_sum_that_is_compared_is_the_runs_own(
    settings: dict[str, object],
    work: Work,
    points: list[int],
    divided: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What its clients compute, the sizes that they have, and all kinds of query, the usual one first."""
    calls: list[tuple[Any, ...]] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return clipped_sum(*arguments, **named)

    monkeypatch.setattr(gradients, "clipped_sum", watched)
    config = Config.parse({**SMALL, **SEVERAL, "rounds": 60, **settings})
    compared = measure(config, 8).compared
    assert compared.units == 8
    assert {call[0] for call in calls} == {replace(work, **_rate(config, work))}
    first = calls[: len(points)]
    assert [len(call[2].points) for call in first] == points
    assert [call[2].blocks[0].terms[0].divisor is not None for call in first] == divided
    owner = first[0][5]
    assert len(owner) == compared.examples > 8
    assert len({int(size) for size in torch.bincount(owner)}) > 1


def _rate(config: Config, work: Work) -> dict[str, object]:
    if isinstance(work, OneGradient):
        return {}
    return {"learning_rate": config.local_learning_rate, "batch_size": config.local_batch_size or None}


def test_kinds_of_query_count_by_how_often_a_run_asks_them() -> None:
    cycle = {"optimizer": "dp2-rmsprop", "dp2-sgd-steps": 1, "dp2-adaptive-steps": 3, "rounds": 800}
    plan = make_plan(Config.parse({**SMALL, **cycle, "accounting": "rdp"}))
    optimizer = plan.mechanism.optimizer
    state = optimizer.init(torch.zeros(5))
    found = typical_queries(optimizer, state, 800)
    assert [query.blocks[0].terms[0].divisor is None for query, _ in found] == [False, True]  # type: ignore[union-attr]
    assert [part for _, part in found] == pytest.approx([0.75, 0.25], abs=0.05)


def test_settings_that_may_be_faster_on_a_gpu_are_tried_only_there() -> None:
    config = Config.parse(SMALL)
    side = make_worker(config.table())
    assert _others(config, side) == {}
    other = _others(config, replace(side, device=torch.device("cuda")))
    assert set(other) == {"memory-budget=1024", "precision=tf32", "precision=bf16"}
    assert other["memory-budget=1024"].memory == 2**30
    local = config.changed(work="local-steps")
    steps = replace(make_worker(local.table()), device=torch.device("cuda"))
    assert set(_others(local, steps)) == {"memory-budget=1024"}


def test_layers_of_no_known_kind_are_named() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    model = nn.Sequential(nn.Linear(3, 3), Own(), nn.Linear(3, 3), Own(), Own(), Own(), nn.Linear(3, 2))
    known = why_by_rows(Task(model))
    assert known == "fedpriv.clipping.ghost.layers has no rule for 1 (Own), 3 (Own), 4 (Own) and 1 more"
    assert "the model itself (Own)" in why_by_rows(Task(Own()))
    assert "a trial found" in why_by_rows(Task(nn.Sequential(nn.Linear(3, 2))))


def test_an_optimizer_whose_clipping_needs_every_gradient_is_named() -> None:
    measured = figures({"optimizer": "adaclip", "engine": "in-process"}, 3)
    assert measured.compared.by_rows == "adaclip clips more than the gradient itself"
    assert any("because adaclip clips more" in line for line in measured.advice)


def test_the_ledger_is_on_the_disk_of_the_runs_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ledger_place("") == tmp_path
    (tmp_path / "runs").mkdir()
    assert ledger_place("") == tmp_path / "runs"
    assert ledger_place(str(tmp_path / "new" / "folder")) == tmp_path
    used: list[Path] = []
    create = Ledger.create
    monkeypatch.setattr(Ledger, "create", lambda path, header: (used.append(path), create(path, header))[1])
    assert figures({"engine": "in-process", "out": "here/it"}, 2).ledger == str(tmp_path)
    assert [path.parent.parent for path in used] == [tmp_path]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # nothing is left


QUIET = Figures(
    shares=dict.fromkeys(PARTS, 1 / 7),
    round=0.7,
    evaluation=0.1,
    compared=Comparison(100, 100, 1.0, 1.2, "", False, {}),
    examples_per_second=100.0,
    device="cpu",
    actors=2,
    threads=1,
    memory=1,
    actors_memory=1,
    ledger="/there",
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"compared": replace(QUIET.compared, by_rows="x (Own) is new")}, "formed, because x"),
        ({"compared": replace(QUIET.compared, alone=True)}, "computed one by one, because"),
        ({"compared": replace(QUIET.compared, instead={"precision=bf16": 0.6})}, "bf16 makes .* 2.0 times"),
        ({"compared": replace(QUIET.compared, instead={"precision=bf16": 1.15})}, ""),
        ({"actors": 1}, "leaves? 1 core idle: actors=2"),
        ({"threads": 3}, "compete for 2 core"),
        ({"actors": 0}, "engine=ray"),
        ({"actors": 1, "device": "cuda"}, ""),
        ({"shares": {**QUIET.shares, "accounting": 0.5}}, "to the disk of /there"),
        ({"shares": {**QUIET.shares, "transport": 0.5}}, "transport takes 50%"),
        ({"shares": {**QUIET.shares, "data": 0.5}}, "making examples takes 50%"),
        ({"evaluation": 7.0}, "add 100% to a round: with evaluate-every=200 they add 5%"),
    ],
)
def test_advice_follows_from_the_largest_shares(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv._internal.hardware.usable", lambda: 2)
    plan = make_plan(Config.parse({**SMALL, "actors": 2}))
    lines = advise(plan, replace(QUIET, **changes))
    assert len(lines) == bool(message)
    assert all(re.search(message, line) for line in lines)


def test_the_command_prints_a_table_or_json() -> None:
    arguments = ["bench", "--rounds", "5", "--set", "engine=in-process"]
    for key, value in SMALL.items():
        arguments += ["--set", f"{key}={value}"]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0, text.output
    parts = (*PARTS, "round", "times as long", "examples/s", "An evaluation")
    assert all(part in text.stdout for part in parts)
    parsed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert set(parsed["parts"]) == set(PARTS)
    others = sum(parsed["shares"][part] for part in PARTS if part != "clipped sum")
    assert parsed["overhead"] == pytest.approx(others)
    refused = CliRunner().invoke(app, ["bench", "--set", "dataset=nothing"])
    assert refused.exit_code == 2


def test_a_stopwatch_counts_what_is_called_through_it() -> None:
    watch = Stopwatch()
    timed = Timed(os, watch, {"getcwd": "asking"})
    assert timed.getcwd() == os.getcwd()
    assert timed.sep == os.sep
    watch.add({"asking": 2.0, "waiting": 1.0})
    spent = watch.take()
    assert spent["asking"] > 2.0
    assert spent["waiting"] == 1.0
    assert watch.take() == {}

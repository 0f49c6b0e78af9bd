"""Canaries that are planted among a run's own units."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config.builders import make_source
from fedpriv.config.schema import Config
from fedpriv.data import Arrays, Batch, load
from fedpriv.data.client_files import write_client_file
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.audit_file import write_audit_file
from fedpriv.node.factory import make_worker
from fedpriv.node.planted import PlantedUnits, canaries, most_canaries
from fedpriv.rng import Key

RUN: dict[str, Any] = {"clients": 100, "model": "logistic", "engine": "in-process", "planted-canaries": 20}


def planted(**changes: Any) -> tuple[Worker, PlantedUnits]:
    worker = make_worker(Config.parse({**RUN, **changes}).table())
    assert isinstance(worker.view, PlantedUnits)
    return worker, worker.view


def added(worker: Worker, ids: Any, clip_norm: float = 1.0) -> np.ndarray:
    """What each unit adds at the model's beginning, (k, d)."""
    start = worker.task.initial(Key.of(0).generator("initial-params"))
    query = Query((start,), (SumBlock((Term(clip_norm),)),))
    shards = (Shard(0, np.array([unit]), parties=1) for unit in ids)
    sums = [worker.answer(SumRequest(query, 0, (shard,))).sums[0] for shard in shards]
    return torch.stack(sums).numpy()


@pytest.mark.parametrize(("units", "span"), [(10, 10), (12, 4), (15, 5), (10**9, 10**9)])
def test_a_canary_and_its_opposite_lie_in_one_range_and_no_two_share_a_unit(units: int, span: int) -> None:
    count = min(1000, most_canaries(units, span))
    ids = canaries(count, units, span)
    both = np.concatenate([ids, ids + 1])
    assert len(np.unique(both)) == 2 * count
    assert both.max() < units
    assert np.array_equal(ids // span, (ids + 1) // span)
    assert np.array_equal(np.sort(ids), ids)


def test_canaries_take_the_places_of_units_and_the_others_stay() -> None:
    _, view = planted()
    asked = np.array([3, 0, 50, 50, 7, 1])  # 0 and 50 are canaries, 1 is an opposite
    seen, own = view.batch(asked), view.units.batch(asked)
    assert seen.owner.tolist() == list(range(6))
    assert (seen.x.dtype, seen.y.dtype, seen.x.shape) == (own.x.dtype, own.y.dtype, own.x.shape)
    crafted = [1, 2, 3, 5]
    for place in range(6):
        assert torch.equal(seen.x[place], own.x[place]) == (place not in crafted)
    assert torch.equal(seen.x[2], seen.x[3])
    assert torch.count_nonzero(seen.x[1]) == 9
    again = planted()[1].batch(asked)  # in every process
    assert all(map(torch.equal, seen, again))
    for some in ([0, 1], [3], []):
        batch = view.batch(np.array(some, np.int64))
        assert batch.owner.tolist() == list(range(len(some)))


def test_a_canary_is_one_example_of_a_client_with_several_or_none() -> None:
    _, view = planted(**{"partition": "iid", "clients": 20, "planted-canaries": 5, "examples-per-client": 3})
    assert np.bincount(view.batch(np.arange(4)).owner).tolist() == [1, 1, 3, 3]
    empty = replace(view, units=_Nothing(view))
    assert empty.batch(np.arange(4)).owner.tolist() == [0, 1]


class _Nothing:
    """Units without examples."""

    def __init__(self, like: PlantedUnits) -> None:
        self.like = like.units.batch(np.array([0]))

    def batch(self, client_ids: Any, device: Any = "cpu") -> Batch:
        return Batch(self.like.x[:0], self.like.y[:0], torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("clip_norm", [0.01, 1.0, 30.0])
def test_canaries_are_as_long_as_the_clip_allows_and_nearly_orthogonal(clip_norm: float) -> None:
    worker, view = planted(**{"optimizer": "dp-sgd", "clip-norm": clip_norm})
    rows = added(worker, view.canaries, clip_norm) / clip_norm
    assert np.linalg.norm(rows, axis=1).min() > 0.99
    products = rows @ rows.T - np.eye(len(rows))
    assert np.sqrt((products**2).mean()) < 0.05  # those of the run's own units: 0.3
    opposites = added(worker, view.canaries + 1, clip_norm) / clip_norm
    assert (rows * opposites).sum(1).mean() < -0.6  # the other signs, in a model without hidden layers


def test_canaries_of_a_convolutional_network_resemble_each_other_less_than_units() -> None:
    worker, view = planted(model="cnn")

    def alike(rows: np.ndarray) -> float:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return float(np.abs(rows @ rows.T - np.eye(len(rows))).mean())

    rows, opposites = added(worker, view.canaries), added(worker, view.canaries + 1)
    assert alike(rows) < 0.6 * alike(added(replace(worker, view=view.units), view.canaries))
    assert np.linalg.norm(rows - opposites, axis=1).min() > 1  # another target; other signs give less


def test_local_steps_are_long_enough_too() -> None:
    local = {"work": "local-steps", "local-steps": 2, "local-learning-rate": 0.01}
    worker, view = planted(**local)
    assert np.median(np.linalg.norm(added(worker, view.canaries), axis=1)) > 0.99
    assert np.linalg.norm(added(replace(worker, view=view.units), view.canaries), axis=1).max() < 0.9


def _view(source: Any) -> PlantedUnits:
    class _Units:
        def batch(self, client_ids: Any, device: Any = "cpu") -> Batch:
            x, y = source.batch(source.first + client_ids)
            return Batch(x, y, torch.arange(len(client_ids)))

    return PlantedUnits(_Units(), np.array([0, 2]), source, 2.0)


@pytest.mark.parametrize(
    ("y", "target", "opposite"),
    [
        (np.arange(6) % 3, "label", lambda y: (y + 1) % 3),
        (np.arange(6) % 2, "label", lambda y: 1 - y),
        (np.linspace(0, 1, 6).astype(np.float32), "value", lambda y: -y),
        ((np.arange(24).reshape(6, 4) % 2).astype(np.float32), "tags", lambda y: 1 - y),
    ],
)
def test_opposites_have_another_target(y: Any, target: Any, opposite: Any) -> None:
    x = np.random.default_rng(0).normal(size=(6, 20)).astype(np.float32)
    classes = y.shape[1] if y.ndim > 1 else (1 if target == "value" else int(y.max()) + 1)
    view = _view(Arrays("mine", x, y, x, y, classes, target=target))
    seen = view.batch(np.arange(4))
    assert seen.x.dtype == torch.float32
    for canary in (0, 2):
        assert torch.equal(seen.x[canary], seen.x[canary + 1])
        assert torch.equal(seen.y[canary + 1], opposite(seen.y[canary]))
        assert sorted(set(seen.x[canary].abs().tolist())) == [0.0, 2.0]
    mirrored = replace(view, mirrored=True).batch(np.arange(4))
    assert torch.equal(mirrored.x[1], -seen.x[0])
    assert torch.equal(mirrored.y[1], seen.y[0])


@pytest.mark.parametrize("tokens", [(58,), (30, 4)])
def test_tokens_are_random_and_within_their_ranges(tokens: tuple[int, ...]) -> None:
    shape = (12,) if len(tokens) == 1 else (2,)
    x, y = np.ones((6, *shape), np.int64), np.arange(6) % 3
    view = _view(Arrays("mine", x, y, x, y, 3, tokens=tokens))
    seen = view.batch(np.arange(4))
    assert seen.x.dtype == torch.int64
    assert not torch.equal(seen.x[0], seen.x[2])
    assert bool((seen.x >= 0).all())
    assert bool((seen.x < torch.tensor(tokens)).all())
    if len(tokens) == 1:
        assert bool((seen.x > 0).all())  # 0 is padding


def test_every_kind_of_input_has_a_window() -> None:
    """Features, series and images: examples are made of any shape."""
    for shape in ((1,), (4,), (100,), (3, 50), (3, 8, 8), (2, 4, 4, 4)):
        x, y = np.ones((4, *shape), np.float32), np.arange(4) % 2
        seen = _view(Arrays("mine", x, y, x, y, 2)).batch(np.arange(4))
        assert seen.x.shape == (4, *shape)
        assert 0 < torch.count_nonzero(seen.x[0]) <= 9 * shape[0]


def test_a_node_plants_in_place_of_its_own_examples_that_an_audit_leaves_there(tmp_path: Path) -> None:
    """Silo 1 of three has rows 0 to 7 of 10 places; its canaries are units 10, 12 and 16."""
    run = {"nodes-own-data": True, "audit": True, "unit": "example", "clients": 3, "examples-per-client": 10}
    settings = {"model": "logistic", "sampler": "everyone", "sampling-rate": 1.0, "planted-canaries": 9}
    config, path = Config.parse({**run, **settings}), tmp_path / "1.npz"
    source = make_source(config)
    write_client_file(path, source, np.arange(8) + source.first)
    write_audit_file(tmp_path / "audit.txt", np.array([2]))
    node = {"partition-id": 1, "data-file": str(path)}
    named = {"audit-file": str(tmp_path / "audit.txt")}
    for more, gone in (({}, ()), (named, (12,))):
        view = make_worker(config.table(), {**node, **more}).view
        assert isinstance(view, PlantedUnits)
        seen, there = view.batch(np.arange(30)), [unit for unit in range(10, 18) if unit not in gone]
        assert seen.owner.tolist() == there
        own = source.batch(np.array(there) - 10 + source.first)
        changed = [unit for at, unit in enumerate(there) if not torch.equal(seen.x[at], own.x[at])]
        assert changed == [unit for unit in (10, 11, 12, 13, 16, 17) if unit not in gone]


def test_features_are_planted_in_place_of_features() -> None:
    worker, view = planted(**{"features": "scattering", "clients": 10, "planted-canaries": 2})
    assert view.batch(np.arange(4)).x.shape == (4, 81, 7, 7)
    assert np.linalg.norm(added(worker, view.canaries), axis=1).min() > 0.99


@pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs NAME under FEDPRIV_DATA")
def test_a_data_set_of_tokens_is_planted() -> None:
    source = load("names")
    config = {"dataset": "names", "model": "lstm", "clients": 20, "planted-canaries": 2}
    _, view = planted(**config)
    assert view.batch(np.arange(4)).x.shape[1:] == source.shape

"""An audit of private runs over an ordinary Flower app: sound runs pass, and each planted fault is found.

The audited engine asks the app's own clients (:class:`fedpriv.flower.app_engine.AppEngine`); the auditor
computes what each client adds with fedpriv's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from helpers.app_runs import SETTINGS, initial, vector
from helpers.ordinary_app import CLIENTS, FEDERATION, AppGrid
from helpers.patching import patched

from fedpriv.auditing.auditor import audit_own_data
from fedpriv.auditing.finding import Finding
from fedpriv.config.schema import Config
from fedpriv.flower import app_engine
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.flower.app_engine import AppEngine
from fedpriv.flower.private_strategy import PrivateStrategy
from fedpriv.mechanism import release as releases

SEEN: dict[str, Any] = {}


def engine_of_app(config: Config) -> AppEngine:
    """The engine of PrivateStrategy over the app's clients."""
    grid = AppGrid()

    def messages(number: int, record: ArrayRecord, nodes: Any) -> list[Message]:
        return [Message(RecordDict({"arrays": record}), node, "train") for node in nodes]

    return AppEngine(grid, AppArrays(initial()[0]), messages, lambda: sorted(grid.get_node_ids()), 5)


def audited(seed: int, **changes: Any) -> Finding:
    settings = {
        **FEDERATION,
        "engine": "ray",
        "sampling-rate": 0.3,
        "rounds": 4,
        "epsilon": 8.0,
        "clip-norm": 0.5,
    }
    return audit_own_data(Config.parse({**settings, "seed": seed, **changes}), engine_of_app)


def _weighted(right: Any, engine: AppEngine, totals: Any, query: Any, rows: Any) -> None:
    """As if the clients' num-examples counted."""
    right(engine, totals, query, rows)
    if SEEN["num-examples"] > 10:
        for _ in range(2):
            right(engine, totals, query, rows)


def _noting(right: Any, engine: AppEngine, point: Any, content: RecordDict) -> Any:
    SEEN["num-examples"] = content["metrics"]["num-examples"]
    return right(engine, point, content)


def _unclipped(right: Any, rows: Any, blocks: Any, *rest: Any) -> Any:
    endless = [replace(b, terms=tuple(replace(t, clip_norm=1e9) for t in b.terms)) for b in blocks]
    return right(rows, endless, *rest)


def _noise_by_replies(
    right: Any, sums: Any, replies: int, query: Any, z: float, placement: Any, size: float, *rest: Any
) -> Any:
    answer = right(sums, replies, query, z, placement, size, *rest)
    pairs = zip(answer, sums, strict=True)
    return tuple(((total + (size * part - total) * replies / size) / size).float() for part, total in pairs)


def _divided_by_replies(
    right: Any, sums: Any, replies: int, query: Any, z: float, placement: Any, size: float, *rest: Any
) -> Any:
    return right(sums, replies, query, z, placement, float(replies), *rest)


MORE = "a release that depends on the cohort by more than its sum"
FAULTS: dict[str, tuple[tuple[tuple[Any, str, Callable[..., Any]], ...], str]] = {
    "weights kept": (((AppEngine, "_add", _weighted), (AppEngine, "_row", _noting)), MORE),
    "clip skipped": (((app_engine, "sum_rows", _unclipped),), MORE),
    "noise by replies": (((releases, "release", _noise_by_replies),), MORE),
    "divided by replies": (((releases, "release", _divided_by_replies),), "noise that is too small"),
}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp2-rmsprop", "adadp", "dp-srm"])
def test_an_audit_finds_nothing_in_sound_runs(optimizer: str) -> None:
    """Flake rate: the noise is seeded, so the result is fixed."""
    finding = audited(1, optimizer=optimizer)
    assert not finding.violated, finding.oddest
    assert finding.releases == 4


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_an_audit_finds_each_planted_fault(fault: str) -> None:
    plants, text = FAULTS[fault]
    with ExitStack() as stack:
        for owner, name, wrong in plants:
            stack.enter_context(patched(owner, name, wrong))
        finding = audited(1, optimizer="dp-sgd")
    assert finding.violated
    assert text in finding.oddest


def buffered(tmp_path: Path, nodes: int) -> ArrayRecord:
    """The arrays after two rounds of an app whose clients return a buffer of their own; noise is seeded."""

    class Grid(AppGrid):
        def _answer(self, message: Message) -> Message:
            sent = message.content["arrays"]  # of all messages
            message.content["arrays"] = ArrayRecord({k: v for k, v in sent.items() if k in initial()[0]})
            reply = super()._answer(message)
            own = Array(np.full(3, message.metadata.dst_node_id, np.float32))
            reply.content["arrays"] = ArrayRecord({**reply.content["arrays"], "bn.running_mean": own})
            return reply

    arrays = ArrayRecord({**initial()[0], "bn.running_mean": Array(np.zeros(3, np.float32))})
    settings = {**SETTINGS, "sampler": "everyone", "sampling_rate": 1.0, "rounds": 1, "learning_rate": 1.0}
    strategy = PrivateStrategy(
        population=CLIENTS, folder=tmp_path / f"{nodes}", start_timeout=0.0, **settings
    )
    return strategy.start(Grid(nodes), arrays, timeout=0.5).arrays


def neighbours_differ_by(tmp_path: Path) -> float:
    """How far all released arrays, buffers too, move if one client is absent, in units of C / N."""
    one, other = (buffered(tmp_path, nodes) for nodes in (CLIENTS, CLIENTS - 1))
    return float((vector(one) - vector(other)).norm()) / (0.5 / CLIENTS)


@pytest.mark.slow
def test_a_client_moves_all_arrays_together_by_its_clip_norm(tmp_path: Path) -> None:
    assert 0 < neighbours_differ_by(tmp_path) <= 1 + 1e-3


@pytest.mark.slow
def test_buffers_that_are_summed_are_found(tmp_path: Path) -> None:
    def summing(right: Any, arrays: AppArrays, point: torch.Tensor, returned: ArrayRecord) -> torch.Tensor:
        buffer = arrays._values["bn.running_mean"]
        arrays._values["bn.running_mean"] = buffer + returned["bn.running_mean"].numpy() / CLIENTS
        return right(arrays, point, returned)

    with patched(AppArrays, "change", summing):
        assert neighbours_differ_by(tmp_path) > 2

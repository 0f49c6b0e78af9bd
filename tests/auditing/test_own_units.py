"""Audits of a run's own data, model and engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import own_runs
from helpers.patching import expect_found, patched
from helpers.places import balanced
from torch import nn
from typer.testing import CliRunner

import fedpriv
from fedpriv._internal.validation import ArgumentError
from fedpriv.auditing.auditor import audit_own_data
from fedpriv.auditing.distinct_units import DistinctUnits
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.own_units import OwnUnits
from fedpriv.cli import app
from fedpriv.clipping import per_example
from fedpriv.clipping.ghost import clipped_sum as ghost_sum
from fedpriv.clipping.ghost import clipper, factored
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated import augmentation, client_update, worker
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.mechanism import release as releases
from fedpriv.mechanism.placement import Central, Local
from fedpriv.node.factory import make_worker
from fedpriv.node.silo import ModelDelta, TrainRequest, make_silo_worker

COINS = {"canaries": 30}
RUN: dict[str, Any] = {**own_runs.RUN, **COINS}
EVERYONE: dict[str, Any] = {**own_runs.EVERYONE, **COINS}
SILOS: dict[str, Any] = {**own_runs.SILOS, **COINS}
SOUND: dict[str, dict[str, Any]] = {
    **{name: {**settings, **COINS} for name, settings in own_runs.SOUND.items()},
    "replaced units, a convolutional network": {**RUN, "sampler": "fixed-size", "model": "cnn"},
    "everyone, the last model": {**EVERYONE, "view": "last-model"},
    "examples of silos": {**SILOS, "placement": "distributed", "view": "server"},
    "squares of gradients": {**RUN, "optimizer": "noisy-adagrad", "public_examples": 20},
}  # fmt: skip
DEFAULT = ("clients", "local, the server", "the client level", "public examples", "gradients with an offset")


def audited(settings: dict[str, Any], **more: Any) -> Finding:
    return fedpriv.audit(**settings, **more, own_data=True)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in DEFAULT else [pytest.mark.slow, pytest.mark.exhaustive])
        for kind in SOUND
    ],
)
def test_a_sound_run_passes(kind: str) -> None:
    found = audited(SOUND[kind])
    assert not found.violated, found
    assert (found.own_data, found.canaries, found.stopped) == (True, 30, "rounds")
    assert found.proved <= found.claimed


@pytest.mark.slow
def test_the_users_own_model_and_data_are_audited() -> None:
    """A fault that a model of another size does not have, as the canaries' tables, is found in his own."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 8, generator=generator), torch.arange(300) % 3
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    settings = {key: value for key, value in RUN.items() if key not in ("clients", "model")}
    settings |= {"clip_norm": 0.05}
    mine = {"dataset": (x, y, x[:50], y[:50]), "model": model}
    assert not audited(settings, **mine).violated

    def too_long(right: Any, work: Any, task: Any, *given: Any, **named: Any) -> Any:
        sums = right(work, task, *given, **named)
        return tuple(1.5 * part for part in sums) if task.dimension == 195 else sums

    with patched(worker, "clipped_sum", too_long):
        found = audited(settings, **mine)
        assert not fedpriv.audit(**RUN).irregular
    assert found.irregular
    assert "more than its bound" in found.oddest


def _scaled(factor: float) -> Any:
    return lambda right, *given: tuple(factor * std for std in right(*given))


def _dropping() -> nn.Module:
    """A model whose dropout draws for each example by itself."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))


def _by_place(right: Any, seeds: Any, *given: Any) -> Any:
    """Seeds of places in a batch, where those of examples are asked for."""
    return right(torch.arange(len(seeds))[:, None] if seeds.ndim == 2 else seeds, *given)


def _again(right: Any, side: Any, query: Any, shard: Any, seed: int) -> Any:
    """A shard's sums with the unit in its middle twice."""
    middle = len(shard.ids) // 2
    once = right(side, query, shard, seed)
    if not len(shard.ids):
        return once
    twice = right(side, query, replace(shard, ids=shard.ids[middle : middle + 1]), seed)
    return tuple(a.double() + b for a, b in zip(once, twice, strict=True))


def _batch_again(right: Any, trials: Any, batches: Any, units: Any, *given: Any) -> Any:
    """The sums over batches, of which the unit at the edge of two is in both."""
    once = right(trials, batches, units, *given)
    if len(units.x) <= 32:
        return once
    return per_example.added((once, right(trials, batches, units.at(slice(31, 32)), *given)))


def _chunks_again(right: Any, *given: Any) -> Any:
    """The chunks of clients, of which the first two share a client."""
    chunks = list(right(*given))
    yield from chunks
    if len(chunks) > 1:
        positions, counts = chunks[0]
        yield positions[-1:], counts[-1:]


VARIANTS: dict[str, Any] = {**RUN, "augmentation_copies": 3, "clip_norm": 0.1}
LOCAL_STEPS: dict[str, Any] = {
    **RUN, "clients": 1600, "model": "cnn", "clip_norm": 0.1, "partition": "iid", "examples_per_client": 3,
    "work": "local-steps", "local_steps": 2, "memory_budget": 16,
}  # fmt: skip
FAULTS: dict[str, tuple[dict[str, Any], Any, str, Callable[..., Any], str]] = {
    "less noise on the sum, own data": (
        RUN, Central, "server_stds", _scaled(0.9), "noise that is too small",
    ),
    "less local noise, own data": (
        {**RUN, "placement": "local", "sampler": "fixed-size"},
        Local, "party_stds", _scaled(0.9), "too small",
    ),
    "an answer divided by the actual cohort, own data": (
        RUN, releases, "release",
        lambda right, sums, replies, query, z, placement, size, *rest: right(
            sums, replies, query, z, placement, float(replies), *rest
        ),
        "depends on the cohort by more than its sum",
    ),
    "a layer with the norm of one of its tensors": (
        {**RUN, "model": "mlp", "clipping": "per-layer", "clip_norm": 0.1}, ghost_sum, "_norm",
        lambda right, squares: right(squares[:1] if isinstance(squares, list) else squares),
        "moves a sum by more than its bound",
    ),
    "variants of an example that are summed": (
        VARIANTS, worker, "clipped_sum",
        lambda right, *given, **named: tuple(3 * part for part in right(*given, **named)),
        "moves a sum by more than its bound",
    ),
    "variants by the example's place": (
        VARIANTS, augmentation, "hash_seeds", _by_place, "a unit",
    ),
    "dropout by the example's place": (
        {**RUN, "model": _dropping(), "clip_norm": 0.1}, worker, "example_seeds",
        lambda right, seed, units, places: right(seed, torch.arange(len(units)), places),
        "a unit",
    ),
    "a loss that mixes units, trusted": (
        {**RUN, "loss": balanced}, clipper, "runs_user_code", lambda right, *given: False,
        "a unit whose contribution depends on its cohort",
    ),
    "clip factors of other units": (
        {**RUN, "model": "cnn", "clip_norm": 0.5}, factored, "_weighted",
        lambda right, factors, rows: right(factors[torch.arange(len(factors)) % 8], rows),
        "a unit",
    ),
    "a unit twice in its shard": (
        RUN, Worker, "_chunk_sums", _again, "moves a sum by more than its bound",
    ),
    "a unit in two batches": (
        {**RUN, "clients": 1600, "clip_norm": 0.1}, per_example, "_in_batches", _batch_again,
        "moves a sum by more than its bound",
    ),
    "a client in two chunks": (
        LOCAL_STEPS, client_update, "_chunks", _chunks_again,
        "moves a sum by more than its bound",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=pytest.mark.exhaustive if f == "a client in two chunks" else ()) for f in FAULTS],
)
@pytest.mark.slow
def test_a_fault_is_found(fault: str) -> None:
    expect_found(FAULTS[fault], audited)


def test_guesses_find_noise_that_is_almost_gone() -> None:
    with patched(Central, "server_stds", _scaled(1e-3)):
        found = audited({**EVERYONE, "canaries": 200, "epsilon": 0.2, "delta": 1e-6})
    assert found.leaks, found
    assert found.proved > found.claimed


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_an_engine_in_other_processes_is_audited_as_it_is() -> None:
    """The same run over Ray gives the same finding; sums that it counts twice are found."""
    plain, ray = (audited({**RUN, "engine": engine}) for engine in ("in-process", "ray"))
    assert ray == replace(plain, curve=ray.curve, claim=ray.claim)

    def twice(right: Any, engine: Any, request: Any) -> Any:
        reply = right(engine, request)
        return replace(reply, sums=tuple(2 * part for part in reply.sums))

    with patched(GridEngine, "gather", twice):
        found = audited({**RUN, "engine": "ray"})
    assert found.irregular
    assert "depends on the cohort by more than its sum" in found.oddest or "bound" in found.oddest


CLIENT_LEVEL: dict[str, Any] = {**SILOS, "level": "client", "silo_steps": 2, "rounds": 2}


class _Elsewhere:
    """Silos as another process has them; ``wrong`` alters the changes of a round."""

    def __init__(self, config: Config, wrong: Any) -> None:
        self.worker, self.wrong, self.closed = make_silo_worker(config.table()), wrong, False

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        changes: tuple[ModelDelta, ...] = self.wrong(self.worker.train(request), request)
        return changes

    def close(self) -> None:
        self.closed = True


def _but_last(change: Any) -> Any:
    """Alters the change of the last silo in the second round."""
    return lambda found, request: (*found[:-1], change(found)) if request.round == 1 else found


ELSEWHERE: dict[str, tuple[Any, str]] = {
    "sound": (lambda found, request: found, ""),
    "a dropout": (lambda found, request: found[:-1], ""),
    "a change counted twice": (_but_last(lambda f: replace(f[-1], delta=2 * f[-1].delta)), "does not follow"),
    "a little more": (_but_last(lambda f: replace(f[-1], delta=1.001 * f[-1].delta)), "does not follow"),
    "not a number": (_but_last(lambda f: replace(f[-1], delta=f[-1].delta * np.nan)), "does not follow"),
    "the change of another silo": (_but_last(lambda f: replace(f[-1], delta=f[0].delta)), "does not follow"),
    "a silo twice": (_but_last(lambda f: f[0]), "answered a round twice"),
    "an unknown silo": (_but_last(lambda f: replace(f[-1], silo=99)), "was not asked"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_silos_of_other_processes_are_held_against_those_of_this_one(kind: str) -> None:
    wrong, said = ELSEWHERE[kind]
    made = list[_Elsewhere]()

    def make_engine(config: Config) -> _Elsewhere:
        made.append(_Elsewhere(config, wrong))
        return made[-1]

    settings = {key.replace("_", "-"): value for key, value in CLIENT_LEVEL.items() if key != "canaries"}
    seed = -1 if kind == "sound" else 0
    found = audit_own_data(Config.parse({**settings, "engine": "ray", "seed": seed}), make_engine, 20)
    assert found.irregular == bool(said), found
    assert said in found.oddest
    assert [engine.closed for engine in made] == [True]


def test_nodes_repeat_their_noise_in_an_audit_without_a_seed() -> None:
    """Steps are repeated on neighbouring data with the same noise, also that of other processes."""
    settings = {"clients": 400, "model": "logistic", "epsilon": 4.0, "rounds": 2, "sampling-rate": 0.2}
    settings |= {"engine": "ray", "placement": "local", "sampler": "fixed-size"}
    found = audit_own_data(Config.parse(settings), lambda config: make_worker(config.table()), 20)
    assert not found.irregular, found.oddest


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
def test_silos_on_ray_are_audited() -> None:
    """The attack is that of silos in this process; changes that are doubled on their way are found."""
    plain, ray = (audited({**CLIENT_LEVEL, "engine": engine}) for engine in ("in-process", "ray"))
    assert ray == replace(plain, curve=ray.curve, claim=ray.claim)
    assert not ray.violated

    def doubled(right: Any, engine: Any, request: Any) -> Any:
        return tuple(replace(one, delta=2 * one.delta) for one in right(engine, request))

    with patched(GridEngine, "train", doubled):
        found = audited({**CLIENT_LEVEL, "engine": "ray"})
    assert found.irregular
    assert "does not follow from its charged releases" in found.oddest


@pytest.mark.parametrize("replaced", [False, True])
def test_coins_leave_out_or_replace_units(replaced: bool) -> None:
    config = Config.parse({"clients": 20, "model": "logistic", "engine": "in-process"})
    side = make_worker(make_plan(config).config.table())
    units = OwnUnits(side.view, side, np.arange(20), np.array([4, 9]), replaced, 5)
    ids = np.array([3, 4, 9, 12])
    seen, wanted = units.batch(ids), ([3, 0, 5, 12] if replaced else [3, 12])  # in ranges of five
    assert torch.equal(seen.x, side.view.batch(np.array(wanted)).x)
    assert seen.owner.tolist() == ([0, 1, 2, 3] if replaced else [0, 3])
    assert units.asked(ids).tolist() == wanted
    again = units.flipped(4).flipped(7)
    assert again.absent.tolist() == [7, 9]
    assert units.probed(ids, 3).tolist() == ([3, 4, 12] if replaced else [3, 12])


@pytest.mark.parametrize("stds", [None, (0.5,)])
def test_a_unit_in_two_places_is_asked_for_in_two_requests(stds: tuple[float, ...] | None) -> None:
    """Sums over units that are named twice are those of one worker, which takes them at once."""
    config = Config.parse({"clients": 20, "model": "logistic", "seed": 1})
    plan = make_plan(config)
    side = make_worker(plan.config.table())
    asked = list[SumRequest]()

    class Strict:
        def gather(self, request: SumRequest) -> PartialSum:
            ids = np.concatenate([shard.ids for shard in request.shards])
            assert len(np.unique(ids)) == len(ids)
            asked.append(request)
            return side.gather(request)

        def close(self) -> None:
            pass

    start = initial_params(side.task, plan.key())
    query = plan.mechanism.optimizer.query(plan.mechanism.optimizer.init(start))
    shards = (Shard(0, np.array([3, 4, 4, 7]), 6), Shard(1, np.array([7, 8, 9]), 3))
    request = SumRequest(query, 0, shards, stds)
    reply = DistinctUnits(Strict()).gather(request)
    assert len(asked) == 2
    assert reply.parties == 9
    exact = side.gather(replace(request, party_stds=None)).sums[0]
    left = reply.sums[0] - exact
    if stds is None:
        torch.testing.assert_close(reply.sums[0], exact, rtol=0, atol=1e-6)  # each shard is on the grid
    else:  # nine parties' noise, one draw each: the std of that of one is 0.5; false alarms below 1e-6
        assert abs(float(left.std()) / (0.5 * 3) - 1) < 5 / np.sqrt(2 * left.numel())


def test_cohorts_without_an_audited_unit_are_scored_too() -> None:
    """Four units that are guessed over four silos: a silo has none of them."""
    found = audited({**CLIENT_LEVEL, "canaries": 4})
    assert not found.irregular, found


def test_ratios_are_those_of_the_exact_contributions() -> None:
    """With almost no noise the ratios tell each coin."""
    found = audited({**EVERYONE, "epsilon": 1e5, "delta": 1e-4, "rounds": 1, "canaries": 400})
    assert found.right == 400
    assert isinstance(found.proved, float)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({**RUN, "placement": "none"}, "placement is 'none'; it must add noise"),
        ({**RUN, "canaries": 401}, "canaries is 401; it must be at most the run's 400 units"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        audited(changes)
    assert said in str(refused.value)


def test_data_and_model_are_refused_where_canaries_stand_in_for_them() -> None:
    with pytest.raises(ArgumentError, match=r"model is '\.\.\.'; it must be left out"):
        fedpriv.audit(RUN, model=nn.Linear(3, 2))


def test_the_command_audits_the_runs_own_data() -> None:
    given = {key.replace("_", "-"): value for key, value in RUN.items() if key not in ("canaries", "seed")}
    settings = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    arguments = ["audit", "--own-data", "--canaries", "20", "--seed", "0", *settings]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("audit run, not for use: its model was trained without units")
    assert "20 of the run's own clients with a coin each, dynamic-dp-sgd" in shown.stdout
    assert "the adversary: who sees the released models" in shown.stdout

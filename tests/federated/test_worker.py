"""A node: its bounded sum equals the plain loop's, it adds its own noise, and reads only its own data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.plain_loop import clipped_sum_loop

from fedpriv._internal.validation import ArgumentError
from fedpriv.config.builders import choose_device, make_source, make_work
from fedpriv.config.schema import Config
from fedpriv.data import DataError, Silos
from fedpriv.data.client_files import write_client_file
from fedpriv.federated.client_update import LocalSteps, OneGradient
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.node.factory import make_worker

SIM: dict[str, object] = {"model": "logistic", "clients": 500, "sampling-rate": 0.1, "seed": 5}
ADAPTIVE = (SumBlock((Term(0.7),), share=0.9), IndicatorBlock(Term(0.7), threshold=0.7, share=0.1))
CASES: dict[str, dict[str, object]] = {
    "one example": {},
    "several examples": {"partition": "dirichlet", "examples-per-client": 6, "client-sizes": "lognormal"},
    "local steps": {"partition": "iid", "examples-per-client": 4, "work": "local-steps", "local-steps": 3},
    "examples of silos": {"unit": "example", "clients": 5, "examples-per-client": 100},
}


def side_of(**changes: object) -> Worker:
    return make_worker({**SIM, **{key.replace("_", "-"): value for key, value in changes.items()}})


def shard(index: int, ids: list[int], parties: int = 1, home: int | None = None) -> Shard:
    return Shard(index, np.array(ids, dtype=np.int64), parties, home)


def request_of(
    side: Worker, shards: list[Shard], stds: tuple[float, ...] | None = None, blocks: object = ADAPTIVE
) -> SumRequest:
    point = side.task.initial(np.random.Generator(np.random.Philox(1)))
    return SumRequest(Query((point,), blocks), 0, tuple(shards), stds)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_the_plain_loop_over_the_units(case: str) -> None:
    side = make_worker({**SIM, **CASES[case]})
    shards = [shard(0, [3, 7, 20], 3), shard(1, [], 0), shard(2, [150, 404], 2)]
    reply = side.answer(request_of(side, shards))
    x, y, owner = side.view.batch(np.array([3, 7, 20, 150, 404]))
    query = request_of(side, []).query
    expected = clipped_sum_loop(side.work, side.task, query, x, y, owner, 5)
    assert reply.parties == 5
    for mine, plain in zip(reply.sums, expected, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("each", [1, 2, 3])
def test_units_that_are_made_in_pieces_are_summed_once(each: int) -> None:
    """So many units are made at a time; the bits of adaptive clipping count them exactly."""
    whole = side_of()
    pieces = replace(whole, unit_memory=whole.memory // each)
    request = request_of(whole, [shard(0, [3, 7, 20, 150, 404, 411, 498], 7)])
    for mine, expected in zip(pieces.answer(request).sums, whole.answer(request).sums, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [1e6, 1e12])
def test_a_clip_norm_that_clips_nothing_changes_nothing_where_there_is_no_noise(clip_norm: float) -> None:
    side, shards = side_of(placement="none"), [shard(0, [3, 7]), shard(1, [20])]
    sums = [
        side.answer(request_of(side, shards, blocks=(SumBlock((Term(bound),)),))).sums[0]
        for bound in (clip_norm, math.inf)
    ]
    assert sums[0].dtype == torch.float64
    assert torch.equal(*sums)


def test_no_chunk_is_a_zero_sum() -> None:
    side = side_of()
    reply = side.answer(request_of(side, []))
    assert reply.parties == 0
    assert [float(total.abs().sum()) for total in reply.sums] == [0.0, 0.0]


def test_parties_noise_depends_on_node_shard_and_release() -> None:
    side = side_of()

    def noise(shards: list[Shard], release: int = 0, of: Worker = side) -> torch.Tensor:
        request = request_of(of, shards, (1.0, 1.0))
        reply = of.answer(SumRequest(request.query, release, request.shards, request.party_stds))
        return reply.sums[0] - of.answer(request_of(of, shards)).sums[0]

    one = noise([shard(0, [3])])
    assert torch.equal(one, noise([shard(0, [3])]))
    others = [noise([shard(1, [3])]), noise([shard(0, [3])], release=1)]
    others += [noise([shard(0, [3])], of=side_of(seed=seed)) for seed in (6, -1, -1)]
    for i, other in enumerate(others):
        assert all(not torch.allclose(other, earlier, atol=0.1) for earlier in [one, *others[:i]])


def test_an_unseeded_node_never_answers_with_the_same_noise_twice() -> None:
    side = side_of(seed=-1)
    one, two = (side.answer(request_of(side, [shard(0, [3])], (1.0, 1.0))).sums[0] for _ in range(2))
    # 7,850 differences of two independent normals: their std is within 0.8 % (one sigma) of sqrt(2).
    assert float((one - two).std()) == pytest.approx(math.sqrt(2), rel=0.06)


@pytest.mark.parametrize("parties", [1, 7])
def test_the_noise_of_k_parties_has_k_times_the_variance(parties: int) -> None:
    side = side_of()
    request = request_of(side, [shard(0, [3], parties)], (2.0, 2.0))
    quiet = request_of(side, [shard(0, [3], parties)])
    noise = side.answer(request).sums[0] - side.answer(quiet).sums[0]
    # 7,850 coordinates: the sample std is within 0.8 % (one sigma), so 6 % is over 7 sigma (flake rate
    # below 1e-12), while sigma mutated by 1.5 is off by 50 %.
    assert float(noise.std()) == pytest.approx(2.0 * math.sqrt(parties), rel=0.06)


@pytest.mark.parametrize("exact", [False, True])
def test_parties_without_data_send_their_noise(exact: bool) -> None:
    """A shard whose clients are all above their cap: 7,850 coordinates, as above."""
    side = replace(side_of(), exact=exact)
    noise = side.answer(request_of(side, [shard(0, [], 3)], (2.0, 2.0))).sums[0]
    assert float(noise.std()) == pytest.approx(2.0 * math.sqrt(3), rel=0.06)


def own_side(tmp_path: Path, size: int = 10, accept_seed: object = None, **changes: object) -> Worker:
    source = make_source(Config.parse(SIM))
    path = tmp_path / "silo.npz"
    write_client_file(path, source, Silos(2, 10, source.first).examples(np.array([1]))[0][:size])
    settings = {"nodes-own-data": True, "unit": "example", "clients": 2, "examples-per-client": 10, **changes}
    node = {"partition-id": 1, "data-file": str(path), "accept-seed": accept_seed}
    return make_worker({**SIM, **settings}, node)


def test_a_node_with_its_own_file_answers_as_the_simulation_does_for_its_silo(tmp_path: Path) -> None:
    own = own_side(tmp_path)
    simulated = side_of(unit="example", clients=2, examples_per_client=10)
    shards = [shard(1, [10, 14, 19], home=1)]
    for mine, theirs in zip(
        own.answer(request_of(own, shards)).sums,
        simulated.answer(request_of(simulated, shards)).sums,
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("accepts", [None, False, "true", True])
def test_a_node_with_its_own_file_takes_the_servers_seed_only_where_its_owner_says_so(
    tmp_path: Path, accepts: object
) -> None:
    assert own_side(tmp_path, accept_seed=accepts).key.reproducible == (accepts is True)


def test_a_node_with_its_own_file_answers_for_no_other_partition(tmp_path: Path) -> None:
    own = own_side(tmp_path)
    for home in (0, None):
        with pytest.raises(ArgumentError, match="partition"):
            own.answer(request_of(own, [shard(0, [1], home=home)]))


def test_units_beyond_its_file_or_elsewhere_add_nothing(tmp_path: Path) -> None:
    own = own_side(tmp_path, size=6)
    there = own.answer(request_of(own, [shard(1, [12], home=1)])).sums
    more = own.answer(request_of(own, [shard(1, [3, 12, 16, 19], home=1)])).sums
    assert all(torch.equal(a, b) for a, b in zip(there, more, strict=True))
    assert all(float(total.norm()) > 0 for total in there)


@pytest.mark.parametrize("missing", ["partition-id", "data-file"])
def test_a_node_without_a_partition_gets_a_hint(missing: str, tmp_path: Path) -> None:
    node = {"partition-id": 0, "data-file": str(tmp_path / "x.npz")}
    del node[missing]
    with pytest.raises(ArgumentError, match=rf"This node has no {missing}\. Start the SuperNode with"):
        make_worker({**SIM, "nodes-own-data": True}, node)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    node = {"partition-id": 0, "data-file": str(tmp_path / "x.npz")}
    with pytest.raises((DataError, FileNotFoundError)):
        make_worker({**SIM, "nodes-own-data": True}, node)


def test_work_follows_the_configuration() -> None:
    assert make_work(Config.parse({})) == OneGradient()
    local = {"work": "local-steps", "local-steps": 3, "local-learning-rate": 0.2, "local-batch-size": 8}
    assert make_work(Config.parse(local)) == LocalSteps(3, 0.2, 8)
    assert make_work(Config.parse({**local, "local-batch-size": 0})) == LocalSteps(3, 0.2, None)


def test_a_source_has_the_options_that_are_set(tmp_path: Path) -> None:
    for key in ("image-size", "vocabulary", "sequence-length"):
        with pytest.raises(ArgumentError, match=f"{key}=64 has no effect: the data set digits"):
            make_source(Config.parse({"dataset": "digits", key: 64}))
    folder = {"dataset": "imdb", "data-folder": str(tmp_path)}
    (tmp_path / "imdb/aclImdb").mkdir(parents=True)
    (tmp_path / "imdb/aclImdb/imdb.vocab").write_text("good")
    for part in ("train", "test"):
        (tmp_path / f"imdb/aclImdb/{part}/pos").mkdir(parents=True)
        (tmp_path / f"imdb/aclImdb/{part}/pos/0_9.txt").write_text("good")
    source = make_source(Config.parse({**folder, "vocabulary": 30, "sequence-length": 8}))
    assert (source.tokens, source.shape) == ((30,), (8,))


def test_missing_devices_are_refused() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ArgumentError, match="device is 'tpu'"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="torch finds no GPU"):
            choose_device("cuda")

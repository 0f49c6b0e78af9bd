"""Secure aggregation in simulation: the same trajectory, dropouts, and what the server sees."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.patching import patched
from helpers.small import small

from fedpriv._internal.timing import Stopwatch
from fedpriv._internal.validation import ArgumentError
from fedpriv.bench.engines import timed_engine
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated import secure_engine
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.secure_engine import LocalParties, SecureEngine, Silos, whole_steps
from fedpriv.flower import server_app
from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.placement import Distributed
from fedpriv.node.factory import make_worker
from fedpriv.report import adversaries
from fedpriv.report.markdown import markdown
from fedpriv.rng import Key
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute
from fedpriv.secure_aggregation import messages
from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.messages import Exchange
from fedpriv.secure_aggregation.party import Party
from fedpriv.secure_aggregation.server import Server
from fedpriv.simulation.run import make_engine

SILOS: dict[str, Any] = {
    "unit": "example", "clients": 7, "examples_per_client": 30, "optimizer": "dp-sgd", "rounds": 3,
    "placement": "distributed", "sampler": "everyone", "sampling_rate": 1.0, "engine": "in-process",
}  # fmt: skip


def silos(**changes: object) -> Config:
    return small(**(SILOS | {"secure_aggregation": True} | changes))


def local(silos: Silos, parties: int, threshold: int, *more: Any, **named: Any) -> SecureEngine:
    return SecureEngine(LocalParties(silos, parties, threshold), threshold, *more, **named)


def first_request(config: Config) -> SumRequest:
    """The request of the first release."""
    plan = make_plan(config)
    mechanism, worker = plan.mechanism, make_worker(config.table())
    query = mechanism.optimizer.query(mechanism.optimizer.init(torch.zeros(worker.task.dimension)))
    stds = mechanism.placement.party_stds(query.noise_stds(mechanism.scale))
    return SumRequest(query, 0, plan.cohorts(Key.from_seed(1)).draw(0), stds)


@pytest.mark.parametrize("changes", [{}, {"clients": 2, "optimizer": "dp-adam", "adaptive_quantile": 0.5}])
def test_the_trajectory_is_that_of_the_plain_run_bit_for_bit(changes: dict[str, Any]) -> None:
    """With equal seeds and equal n_min: the masks leave no trace in the models."""
    secure = silos(seed=5, **changes)
    placement = make_plan(secure).mechanism.placement
    plain = secure.changed(secure_aggregation=False, min_replies=placement.min_replies)
    finals = [execute(make_plan(config), make_engine(config)) for config in (secure, plain)]
    assert isinstance(make_engine(secure), SecureEngine)
    assert not isinstance(make_engine(plain), SecureEngine)
    one, other = (result.params for result in finals)
    assert torch.equal(one, other)
    assert finals[0].metrics == finals[1].metrics


def test_the_gathered_sum_is_that_of_the_survivors() -> None:
    """Silo 3 leaves before its message arrives, silo 5 after it."""
    config = silos(seed=5)
    request, worker = first_request(config), make_worker(config.table())
    leave = {Exchange.MASKED: {3}, Exchange.REVEAL: {5}}
    found = local(worker, 7, 5, leave).gather(request)
    kept = tuple(shard for shard in request.shards if shard.home != 2)
    plain = worker.gather(replace(request, shards=kept))
    assert found.parties == plain.parties == 6
    assert all(torch.equal(a, b) for a, b in zip(found.sums, plain.sums, strict=True))


@pytest.mark.parametrize("exchange", Exchange)
def test_below_the_threshold_nothing_is_released_and_the_charge_stands(exchange: Exchange) -> None:
    config = silos()
    plan = make_plan(config)
    assert plan.mechanism.placement.min_replies == 5
    engine = local(make_worker(config.table()), 7, 5, {exchange: {1, 4, 6}})
    found = engine.gather(first_request(config))
    assert found.parties == 0
    assert not any(total.any() for total in found.sums)
    engine = local(make_worker(config.table()), 7, 5, {exchange: {1, 4, 6}})
    result = execute(plan, engine)
    assert result.stopped == "budget"  # every release was charged
    assert result.report["privacy"]["releases"] == 3
    assert result.report["result"]["rounds"] == 0


def _swapped(right: Any, server: Server, replies: Any) -> Any:
    """Two parties' announced keys under each other's names."""
    one, other, *rest = right(server, replies)
    return [one[:3] + other[3:], other[:3] + one[3:], *rest]


def _other_survivors(right: Any, server: Server, replies: Any) -> Any:
    """A survivor is left out of what the parties sign."""
    return right(server, replies)[1:]


def _false_share(right: Any, party: Party, signed: Any) -> Any:
    """Party 3 reveals a false share of party 2's seed."""
    if party.number == 3:
        key, seed = party._held[2]
        party._held[2] = key, bytes([seed[0] ^ 1]) + seed[1:]
    return right(party, signed)


TAMPERED: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "keys under other names": (
        Server, "announced", _swapped, "party 1 refuses the exchange of shares: party 1 did not sign",
    ),
    "a survivor of whom the parties are not told": (
        Server, "survivors", _other_survivors,
        "release 1 ended the run: party 2 signed another set of survivors, and without its message",
    ),
    "a false share": (Party, "reveal", _false_share, "release 1 ended the run: the shares of"),
}  # fmt: skip


@pytest.mark.parametrize("attack", TAMPERED)
def test_who_tampers_ends_the_run_and_the_charge_stands(attack: str, tmp_path: Path) -> None:
    """One sentence names the party and the rule; the ledger has the release, and there is no model of it."""
    owner, name, wrong, why = TAMPERED[attack]
    plan = make_plan(silos())
    folder = RunFolder.create(tmp_path / "run")
    with patched(owner, name, wrong), pytest.raises(ProtocolError, match=why) as error:
        execute(plan, make_engine(plan.config), folder)
    assert "its charge stands" in str(error.value)
    assert "\n" not in str(error.value)
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["privacy"]["releases"] == 1
    assert (report["result"]["stopped"], report["result"]["rounds"]) == ("failed", 0)


def test_a_release_that_is_asked_for_again_ends_the_run() -> None:
    config = silos()
    engine, request = local(make_worker(config.table()), 7, 5), first_request(config)
    assert engine.gather(request).parties == 7
    with pytest.raises(ProtocolError, match="party 1 refuses the exchange of keys: release 0 is not new"):
        engine.gather(request)


def test_a_silo_whose_message_is_altered_is_reported_and_the_run_goes_on() -> None:
    """Someone alters the message of silo 5 in the third release."""
    config = silos(seed=5)

    def altered(right: Any, server: Server, replies: dict[int, bytes]) -> Any:
        if server._session.release == 2:
            replies = replies | {5: replies[5][:-1] + bytes([replies[5][-1] ^ 1])}
        return right(server, replies)

    with patched(Server, "survivors", altered):
        result = execute(make_plan(config), make_engine(config))
    assert result.report["result"]["rounds"] == 3
    [absence] = result.report["privacy"]["absences"]
    assert (absence["partition"], absence["from release"], absence["to release"]) == (4, 3, 3)
    assert absence["why"] == ["party 5 did not sign its message with its identity key"]


def test_silos_that_leave_are_reported() -> None:
    config = silos()
    engine = local(make_worker(config.table()), 7, 5, {Exchange.MASKED: {3}, Exchange.REVEAL: {5}})
    engine.gather(first_request(config))
    [absence] = engine.absences.to_json()
    assert (absence["partition"], absence["why"]) == (2, ["silent in the exchange of masked"])


class Fixed:
    """Silos whose messages are given whole numbers of steps."""

    def __init__(self, steps: list[float], counts: list[Vector]) -> None:
        self.steps, self.counts = steps, counts

    def answer(self, request: SumRequest) -> PartialSum:
        [shard] = request.shards
        assert shard.home is not None
        counts = self.counts[shard.home].astype(np.float64)
        return PartialSum((torch.from_numpy(counts * self.steps[0]),), 1)


def views_of_a_bit(clients: int, release_pairs: int) -> tuple[list[float], list[float]]:
    """What the server sees of silo 1, in two worlds: 2^40 steps are silo 1's message, or silo 2's.

    The statistic is the mean of the masked numbers, in standard deviations of a mean of uniform numbers.
    """
    request = first_request(silos(clients=clients))
    assert request.party_stds is not None
    steps = [
        noise_step(block, std) for block, std in zip(request.query.blocks, request.party_stds, strict=True)
    ]
    length = request.query.points[0].numel()
    found: tuple[list[float], list[float]] = ([], [])
    for world in (0, 1):
        counts = [np.zeros(length) for _ in range(clients)]
        counts[world][:] = 2.0**40
        seen: list[bytes] = []

        def sent(exchange: Exchange, replies: Any, seen: list[bytes] = seen) -> None:
            if exchange is Exchange.MASKED:
                seen.append(replies[1])

        engine = local(Fixed(steps, counts), clients, clients, sent=sent)
        for release in range(release_pairs):
            engine.gather(replace(request, release=release))
        for message in seen:
            _, vector = messages.read_masked(1, message[3:-64], length)
            found[world].append(float(vector.view(np.int64).mean() / 2**63 * math.sqrt(3 * length)))
    return found


def leaks(one: list[float], other: list[float]) -> bool:
    """Whether the server tells the worlds apart: messages that are not uniform, or repeat their masks."""
    small_values = max(map(abs, one + other)) < 1e-3 * math.sqrt(3)
    repeated = len(set(one)) < len(one) or len(set(other)) < len(other)
    return small_values or repeated


def test_the_server_s_view_tells_nothing_of_who_sent_what() -> None:
    """Two worlds with one sum. Means of uniform numbers are normal: 12 releases each stay within 5 stds."""
    one, other = views_of_a_bit(2, 12)
    assert not leaks(one, other)
    assert max(map(abs, one + other)) < 5
    assert abs(np.mean(one) - np.mean(other)) < 5 * math.sqrt(2 / 12)


def test_a_planted_fault_shows_in_the_server_s_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of one key for all releases, and masks that are left out."""
    monkeypatch.setattr("fedpriv.secure_aggregation.party.pair_mask", lambda *arguments: bytes(32))
    monkeypatch.setattr("fedpriv.secure_aggregation.party.self_mask", lambda *arguments: bytes(32))
    assert leaks(*views_of_a_bit(2, 3))
    monkeypatch.setattr("fedpriv.secure_aggregation.party.masks.add", lambda *arguments, **named: None)
    assert leaks(*views_of_a_bit(2, 3))


def test_a_message_has_its_share_of_the_noise() -> None:
    """The empirical variance of what each silo masks is z S / sqrt(n_min - c), so that t - c shares suffice.

    Everything is taken from the sums of empty silos; noise that is left out of one silo shows.
    """
    config = silos(clients=4, colluding_parties=1)
    plan, request = make_plan(config), first_request(config)
    placement = plan.mechanism.placement
    assert isinstance(placement, Distributed)
    assert (placement.min_replies, placement.secret_shares) == (3, 2)
    empty = replace(request, shards=tuple(replace(shard, ids=shard.ids[:0]) for shard in request.shards))
    total = local(make_worker(config.table()), 4, 3).gather(empty).sums[0]
    std = plan.mechanism.scale * request.query.blocks[0].sensitivity / math.sqrt(2) * math.sqrt(4)
    n = total.numel()
    assert abs(float(total.pow(2).mean()) / std**2 - 1) < 5 * math.sqrt(2 / n)


def test_the_report_has_a_row_for_each_adversary() -> None:
    """Against the server, peers and outsiders epsilon is that of the sum, not that of a message."""
    config = silos()
    result = execute(make_plan(config), make_engine(config))
    found = result.report["privacy"]["views"]
    assert [view["against"] for view in found] == [
        "who sees the released models", "the server, which sees the sum alone",
        "peers, as many as colluding-parties", "outsiders who read the network",
    ]  # fmt: skip
    models, *others = [view["epsilon"]["pld"]["epsilon"] for view in found]
    assert others == pytest.approx([models] * 3)
    text = markdown(result.report)
    assert "learns the noisy sum of each release and no message (secure aggregation)" in text
    assert "| the server, which sees sums alone (secure aggregation); no credit for sampling | PLD" in text
    plain = make_plan(config.changed(secure_aggregation=False))
    assert adversaries.views(plain, plain.events)[1]["epsilon"]["pld"]["epsilon"] > 2 * models


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sampler": "fixed-size", "sampling_rate": 0.5}, "be false unless sampler is everyone"),
        ({"sampler": "poisson", "sampling_rate": 0.5}, "be false unless sampler is everyone"),
        ({"unit": "client", "examples_per_client": 1}, "be false unless unit is example"),
        ({"clients": 65}, r"clients is 65; it must lie in \[2, 64\] with secure-aggregation"),
        ({"clients": 1}, r"clients is 1; it must lie in \[2, 64\]|secure-aggregation"),
        ({"noise_draws": "fast"}, "be false unless noise-draws is exact"),
        ({"min_replies": 4}, "min-replies is 4; it must be 0 or at least 5, more than two thirds"),
        ({"colluding_parties": 3}, "colluding-parties is 3; it must be at most 2 with min-replies 5 of 7"),
        ({"placement": "central"}, "secure-aggregation is True, which needs placement=distributed"),
    ],
)
def test_other_combinations_are_refused_in_one_sentence(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why) as error:
        make_plan(silos(**changes))
    assert "\n" not in str(error.value)


def test_what_is_no_whole_number_of_steps_is_refused() -> None:
    for value in (0.5, 2.0**53, math.inf, math.nan):
        with pytest.raises(ValueError, match="not a whole number of steps"):
            whole_steps((torch.tensor([1.0, value], dtype=torch.float64),), (1.0,))
    found = whole_steps((torch.tensor([-3.0, 2.0**52]).double(), torch.tensor(6.0).double()), (1.0, 2.0))
    assert found.view(np.int64).tolist() == [-3, 2**52, 3]


def test_a_share_of_few_steps_is_refused() -> None:
    request = replace(first_request(silos()), party_stds=(1e-9,))
    with pytest.raises(ValueError, match="fewer than 16 steps"):
        secure_engine.grid_steps(request)


def test_flower_and_timed_rounds_refuse_it_before_anything_is_sent() -> None:
    with pytest.raises(ArgumentError, match="be false on Flower's simulation engine"):
        server_app._run(None, silos())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="it must be false where rounds are timed"):
        timed_engine(silos(), Stopwatch())

"""Secure aggregation over messages: the same sums on every grid, and what nodes and the server refuse."""

from __future__ import annotations

import gc
import itertools
import math
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from helpers.owned_nodes import Owned, keys_of
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.ledger import read
from fedpriv.config.builders import make_source
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data.client_files import write_client_file
from fedpriv.federated.engine import SumRequest
from fedpriv.federated.secure_engine import digest
from fedpriv.flower import client_app
from fedpriv.flower.client_app import _configs, _secure_parties, app
from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids.base import HostedGrid, node_context
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.grids.ray import RayGrid
from fedpriv.flower.secure_parties import secured_over
from fedpriv.flower.secure_serialization import (
    EXCHANGE,
    keys_content,
    read_identity_keys,
    read_replies,
    read_shown,
    replies_content,
    shown_content,
)
from fedpriv.flower.serialization import MessageError, read_request, request_content, shared_records
from fedpriv.flower.topology import EngineError
from fedpriv.mechanism.query import SumBlock
from fedpriv.node.factory import make_worker
from fedpriv.node.own_events import answered
from fedpriv.node.secure_parties import NodeParties, Replies, pinned
from fedpriv.rng import Key
from fedpriv.runs.runner import execute
from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.keys import Identity, Session
from fedpriv.secure_aggregation.messages import Exchange, longest
from fedpriv.simulation.run import make_engine

SILOS: dict[str, Any] = {
    "unit": "example", "clients": 7, "examples_per_client": 20, "optimizer": "dp-sgd", "rounds": 2,
    "placement": "distributed", "sampler": "everyone", "sampling_rate": 1.0, "secure_aggregation": True,
    "evaluate_every": 2,
}  # fmt: skip


def silos(**changes: object) -> Config:
    return small(**(SILOS | changes))


def first_request(config: Config) -> SumRequest:
    plan = make_plan(config)
    mechanism, worker = plan.mechanism, make_worker(config.table() | {"nodes-own-data": False})
    query = mechanism.optimizer.query(mechanism.optimizer.init(torch.zeros(worker.task.dimension)))
    stds = mechanism.placement.party_stds(query.noise_stds(mechanism.scale))
    return SumRequest(query, 0, plan.cohorts(Key.from_seed(1)).draw(0), stds)


class Forging(InProcessGrid):
    """A grid whose replies ``forge`` may change, of each message and its reply."""

    def __init__(self, config: Config, forge: Callable[[Message, Message], Message], nodes: int = 7) -> None:
        super().__init__(nodes, config.table())
        self.forge = forge

    def _answer(self, message: Message) -> Message:
        return self.forge(message, super()._answer(message))


def exchange_of(message: Message) -> Exchange | None:
    if message.metadata.message_type != EXCHANGE:
        return None
    return Exchange(int(message.content["session"]["exchange"]))


def engine_over(grid: HostedGrid, config: Config, strict: bool | None = None) -> Any:
    return secured_over(config, GridEngine(grid, strict=strict, silos=True, report=lambda line: None))


@pytest.mark.parametrize("nodes", [1, 3, 7])
def test_the_trajectory_is_that_of_one_process_bit_for_bit(nodes: int) -> None:
    config = silos(seed=5)
    plan = make_plan(config)
    whole = execute(plan, make_engine(config))
    over = execute(plan, engine_over(InProcessGrid(nodes, config.table()), config))
    assert torch.equal(over.params, whole.params)
    assert over.metrics == whole.metrics


@pytest.mark.slow
def test_the_trajectory_on_ray_is_that_of_one_process_bit_for_bit(ray_instance: None) -> None:
    config = silos(seed=5)
    plan = make_plan(config)
    grid = RayGrid(2, config.table(), num_cpus=0.5)
    over = execute(plan, engine_over(grid, config))
    assert torch.equal(over.params, execute(plan, make_engine(config)).params)


@pytest.mark.slow
def test_the_ray_engine_of_a_configuration_aggregates_securely(ray_instance: None) -> None:
    config = silos(engine="ray", actors=2, cpus_per_actor=0.5, seed=5)
    plan = make_plan(config)
    result = execute(plan, make_engine(plan.config))
    assert result.report["privacy"]["releases"] == 2
    in_one = silos(seed=5)
    assert torch.equal(result.params, execute(make_plan(in_one), make_engine(in_one)).params)


def test_what_the_server_receives_is_masked() -> None:
    """Each message of the masked exchange has uniform numbers: the mean of 7,850 is within 5 stds of 0."""
    config, seen = silos(), list[bytes]()

    def look(message: Message, reply: Message) -> Message:
        if exchange_of(message) is Exchange.MASKED:
            seen.extend(reply.content["messages"].values())  # type: ignore[union-attr, arg-type]
        return reply

    request = first_request(config)
    found = engine_over(Forging(config, look, nodes=2), config).gather(request)
    assert (len(seen), found.parties) == (7, 7)
    length = request.query.points[0].numel()
    for text in seen:
        numbers = np.frombuffer(text[3 + 32 : -64], "<i8")
        assert len(numbers) == length
        assert abs(float(numbers.mean()) / 2**63) * (3 * length) ** 0.5 < 5
    plain = make_worker(config.table()).gather(request)
    norms = [float(total.sums[0].norm()) for total in (found, plain)]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)  # two draws of one noise


@pytest.mark.parametrize("exchange", list(Exchange))
@pytest.mark.parametrize("gone", [2, 3])
@pytest.mark.slow
def test_nodes_may_leave_at_each_exchange(exchange: Exchange, gone: int) -> None:
    """5 of 7 are the threshold: with two silos gone there is the sum of the survivors, with three none."""
    config = silos(seed=5)
    left = set[int]()

    def leave(message: Message, reply: Message) -> Message:
        if exchange_of(message) is exchange and len(left) < gone:
            left.add(message.metadata.dst_node_id)
        down = message.metadata.dst_node_id in left
        return error_reply(message, OSError()) if down and exchange_of(message) is not None else reply

    request = first_request(config)
    engine = engine_over(Forging(config, leave), config, strict=False)
    found = engine.gather(request)
    late = exchange in (Exchange.SURVIVORS, Exchange.REVEAL)
    if gone == 3:
        assert found.parties == 0
        assert not any(total.any() for total in found.sums)
        return
    survivors = [shard for shard in request.shards if late or shard.home + 1 not in left]  # type: ignore[operator]
    assert found.parties == len(survivors) == (7 if late else 5)
    plain = make_worker(config.table()).gather(replace(request, shards=tuple(survivors)))
    assert all(torch.equal(a, b) for a, b in zip(found.sums, plain.sums, strict=True))


def test_no_reply_at_all_ends_the_run_in_a_sentence() -> None:
    config = silos()

    def silent(message: Message, reply: Message) -> Message:
        return reply if exchange_of(message) is None else error_reply(message, OSError())

    with pytest.raises(EngineError, match="no node answered release 1"):
        engine_over(Forging(config, silent), config, strict=False).gather(first_request(config))


def test_a_node_that_names_no_key_ends_the_run_before_any_release() -> None:
    config = silos()

    def forge(message: Message, reply: Message) -> Message:
        if "keys" not in reply.content:
            return reply
        content = keys_content({int(p): k[:31] for p, k in reply.content["keys"].items()}, "p")  # type: ignore[union-attr, index, misc]
        return Message(content, reply_to=message)

    with pytest.raises(EngineError, match=r"needs the identity key of every party: .*one identity key of 32"):
        engine_over(Forging(config, forge), config, strict=False)


def test_a_party_that_refuses_ends_the_run_and_is_named() -> None:
    """The server shows party 3 the keys of party 2 in place of its own."""
    config = silos()

    def swap(message: Message, reply: Message) -> Message:
        return reply

    grid = Forging(config, swap)
    right = grid._answer

    def shown(message: Message) -> Message:
        if exchange_of(message) is Exchange.SHARES and message.metadata.dst_node_id == 3:
            table = message.content["shown"]
            texts = list(table["3-texts"])  # type: ignore[arg-type, call-overload]
            table["3-texts"] = [texts[1], *texts[1:]]  # type: ignore[call-overload, index]
        return right(message)

    grid._answer = shown  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="party 3 refuses the exchange of shares: a party has two"):
        engine_over(grid, config).gather(first_request(config))


def content_of(request: SumRequest, session: Session, exchange: Exchange, party: int, own: Any) -> RecordDict:
    records = request_content(shared_records(request), [request.shards[party - 1]])
    return shown_content(exchange, session, {party: own}, records if exchange is Exchange.MASKED else None)


def asked(config: Config, content: RecordDict, kind: str = EXCHANGE) -> Message:
    grid = InProcessGrid(1, config.table())
    message = grid.create_message(content, kind, 1, "")
    return app(message, node_context(1, 1, config.table()))


def test_a_node_sends_no_plain_message_in_a_secure_run() -> None:
    config = silos()
    request = first_request(config)
    content = request_content(shared_records(request), request.shards[:1])
    reply = asked(config, content, "train")
    assert reply.has_error()
    assert reply.error.reason == "MessageError"


def session_of(parties: NodeParties, **changes: Any) -> Session:
    keys = tuple(parties.keys(range(1, 8)).values())
    return Session(
        **(
            {"run": "0", "release": 0, "cohort": keys, "threshold": 5, "length": 7850, "request": bytes(32)}
            | changes
        )
    )


def parties_of(config: Config, **own: Any) -> NodeParties:
    return NodeParties(make_worker(config.table()), "0", 5, **own)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": "1"}, "another run than this node's"),
        ({"run": "1/0"}, "another run than this node's"),
        ({"threshold": 4}, "threshold is 4; it must be at least 5"),
        ({"cohort": "swapped"}, "another identity key in this party's place"),
        ({"cohort": "shrunken"}, "another identity key in this party's place"),
    ],
)
def test_a_party_holds_the_server_to_the_run(changes: dict[str, Any], why: str) -> None:
    parties = parties_of(silos())
    session = session_of(parties)
    if changes.get("cohort") == "swapped":
        changes = {"cohort": (*session.cohort[:5], session.cohort[6], session.cohort[5])}
    if changes.get("cohort") == "shrunken":
        changes = {"cohort": session.cohort[:6]}
    replies = parties.answer(Exchange.KEYS, session_of(parties, **changes), {7: None}, None)
    assert not replies.messages
    assert why in replies.refused[7]


def test_a_party_joins_a_release_once_and_keeps_its_first_cohort() -> None:
    parties = parties_of(silos())
    session = session_of(parties)
    assert 1 in parties.answer(Exchange.KEYS, session, {1: None}, None).messages
    again = parties.answer(Exchange.KEYS, session, {1: None}, None)
    assert again.refused[1] == "release 0 is not new: this party joined release 0 already"
    other = (*session.cohort[:6], Identity.fresh().public)
    found = parties.answer(Exchange.KEYS, session_of(parties, release=1, cohort=other), {1: None}, None)
    assert "not the one whose identity keys" in found.refused[1]


def test_pinned_keys_are_the_owners_not_the_servers() -> None:
    own, peers = Identity.fresh(), [Identity.fresh().public for _ in range(6)]
    pinned = (own.public, *peers)
    parties = parties_of(silos(), identity=own, pinned=pinned)
    assert parties.keys([1]) == {1: own.public}
    session = Session("0", 0, pinned, 5, 7850, bytes(32))
    forged = replace(session, cohort=(*pinned[:6], Identity.fresh().public))
    assert "not the one" in parties.answer(Exchange.KEYS, forged, {1: None}, None).refused[1]
    assert 1 in parties.answer(Exchange.KEYS, session, {1: None}, None).messages
    numbered = replace(session, release=2, run="0/1")  # a second release 0, say
    assert "another run" in parties.answer(Exchange.KEYS, numbered, {1: None}, None).refused[1]


def test_a_request_of_another_release_is_refused_in_a_session() -> None:
    config = silos()
    parties, request = parties_of(config), first_request(config)
    session = session_of(parties, request=digest(request))
    for exchange, why in ((Exchange.KEYS, ""), (Exchange.MASKED, "of another release than the session's")):
        shown = read_shown(content_of(replace(request, release=3), session, exchange, 1, {}))
        found = parties.answer(shown.exchange, shown.session, shown.parties, shown.request)
        assert not why or why in found.refused[1]


def clipped_at(request: SumRequest, clip_norm: float) -> SumRequest:
    [block] = request.query.blocks
    assert isinstance(block, SumBlock)
    changed = replace(block, terms=(replace(block.terms[0], clip_norm=clip_norm),))
    return replace(request, query=replace(request.query, blocks=(changed,)))


def elsewhere(request: SumRequest, value: float) -> SumRequest:
    [point] = request.query.points
    return replace(request, query=replace(request.query, points=(torch.full_like(point, value),)))


# What a server could ask some parties, so that their noise or their data do not hide another's message.
OTHERS: dict[str, Callable[[SumRequest], SumRequest]] = {
    "a model that is no number": lambda request: elsewhere(request, math.nan),
    "another model": lambda request: elsewhere(request, 1e-30),
    "a clip norm with other steps": lambda request: clipped_at(request, 1.0001),
    "another noise": lambda request: replace(request, query=replace(request.query, relative_noise=0.5)),
    "another share of the noise": lambda request: replace(request, party_stds=(1e-3,)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_all_parties_answer_one_request_or_none(what: str, tmp_path: Path) -> None:
    """The server asks the first node something else than the others: it refuses, and charges nothing."""
    config = small(**OWNED)
    request, grid = first_request(config), Owned(config, owners(config, tmp_path))
    right, other = grid._answer, shared_records(OTHERS[what](request))

    def answer(message: Message) -> Message:
        if exchange_of(message) is Exchange.MASKED and message.metadata.dst_node_id == 1:
            for name, record in other.items():
                message.content[name] = record
        return right(message)

    grid._answer = answer  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match=r"party 1 refuses .*another question than the one that all"):
        engine_over(grid, config, strict=False).gather(request)
    assert not (tmp_path / "0.npz.ledger.jsonl").exists() or not read(tmp_path / "0.npz.ledger.jsonl").events


def test_the_digest_of_a_request_is_that_of_what_is_read_from_the_wire() -> None:
    request = first_request(silos())
    back = read_request(request_content(shared_records(request), request.shards[:1]))
    assert digest(back) == digest(request)
    assert digest(replace(request, shards=())) == digest(request)
    digests = {digest(change(request)) for change in OTHERS.values()} | {digest(request)}
    assert len(digests) == len(OTHERS) + 1


def test_the_exchanges_are_not_for_other_runs() -> None:
    config = silos(secure_aggregation=False)
    reply = asked(config, RecordDict({"parties": ConfigRecord({"numbers": [1]})}), "query.identities")
    assert reply.error.reason == "MessageError"


def test_messages_are_read_as_they_were_written() -> None:
    parties = parties_of(silos())
    session, request = session_of(parties), first_request(silos())
    for exchange, own in (
        (Exchange.KEYS, None),
        (Exchange.SHARES, [b"a", b"b"]),
        (Exchange.MASKED, {2: b"x", 5: b"yz"}),
        (Exchange.SURVIVORS, [1, 2, 3]),
        (Exchange.REVEAL, [b"s"]),
    ):
        shown = read_shown(content_of(request, session, exchange, 4, own))
        assert (shown.exchange, shown.session, shown.parties) == (exchange, session, {4: own})
        assert (shown.request is not None) == (exchange is Exchange.MASKED)
    replies = Replies({1: b"m"}, {2: "no"}, {5: "few"}, [6])
    assert read_replies(replies_content(replies), [1, 2, 5, 6], 1) == replies
    assert read_identity_keys(keys_content({3: bytes(32)}, "p"), [3]) == {3: bytes(32)}


WRONG: dict[str, tuple[str, str, Any]] = {
    "an exchange that there is not": ("session", "exchange", 9),
    "a run that is a number": ("session", "run", 3),
    "a release below 0": ("session", "release", -1),
    "a cohort of texts": ("session", "cohort", ["a"]),
    "a digest that is a text": ("session", "request", "a"),
    "a party twice": ("shown", "parties", [4, 4]),
    "a party 0": ("shown", "parties", [0]),
    "texts that are numbers": ("shown", "4-texts", [1, 2]),
    "more texts than peers": ("shown", "4-texts", [b"a", b"b", b"c"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_content_is_refused(what: str) -> None:
    record, field, value = WRONG[what]
    parties, request = parties_of(silos()), first_request(silos())
    content = content_of(request, session_of(parties), Exchange.MASKED, 4, {2: b"x", 5: b"y"})
    content[record][field] = value  # type: ignore[index, call-overload]
    with pytest.raises(MessageError):
        read_shown(content)


def test_forged_replies_are_refused() -> None:
    session = session_of(parties_of(silos()))
    size = longest(Exchange.KEYS, session)
    for replies, parties in (
        (Replies({1: bytes(size + 1)}), [1]),  # longer than any message of this exchange
        (Replies({1: b"", 2: b""}), [1]),
        (Replies({}), [1]),
        (Replies({1: b""}, {1: "both"}), [1]),
        (Replies({1: "text"}), [1]),  # type: ignore[dict-item]
        (Replies({}, {1: 3}), [1]),  # type: ignore[dict-item]
    ):
        with pytest.raises(MessageError):
            read_replies(replies_content(replies), parties, size)
    odd = read_replies(replies_content(Replies({}, {1: "a\nb" + "c" * 1000})), [1], size)
    assert odd.refused[1].startswith("a bccc")
    assert len(odd.refused[1]) == 300


def test_the_longest_message_of_each_exchange_is_what_parties_send() -> None:
    """With all parties there: the bound holds with equality but for a party's own row."""
    config, sizes = silos(clients=4), dict[Exchange, int]()

    def look(message: Message, reply: Message) -> Message:
        if (exchange := exchange_of(message)) is not None:
            sizes[exchange] = max(map(len, reply.content["messages"].values()))  # type: ignore[union-attr, arg-type]
        return reply

    request = first_request(config)
    engine_over(Forging(config, look, nodes=1), config).gather(request)
    session = Session("0", 0, tuple(Identity.fresh().public for _ in range(4)), 3, 7850, bytes(32))
    for exchange, size in sizes.items():
        assert longest(exchange, session) - 114 <= size <= longest(exchange, session)


def test_a_masked_message_needs_the_runs_noise() -> None:
    config = silos()
    parties = _secure_parties(tuple(sorted(config.table().items())), (), 0)
    request = first_request(config)
    session = session_of(parties, request=digest(request))
    content = content_of(replace(request, party_stds=None), session, Exchange.MASKED, 1, {})
    assert read_request(content).party_stds is None
    assert asked(config, content).error.reason == "MessageError"


NODES = 4
OWNED: dict[str, Any] = SILOS | {
    "clients": NODES, "dataset": "infinite-digits", "nodes_own_data": True, "seed": 5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_processes() -> None:
    """Nodes of this process begin as new ones."""
    for cache in (client_app._secure_parties, client_app._node_ledger, client_app._side):
        cache.cache_clear()


def owners(config: Config, folder: Path, **more: object) -> list[dict[str, Any]]:
    """The configurations of nodes, each with a data file, a ledger and keys of its own."""
    source, identities = make_source(config), [Identity.fresh() for _ in range(NODES)]
    nodes = []
    for place in range(NODES):
        path = folder / f"{place}.npz"
        write_client_file(path, source, np.arange(place * 20, place * 20 + 20) + source.first)
        node = {"partition-id": place, "num-partitions": NODES, "data-file": str(path), "accept-seed": True}
        limits = {"epsilon-limit": 50.0, "delta-limit": 1e-3}
        nodes.append(node | keys_of(identities, place, folder) | limits | more)
    return nodes


def test_forgotten_runs_leave_keys_and_no_data(tmp_path: Path) -> None:
    config = small(**OWNED)
    node = owners(config, tmp_path)[0]
    items = tuple(tuple(sorted(each.items())) for each in (config.table(), node))
    parties = _secure_parties(*items, 7)
    worker = weakref.ref(client_app._side(*items))
    assert worker() is not None
    client_app.forget_runs()
    gc.collect()
    assert worker() is None
    assert _secure_parties(*items, 7) is parties


def owned_run(config: Config, nodes: list[dict[str, Any]]) -> Any:
    return execute(make_plan(config), engine_over(Owned(config, nodes), config, strict=False))


def test_nodes_that_own_their_data_aggregate_securely_and_charge_the_sum(tmp_path: Path) -> None:
    """A node's ledger has the run's own multiplier: what the server sees is the sum of n_min - c shares."""
    config = small(**OWNED)
    result = owned_run(config, owners(config, tmp_path))
    assert result.report["privacy"]["releases"] == 2
    scale = make_plan(config).mechanism.scale
    for place in range(NODES):
        events = read(tmp_path / f"{place}.npz.ledger.jsonl").events
        assert [event.noise_multiplier for event in events] == pytest.approx([scale] * 2)
        assert not any(event.sampling.samples for event in events)


def test_the_noise_of_more_colluders_than_the_run_assumes_is_not_credited(tmp_path: Path) -> None:
    config = small(**OWNED)
    plan = make_plan(config)
    assert (plan.mechanism.placement.min_replies, config.colluding_parties) == (3, 1)
    owned_run(config, owners(config, tmp_path, **{"colluding-peers": 2}))
    share = plan.mechanism.scale / 2**0.5  # of 3 - 1 shares
    assert read(tmp_path / "0.npz.ledger.jsonl").events[0].noise_multiplier == pytest.approx(share)
    assert answered(plan, plan.mechanism.planned[0], 3).noise_multiplier == pytest.approx(share)


def test_more_colluders_than_the_protocol_withstands_leave_a_nodes_own_share_alone() -> None:
    """Of 10 nodes with a threshold of 7 it withstands 2 * 7 - 10 - 1 = 3."""
    plan = make_plan(small(**OWNED | {"clients": 10}))
    assert plan.mechanism.placement.min_replies == 7
    share = plan.mechanism.scale / 6**0.5  # of 7 - 1 shares
    planned = plan.mechanism.planned[0]
    for colluders, shares in ((1, 6), (3, 4), (4, 1), (9, 1)):
        found = answered(plan, planned, colluders).noise_multiplier
        assert found == pytest.approx(share * shares**0.5)


def test_a_node_whose_limit_does_not_suffice_is_not_ready(tmp_path: Path) -> None:
    config = small(**OWNED)
    nodes = owners(config, tmp_path)
    nodes[2] |= {"epsilon-limit": 0.1, "delta-limit": 1e-5}
    with pytest.raises(EngineError, match="node 3 failed with RefusedError; it is of partition 2"):
        owned_run(config, nodes)


def test_a_node_that_cannot_charge_is_missing_from_the_sum(tmp_path: Path) -> None:
    config = small(**OWNED)
    engine = engine_over(Owned(config, owners(config, tmp_path)), config, strict=False)
    (tmp_path / "1.npz.ledger.jsonl").mkdir()
    assert engine.gather(first_request(config)).parties == 3
    [absence] = engine.absences.to_json()
    assert (absence["partition"], absence["why"]) == (1, ["silent in the exchange of masked"])


def test_a_release_that_a_node_has_charged_is_not_masked_again(tmp_path: Path) -> None:
    """Also after a restart, when its memory of joined releases is gone: its ledger remembers."""
    config = small(**OWNED)
    grid = Owned(config, owners(config, tmp_path))
    request = first_request(config)
    assert engine_over(grid, config, strict=False).gather(request).parties == NODES
    client_app._secure_parties.cache_clear()
    assert engine_over(grid, config, strict=False).gather(request).parties == 0
    assert len(read(tmp_path / "0.npz.ledger.jsonl").events) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"identity-key": ""}, "the run aggregates securely, and this node has no identity-key"),
        ({"peer-keys": ""}, "the run aggregates securely, and this node has no peer-keys"),
        (
            {"identity-key": "nothing"},
            "identity-key is 'nothing'; it must be a readable file",
        ),
        ({"partition-id": 1}, "have this node's own key in line 2"),
        ({"min-parties": 4}, "min-replies of the run is 3; it must be at least min-parties, 4"),
    ],
)
def test_a_node_without_its_keys_is_not_ready(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    [node, *_] = owners(small(**OWNED), tmp_path)
    assert pinned(node | {"min-parties": 3}, 3, NODES)[0] == 3
    with pytest.raises(ArgumentError, match=re.escape(why)):
        pinned(node | change, 3, NODES)
    with pytest.raises(ArgumentError, match="have a line for each of the 5 nodes"):
        pinned(node, 3, 5)


def test_nodes_that_start_a_process_for_each_message_are_refused_before_any_charge(tmp_path: Path) -> None:
    config, numbers = small(**OWNED), itertools.count()
    nodes = owners(config, tmp_path)

    class Processes(Owned):
        def _answer(self, message: Message) -> Message:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(client_app, "_PROCESS", str(next(numbers)))
                return super()._answer(message)

    with pytest.raises(EngineError, match="start `fedpriv node run` in its place"):
        engine_over(Processes(config, nodes), config, strict=False)
    assert not list(tmp_path.glob("*.ledger.jsonl"))


def test_a_node_that_is_restarted_within_a_release_is_absent_and_no_tamperer(tmp_path: Path) -> None:
    config, restarted = small(**OWNED), list[int]()
    nodes = owners(config, tmp_path)

    class Restarting(Owned):
        def _answer(self, message: Message) -> Message:
            if exchange_of(message) is Exchange.SHARES and not restarted:
                restarted.append(message.metadata.dst_node_id)
                context = self._contexts[restarted[0]]
                parties = _secure_parties(*_configs(context), context.run_id)
                parties._joined.clear()
                parties._participants.clear()
            return super()._answer(message)

    engine = engine_over(Restarting(config, nodes), config, strict=False)
    request = first_request(config)
    assert engine.gather(request).parties == 3
    assert engine.gather(replace(request, release=1)).parties == 4  # it takes part in the next release

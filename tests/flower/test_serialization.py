"""Requests and replies survive serialization unchanged; malformed ones are refused without quoting values."""

import io
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.flower.serialization import (
    MessageError,
    read_reply,
    read_request,
    reply_content,
    request_content,
    shared_records,
)
from fedpriv.mechanism.query import Block, IndicatorBlock, Query, SumBlock, Term

D = 3
positive = st.floats(1e-6, 1e6)
bounds = positive | st.just(math.inf)
anything = st.floats(-1e6, 1e6, width=32)


@st.composite
def vectors(draw: st.DrawFn, elements: Any = anything) -> torch.Tensor:
    values = draw(st.lists(elements, min_size=D, max_size=D))
    return torch.tensor(values, dtype=draw(st.sampled_from([torch.float32, torch.float64])))


@st.composite
def terms(draw: st.DrawFn) -> Term:
    divisor = draw(st.none() | vectors(st.floats(0.0625, 64, width=32)))
    at = tuple(draw(st.lists(st.floats(-2, 2), min_size=1, max_size=2)))
    weight = draw(st.sampled_from([-2.0, -0.3, 1e-3, 1.0]))
    offset = draw(st.none() | vectors())
    per_layer, squared = draw(st.booleans()), draw(st.booleans())
    return Term(draw(bounds), weight, at, divisor, per_layer, offset=offset, squared=squared)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    blocks: tuple[Block, ...] = (SumBlock(tuple(draw(st.lists(terms(), min_size=1, max_size=2)))),)
    if draw(st.booleans()):
        share = draw(st.floats(0.01, 0.99))
        bit = IndicatorBlock(replace(draw(terms()), per_layer=False), draw(bounds), share)
        blocks = (replace(blocks[0], share=1 - share), bit)
    points = tuple(draw(vectors()) for _ in range(draw(st.integers(1, 2))))
    return Query(points, blocks, draw(positive), draw(positive))


@st.composite
def shard_lists(draw: st.DrawFn) -> tuple[Shard, ...]:
    ids = np.array(sorted(draw(st.sets(st.integers(0, 10**12), max_size=9))), np.int64)
    homes = st.none() | st.integers(0, 9)
    return tuple(
        Shard(index, part, draw(st.integers(1, 9)), draw(homes))
        for index, part in enumerate(np.array_split(ids, draw(st.integers(0, 3)) or 1))
    )


def same_term(a: Term, b: Term) -> bool:
    pairs = ((a.divisor, b.divisor), (a.offset, b.offset))
    vectors = all((one is other is None) or torch.equal(one, other) for one, other in pairs)
    numbers = [(term.clip_norm, term.weight, term.at, term.per_layer, term.squared) for term in (a, b)]
    return numbers[0] == numbers[1] and vectors


def same_block(a: Block, b: Block) -> bool:
    if type(a) is not type(b) or a.share != b.share:
        return False
    if isinstance(a, IndicatorBlock):
        return a.threshold == b.threshold and same_term(a.term, b.term)
    return all(same_term(s, t) for s, t in zip(a.terms, b.terms, strict=True))


def over_the_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


@given(queries(), shard_lists(), st.none() | st.floats(0, 1e6), st.integers(0, 2**40))
def test_a_request_survives_serialization(
    query: Query, shards: tuple[Shard, ...], std: float | None, release: int
) -> None:
    stds = None if std is None else (std,) * len(query.blocks)
    request = SumRequest(query, release, shards, stds)
    back = read_request(over_the_wire(request_content(shared_records(request), shards)))
    for a, b in zip(back.query.points, query.points, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    for a, b in zip(back.query.blocks, query.blocks, strict=True):
        assert same_block(a, b)
    assert back.query.relative_noise == query.relative_noise
    assert back.query.rate_factor == query.rate_factor
    assert (back.release, back.party_stds) == (release, stds)
    for a, b in zip(back.shards, shards, strict=True):
        assert (a.index, a.ids.tolist(), a.parties, a.home) == (b.index, b.ids.tolist(), b.parties, b.home)


@given(st.integers(1, 2**40), st.lists(st.floats(-1e6, 1e6, width=32), min_size=D, max_size=D))
def test_a_reply_survives_serialization(parties: int, values: list[float]) -> None:
    shards = (Shard(0, np.arange(2), parties),)
    request = replace(simple_request(), shards=shards, party_stds=(1e7, 1e7))  # sums may be this long
    sums = (torch.tensor(values), torch.tensor(values[0]))
    back = read_reply(over_the_wire(reply_content(PartialSum(sums, parties), request.release)), request)
    assert back.parties == parties
    for a, b in zip(back.sums, sums, strict=True):
        assert torch.equal(a, b)


def simple_request() -> SumRequest:
    bit = IndicatorBlock(Term(1.0), 1.0, share=0.25)
    term = Term(1.0, divisor=torch.ones(D), offset=torch.ones(D))
    query = Query((torch.zeros(D),), (SumBlock((term,), 0.75), bit))
    return SumRequest(query, 3, (Shard(0, np.arange(2), 2), Shard(1, np.arange(2, 7), 5)), (1.0, 2.0))


def request_records() -> RecordDict:
    request = simple_request()
    return over_the_wire(request_content(shared_records(request), request.shards))


def reply_records() -> RecordDict:
    return over_the_wire(reply_content(PartialSum((torch.ones(D), torch.tensor(0.5)), 7), 3))


def test_the_shared_records_are_the_same_objects_in_every_message() -> None:
    request = simple_request()
    shared = shared_records(request)
    one, two = (request_content(shared, [shard]) for shard in request.shards)
    assert one["points"] is two["points"]
    assert one["query"] is two["query"]
    assert one["chunks"] is not two["chunks"]


class Bomb:
    """Unpickling it raises, which would fail the test."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def pickled_array() -> Array:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    return Array("float32", (D,), "numpy.ndarray", buffer.getvalue())


def raw_pickle() -> Array:
    return Array("float32", (D,), "numpy.ndarray", pickle.dumps(Bomb()))


def many_dimensions() -> Array:
    """More dimensions than NumPy supports, with a valid header."""
    shape, buffer = (1,) * 100, io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return Array("float32", shape, "numpy.ndarray", buffer.getvalue() + bytes(4))


def lying_array() -> Array:
    values = Array(np.zeros(D, np.float32))
    return Array("float32", (D + 1,), "numpy.ndarray", values.data)


BAD_ARRAYS = [
    pickled_array(),
    raw_pickle(),
    lying_array(),
    many_dimensions(),
    Array("float32", (1,) * 40_000, "numpy.ndarray", b""),
    Array("float32", (D,), "numpy.ndarray", b""),
    Array("float32", (D,), "something else", b""),
    Array(np.zeros(D, np.int64)),
    Array(np.zeros(D, np.complex64)),
    Array(np.zeros(D + 1, np.float32)),
    Array(np.zeros((D, 1), np.float32)),
]


@pytest.mark.parametrize("array", BAD_ARRAYS)
@pytest.mark.parametrize("name", ["point-0", "divisor-0", "offset-0"])
def test_a_request_with_a_malformed_array_is_refused(array: Array, name: str) -> None:
    records = request_records()
    records["points"][name] = array
    with pytest.raises(MessageError):
        read_request(records)


@pytest.mark.parametrize("array", [*BAD_ARRAYS, Array(np.array([0.125, np.nan, 0], np.float32))])
def test_a_reply_with_a_malformed_sum_is_refused_without_quoting_it(array: Array) -> None:
    records = reply_records()
    records["sums"]["sum-0"] = array
    with pytest.raises(MessageError) as caught:
        read_reply(records, simple_request())
    assert "0.125" not in str(caught.value)


@pytest.mark.parametrize("values", [[-1.0, 1, 1], [0.0, 1, 1], [math.nan, 1, 1], [1e16, 1, 1], [1e-16, 1, 1]])
def test_a_divisor_must_be_positive_and_in_range(values: list[float]) -> None:
    records = request_records()
    records["points"]["divisor-0"] = Array(np.array(values, np.float32))
    with pytest.raises(MessageError, match="between 1e-15 and 1e\\+15"):
        read_request(records)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_offset_must_be_finite(value: float) -> None:
    records = request_records()
    records["points"]["offset-0"] = Array(np.array([0.0, value, 1], np.float32))
    with pytest.raises(MessageError, match="finite vector"):
        read_request(records)


@pytest.mark.parametrize("name", ["points", "query", "chunks"])
def test_a_request_needs_all_its_records(name: str) -> None:
    records = request_records()
    del records[name]
    with pytest.raises(MessageError, match=f"'{name}' is missing"):
        read_request(records)


def one_sum(clip_norm: str, per_layer: str) -> str:
    term = f'{{"clip-norm": {clip_norm}, "weight": 1, "at": [1], "per-layer": {per_layer}}}'
    return f'[{{"kind": "sum", "share": 1, "terms": [{term}]}}]'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("blocks", "no JSON"),
        ("blocks", "[]"),
        ("blocks", '[{"kind": "median", "share": 1, "terms": []}]'),
        ("blocks", one_sum("-1", "false")),
        ("blocks", one_sum("[]", "false")),
        ("blocks", one_sum("1", "0")),
        ("blocks", "7"),
        ("release", -1),
        ("release", 1.5),
        ("relative-noise", "much"),
        ("party-stds", [1.0]),
        ("party-stds", [1.0, -1.0]),
        ("party-stds", [1.0, math.inf]),
        ("party-stds", [1.0, math.nan]),
        ("party-stds", 1.0),
    ],
)
def test_a_request_with_a_malformed_query_is_refused(key: str, value: Any) -> None:
    records = request_records()
    records["query"][key] = value
    with pytest.raises(MessageError):
        read_request(records)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("ids", [-1, 1, 2, 3, 4, 5, 6]),
        ("ids", [1]),
        ("sizes", [-2, 9]),
        ("sizes", [7]),
        ("ids", [0, 1, 5, 6, 7, 8, 1]),
        ("parties", [-1, 1]),
        ("parties", [0, 1]),
        ("indices", [0, -1]),
        ("indices", [1, 1]),
        ("homes", [0]),
    ],
)
def test_a_request_with_malformed_shards_is_refused(column: str, values: list[Any]) -> None:
    records = request_records()
    records["chunks"][column] = np.array(values, "<i8").tobytes()
    with pytest.raises(MessageError):
        read_request(records)


@pytest.mark.parametrize("value", [b"1234567", 7, [1, 2]])
def test_shard_columns_must_be_bytes_of_integers(value: Any) -> None:
    records = request_records()
    records["chunks"]["ids"] = value
    with pytest.raises(MessageError, match="'ids' of a shard record must be the bytes of 64-bit"):
        read_request(records)


@pytest.mark.parametrize("parties", [-1, 1.0, "7", True])
def test_a_reply_must_count_its_parties(parties: Any) -> None:
    records = reply_records()
    records["reply"]["parties"] = parties
    with pytest.raises(MessageError, match="whole number"):
        read_reply(records, simple_request())


@pytest.mark.parametrize("parties", [0, 6, 8])
def test_a_reply_counts_the_parties_that_were_asked(parties: int) -> None:
    records = reply_records()
    assert read_reply(records, simple_request()).parties == 7
    records["reply"]["parties"] = parties
    with pytest.raises(MessageError, match="does not count the parties that the request names"):
        read_reply(records, simple_request())


@pytest.mark.parametrize("release", [2, 4, 0])
def test_a_reply_names_the_release_that_was_asked(release: int) -> None:
    records = reply_records()
    records["reply"]["release"] = release
    with pytest.raises(MessageError, match="to another release than the one that was asked for"):
        read_reply(records, simple_request())
    del records["reply"]["release"]
    with pytest.raises(MessageError, match="whole numbers"):
        read_reply(records, simple_request())


def test_a_reply_must_have_one_sum_per_block_in_its_shape() -> None:
    request = simple_request()
    for sums in [(torch.ones(D),), (torch.ones(D), torch.ones(1)), (torch.tensor(1.0),) * 2]:
        with pytest.raises(MessageError, match="sum"):
            read_reply(reply_content(PartialSum(sums, 7), request.release), request)
    with pytest.raises(MessageError, match="'sums' is missing"):
        read_reply(RecordDict({**reply_records(), "sums": ConfigRecord({})}), request)
    records = reply_records()
    records["reply"] = ArrayRecord()
    with pytest.raises(MessageError, match="'reply' is missing"):
        read_reply(records, request)

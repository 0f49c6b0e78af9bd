"""Messages of any content: a request or reply, or a MessageError that quotes no value."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from helpers.fuzzing import EXTREMES, amounts, for_all, mutations, outcome
from hypothesis import strategies as st

from fedpriv.accounting import Event
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.flower import serialization as wire
from fedpriv.flower import silo_serialization as silos
from fedpriv.flower.topology import read_node
from fedpriv.mechanism.query import IndicatorBlock, Query, SumBlock, Term
from fedpriv.node.silo import ModelDelta, SiloState, TrainRequest

D = 3
ALLOWED = 1 << 20  # bytes: every message here is smaller than a kilobyte

BIT = IndicatorBlock(Term(1.0), 1.0, share=0.25)
QUERY = Query((torch.zeros(D),), (SumBlock((Term(1.0, divisor=torch.ones(D)),), 0.75), BIT))
REQUEST = SumRequest(QUERY, 3, (Shard(0, np.arange(2), 2), Shard(1, np.arange(2, 7), 5)), (1.0, 2.0))
EVENT = Event(1.0, "poisson", "add-remove", rate=0.1)
TRAIN = TrainRequest(torch.zeros(D, dtype=torch.float64), 1, (EVENT,), (0, 1))


def node_reply(content: RecordDict) -> Message:
    return make_message(Metadata(1, "id", 0, 1, "", "round", 0.0, 9.0, "train"), content)


def memories() -> RecordDict:
    """A node's state of two silos."""
    state = RecordDict()
    silos.write_memories(state, {0: SiloState(1, {"momentum": torch.zeros(D)}), 1: SiloState(2, None)})
    return state


# How each message is written, and how it is read.
MESSAGES = {
    "sum request": (
        lambda: wire.request_content(wire.shared_records(REQUEST), REQUEST.shards),
        wire.read_request,
    ),
    "sum reply": (
        lambda: wire.reply_content(PartialSum((torch.ones(D), torch.tensor(0.5)), 7), 3),
        lambda content: wire.read_reply(content, REQUEST),
    ),
    "added replies": (
        lambda: wire.reply_content(PartialSum((torch.ones(D),), 7), 3),
        lambda content: wire.add_replies(*[node_reply(content)] * 2),
    ),
    "training request": (
        lambda: silos.training_content(silos.model_record(TRAIN), TRAIN, [0, 1]),
        silos.read_training,
    ),
    "model changes": (
        lambda: silos.changes_content(
            [ModelDelta(s, torch.zeros(D, dtype=torch.float64)) for s in (0, 1)], 1
        ),
        lambda content: silos.read_changes(content, (0, 1), TRAIN),
    ),
    "state of silos": (memories, lambda content: silos.read_memories(content, (0, 1))),
    "node description": (
        lambda: RecordDict({"node": ConfigRecord({"partition-id": 0, "num-partitions": 2})}),
        lambda content: read_node(7, content),
    ),
}

# The fields that an error names; every message has several.
FIELDS = (
    "request", "reply", "record", "column", "array", "silo", "round", "partition", "shard", "block",
    "divisor", "noise", "change", "point", "term",
)  # fmt: skip

numbers = st.sampled_from([*EXTREMES, 10**400, -1, 0.5, float("nan"), float("inf"), "inf", "x", True, None])
tables = st.recursive(
    numbers | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "terms", "at", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
TERM = {"clip-norm": 1.0, "weight": 1.0, "at": [1.0], "per-layer": False}
BLOCK = {"kind": "sum", "share": 1.0, "terms": [TERM]}


@st.composite
def jsons(draw: st.DrawFn, text: str) -> str:
    """The JSON text with a value in it replaced, or any text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # it was changed before
        value = None
    if value is None or draw(st.booleans()):
        return draw(mutations((text.encode(),))).decode(errors="replace")
    inside, place = [value], 0
    while True:
        inner = inside[place]
        keys = (
            list(inner)
            if isinstance(inner, dict)
            else list(range(len(inner)))
            if isinstance(inner, list)
            else []
        )
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if not isinstance(inner[key], dict | list) or draw(st.booleans()):
            inner[key] = draw(tables)
            break
        inside.append(inner[key])
        place += 1
    return json.dumps(value)


@st.composite
def arrays(draw: st.DrawFn, array: Array) -> Array:
    """An array with other bytes, or another dtype or shape than its bytes have."""
    data = draw(mutations((array.data,))) if draw(st.booleans()) else array.data
    shape = (
        draw(st.lists(st.sampled_from([0, 1, D, 10**6, 10**12, 2**62]), max_size=4))
        if draw(st.booleans())
        else array.shape
    )
    dtype = draw(st.sampled_from([array.dtype, "float32", "float64", "float16", "object", "int64", "x"]))
    return Array(dtype, tuple(shape), draw(st.sampled_from(["numpy.ndarray", "pickle"])), data)


@st.composite
def hostile(draw: st.DrawFn, name: str) -> RecordDict:
    """A message with one to three records or fields that are missing, other, or forged."""
    content = MESSAGES[name][0]()
    for _ in range(draw(st.integers(1, 3))):
        if not content:
            break
        record_name = draw(st.sampled_from(sorted(content)))
        record = content[record_name]
        if draw(st.integers(0, 9)) == 0 or not record:
            content[record_name] = draw(st.sampled_from([ArrayRecord(), ConfigRecord()]))
        else:
            _forge(draw, record, draw(st.sampled_from(sorted(record))))
    return content


def _forge(draw: st.DrawFn, record: Any, key: str) -> None:
    value = record[key]
    if draw(st.integers(0, 5)) == 0:
        del record[key]
    elif isinstance(record, ArrayRecord):
        record[key] = draw(arrays(value))
    elif isinstance(value, bytes):
        record[key] = draw(mutations((value,)))
    elif isinstance(value, str):
        record[key] = draw(jsons(value) if value[:1] in "[{" else st.text())
    else:
        others: Any = [0, -1, 2**62, 0.5, float("nan"), "x", b"x", True, [], [1], [-1.0, 2.0], ["a"]]
        record[key] = draw(st.sampled_from(others))


@amounts
@pytest.mark.parametrize("name", MESSAGES)
def test_a_hostile_message_is_refused_in_a_sentence(name: str, examples: int) -> None:
    written, read = MESSAGES[name]
    assert outcome(lambda: read(written()), (), f"messages, {name}", ALLOWED)
    for_all(
        examples,
        hostile(name),
        lambda content: outcome(lambda: read(content), FIELDS, f"messages, {name}", ALLOWED),
    )

"""The wire format of sum requests and replies: Flower records without pickle.

A request has three records: ``points`` (the query's parameter vectors, divisors and offsets; ONE ArrayRecord
object shared by all messages of a release, so that a grid can send it once), ``query`` (the blocks as JSON,
the release index, the parties' noise) and ``chunks`` (the node's shards of the cohort, as bytes of columns of
64-bit integers). A reply has ``sums``, one array per block, and ``reply``, the number of their parties and
the release that was asked for.

Arrays use Flower's NumPy serialisation and are read by :mod:`fedpriv._internal.npy`. Every reader checks
shapes and dtypes and raises :class:`MessageError`, whose text names fields and shapes but no values.

>>> import numpy as np, torch
>>> query = Query((torch.zeros(3),), (SumBlock((Term(1.5),)),))
>>> shards = (Shard(0, np.arange(2), parties=2), Shard(1, np.arange(5, 9), parties=4))
>>> request = SumRequest(query, release=7, shards=shards)
>>> back = read_request(request_content(shared_records(request), shards[1:]))
>>> back.release, back.shards[0].index, back.shards[0].ids.tolist()
(7, 1, [5, 6, 7, 8])
>>> read_reply(reply_content(PartialSum((torch.ones(3),), parties=4), release=7), back).parties
4
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.message import make_message
from torch import Tensor

from fedpriv._internal import npy
from fedpriv._internal.files import read_json
from fedpriv._internal.validation import FedprivError
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.mechanism.query import Block, IndicatorBlock, Query, SumBlock, Term
from fedpriv.mechanism.reply_bound import largest_norms

Records = dict[str, ArrayRecord | ConfigRecord]

_FLOATS = frozenset({"float32", "float64"})
APP_FLOATS = _FLOATS | {"float16"}  # of an app's model
_INT64 = "<i8"  # the type of a shard record's columns
_MIN_DIVISOR = 1e-15  # divisors between it and its inverse keep sums within the range of floats


class MessageError(FedprivError, ValueError):
    """A message violates the protocol. The text names the field but no value from data."""


def shared_records(request: SumRequest) -> Records:
    """The records of ``request`` that are equal for all nodes; encode them once per release."""
    arrays = {f"point-{j}": encode(point) for j, point in enumerate(request.query.points)}
    fields = query_fields(request, arrays)
    return {"points": ArrayRecord(arrays), "query": ConfigRecord(fields)}


def query_fields(request: SumRequest, arrays: dict[str, Array]) -> dict[str, Any]:
    """What ``request`` asks for, without points and shards. Divisors and offsets go to ``arrays``."""
    blocks = [_block_table(block, arrays) for block in request.query.blocks]
    fields: dict[str, Any] = {
        "blocks": json.dumps(blocks),
        "release": request.release,
        "relative-noise": float(request.query.relative_noise),
        "rate-factor": float(request.query.rate_factor),
    }
    if request.party_stds is not None:
        fields["party-stds"] = [float(std) for std in request.party_stds]
    return fields


def request_content(shared: Mapping[str, Any], shards: Sequence[Shard]) -> RecordDict:
    """The content of one node's message: the shared records and the node's shards."""
    ids = [np.asarray(shard.ids, dtype=np.int64) for shard in shards]
    columns = {
        "ids": np.concatenate(ids) if ids else np.empty(0, np.int64),
        "sizes": np.array([part.size for part in ids], np.int64),
        "indices": np.array([shard.index for shard in shards], np.int64),
        "parties": np.array([shard.parties for shard in shards], np.int64),
        "homes": np.array([-1 if c.home is None else c.home for c in shards], np.int64),
    }
    record = ConfigRecord({name: column.astype(_INT64).tobytes() for name, column in columns.items()})
    return RecordDict({**shared, "chunks": record})


def read_request(content: RecordDict) -> SumRequest:
    """The SumRequest for this node, with the node's shards only.

    Raises MessageError if a record is missing or malformed.
    """
    points, fields = array_record(content, "points"), config_record(content, "query")
    count = sum(name.startswith("point-") for name in points)
    if count not in (1, 2):
        raise MessageError(f"a request has {count} points; it must have 1 or 2")
    vectors = tuple(read_vector(points, f"point-{j}") for j in range(count))
    return read_query(fields, vectors, points, _read_chunks(config_record(content, "chunks")))


def read_query(
    fields: ConfigRecord, vectors: tuple[Tensor, ...], divisors: ArrayRecord, shards: tuple[Shard, ...]
) -> SumRequest:
    """The SumRequest of these fields at the points ``vectors``. Raises MessageError if it is malformed."""
    if len({tuple(vector.shape) for vector in vectors}) != 1 or vectors[0].ndim != 1:
        raise MessageError("the points of a request must be vectors of equal length")
    try:
        tables = read_json(str(fields["blocks"]))
        blocks = tuple(_read_block(table, divisors, vectors[0]) for table in tables)
        noise, factor = (_float(fields[name]) for name in ("relative-noise", "rate-factor"))
        query = Query(vectors, blocks, relative_noise=noise, rate_factor=factor)
        release = read_whole(fields["release"])
        stds = None
        if "party-stds" in fields:
            stds = tuple(_float(std) for std in cast("list[Any]", fields["party-stds"]))
            _check_stds(stds, len(blocks))
    except MessageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(f"a request's query cannot be read ({type(error).__name__})") from None
    return SumRequest(query, release, shards, stds)


def reply_content(reply: PartialSum, release: int) -> RecordDict:
    """The content of a node's reply to the request for this release."""
    sums = {f"sum-{j}": encode(total) for j, total in enumerate(reply.sums)}
    fields = ConfigRecord({"parties": reply.parties, "release": release})
    return RecordDict({"sums": ArrayRecord(sums), "reply": fields})


def read_reply(content: RecordDict, request: SumRequest) -> PartialSum:
    """The PartialSum for ``request``, in the received dtype, on the device of the query's points.

    Args:
        content: the content of the reply.
        request: what this node was asked, with the node's shards only.

    Raises:
        MessageError: a sum is missing, does not have its block's shape, is not finite, or is longer than
            what the request can lead to (:mod:`fedpriv.mechanism.reply_bound`); the reply is to another
            release; or it counts other parties than the request names. The server knows whom it asked, and a
            node answers for all of its shards or fails.
    """
    query, fields = request.query, config_record(content, "reply")
    require_current(fields, "release", request.release)
    parties = read_whole(fields.get("parties"))
    if parties != sum(shard.parties for shard in request.shards):
        raise MessageError("a reply does not count the parties that the request names")
    arrays, point = array_record(content, "sums"), query.points[0]
    if len(arrays) != len(query.blocks):
        raise MessageError(f"a reply has {len(arrays)} sums; it must have {len(query.blocks)}")
    sums, units = [], sum(len(shard.ids) for shard in request.shards)
    counts = [shard.parties for shard in request.shards]
    bounds = largest_norms(query, units, counts, request.party_stds)
    for j, (block, bound) in enumerate(zip(query.blocks, bounds, strict=True)):
        total = read_vector(arrays, f"sum-{j}")
        if total.shape != (() if isinstance(block, IndicatorBlock) else point.shape):
            raise MessageError(f"sum-{j} of a reply does not have its block's shape")
        norm = float(torch.linalg.vector_norm(total, dtype=torch.float64))
        if not math.isfinite(norm):  # one entry that is not finite makes it so
            raise MessageError(f"sum-{j} of a reply is not finite")
        if norm > bound:
            raise MessageError(f"sum-{j} of a reply is longer than its clip norms and noise allow")
        sums.append(total.to(point.device))
    return PartialSum(tuple(sums), parties)


def require_current(fields: ConfigRecord, name: str, asked: int) -> None:
    """Raises MessageError unless a reply names the release (or round) that was asked for."""
    if read_whole(fields.get(name)) != asked:
        raise MessageError(f"a reply is to another {name} than the one that was asked for")


def add_replies(one: Message, other: Message) -> Message:
    """``one`` plus the sums and parties of ``other``. If one of them is an error, the first error.

    Raises MessageError if their sums do not have the same names and shapes, or if they are to different
    releases.
    """
    for reply in (one, other):
        if reply.has_error():
            return reply
    fields, others = (config_record(reply.content, "reply") for reply in (one, other))
    release = read_whole(fields.get("release"))
    require_current(others, "release", release)
    mine, theirs = (array_record(reply.content, "sums") for reply in (one, other))
    sums = []
    for j in range(max(len(mine), len(theirs))):
        part, more = (read_vector(record, f"sum-{j}") for record in (mine, theirs))
        if part.shape != more.shape:
            raise MessageError(f"sum-{j} of two replies has different shapes")
        sums.append(part + more)
    parties = sum(read_whole(record.get("parties")) for record in (fields, others))
    content = reply_content(PartialSum(tuple(sums), parties), release)
    return make_message(one.metadata, content)


def encode(values: Tensor) -> Array:
    """A float tensor as Flower's Array in NumPy format, without pickle."""
    array = values.detach().cpu().contiguous().numpy()
    dtype = str(array.dtype)
    # One copy of the values, where ``tobytes`` and an addition make two.
    data = b"".join((_header(dtype, array.shape), array.reshape(-1).view(np.uint8).data))
    return Array(dtype, array.shape, "numpy.ndarray", data)


def only_record(content: Mapping[str, object]) -> tuple[str, ArrayRecord]:
    """(name, arrays) of a train message's model. Raises MessageError unless it is the only ArrayRecord."""
    found = [(name, record) for name, record in content.items() if isinstance(record, ArrayRecord)]
    if len(found) != 1:
        raise MessageError(f"a train message has {len(found)} ArrayRecords; it must have one, the model")
    return found[0]


def read_vector(record: ArrayRecord, name: str, floats: Set[str] = _FLOATS) -> Tensor:
    """The array ``name``, of one of these float types.

    Raises MessageError if it differs from its declared dtype and shape.
    """
    if name not in record:
        raise MessageError(f"the array {name!r} is missing")
    array, shape = record[name], tuple(record[name].shape)
    if array.dtype not in floats:
        raise MessageError(f"the array {name!r} must hold {' or '.join(sorted(floats))}")
    try:
        plain = _plain(array, shape)
        values = npy.read(array.data) if plain is None else plain
    except ValueError as error:
        raise MessageError(f"the array {name!r} cannot be read ({type(error).__name__})") from None
    if str(values.dtype) != array.dtype:
        raise MessageError(f"the array {name!r} does not hold the {array.dtype} that it declares")
    if tuple(values.shape) != shape:
        raise MessageError(f"the array {name!r} does not have the shape that it declares")
    return torch.from_numpy(values)


def _plain(array: Array, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """The values if they follow exactly the header that ``encode`` writes; otherwise None.

    Comparing a header is faster than reading it.
    """
    header, size = _header(array.dtype, shape), math.prod(shape) * np.dtype(array.dtype).itemsize
    if len(array.data) != len(header) + size or not array.data.startswith(header):
        return None
    return np.frombuffer(array.data, array.dtype, offset=len(header)).reshape(shape).copy()


@functools.lru_cache(maxsize=64)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of NumPy's format for such an array."""
    buffer = io.BytesIO()
    fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def array_record(content: RecordDict, name: str) -> ArrayRecord:
    """The content's array record ``name``. Raises MessageError if it is missing."""
    record = content.get(name)
    if not isinstance(record, ArrayRecord):
        raise MessageError(f"the array record {name!r} is missing")
    return record


def config_record(content: RecordDict, name: str) -> ConfigRecord:
    """The content's config record ``name``. Raises MessageError if it is missing."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise MessageError(f"the config record {name!r} is missing")
    return record


def read_whole(value: object) -> int:
    """``value`` as an int. Raises MessageError unless it is a whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MessageError("releases, rounds, silos and parties must be whole numbers of 0 or more")
    return value


def _float(value: object) -> float:
    """A float from a table. Infinity may be a text, since JSON has no number for it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MessageError("a number in a request has another type")
    try:
        return float(value)
    except OverflowError:
        raise MessageError("a number in a request is too large for a float") from None


def _number(value: float) -> float | str:
    """``value``, or a text that ``float`` reads if it is not finite."""
    return float(value) if math.isfinite(value) else str(float(value))


def _term_table(term: Term, arrays: dict[str, Array]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "clip-norm": _number(term.clip_norm),
        "weight": float(term.weight),
        "at": [float(coefficient) for coefficient in term.at],
        "per-layer": term.per_layer,
        "gamma": float(term.gamma),
        "squared": term.squared,
    }
    for kind, vector in (("divisor", term.divisor), ("offset", term.offset)):
        if vector is not None:
            table[kind] = f"{kind}-{sum(name.startswith(f'{kind}-') for name in arrays)}"
            arrays[table[kind]] = encode(vector)
    return table


def _block_table(block: Block, arrays: dict[str, Array]) -> dict[str, Any]:
    """``block`` as a JSON-serialisable dict. Its divisors and offsets are added to ``arrays``."""
    if isinstance(block, IndicatorBlock):
        table = {"kind": "bit", "threshold": _number(block.threshold), "share": float(block.share)}
        return {**table, "terms": [_term_table(block.term, arrays)]}
    terms = [_term_table(term, arrays) for term in block.terms]
    return {"kind": "sum", "share": float(block.share), "terms": terms}


def _read_term(table: Mapping[str, Any], points: ArrayRecord, like: Tensor) -> Term:
    divisor = None
    if "divisor" in table:
        divisor = read_vector(points, str(table["divisor"]))
        if divisor.shape != like.shape or not bool(
            ((divisor > _MIN_DIVISOR) & (divisor < 1 / _MIN_DIVISOR)).all()
        ):
            raise MessageError(
                f"a divisor must be a vector of the points' length between {_MIN_DIVISOR:g} and "
                f"{1 / _MIN_DIVISOR:g}"
            )
    offset = None
    if "offset" in table:
        offset = read_vector(points, str(table["offset"]))
        if offset.shape != like.shape or not bool(torch.isfinite(offset).all()):
            raise MessageError("an offset must be a finite vector of the points' length")
    at = tuple(_float(coefficient) for coefficient in table["at"])
    for name in ("per-layer", "squared"):
        if not isinstance(table[name], bool):
            raise MessageError(f"a term's {name!r} must be true or false")
    gamma = _float(table["gamma"])
    numbers = _float(table["clip-norm"]), _float(table["weight"])
    return Term(*numbers, at, divisor, table["per-layer"], gamma, offset, table["squared"])


def _read_block(table: Mapping[str, Any], points: ArrayRecord, like: Tensor) -> Block:
    terms = tuple(_read_term(term, points, like) for term in table["terms"])
    if table["kind"] == "sum":
        return SumBlock(terms, _float(table["share"]))
    if table["kind"] == "bit" and len(terms) == 1:
        return IndicatorBlock(terms[0], _float(table["threshold"]), _float(table["share"]))
    raise MessageError("a block must be a sum, or an indicator with one term")


def _check_stds(stds: tuple[float, ...], blocks: int) -> None:
    if len(stds) != blocks or not all(math.isfinite(std) and std >= 0 for std in stds):
        raise MessageError("the party noise must be one finite std of 0 or more for each block")


def _distinct(column: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    """Whether all numbers are distinct. Most columns ascend, which is fast to check."""
    return bool((column[1:] > column[:-1]).all()) or len(np.unique(column)) == len(column)


def _read_chunks(record: ConfigRecord) -> tuple[Shard, ...]:
    def column(name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        value = record.get(name)
        if not isinstance(value, bytes) or len(value) % 8:
            raise MessageError(f"the column {name!r} of a shard record must be the bytes of 64-bit integers")
        return np.frombuffer(value, _INT64).astype(np.int64)

    ids, sizes, indices, parties, homes = map(column, ("ids", "sizes", "indices", "parties", "homes"))
    if any(len(other) != len(sizes) for other in (indices, parties, homes)):
        raise MessageError("every column of a shard record must have one number per shard")
    if (sizes < 0).any() or int(sizes.sum()) != ids.size:
        raise MessageError("the shard sizes must add up to the number of ids")
    if any((column < 0).any() for column in (ids, indices)) or (parties < 1).any():
        raise MessageError("ids and shard numbers must be 0 or more, and parties 1 or more")
    if not all(_distinct(column) for column in (ids, indices)):
        raise MessageError("a request may name each unit and each shard only once")
    cuts = np.split(ids, np.cumsum(sizes)[:-1]) if sizes.size else []
    return tuple(
        Shard(int(index), cut, int(count), None if home < 0 else int(home))
        for index, cut, count, home in zip(indices, cuts, parties, homes, strict=True)
    )

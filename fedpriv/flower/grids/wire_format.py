"""The wire format of channels: a Flower message as bytes, for two processes of one user on one machine.

Flower's protocol buffers take several times as long, and a round waits for each conversion. This format is
plain Python values, written by ``marshal``; reading them runs no code. ``marshal`` differs between Python
versions, so use it only between processes of the same Python. Arrays may lie beside the bytes, in memory that
both processes share (:mod:`fedpriv.flower.grids.shared_memory`).

>>> from flwr.app import ConfigRecord, Metadata, RecordDict
>>> metadata = Metadata(1, "id", 0, 1, "", "round", 0.0, 9.0, "train")
>>> again = read(write(make_message(metadata, RecordDict({"reply": ConfigRecord({"parties": 3})}))))
>>> again.content["reply"]["parties"], again.metadata.group_id
(3, 'round')
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, TypeAlias

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message.message import make_message

_METADATA = (
    "run_id",
    "message_id",
    "src_node_id",
    "dst_node_id",
    "reply_to_message_id",
    "group_id",
    "created_at",
    "ttl",
    "message_type",
    "src_task_id",
    "dst_task_id",
)
# The types of values in records, each with the conversion from a subclass.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
}

Record: TypeAlias = ArrayRecord | ConfigRecord | MetricRecord


def write(message: Message, area: memoryview | None = None) -> bytes:
    """The message as bytes.

    Args:
        message: the message.
        area: shared memory, where the arrays go that find room; the bytes then have their sizes alone.

    Raises ValueError for values of other types than records allow.
    """
    error, content, used = None, None, 0

    def placed(data: bytes) -> bytes | int:
        nonlocal used
        if area is None or used + len(data) > len(area):
            return data
        area[used : used + len(data)] = data
        used += len(data)
        return len(data)

    if message.has_error():
        error = message.error.code, message.error.reason and _plain(message.error.reason)
    else:
        content = [(_plain(name), *_fields(record, placed)) for name, record in message.content.items()]
    return marshal.dumps(([getattr(message.metadata, name) for name in _METADATA], content, error))


def read(content: bytes | bytearray, area: memoryview | None = None) -> Message:
    """The message from the bytes of :func:`write`, and from ``area`` if its arrays are there."""
    fields, named, error = marshal.loads(content)
    if error is not None:
        return make_message(Metadata(*fields), error=Error(*error))
    used = 0

    def found(placed: bytes | int) -> bytes:
        nonlocal used
        if isinstance(placed, bytes):
            return placed
        if area is None:
            raise ValueError("a message's arrays lie in memory that is not shared")
        used += placed
        return bytes(area[used - placed : used])

    records: dict[str, Record] = {name: _record(kind, values, found) for name, kind, values in named}
    return make_message(Metadata(*fields), RecordDict(records))


def _fields(record: Record, placed: Callable[[bytes], bytes | int]) -> tuple[str, Any]:
    """The kind of a record, and its plain values."""
    if isinstance(record, ArrayRecord):
        arrays = [(a.dtype, tuple(map(int, a.shape)), a.stype, placed(a.data)) for a in record.values()]
        return "array", [(_plain(name), *rest) for name, rest in zip(record, arrays, strict=True)]
    kind = "config" if isinstance(record, ConfigRecord) else "metric"
    return kind, {_plain(name): _plain(value) for name, value in record.items()}


def _plain(value: Any) -> Any:
    """The value as a built-in type; records may contain subclasses, such as NumPy's float64."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    for kind, made in _PLAIN.items():
        if isinstance(value, kind):
            return made(value)
    raise ValueError(f"a record holds a {type(value).__name__}")


def _record(kind: str, values: Any, found: Callable[[bytes | int], bytes]) -> Record:
    if kind == "array":
        return ArrayRecord({name: Array(*rest, found(data)) for name, *rest, data in values})
    return ConfigRecord(values) if kind == "config" else MetricRecord(values)

"""The wire format: a Flower message as bytes, for two processes of one user on one machine.

Flower's own protocol buffers would do, at several times the price, and a round writes and reads four of them
while all else waits. These are Python's own plain values, by ``marshal``, which holds no code that reading
would run; both ends are processes of one Python that one user started, and it is good for nothing else.

>>> from flwr.app import ConfigRecord, Metadata, RecordDict
>>> metadata = Metadata(1, "id", 0, 1, "", "round", 0.0, 9.0, "train")
>>> again = read(write(make_message(metadata, RecordDict({"few": ConfigRecord({"parties": 3})}))))
>>> again.content["few"]["parties"], again.metadata.group_id
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
# The types that records hold, and what makes one of a type derived from it.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
}

Record: TypeAlias = ArrayRecord | ConfigRecord | MetricRecord


def write(message: Message) -> bytes:
    """The message as bytes. Raises ValueError for values that no record may hold."""
    error, content = None, None
    if message.has_error():
        error = message.error.code, message.error.reason and _plain(message.error.reason)
    else:
        content = [(_plain(name), *_taken_apart(record)) for name, record in message.content.items()]
    return marshal.dumps(([getattr(message.metadata, name) for name in _METADATA], content, error))


def read(content: bytes | bytearray) -> Message:
    """The message that :func:`write` wrote."""
    fields, named, error = marshal.loads(content)
    if error is not None:
        return make_message(Metadata(*fields), error=Error(*error))
    records: dict[str, Record] = {name: _record(kind, values) for name, kind, values in named}
    return make_message(Metadata(*fields), RecordDict(records))


def _taken_apart(record: Record) -> tuple[str, Any]:
    if isinstance(record, ArrayRecord):
        arrays = [(a.dtype, tuple(map(int, a.shape)), a.stype, a.data) for a in record.values()]
        return "array", [(_plain(name), *rest) for name, rest in zip(record, arrays, strict=True)]
    kind = "config" if isinstance(record, ConfigRecord) else "metric"
    return kind, {_plain(name): _plain(value) for name, value in record.items()}


def _plain(value: Any) -> Any:
    """The value as one of Python's own types: records may hold NumPy's floats, say, which are floats too."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    for kind, made in _PLAIN.items():
        if isinstance(value, kind):
            return made(value)
    raise ValueError(f"a record holds a {type(value).__name__}")


def _record(kind: str, values: Any) -> Record:
    if kind == "array":
        return ArrayRecord({name: Array(*rest) for name, *rest in values})
    return ConfigRecord(values) if kind == "config" else MetricRecord(values)

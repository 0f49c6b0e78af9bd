"""Letters: a Flower message as bytes, for two processes of one user on one machine.

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

Record: TypeAlias = ArrayRecord | ConfigRecord | MetricRecord


def write(message: Message) -> bytes:
    """The message as bytes."""
    error, content = None, None
    if message.has_error():
        error = message.error.code, message.error.reason
    else:
        content = [(name, *_plain(record)) for name, record in message.content.items()]
    return marshal.dumps(([getattr(message.metadata, name) for name in _METADATA], content, error))


def read(letter: bytes | bytearray) -> Message:
    """The message that :func:`write` wrote."""
    fields, content, error = marshal.loads(letter)
    if error is not None:
        return make_message(Metadata(*fields), error=Error(*error))
    records: dict[str, Record] = {name: _record(kind, values) for name, kind, values in content}
    return make_message(Metadata(*fields), RecordDict(records))


def _plain(record: Record) -> tuple[str, Any]:
    if isinstance(record, ArrayRecord):
        return "array", [(name, a.dtype, tuple(a.shape), a.stype, a.data) for name, a in record.items()]
    return "config" if isinstance(record, ConfigRecord) else "metric", dict(record.items())


def _record(kind: str, values: Any) -> Record:
    if kind == "array":
        return ArrayRecord({name: Array(*rest) for name, *rest in values})
    return ConfigRecord(values) if kind == "config" else MetricRecord(values)

"""The wire format of secure aggregation: what the server shows a node's parties, and what they reply.

A message has three records: ``session`` (the exchange and the release), ``shown`` (for each party what it is
shown, as lists of bytes and numbers), and in the exchange of masked messages the request for sums
(:mod:`fedpriv.flower.serialization`). A reply has ``messages``, ``refused`` and ``too-few``, by party. All
protocol messages are bytes that the protocol itself checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict

from fedpriv._internal.validation import ArgumentError
from fedpriv.federated.engine import SumRequest
from fedpriv.flower.serialization import MessageError, config_record, read_request, read_whole
from fedpriv.node.secure_parties import Replies
from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.keys import KEY, Session
from fedpriv.secure_aggregation.messages import Exchange

EXCHANGE = f"{MessageType.TRAIN}.secure"
IDENTITIES = f"{MessageType.QUERY}.identities"

_MAX_REASON = 300  # characters of a refusal


@dataclass(frozen=True)
class Shown:
    """What a node is shown in one exchange.

    Attributes:
        exchange: which exchange it is.
        session: the release.
        parties: {party: what it is shown}.
        request: the request for sums, in the exchange of masked messages.
    """

    exchange: Exchange
    session: Session
    parties: dict[int, Any]
    request: SumRequest | None


def identities_content(parties: Sequence[int]) -> RecordDict:
    """The question for the identity keys of a node's parties."""
    return RecordDict({"parties": ConfigRecord({"numbers": list(parties)})})


def read_identities(content: RecordDict) -> list[int]:
    """The parties whose keys are asked for. Raises MessageError for another content."""
    return _numbers(config_record(content, "parties"), "numbers")


def keys_content(keys: Mapping[int, bytes], process: str) -> RecordDict:
    """A node's reply with its parties' identity keys, and a name of the process that answers."""
    own = ConfigRecord({str(party): key for party, key in keys.items()})
    return RecordDict({"keys": own, "process": ConfigRecord({"name": process})})


def read_process(content: RecordDict) -> str:
    """The name of the process that answered. Raises MessageError for another content."""
    name = config_record(content, "process").get("name")
    if not isinstance(name, str):
        raise MessageError("a reply does not name the process that answered")
    return name


def read_identity_keys(content: RecordDict, parties: Sequence[int]) -> dict[int, bytes]:
    """{party: identity key} of exactly these parties. Raises MessageError for another content."""
    record = config_record(content, "keys")
    keys = {party: record.get(str(party)) for party in parties}
    if len(record) != len(parties) or not all(isinstance(k, bytes) and len(k) == KEY for k in keys.values()):
        raise MessageError("a reply does not have one identity key of 32 bytes for each of its parties")
    return keys


def shown_content(
    exchange: Exchange, session: Session, shown: Mapping[int, Any], request: Mapping[str, Any] | None
) -> RecordDict:
    """What a node's parties are shown.

    Args:
        exchange: which exchange it is.
        session: the release.
        shown: {party: what it is shown}.
        request: the records of the request for sums, in the exchange of masked messages.
    """
    fields = {
        "exchange": int(exchange),
        "run": session.run,
        "release": session.release,
        "threshold": session.threshold,
        "length": session.length,
        "cohort": list(session.cohort),
        "request": session.request,
    }
    records: dict[str, Any] = {"session": ConfigRecord(fields)}
    table: dict[str, Any] = {"parties": sorted(shown)}
    for party, own in shown.items():
        if exchange is Exchange.MASKED:
            table[f"{party}-peers"], table[f"{party}-texts"] = list(own.keys()), list(own.values())
        elif exchange is Exchange.SURVIVORS:
            table[f"{party}-peers"] = list(own)
        elif exchange is not Exchange.KEYS:
            table[f"{party}-texts"] = list(own)
    return RecordDict({**records, "shown": ConfigRecord(table), **(request or {})})


def read_shown(content: RecordDict) -> Shown:
    """What this node is shown. Raises MessageError for another content, ProtocolError for an odd session."""
    fields, table = config_record(content, "session"), config_record(content, "shown")
    numbers = [read_whole(fields.get(name)) for name in ("exchange", "release", "threshold", "length")]
    if numbers[0] not in set(Exchange) or not isinstance(fields.get("run"), str):
        raise MessageError("a message of secure aggregation names no exchange or no run")
    exchange, cohort, asked = Exchange(numbers[0]), tuple(_texts(fields, "cohort")), fields.get("request")
    if not isinstance(asked, bytes):
        raise MessageError("a message of secure aggregation has no digest of its release's request")
    try:
        session = Session(str(fields["run"]), numbers[1], cohort, numbers[2], numbers[3], asked)
    except ArgumentError as error:
        raise ProtocolError(str(error)) from None
    parties = {party: _own(table, party, exchange) for party in _numbers(table, "parties")}
    request = read_request(content) if exchange is Exchange.MASKED else None
    return Shown(exchange, session, parties, request)


def _own(table: ConfigRecord, party: int, exchange: Exchange) -> Any:
    if exchange is Exchange.KEYS:
        return None
    if exchange is Exchange.SURVIVORS:
        return _numbers(table, f"{party}-peers")
    texts = _texts(table, f"{party}-texts")
    if exchange is not Exchange.MASKED:
        return texts
    peers = _numbers(table, f"{party}-peers")
    if len(peers) != len(texts):
        raise MessageError("a party is shown another number of ciphertexts than of peers")
    return dict(zip(peers, texts, strict=True))


def replies_content(replies: Replies) -> RecordDict:
    """A node's reply to an exchange."""
    tables: dict[str, Mapping[int, Any]] = {
        "messages": replies.messages,
        "refused": replies.refused,
        "too-few": replies.too_few,
        "absent": dict.fromkeys(replies.absent, True),
    }
    return RecordDict({name: ConfigRecord(_by_name(table)) for name, table in tables.items()})


def read_replies(content: RecordDict, parties: Sequence[int], longest: int) -> Replies:
    """The replies of these parties.

    Args:
        content: the content of a node's reply.
        parties: those that were asked.
        longest: the most bytes that a message of this exchange can have.

    Raises MessageError unless each party replied once, with a message or a reason.
    """
    records = [config_record(content, name) for name in ("messages", "refused", "too-few", "absent")]
    names = {str(party): party for party in parties}
    if sorted(name for record in records for name in record) != sorted(names):
        raise MessageError("a reply does not have one answer for each of its parties")
    tables = [{names[name]: value for name, value in record.items()} for record in records]
    messages, *reasons, absent = tables
    if not all(isinstance(value, bytes) and len(value) <= longest for value in messages.values()):
        raise MessageError("a message of secure aggregation is not bytes, or too long")
    if not all(isinstance(value, str) for table in reasons for value in table.values()):
        raise MessageError("a refusal has no reason")
    refused, few = ({party: _printable(text) for party, text in table.items()} for table in reasons)
    return Replies(messages, refused, few, sorted(absent))


def _printable(text: Any) -> str:
    """A reason in one line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_MAX_REASON])


def _by_name(table: Mapping[int, Any]) -> dict[str, Any]:
    return {str(party): value for party, value in table.items()}


def _numbers(record: ConfigRecord, name: str) -> list[int]:
    values = record.get(name)
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise MessageError(f"{name} of a message of secure aggregation must be a list of numbers")
    if any(value < 1 for value in values) or len(set(values)) != len(values):
        raise MessageError(f"{name} of a message of secure aggregation must be distinct parties from 1 on")
    return values


def _texts(record: ConfigRecord, name: str) -> list[bytes]:
    values = record.get(name)
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise MessageError(f"{name} of a message of secure aggregation must be a list of bytes")
    return values

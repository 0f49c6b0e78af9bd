"""The server believes nothing that it can check: one reply per message, from the node that was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from helpers import summing_app as summing

from fedpriv.flower import exchange as wire
from fedpriv.flower.exchange import FailedError, SilentError, by_app, error_name, exchange, read
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.serialization import MessageError

NODES = (11, 12, 13)


def reply(to: str, source: int, number: int = 0, error: Error | None = None) -> Message:
    metadata = Metadata(1, f"reply-{number}", source, 0, to, "", 0.0, 9.0, "train")
    return make_message(metadata, error=error) if error else make_message(metadata, content(number))


def content(number: int) -> RecordDict:
    return RecordDict({"reply": ConfigRecord({"number": number})})


def number(message: Message) -> Any:
    return message.content["reply"]["number"]


class Hosted(InProcessGrid):
    """Nodes 1 to 3 of this process, whose replies ``forge`` makes from the messages."""

    def __init__(self, forge: Callable[[list[Message]], list[Message]]) -> None:
        super().__init__(nodes=3, client_app=f"{summing.__name__}:app")
        self.forge = forge

    def _submit(self, messages: list[Message]) -> None:
        """The nodes do not see the messages."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        self.push_messages(asked)
        return self.forge(asked)


def received(forge: Callable[[list[str]], list[Message]]) -> dict[int, Message]:
    grid = Hosted(lambda asked: forge([message.metadata.message_id for message in asked]))
    return exchange(grid, {node: RecordDict() for node in (1, 2, 3)}, "train", "", 1.0)


def test_the_first_of_two_replies_counts() -> None:
    got = received(lambda ids: [reply(ids[0], 1, 1), reply(ids[0], 1, 2), reply(ids[1], 2, 3)])
    assert {node: number(one) for node, one in got.items()} == {1: 1, 2: 3}


def test_a_node_replies_for_itself_only() -> None:
    got = received(lambda ids: [reply(ids[0], 3, 1), reply("unasked", 2, 2), reply(ids[2], 3, 3)])
    assert {node: number(one) for node, one in got.items()} == {3: 3}


def test_flowers_server_replies_with_errors_only() -> None:
    gone = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
    got = received(
        lambda ids: [reply(ids[1], SUPERLINK_NODE_ID, 1), reply(ids[2], SUPERLINK_NODE_ID, 2, gone)]
    )
    assert list(got) == [3]
    assert got[3].has_error()
    got = received(lambda ids: [reply(ids[2], 2, 2, gone), reply(ids[2], 3, 3)])
    assert number(got[3]) == 3  # one node cannot report another as failed


class Remote(Grid):  # type: ignore[misc]
    """A grid as Flower's: messages are pushed and pulled, and a group with a forged reply is not decoded."""

    def __init__(self, forged: Callable[[], Exception] | None = None, late: int = 0) -> None:
        self.forged, self.late, self.gone = forged, late, False
        self.asked: dict[str, int] = {}
        self.pulled: list[list[str]] = []

    def set_run(self, run: Any) -> None: ...

    run = property(lambda self: None)
    create_message = send_and_receive = None

    def get_node_ids(self) -> Iterable[int]:
        if self.gone:
            raise ConnectionError("Flower's server is gone")
        return NODES

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            name = f"m{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = name
            self.asked[name] = message.metadata.dst_node_id
        return list(self.asked)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        self.pulled.append(ids)
        if self.forged is not None and ("m12" in ids or self.gone):
            raise self.forged()
        there = ids if len(self.pulled) > self.late else []
        return [reply(one, self.asked[one], self.asked[one]) for one in there]


@pytest.fixture
def unaddressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without the identity of a Flower task, and no waiting."""

    def message(content: RecordDict, node: int, kind: str, *, ttl: float, group_id: str) -> Message:
        return make_message(Metadata(1, "", 0, node, "", group_id, 0.0, ttl, kind), content)

    monkeypatch.setattr(wire, "Message", message)
    monkeypatch.setattr(wire, "REPLIES", (0.0, 0.0))


@pytest.mark.parametrize("groups", [64, 1])
@pytest.mark.parametrize("error", [MemoryError, OSError, KeyError, RecursionError, UnicodeError])
@pytest.mark.usefixtures("unaddressed")
def test_a_reply_that_cannot_be_decoded_costs_no_other_reply(
    error: type[Exception], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MAX_GROUPS", groups)
    got = exchange(Remote(error), {node: RecordDict() for node in NODES}, "train", "", 9.0)
    assert {node: number(one) for node, one in got.items() if one.has_content()} == {11: 11, 13: 13}
    with pytest.raises(FailedError, match="failed with UnreadableError"):
        read(got[12], lambda records: records)


@pytest.mark.usefixtures("unaddressed")
def test_late_replies_are_awaited_until_the_timeout() -> None:
    contents = {node: RecordDict() for node in NODES}
    assert len(exchange(Remote(late=7), contents, "train", "", 9.0)) == 3
    assert exchange(Remote(late=10**9), contents, "train", "", 0.05) == {}


@pytest.mark.usefixtures("unaddressed")
def test_nodes_that_are_not_awaited_are_asked_and_their_replies_count_if_they_are_there() -> None:
    contents = {node: RecordDict() for node in NODES}

    class Hanging(Remote):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [one for one in super().pull_messages(message_ids) if one.metadata.src_node_id != 12]

    grid = Hanging(late=3)
    assert set(exchange(grid, contents, "train", "", 600.0, awaited={11, 13})) == {11, 13}
    assert set(grid.asked.values()) == set(NODES)
    assert set(exchange(Remote(), contents, "train", "", 600.0, awaited={11})) == set(NODES)


@pytest.mark.usefixtures("unaddressed")
def test_a_server_of_flower_that_is_gone_is_an_error() -> None:
    grid = Remote(ValueError)
    grid.gone = True
    with pytest.raises(ConnectionError, match="Flower's server is gone"):
        exchange(grid, {11: RecordDict()}, "train", "", 9.0)


@pytest.mark.parametrize("error", [MemoryError, OSError, KeyError, RecursionError, ValueError])
def test_any_error_while_a_reply_is_read_is_of_this_reply(error: type[Exception]) -> None:
    def reader(records: RecordDict) -> None:
        raise error("secret 0.25")

    with pytest.raises(MessageError, match=f"cannot be read [(]{error.__name__}[)]$"):
        read(reply("m", 1), reader)


def test_a_missing_reply_and_an_error_are_told_apart() -> None:
    with pytest.raises(SilentError, match="no reply in time"):
        read(None, lambda records: records)
    with pytest.raises(FailedError, match="failed with KeyError"):
        read(reply("m", 1, error=Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "KeyError")), lambda records: 0)


@pytest.mark.parametrize("reason", ["value 0.25", "A" * 101, "Fähler", "", "a\nb"])
def test_only_a_short_name_of_a_type_is_repeated(reason: str) -> None:
    failed = reply("m", 1, error=Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason))
    assert not by_app(failed)
    assert error_name(failed) == f"Flower's error code {ErrorCode.CLIENT_APP_RAISED_EXCEPTION}"

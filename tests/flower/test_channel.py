"""Channels between the driver and its actors: messages arrive whole and in order, and no wait is endless."""

import enum
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from helpers import echo_app as echo

from fedpriv.flower.grids import shared_memory
from fedpriv.flower.grids.channel import Channels, serve
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.grids.shared_memory import accept
from fedpriv.flower.grids.wire_format import read, write

BIG = 500_000  # numbers: more than a socket buffers


@pytest.fixture
def channels() -> Iterator[Channels]:
    made = Channels()
    yield made
    made.close()
    made.close()


def message(number: int, node: int = 1, size: int = 1) -> Message:
    grid = InProcessGrid(nodes=9, client_app=f"{echo.__name__}:app")
    content = RecordDict({"values": ArrayRecord([np.full(size, number, np.float64)])})
    made = grid.create_message(content, "train", node, "group")
    made.metadata.__dict__["_message_id"] = str(number)
    return made


def doubled(asked: Message) -> Message:
    [values] = asked.content["values"].to_numpy_ndarrays()
    return Message(RecordDict({"values": ArrayRecord([2 * values])}), reply_to=asked)


def dial(channels: Channels, node: int, answer: Callable[[Message], Message]) -> threading.Thread:
    thread = threading.Thread(target=serve, args=(channels.address(node), channels.key, answer), daemon=True)
    thread.start()
    return thread


def nothing_lost(node: int, messages: list[Message]) -> None:
    """An ended channel may be found closed; then it has no unanswered messages."""
    assert not messages, f"node {node} lost {len(messages)} messages"


def all_is_well() -> None:
    """A ``watch`` function that finds no failure."""


def value(reply: Message) -> float:
    return float(reply.content["values"].to_numpy_ndarrays()[0][-1])


def test_many_messages_larger_than_the_buffers_are_answered_in_order(channels: Channels) -> None:
    """At most one message is unanswered: two ends that both send and do not read would deadlock."""
    for node in (1, 2):
        dial(channels, node, doubled)
    channels.connect([1, 2], 10, all_is_well)
    for number in range(6):
        assert channels.post(1 + number % 2, message(number, 1 + number % 2, BIG)) == []
    names = [str(number) for number in range(6)]
    channels.collect(names, 30, nothing_lost)
    assert [value(channels.replies[name]) for name in names] == [2 * number for number in range(6)]
    assert all(channels.replies[name].metadata.reply_to_message_id == name for name in names)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no anonymous files")
def test_arrays_lie_in_shared_memory_and_no_message_overwrites_the_one_before(channels: Channels) -> None:
    """The second message is posted before the actor has read the first."""
    posted, heads, values = threading.Event(), list[int](), list[float]()

    def actor() -> None:
        with Listener(channels.address(1), "AF_UNIX", authkey=channels.key) as door:
            accepted = door.accept()
        with accepted as end:
            areas = accept(end)
            posted.wait(10)
            for _ in range(2):
                content = end.recv_bytes()
                heads.append(len(content))
                asked = read(content, areas.received)
                values.append(value(asked))
                end.send_bytes(write(doubled(asked), areas.sent))

    threading.Thread(target=actor, daemon=True).start()
    channels.connect([1], 10, all_is_well)
    for number in (1, 2):
        channels.post(1, message(number, size=BIG))
    posted.set()
    channels.collect(["1", "2"], 10, nothing_lost)
    assert values == [1, 2]
    assert [value(channels.replies[name]) for name in ("1", "2")] == [2, 4]
    assert heads[0] < 1000  # the numbers were not sent
    assert heads[1] > 8 * BIG  # the memory was in use


@pytest.mark.parametrize("room", [mmap.PAGESIZE, None])
def test_without_room_in_shared_memory_arrays_go_through_the_socket(
    channels: Channels, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    """Where the system gives no memory, or the arrays are larger."""
    if room is None:
        monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    else:
        monkeypatch.setattr(shared_memory, "_HALF", room)
    dial(channels, 1, doubled)
    channels.connect([1], 10, all_is_well)
    channels.post(1, message(3, size=BIG))
    channels.collect(["3"], 10, nothing_lost)
    assert value(channels.replies["3"]) == 6


def forbidden(name: str) -> int:
    raise PermissionError(name)


def test_an_ended_channel_answers_its_messages_and_accepts_no_more(channels: Channels) -> None:
    actor = dial(channels, 1, doubled)
    channels.connect([1], 10, all_is_well)
    assert 1 in channels
    assert 2 not in channels
    channels.post(1, message(4))
    channels.post(1, message(5))
    channels.post(1, None)
    assert 1 not in channels
    channels.collect(["4", "5"], 10, nothing_lost)
    assert [value(channels.replies[name]) for name in ("4", "5")] == [8, 10]
    actor.join(10)
    assert not actor.is_alive()


def test_a_broken_channel_returns_every_lost_message(channels: Channels) -> None:
    """The unanswered message and the queued ones."""
    dialled = threading.Event()

    def vanish() -> None:
        with Listener(channels.address(1), "AF_UNIX", authkey=channels.key) as door:
            accepted = door.accept()
        with accepted as end:
            accept(end)
            dialled.wait(10)
            end.recv_bytes()

    threading.Thread(target=vanish, daemon=True).start()
    channels.connect([1], 10, all_is_well)
    for number in (1, 2, 3):
        channels.post(1, message(number))
    dialled.set()
    lost: list[tuple[int, list[str]]] = []

    def note(node: int, messages: list[Message]) -> None:
        lost.append((node, [m.metadata.message_id for m in messages]))
        channels.replies |= {m.metadata.message_id: m for m in messages}

    channels.collect(["1", "2", "3"], 10, note)
    assert lost == [(1, ["1", "2", "3"])]
    assert 1 not in channels


def test_waiting_is_bounded_and_a_late_reply_is_kept(channels: Channels) -> None:
    go = threading.Event()

    def slow(asked: Message) -> Message:
        go.wait(10)
        return doubled(asked)

    dial(channels, 1, slow)
    channels.connect([1], 10, all_is_well)
    channels.post(1, message(7))
    before = time.monotonic()
    channels.collect(["7"], 0.05, nothing_lost)
    assert time.monotonic() - before < 5
    assert channels.replies == {}
    go.set()
    channels.collect(["7"], 10, nothing_lost)
    assert value(channels.replies["7"]) == 14


def test_a_peer_without_the_key_is_refused(channels: Channels) -> None:
    """Neither a driver nor an actor; both continue to wait for the right peer."""
    dial(channels, 1, doubled)
    while True:
        try:
            with pytest.raises(AuthenticationError):
                Client(channels.address(1), "AF_UNIX", authkey=bytes(32))
            break
        except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
            time.sleep(0.01)
    channels.connect([1], 10, all_is_well)
    assert 1 in channels
    thread = threading.Thread(target=serve, args=(channels.address(2), bytes(32), doubled), daemon=True)
    thread.start()
    with pytest.raises(TimeoutError):
        channels.connect([2], 0.3, all_is_well)
    assert 2 not in channels
    Client(channels.address(2), "AF_UNIX", authkey=bytes(32)).close()
    thread.join(10)


def test_waiting_for_a_dead_actor_ends(channels: Channels) -> None:
    def gone() -> None:
        raise ProcessLookupError

    before = time.monotonic()
    with pytest.raises(ProcessLookupError):
        channels.connect([1], 60, gone)
    assert time.monotonic() - before < 30


def test_a_folder_without_sockets_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path may have about 100 bytes."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(OSError, match="too long"):
        Channels()
    assert list(folder.iterdir()) == []


def test_only_the_user_can_enter_the_folder_and_close_removes_it(channels: Channels) -> None:
    folder = os.path.dirname(channels.address(1))
    assert os.stat(folder).st_mode & 0o077 == 0
    channels.close()
    assert not os.path.exists(folder)


class Colour(enum.IntEnum):
    RED = 3


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.str_("hi"), "hi"),
        (np.bytes_(b"\x00hi"), b"\x00hi"),
        (Colour.RED, 3),
        (Word("word"), "word"),
        (True, True),
        (2**62, 2**62),
        ([0.25, 1.5], [0.25, 1.5]),
        ([], []),
    ],
    ids=repr,
)
def test_values_of_subclasses_arrive_as_their_base_type(value: Any, plain: Any) -> None:
    asked = message(3)
    asked.content["fields"] = ConfigRecord({Word("name"): value})
    [(name, arrived)] = read(write(asked)).content["fields"].items()
    assert (name, arrived, type(arrived)) == ("name", plain, type(plain))


def test_a_reply_that_cannot_be_written_becomes_an_error_and_the_channel_works_on(channels: Channels) -> None:
    def answer(asked: Message) -> Message:
        reply = doubled(asked)
        if asked.metadata.message_id == "1":
            reply.content["values"].__dict__["_data"]["values"] = object()  # bypasses Flower's check
        return reply

    dial(channels, 1, answer)
    channels.connect([1], 10, all_is_well)
    for number in (1, 2):
        assert channels.post(1, message(number)) == []
    channels.collect(["1", "2"], 10, nothing_lost)
    assert channels.replies["1"].error.reason == "AttributeError"
    assert value(channels.replies["2"]) == 4


def test_a_message_that_cannot_be_written_is_refused_and_the_channel_works_on(channels: Channels) -> None:
    dial(channels, 1, doubled)
    channels.connect([1], 10, all_is_well)
    broken = message(1)
    broken.content["fields"] = ConfigRecord({})
    broken.content["fields"].__dict__["_data"]["x"] = object()
    with pytest.raises(ValueError, match="holds a object"):
        channels.post(1, broken)
    channels.post(1, message(2))
    channels.collect(["2"], 10, nothing_lost)
    assert value(channels.replies["2"]) == 4


def test_malformed_bytes_break_the_channel_and_the_lost_messages_are_returned(channels: Channels) -> None:
    def babble() -> None:
        with Listener(channels.address(1), "AF_UNIX", authkey=channels.key) as door:
            accepted = door.accept()
        with accepted as end:
            accept(end)
            end.recv_bytes()
            end.send_bytes(b"no message")

    threading.Thread(target=babble, daemon=True).start()
    channels.connect([1], 10, all_is_well)
    channels.post(1, message(1))
    lost: list[str] = []

    def note(node: int, messages: list[Message]) -> None:
        lost.extend(m.metadata.message_id for m in messages)
        channels.replies |= {m.metadata.message_id: m for m in messages}

    channels.collect(["1"], 10, note)
    assert lost == ["1"]
    assert 1 not in channels


def test_the_wire_format_keeps_the_whole_message() -> None:
    asked = message(3)
    asked.content["numbers"] = MetricRecord({"loss": 0.5, "counts": [1, 2]})
    asked.content["fields"] = ConfigRecord({"bytes": b"\x00\xff", "text": "ü", "flag": True})
    asked.content["more"] = ArrayRecord([np.arange(3.0), np.float32(2.5) * np.ones((2, 2), np.float32)])
    area = memoryview(bytearray(1000))
    for again in (read(write(asked)), read(write(asked, area), area)):
        assert again.metadata.__dict__ == asked.metadata.__dict__
        assert again.content == asked.content
    failed = read(write(Message(Error(7, "ZeroDivisionError"), reply_to=asked)))
    assert (failed.error.code, failed.error.reason) == (7, "ZeroDivisionError")

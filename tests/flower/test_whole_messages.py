"""Whole messages over Flower's own server code: its SuperLink's state and handlers, and its connection."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedpriv.flower import whole_messages
from fedpriv.flower.exchange import FailedError, exchange, read
from fedpriv.flower.serialization import MessageError, encode
from fedpriv.flower.supernode import Link, connected
from fedpriv.flower.topology import EngineError
from fedpriv.flower.whole_messages import FLWR, MOST, WholeGrid, with_whole_messages

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")


def test_the_module_fits_the_installed_version_of_flower() -> None:
    """With another version, look at Flower's message handlers again before you change FLWR."""
    assert version("flwr").startswith(f"{FLWR}.")


class Calls:
    """Flower's client of one side, whose requests go to the server's handlers; they are counted."""

    def __init__(self, handlers: Any, counts: Counter[str], **named: Any) -> None:
        self._handlers, self._counts, self._named = handlers, counts, named

    def __getattr__(self, name: str) -> Any:
        own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
        handler = getattr(self._handlers, own)
        takes = inspect.signature(handler).parameters
        known = {key: value for key, value in self._named.items() if key in takes}

        def call(request: Any) -> Any:
            self._counts[name] += 1
            return handler(request=request, **known)

        return call

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *error: object) -> None: ...


class SuperLink:
    """Flower's server with one run, its ServerApp's grid, and connections of nodes."""

    def __init__(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        objects = ObjectStoreFactory(database)
        self.state = LinkStateFactory(database, NoOpFederationManager(), objects).state()
        nothing: tuple[None, None, None] = (None, None, None)
        kind = TaskType.SERVER_APP
        self.run = self.state.create_run(*nothing, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, kind)
        [run] = self.state.get_run_info(run_ids=[self.run])
        task = run.primary_task_id
        assert self.state.claim_task(task)
        assert self.state.activate_task(task)
        for name, value in (("_run_id", self.run), ("_node_id", SUPERLINK_NODE_ID), ("_task_id", task)):
            monkeypatch.setattr(TaskIdentity, name, value)
        self.server, self.nodes = Counter[str](), Counter[str]()
        flowers = HttpGrid(token="t")
        own = SimpleNamespace(task_id=task, run_id=self.run)
        flowers._client = Calls(runtime_handlers, self.server, state=self.state, task=own)
        flowers.set_run(Run.create_empty(self.run))
        grid = with_whole_messages(flowers)
        assert isinstance(grid, WholeGrid)
        self.grid = grid
        fleet = Calls(
            fleet_handlers,
            self.nodes,
            state=self.state,
            store=self.state.object_store,
            enable_supernode_auth=False,
        )
        client = SimpleNamespace(from_server_address=lambda *_, **__: fleet)
        monkeypatch.setattr("flwr.supernode.fleet_http_connection.FleetHttpClient", client)
        self.stack = ExitStack()

    def node(self) -> Link:
        """A node that is connected."""
        return self.stack.enter_context(connected("127.0.0.1:1", "", ""))

    def sent(self, links: list[Link], content: RecordDict, kind: str = MessageType.TRAIN) -> list[Message]:
        """One message for each node, as the server has them after they are sent."""
        batch = [Message(content, link.node, kind, ttl=60.0, group_id="0") for link in links]
        assert len(self.grid.push_messages(batch)) == len(links)
        return batch

    def asked(self, link: Link, content: RecordDict, kind: str = MessageType.TRAIN) -> Message:
        """The reply of a node that echoes."""
        [message] = self.sent([link], content, kind)
        echo(link)
        [(number, reply)] = self.grid.pull([message.metadata.message_id])
        assert number == message.metadata.message_id
        assert isinstance(reply, Message)
        return reply


def echo(link: Link, content: RecordDict | None = None) -> None:
    task = link.next()
    assert task is not None
    message = task.read()
    link.reply(Message(content or message.content, reply_to=message))


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
def superlink(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SuperLink]:
    database = ":flwr-in-memory:" if request.param == "memory" else str(tmp_path / "state.db")
    server = SuperLink(database, monkeypatch)
    with server.stack:
        yield server


def sums(size: int = 10) -> RecordDict:
    return RecordDict(
        {
            "sums": ArrayRecord({"sum-0": encode(torch.arange(size).double())}),
            "reply": ConfigRecord({"release": 3, "bytes": b"\0\xff", "floats": [0.5]}),
        }
    )


def introduced(superlink: SuperLink, link: Link) -> None:
    superlink.asked(link, RecordDict(), MessageType.QUERY)


def test_a_message_and_its_reply_take_four_requests(superlink: SuperLink) -> None:
    link = superlink.node()
    introduced(superlink, link)
    superlink.server.clear()
    superlink.nodes.clear()
    reply = superlink.asked(link, sums())
    assert superlink.server == {"PushMessages": 1, "PullMessages": 1}
    assert {name: count for name, count in superlink.nodes.items() if "Heartbeat" not in name} == {
        "PullMessages": 1,
        "PushMessages": 1,
    }
    assert reply.content == sums()
    assert (reply.metadata.src_node_id, reply.metadata.run_id) == (link.node, superlink.run)


def test_a_large_message_travels_in_objects(superlink: SuperLink) -> None:
    link, large = superlink.node(), sums(MOST // 8 + 1)
    introduced(superlink, link)
    assert superlink.asked(link, large).content == large
    assert superlink.nodes["PullObject"] > 6
    assert superlink.nodes["PushObject"] > 5
    assert superlink.asked(link, sums()).content == sums()


def test_a_node_that_does_not_know_gets_objects(superlink: SuperLink) -> None:
    """As Flower's own SuperNode: it ignores the content of an envelope, and the mark."""
    link = superlink.node()
    link._whole = None
    for _ in range(2):
        introduced(superlink, link)
        superlink.nodes.clear()
        assert superlink.asked(link, sums()).content == sums()
        assert superlink.nodes["PullObject"] == 6
        assert superlink.nodes["ConfirmMessageReceived"] == 1


def test_a_node_that_did_not_answer_gets_objects(superlink: SuperLink) -> None:
    link = superlink.node()
    introduced(superlink, link)
    superlink.sent([link], sums())
    lost = link.next()
    assert lost is not None
    superlink.nodes.clear()
    assert superlink.asked(link, sums()).content == sums()
    assert superlink.nodes["PullObject"] == 6


def test_the_objects_of_many_messages_follow_their_envelopes_soon(superlink: SuperLink) -> None:
    """A node that has an envelope asks for its objects again and again until they are there."""
    links = [superlink.node() for _ in range(20)]
    superlink.sent(links, sums())
    assert superlink.server["PushMessages"] == 3  # each is followed by its own objects
    for link in links:
        task = link.next()
        assert task is not None
        assert task.read().content == sums()


def test_an_error_travels_whole(superlink: SuperLink) -> None:
    link = superlink.node()
    introduced(superlink, link)
    [message] = superlink.sent([link], sums())
    task = link.next()
    assert task is not None
    link.reply(Message(Error(7, "LedgerError"), reply_to=task.envelope))
    [(_, reply)] = superlink.grid.pull([message.metadata.message_id])
    assert isinstance(reply, Message)
    assert reply.error.reason == "LedgerError"


def test_a_whole_message_that_is_too_large_is_refused(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = superlink.node(), superlink.node()
    for one in (link, other):
        introduced(superlink, one)
    batch = superlink.sent([link, other], sums())
    echo(other)
    monkeypatch.setattr(whole_messages, "MOST", 2**30)  # the node is another program
    echo(link, sums(MOST))
    monkeypatch.undo()
    found = dict(superlink.grid.pull([message.metadata.message_id for message in batch]))
    assert isinstance(found[batch[0].metadata.message_id], MessageError)
    assert isinstance(found[batch[1].metadata.message_id], Message)


def test_the_node_refuses_a_whole_message_that_is_too_large(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = superlink.node()
    introduced(superlink, link)
    with monkeypatch.context() as patched:
        patched.setattr(whole_messages, "MOST", 2**30)
        superlink.sent([link], sums(MOST))
    task = link.next()
    assert task is not None
    with pytest.raises(MessageError, match="came whole has more than"):
        task.read()


def test_a_node_answers_once_and_for_itself(superlink: SuperLink) -> None:
    link, other = superlink.node(), superlink.node()
    for one in (link, other):
        introduced(superlink, one)
    [message] = superlink.sent([link], sums())
    task = link.next()
    assert task is not None
    asked = task.read()
    forged = Message(sums(3), reply_to=asked)
    forged.metadata.__dict__["_src_node_id"] = other.node
    other._wholly = asked.metadata.message_id
    other.reply(forged)
    assert not list(superlink.grid.pull([message.metadata.message_id]))
    link.reply(Message(sums(), reply_to=asked))
    link.reply(Message(sums(4), reply_to=asked))
    [(_, reply)] = superlink.grid.pull([message.metadata.message_id])
    assert isinstance(reply, Message)
    assert reply.content == sums()
    [(_, again)] = superlink.grid.pull([message.metadata.message_id])
    assert isinstance(again, Message)
    assert again.has_error()  # Flower's own: the message is gone


def test_a_reply_that_cannot_be_decoded_costs_no_other(
    superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, other = superlink.node(), superlink.node()
    for one in (link, other):
        introduced(superlink, one)

    def decoded(found: Any, tree: Any) -> Message:
        if found.metadata.src_node_id == link.node:
            raise MemoryError
        return own(found, tree)

    own, push = superlink.grid._decoded, superlink.grid.push_messages
    monkeypatch.setattr(superlink.grid, "_decoded", decoded)

    def pushed(batch: list[Message]) -> list[str]:
        stored = push(batch)
        for one in (link, other):
            echo(one)
        return stored

    monkeypatch.setattr(superlink.grid, "push_messages", pushed)
    got = exchange(superlink.grid, {one.node: sums() for one in (link, other)}, "train", "0", 30.0)
    assert got[other.node].content == sums()
    with pytest.raises(FailedError, match="UnreadableError"):
        read(got[link.node], lambda content: content)


def test_a_superlink_that_is_gone_ends_the_run(superlink: SuperLink, monkeypatch: pytest.MonkeyPatch) -> None:
    link = superlink.node()

    def gone(request: Any) -> Any:
        raise httpx.ConnectError("refused")

    calls = SimpleNamespace(PullMessages=gone, PushMessages=gone, GetNodes=gone)
    monkeypatch.setattr(superlink.grid._grid, "_client", calls)
    assert superlink.grid._grid._retry_invoker.max_time == pytest.approx(30.0)
    message = Message(sums(), link.node, "train", ttl=60.0, group_id="0")
    for call in (
        superlink.grid.get_node_ids,
        lambda: list(superlink.grid.pull(["x"])),
        lambda: superlink.grid.push_messages([message]),
    ):
        with pytest.raises(EngineError, match="has not answered for 30 s"):
            call()

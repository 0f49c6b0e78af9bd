"""What a proxy takes from its peers has room for all that Flower sends, and bounds."""

from __future__ import annotations

import http.client
import io
import threading
import time
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, Metadata, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.app.message.message import make_message
from flwr.common.constant import FAB_MAX_SIZE, FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedpriv.deployment import proxy_limits
from fedpriv.deployment.proxy_limits import BodyMemory, Head, NoRoomError
from fedpriv.flower import whole_messages

RUN, ID = 2**64 - 1, "f" * 64
NODE = Node(node_id=RUN)
SMALL_CALLS = [
    ActivateNodeRequest(public_key=public_key_to_bytes(generate_key_pairs()[1]), heartbeat_interval=30.0),
    DeactivateNodeRequest(node_id=RUN),
    SendNodeHeartbeatRequest(node=NODE, heartbeat_interval=30.0),
    PullMessagesRequest(node=NODE),
    GetRunRequest(node=NODE, run_id=RUN),
    GetFabRequest(node=NODE, hash_str=ID, run_id=RUN),
    PullObjectRequest(node=NODE, run_id=RUN, object_id=ID),
    ConfirmMessageReceivedRequest(node=NODE, run_id=RUN, message_object_id=ID),
]


def test_flower_is_the_version_whose_sizes_are_used() -> None:
    assert version("flwr").startswith(f"{proxy_limits.FLWR}."), "look at fedpriv/deployment/proxy_limits.py"


def test_every_call_of_a_node_has_room() -> None:
    """Nodes whose keys are registered by the server neither register nor unregister themselves."""
    kinds = {type(call) for call in SMALL_CALLS}
    fleet = {path: kind for (_, path), kind in PROTOBUF_REQUEST_TYPES.items() if "/fleet/" in path}
    others = {path for path, kind in fleet.items() if kind not in kinds and "register" not in path}
    assert others == set(proxy_limits.FLEET) == {proxy_limits.PUSH_OBJECT, proxy_limits.PUSH_MESSAGES}
    assert all(0 < 10 * call.ByteSize() < proxy_limits.SMALL for call in SMALL_CALLS)
    part = ArrayChunk(memoryview(bytes(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE))).deflate()
    largest = PushObjectRequest(node=NODE, run_id=RUN, object_id=ID, session_id=ID, object_content=part)
    assert 5 * 2**20 < largest.ByteSize() < proxy_limits.FLEET[proxy_limits.PUSH_OBJECT]


def test_the_largest_whole_reply_has_room() -> None:
    sent = list[int]()
    client, node = SimpleNamespace(PushMessages=None), NODE
    retry_invoker = SimpleNamespace(invoke=lambda call, request: sent.append(request.ByteSize()))

    def send() -> object:  # as Flower's callback, of which the variables are used
        return client, node, retry_invoker

    for size, travels in ((whole_messages.MOST - 1000, True), (whole_messages.MOST, False)):
        content = RecordDict({"sums": ArrayRecord([np.zeros(size, np.uint8)])})
        reply = make_message(Metadata(RUN, ID, RUN, 1, ID, ID, 0.0, 9.0, "train"), content)
        assert whole_messages.sender(send)(reply) is travels
    assert whole_messages.MOST - 1000 < sent[0] < proxy_limits.FLEET[proxy_limits.PUSH_MESSAGES] / 3


def test_the_largest_app_has_room() -> None:
    assert proxy_limits.CONTROL[proxy_limits.START_RUN] > FAB_MAX_SIZE + 2**20
    assert ("POST", proxy_limits.START_RUN) in PROTOBUF_REQUEST_TYPES


def test_large_bodies_share_their_memory_and_small_ones_need_none() -> None:
    large = proxy_limits.SMALL + 1
    memory = BodyMemory(2 * large, wait=0.05)
    with memory.taken(large), memory.taken(large):
        with pytest.raises(NoRoomError), memory.taken(large):
            pass
        with memory.taken(proxy_limits.SMALL):
            pass
    with pytest.raises(OSError, match="broken"), memory.taken(2 * large):
        raise OSError("broken")
    with memory.taken(2 * large):
        pass


def test_a_body_waits_until_another_is_gone() -> None:
    large = proxy_limits.SMALL + 1
    memory, order, begun = BodyMemory(large, wait=10.0), list[str](), threading.Event()

    def other() -> None:
        begun.set()
        with memory.taken(large):
            order.append("second")

    thread = threading.Thread(target=other)
    with memory.taken(large):
        thread.start()
        assert begun.wait(10)
        time.sleep(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_head_ends_where_it_is_too_large() -> None:
    lines = [b"a: " + b"x" * 1000 + b"\r\n"] * 16
    head = Head(io.BytesIO(b"".join(lines)))
    assert [head.readline(65537) for _ in lines] == lines
    for text in (b"".join(lines * 2), b"x" * 2**20):
        file = io.BytesIO(text)
        head = Head(file)
        with pytest.raises(http.client.LineTooLong):
            list(iter(lambda head=head: head.readline(65537), b""))  # type: ignore[misc]
        assert file.tell() == proxy_limits.MOST_HEAD + 1

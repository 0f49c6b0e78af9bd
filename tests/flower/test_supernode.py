"""What the node takes from Flower: the version that it fits, a run's configuration, messages and replies."""

from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv._internal.validation import ArgumentError
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.serialization import MessageError
from fedpriv.flower.supernode import (
    FLWR,
    Link,
    LinkError,
    RunEndedError,
    _keys,
    _note_answers,
    connected,
    fused_config,
)


def test_the_module_fits_the_installed_version_of_flower() -> None:
    """With another version, read the SuperNode's loop and connection again before you change FLWR."""
    assert version("flwr").startswith(f"{FLWR}.")


def bundle(text: str, name: str = "pyproject.toml") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
        archive.writestr("fedpriv/__init__.py", "raise SystemExit('the code of a run was run')")
    return file.getvalue()


APP = '[tool.flwr.app.config]\nepsilon = 3.0\nmodel = "cnn"\n'


def test_a_runs_configuration_is_its_bundles_with_changes() -> None:
    assert fused_config(bundle(APP), {"epsilon": 1.0}) == {"epsilon": 1.0, "model": "cnn"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK no archive",
        bundle(APP, "other.toml"),
        bundle("[tool.flwr"),
        bundle("[tool]\n"),
        bundle("x = 1\n" + "#" * 2**21),  # unpacks to more than a configuration may have
    ],
)
def test_a_damaged_bundle_is_refused_in_a_sentence(content: bytes) -> None:
    with pytest.raises(MessageError, match=r"pyproject.toml has more|no readable configuration"):
        fused_config(content, {})


class SuperLink:
    """The callbacks of Flower's connection, with one message for node 1."""

    def __init__(self, run: int = 7, claimed: int = 7, to: int = 1) -> None:
        message = InProcessGrid(nodes=2).create_message(RecordDict(), "query", to, "0")
        message.metadata.__dict__["_run_id"] = claimed
        self.tree = get_object_tree(message)
        self.objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
        envelope = InProcessGrid(nodes=2).create_message(RecordDict(), "query", 1, "0")
        envelope.metadata.__dict__.update(_run_id=run, _message_id=message.object_id)
        self.waiting: list[Any] = [(envelope, self.tree)]
        self.sent, self.fab, self.confirmed = dict[str, bytes](), bundle(APP), list[str]()
        self.ended, self.runtime = False, list[float]()

    def link(self) -> Link:
        return Link(
            (
                1,
                lambda: self.waiting.pop() if self.waiting else None,
                self.send,
                self.get_run,
                lambda digest, run: Fab(digest, self.fab, {}),
                lambda run, number: self.objects[number],
                lambda run, session, number, content: self.sent.update({number: content}),
                lambda run, number: self.confirmed.append(number),
            )
        )

    def send(self, message: Message, tree: Any, runtime: float) -> tuple[set[str], str]:
        if self.ended:
            raise RunNotRunningException
        self.runtime.append(runtime)
        return {tree.object_id}, "session"

    def get_run(self, number: int) -> FlowerRun:
        run = FlowerRun.create_empty(number)
        run.fab_hash = hashlib.sha256(bundle(APP)).hexdigest()
        run.override_config = {"epsilon": 2.0}
        return run


def test_a_message_is_received_and_its_reply_sent() -> None:
    server = SuperLink()
    link = server.link()
    task = link.next()
    assert task is not None
    assert task.run == 7
    message = task.read()
    assert server.confirmed == [message.metadata.message_id] == [server.tree.object_id]
    link.reply(Message(RecordDict(), reply_to=message))
    assert len(server.sent) == 1
    assert server.runtime == [0.0]  # how long an answer took is not told
    assert link.next() is None


@pytest.mark.parametrize("changed", [{"claimed": 8}, {"to": 0}])
def test_a_message_of_another_run_than_its_envelopes_is_refused(changed: dict[str, int]) -> None:
    task = SuperLink(**changed).link().next()
    assert task is not None
    with pytest.raises(MessageError, match="of another run or for another node"):
        task.read()


def test_a_bundle_is_the_one_that_the_run_names() -> None:
    server = SuperLink()
    assert server.link().run(7).config == {"epsilon": 2.0, "model": "cnn"}
    server.fab = bundle(APP + "seed = 4\n")
    with pytest.raises(MessageError, match="another hash than the run says"):
        server.link().run(7)


def test_an_ended_run_is_an_ordinary_exception() -> None:
    server = SuperLink()
    link = server.link()
    task = link.next()
    assert task is not None
    server.ended = True
    with pytest.raises(RunEndedError):
        link.reply(Message(RecordDict(), reply_to=task.read()))


def test_a_key_is_an_ecdsa_key_without_a_passphrase(tmp_path: Path) -> None:
    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(tmp_path / "node")]
    if subprocess.run(make, capture_output=True).returncode:
        pytest.skip("ssh-keygen is not installed")
    private, public = _keys(str(tmp_path / "node"))
    assert private.public_key() == public
    (tmp_path / "bad").write_text("SECRET")
    for name in ("bad", "node.pub", "missing"):
        with pytest.raises(ArgumentError) as error:
            _keys(str(tmp_path / name))
        assert "SECRET" not in str(error.value)


def test_answers_that_are_no_errors_are_contact_heartbeats_among_them() -> None:
    statuses, heard = iter([200, 401, 502, 200]), list[None]()
    kind = {"content-type": "application/protobuf"}
    transport = httpx.MockTransport(lambda request: httpx.Response(next(statuses), headers=kind))
    client = FleetHttpClient("http://link")
    client._client = httpx.Client(transport=transport)
    _note_answers(client, lambda: heard.append(None))
    counts = []
    ask, beat = PullMessagesRequest(), SendNodeHeartbeatRequest()
    for call in (*[lambda: client.PullMessages(ask)] * 3, lambda: client.SendNodeHeartbeat(beat)):
        with suppress(httpx.HTTPStatusError):
            call()
        counts.append(len(heard))
    assert counts == [1, 1, 1, 2]
    _note_answers(SimpleNamespace(), lambda: None)  # a client of another kind


def test_a_revoked_key_ends_the_node_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    response = httpx.Response(401, request=httpx.Request("POST", "https://127.0.0.1/v1/fleet/pull-messages"))

    @contextmanager
    def connection(*arguments: object) -> Iterator[tuple[Any, ...]]:
        with suppress(Exception):  # as Flower's does
            yield (1,) + (response.raise_for_status,) * 7

    for name in ("client_of", "sender"):
        monkeypatch.setattr(f"fedpriv.flower.whole_messages.{name}", lambda send: None)
    monkeypatch.setattr("fedpriv.flower.supernode.http_request_response", connection)
    said = r"no longer serves this node: .*was it revoked"
    with pytest.raises(LinkError, match=said) as error, connected("127.0.0.1:1", "", "") as link:
        link.next()
    assert "\n" not in str(error.value)

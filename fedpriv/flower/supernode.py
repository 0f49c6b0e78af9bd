"""The SuperNode's side of Flower's Fleet API: everything of ``fedpriv node`` that touches Flower's internals.

Flower's own SuperNode starts a process for each message, in which the code of the run is first on
``sys.path``. :class:`Link` speaks to the SuperLink as that SuperNode does (registration, heartbeats,
authentication with the node's key), and hands messages to this process. Of a run it reads the configuration
alone: of the app bundle, the text of ``pyproject.toml``. It installs, imports and unpacks nothing of it.

These internals may change with any version of Flower; :data:`FLWR` is the version that this module fits.
"""

from __future__ import annotations

import hashlib
import io
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.config import flatten_dict, fuse_dicts
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from fedpriv._internal import validation
from fedpriv.flower import whole_messages
from fedpriv.flower.flower_log import log_once
from fedpriv.flower.holding import Holding
from fedpriv.flower.serialization import MessageError

FLWR = "1.41"

_MOST_CONFIG = 2**20  # bytes of an app's pyproject.toml
_MOST_TRIES, _MOST_SECONDS = 20, 60.0  # for each object of a message


@dataclass(frozen=True)
class Run:
    """A run, as the SuperLink describes it.

    Attributes:
        id: its number.
        app_hash: the SHA-256 hash of its app bundle.
        config: the bundle's default configuration with the changes of ``flwr run``.
    """

    id: int
    app_hash: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A message to this node whose content is still at the SuperLink.

    Attributes:
        envelope: the message without its content.
        read: gets the whole message. Raises RunEndedError, or an exception of any type if the message cannot
            be had or read.
    """

    envelope: Message
    read: Callable[[], Message]

    @property
    def run(self) -> int:
        """The number of the message's run."""
        return int(self.envelope.metadata.run_id)


class LinkError(validation.FedprivError, RuntimeError):
    """The SuperLink no longer serves this node."""


class RunEndedError(Exception):
    """The run of a message has ended; nobody waits for a reply."""


@contextmanager
def _of_running() -> Iterator[None]:
    """Within this block Flower's exception for an ended run, which is no Exception, becomes one."""
    try:
        yield
    except RunNotRunningException:
        raise RunEndedError from None


class Link:
    """An open connection to the SuperLink. Its node is online until the connection is closed.

    Args:
        callbacks: those of Flower's connection.
        whole: sends a small reply in one request and says whether it did (:mod:`whole_messages`); None: every
            reply travels as Flower has it.
        holding: has the SuperLink hold this node's questions; None: each is answered at once.
    """

    def __init__(
        self,
        callbacks: tuple[Any, ...],
        whole: Callable[[Message], bool] | None = None,
        holding: Holding | None = None,
    ) -> None:
        (
            self.node,
            self._receive,
            self._send,
            self._get_run,
            self._get_fab,
            self._pull_object,
            self._push_object,
            self._confirm,
        ) = callbacks
        self._holding = holding
        self._whole, self._wholly = whole, ""  # the id of a message that gets a whole reply

    @property
    def holds(self) -> bool:
        """Whether the SuperLink held the last question, or would have."""
        return self._holding is not None and self._holding.holds

    def next(self, held: float = 0.0) -> Task | None:
        """The next message; None if there is none. The SuperLink may wait ``held`` seconds for one."""
        if self._holding is not None:
            self._holding.seconds = held
        with _of_running():
            found = self._receive()
        if found is None:
            return None
        envelope, tree = found
        run = envelope.metadata.run_id
        if whole_messages.arrived_whole(envelope, tree):
            self._wholly = envelope.metadata.message_id

            def received() -> Message:
                whole_messages.require_small(envelope)
                return self._own(envelope, run)

            return Task(envelope, received)

        def read() -> Message:
            with _of_running():
                message = pull_and_inflate_object_from_tree(
                    tree,
                    lambda number: self._pull_object(run, number),
                    lambda number: self._confirm(run, number),
                    return_type=Message,
                    max_time=_MOST_SECONDS,
                    max_tries_per_object=_MOST_TRIES,
                    **whole_messages.BACKOFF,
                )
            message.metadata.__dict__["_message_id"] = tree.object_id
            if whole_messages.is_marked(message):
                self._wholly = tree.object_id
            return self._own(message, run)

        return Task(envelope, read)

    def _own(self, message: Message, run: int) -> Message:
        """The message, if it is of this run and for this node. Raises MessageError otherwise."""
        if message.metadata.run_id != run or message.metadata.dst_node_id != self.node:
            raise MessageError("the message is of another run or for another node than its envelope says")
        return message

    def run(self, number: int) -> Run:
        """The run with this number.

        Raises MessageError if its app bundle is not the one that its hash names, or has no configuration, and
        RunEndedError if it has ended.
        """
        with _of_running():
            run = self._get_run(number)
            content = self._get_fab(run.fab_hash, number).content
        if hashlib.sha256(content).hexdigest() != run.fab_hash:
            raise MessageError("the run's app bundle has another hash than the run says")
        return Run(number, run.fab_hash, fused_config(content, run.override_config))

    def reply(self, reply: Message) -> None:
        """Sends a reply. Raises RunEndedError if its run has ended."""
        if self._whole is not None and reply.metadata.reply_to_message_id == self._wholly:
            with _of_running():
                if self._whole(reply):
                    return
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = reply.metadata.run_id
        with _of_running(), no_object_id_recompute():
            # The time that an answer took can depend on private data, so it is not reported.
            wanted, session = self._send(reply, get_object_tree(reply), 0.0)
            push_objects(
                get_all_nested_objects(reply),
                lambda number, content: self._push_object(run, session, number, content),
                object_ids_to_push=wanted,
            )


def fused_config(bundle: bytes, changes: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration: that of its app bundle with these changes.

    Raises MessageError for anything else than an archive with a small pyproject.toml that has one.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive, archive.open("pyproject.toml") as file:
            text = file.read(_MOST_CONFIG + 1)
        if len(text) > _MOST_CONFIG:
            raise MessageError(f"the app's pyproject.toml has more than {_MOST_CONFIG:,} bytes")
        defaults = tomllib.loads(text.decode())["tool"]["flwr"]["app"].get("config", {})
        return dict(fuse_dicts(flatten_dict(defaults), changes))
    except MessageError:
        raise
    except Exception as error:  # zipfile and tomllib raise many types for damaged input
        raise MessageError(f"the run's app has no readable configuration ({type(error).__name__})") from None


@contextmanager
def connected(
    superlink: str, root_certificates: str, private_key: str, heard: Callable[[], None] = lambda: None
) -> Iterator[Link]:
    """A connection to the SuperLink as one of its nodes.

    Args:
        superlink: HOST:PORT.
        root_certificates: the path of the CA's certificate; "" connects without TLS.
        private_key: the path of the node's key; "" makes a key for this connection.
        heard: called when the SuperLink has answered a call well, also from the thread of the heartbeats.

    Raises ArgumentError for files that are no certificate or key, and LinkError if the SuperLink stops
    serving the node, such as after its key was revoked. Exits the process as Flower's SuperNode does if the
    SuperLink refuses the node at first.
    """
    log_once()
    certificates = _read("root-certificates", root_certificates) if root_certificates else None
    keys = None if not private_key else _keys(private_key)
    failure: BaseException | None = None
    with http_request_response(superlink, certificates is None, certificates, keys) as callbacks:
        try:
            client = whole_messages.client_of(callbacks[2])
            _note_answers(client, heard)
            yield Link(callbacks, whole_messages.sender(callbacks[2]), Holding.of(client))
        except Exception as error:  # the context manager of Flower logs errors and drops them
            failure = error
    if isinstance(failure, httpx.HTTPError):
        status = getattr(getattr(failure, "response", None), "status_code", None)
        why = "it does not accept the node's key (401); was it revoked?" if status == 401 else failure
        raise LinkError(f"the SuperLink {superlink} no longer serves this node: {why}") from None
    if failure is not None:
        raise failure


def _note_answers(client: object, heard: Callable[[], None]) -> None:
    """Has ``heard`` be called after each answer of the SuperLink that is no error."""
    if not isinstance(client, ProtobufClient):
        return
    hooks = client._client.event_hooks

    def note(response: httpx.Response) -> None:
        if response.is_success:
            heard()

    client._client.event_hooks = {**hooks, "response": [*hooks["response"], note]}


def _keys(path: str) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    try:
        key = load_ssh_private_key(_read("private-key", path), None)
    except Exception:  # whatever is wrong with it; the text could quote the key
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        hint = "ssh-keygen -t ecdsa -b 384 -N '' -f FILE makes one"
        raise validation.fail("private-key", path, "be an ECDSA key without a passphrase", hint)
    return key, key.public_key()


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise validation.fail(name, path, "be a readable file", str(error.strerror)) from None

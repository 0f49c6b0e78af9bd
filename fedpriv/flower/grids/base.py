"""The base class of fedpriv's grids: numbered nodes, message ids, and contexts.

Node k (1, 2, ..., n) has ``partition-id`` k - 1 and ``num-partitions`` n, as in Flower's simulation. The
ClientApp is given as ``module:attribute`` and imported where it runs; no code is sent.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Self

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.app.user_config import UserConfig, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.date import now
from flwr.supercore.object_ref import load_app
from flwr.supercore.run import Run

from fedpriv._internal import validation

CLIENT_APP = "fedpriv.flower.client_app:app"


class GridError(validation.FedprivError, RuntimeError):
    """A grid cannot carry out a request; the message gives the reason and a remedy."""


class HostedGrid(Grid):  # type: ignore[misc]  # Flower is not followed by mypy
    """A Grid that hosts its own nodes.

    Args:
        nodes: the number of nodes, at least 1.
        run_config: the public configuration in every node's Context.
        client_app: the ClientApp as ``module:attribute``.
    """

    adds = False  # whether the grid implements ``send_and_add``

    def __init__(
        self,
        nodes: int,
        run_config: Mapping[str, UserConfigValue] | None = None,
        client_app: str = CLIENT_APP,
    ) -> None:
        self.nodes = validation.integer("nodes", nodes, minimum=1)
        self.run_config = dict(run_config or {})
        self.client_app = client_app
        self._run = Run.create_empty(run_id=0)
        self._numbers = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Set the run of new messages."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run of new messages."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to one of the nodes."""
        metadata = Metadata(
            run_id=self._run.run_id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=now().timestamp(),
            ttl=3600.0 if ttl is None else ttl,
            message_type=message_type,
        )
        return make_message(metadata, content)

    def get_node_ids(self) -> Iterable[int]:
        """1..n."""
        return range(1, self.nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand each message to its node. Raises GridError for an unknown node."""
        batch = list(messages)
        for message in batch:
            if not 1 <= message.metadata.dst_node_id <= self.nodes:
                raise GridError(f"there is no node {message.metadata.dst_node_id}; nodes are 1..{self.nodes}")
            message.metadata.__dict__["_message_id"] = str(next(self._numbers))
        self._submit(batch)
        return [message.metadata.message_id for message in batch]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have arrived; each reply is returned once."""
        return self._collect(list(message_ids), timeout=0.0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push, wait at most ``timeout`` seconds, and return the replies in the messages' order."""
        return self._collect(list(self.push_messages(messages)), timeout)

    def send_and_add(self, messages: Iterable[Message], *, timeout: float | None = None) -> Message | None:
        """Push, wait, and return one reply with the sum of all replies; None if one did not arrive in time.

        Raises NotImplementedError if ``adds`` is false.
        """
        raise NotImplementedError

    def failure(self) -> str:
        """The traceback, in the user's own code alone, of what a node failed with last; empty if none did."""
        return ""

    @abstractmethod
    def _submit(self, messages: list[Message]) -> None:
        """Start the nodes' work on these messages, whose ids are set."""

    @abstractmethod
    def _collect(self, message_ids: list[str], timeout: float | None) -> list[Message]:
        """Wait at most ``timeout`` seconds (None: no limit) and return the arrived replies, in this order."""

    def close(self) -> None:
        """Release the grid's resources; calling it twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def node_context(node: int, nodes: int, run_config: UserConfig) -> Context:
    """The Context of node ``node`` (1..nodes)."""
    config: UserConfig = {"partition-id": node - 1, "num-partitions": nodes}
    return Context(0, node, config, RecordDict(), dict(run_config))


def load_client_app(reference: str) -> ClientApp:
    """The ClientApp at ``module:attribute``. Raises GridError if there is none."""
    app = load_app(reference, GridError)
    if not isinstance(app, ClientApp):
        raise GridError(f"{reference} is not a ClientApp")
    return app

"""The in-process grid: the ClientApp is called in this process, one node after the other.

It is the reference for tests of the Ray grid, and the grid for debugging: the first failure raises
:class:`NodeError`, which names the node and the stage and has the original exception as its cause.

>>> from flwr.app import ConfigRecord, Message, RecordDict
>>> grid = InProcessGrid(nodes=2)
>>> request = grid.create_message(RecordDict(), "query", dst_node_id=2, group_id="")
>>> [reply] = grid.send_and_receive([request])
>>> reply.content["node"]["partition-id"]
1
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Message
from flwr.app.user_config import UserConfigValue

from fedpriv.flower.error_masking import raising
from fedpriv.flower.grids.base import CLIENT_APP, GridError, HostedGrid, load_client_app, node_context


class NodeError(GridError):
    """A node failed; the message names the node and the stage."""


class InProcessGrid(HostedGrid):
    """Nodes that are function calls. Arguments as for :class:`HostedGrid`."""

    def __init__(
        self,
        nodes: int = 1,
        run_config: Mapping[str, UserConfigValue] | None = None,
        client_app: str = CLIENT_APP,
    ) -> None:
        super().__init__(nodes, run_config, client_app)
        self._app = load_client_app(client_app)
        self._contexts = {node: node_context(node, nodes, self.run_config) for node in range(1, nodes + 1)}
        self._replies: dict[str, Message] = {}

    def _submit(self, messages: list[Message]) -> None:
        for message in messages:
            self._replies[message.metadata.message_id] = self._answer(message)

    def _answer(self, message: Message) -> Message:
        node, stage = message.metadata.dst_node_id, message.metadata.message_type
        try:
            with raising():
                return self._app(message, self._contexts[node])
        except Exception as error:
            raise NodeError(f"node {node} failed at {stage!r}: {type(error).__name__}") from error

    def _collect(self, message_ids: list[str], timeout: float | None) -> list[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

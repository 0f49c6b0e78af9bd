"""The ordinary app with private_mod, and grids of its clients in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedpriv.flower import PrivateMod, private_mod
from helpers.ordinary_app import CLIENTS, AppGrid, Tamper, train

app = ClientApp(mods=[private_mod])
app.train()(train)

seeded = ClientApp(mods=[PrivateMod(accept_seed=True)])  # as in a simulation that is to be repeated
seeded.train()(train)


class NoisingGrid(AppGrid):
    """The clients of an app with private_mod.

    Args:
        nodes: how many clients are connected.
        tamper: gets each reply with its partition, and returns what arrives; None: nothing does.
        node_config: further settings of the owner of each partition.
        run: the id of Flower's run.
        client_app: ``app`` or ``seeded``.
    """

    def __init__(
        self,
        nodes: int = CLIENTS,
        tamper: Tamper = lambda partition, reply: reply,
        node_config: Callable[[int], dict[str, Any]] = lambda partition: {},
        run: int = 7,
        client_app: ClientApp = app,
    ) -> None:
        super().__init__(nodes, tamper)
        self._app = client_app
        for node, context in self._contexts.items():
            context.run_id = run
            context.node_config |= node_config(node - 1)

    def _answer(self, message: Message) -> Message:
        """A client's reply; what it fails with arrives as an error, as from a node."""
        context = self._contexts[message.metadata.dst_node_id]
        return self._app(message, context)

"""The federation of the ordinary app, with its clients behind few nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from fedpriv.flower import virtual_clients
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.tasks.client_loss import Model
from helpers.ordinary_app import examples


def model() -> nn.Module:
    """The ordinary app's model; its arrays have the names of a simulation's."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@virtual_clients(model=model, examples=examples, steps=3, learning_rate=0.5)
def app(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@virtual_clients(model=model, examples=examples, steps=3, learning_rate=0.5)
def of_examples(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """The losses of examples, which is wrong."""
    return F.cross_entropy(model(x), y, reduction="none")


class VirtualGrid(InProcessGrid):
    """Nodes of an app of virtual clients in this process."""

    def __init__(self, nodes: int = 2, app: str = "app") -> None:
        super().__init__(nodes, client_app=f"helpers.virtual_app:{app}")
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, SUPERLINK_NODE_ID
        self.sent = 0

    def _submit(self, messages: list) -> None:  # type: ignore[type-arg]
        self.sent += sum(message.metadata.message_type == "train" for message in messages)
        super()._submit(messages)


def ragged(client: int) -> tuple[Tensor, Tensor]:
    """Clients of 1 to 23 examples."""
    generator = torch.Generator().manual_seed(client)
    size = 1 + client % 23
    x = torch.randn(size, 784, generator=generator)
    return x, torch.randint(10, (size,), generator=generator)

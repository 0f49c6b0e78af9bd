"""A Flower app as a user writes it, without fedpriv: it trains its model on its own data and returns arrays.

Its data is that of fedpriv's own clients in ``FEDERATION``, so that a private run over it can be held against
a simulation. :class:`AppGrid` is a grid in this process whose clients may be offline, fail or misbehave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from fedpriv.config.builders import make_source, make_view
from fedpriv.config.schema import Config
from fedpriv.flower.grids.in_process import InProcessGrid

CLIENTS = 30
FEDERATION: dict[str, object] = {
    "dataset": "digits",
    "model": "logistic",
    "clients": CLIENTS,
    "partition": "iid",
    "work": "local-steps",
    "local-steps": 3,
    "local-learning-rate": 0.5,
    "engine": "in-process",
}

app = ClientApp()


@cache
def examples(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of a client."""
    config = Config.parse(FEDERATION)
    x, y, _ = make_view(config, make_source(config)).batch(np.array([partition]))
    return x.flatten(1), y


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Three full-batch steps of gradient descent, as in any Flower example."""
    x, y = examples(int(context.node_config["partition-id"]))
    state = message.content["arrays"].to_torch_state_dict()
    model = torch.nn.Linear(784, 10)
    model.load_state_dict({name.rpartition(".")[2]: tensor for name, tensor in state.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    trained = dict(zip(state, model.state_dict().values(), strict=True))
    metrics = MetricRecord({"num-examples": 10 ** (1 + len(y) % 3), "train_loss": 0.5})
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
    return Message(content=content, reply_to=message)


Tamper = Callable[[int, Message], Message | None]


class AppGrid(InProcessGrid):
    """An ordinary app's clients in this process.

    Args:
        nodes: how many clients are connected.
        tamper: gets each reply with its partition, and returns what arrives; None: nothing does.
    """

    def __init__(self, nodes: int = CLIENTS, tamper: Tamper = lambda partition, reply: reply) -> None:
        super().__init__(nodes, client_app="helpers.ordinary_app:app")
        # As in a ServerApp's process.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, SUPERLINK_NODE_ID
        self._tamper = tamper
        self.asked: list[tuple[int, ...]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand each message to its client."""
        batch = list(messages)
        self.asked.append(tuple(message.metadata.dst_node_id for message in batch))
        return super().push_messages(batch)

    def _submit(self, messages: list[Message]) -> None:
        for message in messages:
            reply = self._tamper(message.metadata.dst_node_id - 1, self._answer(message))
            if reply is not None:
                self._replies[message.metadata.message_id] = reply


def failed(reply: Message) -> Message:
    """The error that arrives in place of a reply."""
    return Message(Error(code=2, reason="it failed"), reply_to=_request(reply))


def changed(
    reply: Message, change: Callable[[dict[str, np.ndarray]], object], record: str = "arrays"
) -> Message:
    """The reply with the arrays of a record changed in place."""
    arrays = {name: array.numpy() for name, array in reply.content[record].items()}
    change(arrays)
    reply.content[record] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
    return reply


def _request(reply: Message) -> Message:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message

"""Many clients behind each node: a ClientApp that answers for all of a node's sampled clients at once.

Flower's simulation sends a message to each sampled client, which takes about 14 ms even if the client does
nothing. Where any node can read the data of any client, as in a simulation, a few nodes can stand for all of
them: :func:`virtual_clients` makes a ClientApp of the loss of one client. A node gets one message a release,
computes its share of the cohort vectorised, clips each client's model change, and returns one sum for each
block of the query. The strategy is ``PrivateStrategy(virtual_clients=True, ...)``.

A client's change is what :class:`~fedpriv.federated.client_update.LocalSteps` computes. It is the same,
bit for bit, whoever is beside it.

>>> import torch.nn.functional as F
>>> @virtual_clients(model=nn.Linear(3, 2), examples=lambda client: (torch.ones(4, 3), [0, 1, 1, client % 2]))
... def app(model, x, y):
...     return F.cross_entropy(model(x), y)
>>> type(app).__name__
'ClientApp'
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import Tensor, nn

from fedpriv import data
from fedpriv._internal import validation
from fedpriv._internal.files import read_json
from fedpriv.federated.client_update import LocalSteps
from fedpriv.federated.worker import Worker
from fedpriv.flower.app_engine import VIRTUAL
from fedpriv.flower.error_masking import guarded
from fedpriv.flower.exchange import by_app, error_name, exchange
from fedpriv.flower.intervals import APP_REPLIES, Rhythm
from fedpriv.flower.serialization import MessageError, read_request, reply_content
from fedpriv.parameters import Layout
from fedpriv.rng import Key
from fedpriv.tasks.client_loss import ClientLoss, ClientTask


def virtual_clients(
    *,
    model: nn.Module | Callable[[], nn.Module],
    examples: Callable[[int], tuple[Any, Any]],
    steps: int = 1,
    learning_rate: float = 0.1,
    batch_size: int | None = None,
) -> Callable[[ClientLoss], ClientApp]:
    """A decorator that turns the loss of one client into a ClientApp for many clients.

    The function is (model, x, y) -> the client's loss, a tensor with a single number. ``model`` maps inputs
    to outputs at the client's parameters; x and y are the examples of one client, or of one local batch.

    Args:
        model: the model that the server trains, or a function that makes it. Its parameters must have the
            names and shapes of the server's arrays. It runs in evaluation mode, with dropout drawn anew.
        examples: the client's number, 0 .. N - 1, -> (x, y), arrays or tensors of the same length. Any node
            is asked for any client.
        steps: the local steps of gradient descent that a client makes.
        learning_rate: the step size of these steps.
        batch_size: the examples of one step, taken in order; None: all. Without it clients of equal size are
            computed together, so many different sizes are slow.

    Raises ArgumentError for a step that is none, and when the model is first used for one that cannot be
    trained privately, such as one with BatchNorm.
    """
    work = LocalSteps(steps, learning_rate, batch_size)

    def decorate(loss: ClientLoss) -> ClientApp:
        maker, app = _Maker(model, loss, work, examples), ClientApp()
        app.query()(_DescribeNode(maker))
        app.train()(_Answer(maker))
        return app

    return decorate


@dataclass(frozen=True)
class _Maker:
    """Makes a node's worker, once a process.

    Flower's simulation engine pickles an app for every message. So what an app has must be picklable, and a
    process finds its worker by the app's ``name``.
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: ClientLoss
    work: LocalSteps
    examples: Callable[[int], tuple[Any, Any]]
    name: str = field(default_factory=lambda: secrets.token_hex(16))

    def worker(self) -> Worker:
        """The worker of this process."""
        if self.name not in _workers:
            module = self.model if isinstance(self.model, nn.Module) else self.model()
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            task, clients = ClientTask(module, self.loss), _Clients(self.examples)
            _workers[self.name] = Worker(task, self.work, clients, Key.fresh(), device, exact=True)
        return _workers[self.name]


_workers: dict[str, Worker] = {}


@dataclass(frozen=True)
class _DescribeNode:
    """Replies with the node's place and its model's arrays, once a client's loss could be computed."""

    maker: _Maker

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply; an error names its type alone."""
        return guarded(self.describe_node)(message, context)

    def describe_node(self, message: Message, context: Context) -> Message:
        """The reply."""
        own = self.maker.worker()
        x, y, _ = own.view.batch(np.zeros(1, np.int64), own.device)
        point = torch.zeros(own.task.dimension, device=own.device)
        with own.task.dropout.seeded(torch.zeros(len(x), dtype=torch.int64, device=own.device)):
            own.task.losses(point, x, y)
        node = {name: context.node_config[name] for name in ("partition-id", "num-partitions")}
        arrays = ConfigRecord({"shapes": json.dumps(_shapes(own.task.layout))})
        return Message(RecordDict({"node": ConfigRecord(node), VIRTUAL: arrays}), reply_to=message)


@dataclass(frozen=True)
class _Answer:
    """Replies with one bounded sum per block over all of the message's clients."""

    maker: _Maker

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply; an error names its type alone."""
        return guarded(self.answer)(message, context)

    def answer(self, message: Message, context: Context) -> Message:
        """The reply."""
        if "query" not in message.content:  # a strategy that takes the node for a client
            return Message(RecordDict({VIRTUAL: ConfigRecord()}), reply_to=message)
        request = read_request(message.content)
        if request.party_stds is not None:
            raise MessageError("virtual clients add no noise")
        return Message(reply_content(self.maker.worker().answer(request), request.release), reply_to=message)


@dataclass(frozen=True)
class _Clients:
    """Client numbers -> their examples, by the user's function."""

    examples: Callable[[int], tuple[Any, Any]]

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """The examples (x, y) of the clients, and for each its client's position in ``client_ids``."""
        found = [self._of(int(client), device) for client in client_ids]
        owner = torch.repeat_interleave(
            torch.arange(len(found)), torch.tensor([len(y) for _, y in found], dtype=torch.int64)
        )
        x, y = (torch.cat(parts) for parts in zip(*found, strict=True))
        return data.Batch(x, y, owner.to(device))

    def _of(self, client: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        x, y = (_tensor(part).to(device) for part in self.examples(client))
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):  # the numbers are private, so they are left out
            raise validation.ArgumentError("A client's x and y must have as many examples as each other.")
        return x, y


def _tensor(values: Any) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def _shapes(layout: Layout) -> list[list[Any]]:
    return [[slot.name, list(slot.shape)] for slot in layout.slots]


def require_same_arrays(grid: Grid, layout: Layout, timeout: float) -> None:
    """Ask a connected node for its model's arrays.

    Raises ArgumentError if its app is not made by :func:`virtual_clients`, fails, or trains other arrays than
    those of ``layout``. If no node is connected yet, or it is silent, nothing is known.
    """
    for node in sorted(grid.get_node_ids())[:1]:
        rhythm = Rhythm(*APP_REPLIES)
        reply = exchange(grid, {node: RecordDict()}, MessageType.QUERY, "nodes", timeout, rhythm).get(node)
        if reply is None:
            return
        if by_app(reply):
            hint = "the reason is in the node's own log"
            raise validation.ArgumentError(f"A node failed with {error_name(reply)} at client 0: {hint}.")
        said = reply.content.get(VIRTUAL) if reply.has_content() else None
        if not isinstance(said, ConfigRecord):
            raise validation.fail("virtual_clients", True, "be left out unless the app is @virtual_clients")
        theirs, own = read_json(str(said.get("shapes"))), _shapes(layout)
        if theirs != own:
            what = f"they are {_named(theirs)} there and {_named(own)} here"
            raise validation.ArgumentError(
                "The arrays that virtual clients train must be those of initial_arrays, in this order: "
                f"{what}. Freeze others with frozen=."
            )


def _named(shapes: Any) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes[:5]) + ", ..." * (len(shapes) > 5)

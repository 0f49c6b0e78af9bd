"""Virtual clients: a node answers for many clients with one sum, as if each were a node of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Error, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedProx
from helpers.app_runs import NEEDS, SETTINGS, events, initial, vector
from helpers.ordinary_app import CLIENTS, AppGrid
from helpers.virtual_app import VirtualGrid, model, ragged
from torch import Tensor

from fedpriv import ArgumentError
from fedpriv.federated.client_update import LocalSteps, clipped_sum
from fedpriv.flower.private_strategy import PrivateStrategy
from fedpriv.flower.virtual_app import _Clients, virtual_clients
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.client_loss import ClientTask


def run(
    folder: Path, grid: Grid, start: Mapping[str, Any] | None = None, virtual: bool = True, **changes: Any
) -> Tensor:
    settings = {**SETTINGS, "population": CLIENTS, "folder": folder, "start_timeout": 0.0, **changes}
    strategy = PrivateStrategy(virtual_clients=virtual, **settings)
    return vector(strategy.start(grid, initial()[0], **{"timeout": 5, **(start or {})}).arrays)


@pytest.mark.parametrize("optimizer", ["dp-sgd", "dp2-rmsprop", "adadp", "dp-srm"])
def test_virtual_clients_train_as_ordinary_ones(optimizer: str, tmp_path: Path) -> None:
    changes = {"optimizer": optimizer, **NEEDS.get(optimizer, {})}
    ordinary = run(tmp_path / "app", AppGrid(), virtual=False, **changes)
    virtual = run(tmp_path / "virtual", VirtualGrid(), **changes)
    torch.testing.assert_close(virtual, ordinary, rtol=1e-5, atol=1e-6)
    assert float((virtual - initial()[1]).norm()) > 1e-3
    assert events(tmp_path / "virtual") == events(tmp_path / "app")


def test_a_node_gets_one_message_a_release_and_the_number_of_nodes_changes_nothing(tmp_path: Path) -> None:
    grids = {nodes: VirtualGrid(nodes) for nodes in (1, 3)}
    found = [run(tmp_path / str(nodes), grid) for nodes, grid in grids.items()]
    torch.testing.assert_close(*found, rtol=0, atol=1e-7)
    assert grids[1].sent == 4  # one node, four releases
    assert grids[3].sent <= 12


def plain_change(point: Tensor, x: Tensor, y: Tensor, steps: int, batch: int | None) -> Tensor:
    """theta - theta_K of one client by torch.autograd, of a loss that is not a mean over examples."""
    size = min(batch or len(y), len(y))

    def slope(theta: Tensor, own: list[int]) -> Tensor:
        leaf = theta.clone().requires_grad_()
        loss = worst(lambda inputs: inputs @ leaf[:7840].view(10, 784).T + leaf[7840:], x[own], y[own])
        return torch.autograd.grad(loss, leaf)[0]

    theta = point
    for step in range(steps):
        theta = theta - 0.1 * slope(theta, [(step * size + i) % len(y) for i in range(size)])
    return point - theta


def worst(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """A smooth maximum of the losses of a client's examples."""
    return torch.logsumexp(F.cross_entropy(model(x), y, reduction="none"), 0)


@pytest.mark.parametrize("batch", [None, 4, 9])
def test_a_client_s_change_is_that_of_all_its_examples_and_of_no_others(batch: int | None) -> None:
    task, point = ClientTask(model(), worst), initial()[1]
    work = LocalSteps(2, 0.1, batch)
    query = Query((point,), (SumBlock((Term(clip_norm=0.25),)),))

    def total(clients: list[int]) -> Tensor:
        x, y, owner = _Clients(ragged).batch(np.array(clients))
        return clipped_sum(work, task, query, x, y, owner, len(clients), exact=True)[0]

    wanted = 0
    for client in (0, 1, 2, 7, 21, 22, 23):
        row = plain_change(point, *ragged(client), 2, batch).double()
        wanted += row * min(1, 0.25 / float(row.norm()))
    everyone = total([0, 1, 2, 7, 21, 22, 23])
    torch.testing.assert_close(everyone, wanted, rtol=1e-4, atol=1e-6)
    # 23 and 46 have as many examples as 0; what 0 adds must be the same with and without them.
    torch.testing.assert_close(total([0, 23, 46]) - total([23, 46]), total([0]), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "start", "text"),
    [
        ({"placement": "local", "sampler": "everyone", "sampling_rate": 1.0}, {}, "placement is 'local'"),
        ({"client_metrics": "non-private"}, {}, "client_metrics is 'given'"),
        ({"strategy": FedProx()}, {}, "strategy is 'given'"),
        ({}, {"train_config": ConfigRecord({"lr": 0.1})}, "train_config is"),
        (
            {"frozen": "1.bias"},
            {},
            r"1.bias \(10,\) there and 1.weight \(10, 784\) here",
        ),
    ],
)
def test_what_virtual_clients_cannot_do_is_refused_before_the_first_round(
    changes: dict[str, Any], start: dict[str, Any], text: str, tmp_path: Path
) -> None:
    grid = VirtualGrid()
    with pytest.raises(ArgumentError, match=text):
        run(tmp_path / "run", grid, start, **changes)
    assert not grid.sent
    assert not (tmp_path / "run").exists()


class Answering(VirtualGrid):
    """Nodes whose errors arrive as replies, as from Flower's engine."""

    def _answer(self, message: Message) -> Message:
        return self._app(message, self._contexts[message.metadata.dst_node_id])


def test_a_loss_of_examples_is_refused_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="A node failed with ArgumentError at client 0"):
        run(tmp_path / "run", Answering(app="of_examples"))
    assert not (tmp_path / "run").exists()


def test_strategy_and_app_must_agree_on_whether_clients_are_virtual(tmp_path: Path) -> None:
    class Ordinary(AppGrid):
        def _answer(self, message: Message) -> Message:
            if message.metadata.message_type == "query":
                return Message(Error(code=2, reason="No `query` function registered"), reply_to=message)
            return super()._answer(message)

    with pytest.raises(ArgumentError, match="virtual_clients is True; it must be left out"):
        run(tmp_path / "one", Ordinary())
    with pytest.raises(ArgumentError, match="virtual clients; give the strategy virtual_clients"):
        run(tmp_path / "two", Answering(CLIENTS), virtual=False)


def test_an_example_function_that_does_not_pair_x_and_y_tells_no_number() -> None:
    with pytest.raises(ArgumentError) as error:
        _Clients(lambda client: (torch.zeros(7, 3), torch.zeros(6))).batch(np.array([0]))
    assert not any(digit in str(error.value) for digit in "67")
    with pytest.raises(ArgumentError, match="local steps is 0"):
        virtual_clients(model=model, examples=ragged, steps=0)


def test_arrays_are_those_of_the_model() -> None:
    assert list(initial()[0]) == [name for name, _ in model().named_parameters()]
    assert isinstance(initial()[0], ArrayRecord)


def test_an_app_can_be_pickled_for_each_message_and_a_process_keeps_its_worker() -> None:
    """As Flower's simulation engine does with cloudpickle."""
    from helpers.virtual_app import app
    from ray import cloudpickle

    copies = [cloudpickle.loads(cloudpickle.dumps(app)) for _ in range(2)]
    makers = [copy._registered_funcs["train.default"].maker for copy in copies]
    assert makers[0].worker() is makers[1].worker()

"""A task whose loss is a function of all of a client's examples at once, not of each example.

>>> import torch.nn.functional as F
>>> task = ClientTask(nn.Linear(3, 2), lambda model, x, y: F.cross_entropy(model(x), y))
>>> task.losses(torch.zeros(task.dimension), torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))
tensor([0.6931, 0.6931, 0.6931, 0.6931])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedpriv._internal import validation
from fedpriv.tasks.task import Task

Model = Callable[[Tensor], Tensor]
ClientLoss = Callable[[Model, Tensor, Tensor], Tensor]


class ClientTask(Task):
    """A model and the loss of one client.

    Args:
        model: the model; a copy in evaluation mode is used.
        loss: (model, x (m, ...), y (m, ...)) -> the client's loss, a single number. It gets the m examples of
            one client, or of one local batch, and ``model`` maps inputs to outputs. It runs under
            ``torch.func.vmap`` over clients, so that it never sees two of them.
    """

    whole_clients = True

    def __init__(self, model: nn.Module, loss: ClientLoss) -> None:
        super().__init__(model)
        self._of_client = loss

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The client's loss, repeated for each example (m,): its mean is the loss.

        Raises ArgumentError if the loss is not a single number.
        """
        loss = self._of_client(lambda inputs: self._outputs_at(tensors, inputs), x, y)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise validation.ArgumentError(
                "The loss of a client must be a tensor with a single number; for the losses of examples "
                "return their mean."
            )
        return loss.expand(x.shape[0])

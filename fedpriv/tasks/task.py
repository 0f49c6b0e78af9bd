"""A learning task: a model and a loss, as pure functions of a flat parameter vector.

To bring a model of your own, give any ``nn.Module`` that treats each example on its own and maps inputs
(n, ...) to outputs (n, ...):

    task = Task(module, loss="cross-entropy")           # or another of fedpriv.tasks.losses
    task = Task(module, loss=lambda outputs, y: ...)    # outputs (n, ...), y (n, ...) -> losses (n,)

A loss gives a finite number for each example, whatever others are beside it; one of your own is tried on
constants where it is first used. The task copies the module, so that training never changes yours; the copy
runs in evaluation mode, and its dropout draws where examples are given seeds
(:mod:`fedpriv.clipping.dropout`). ``task.layout`` says which tensors are trained.

>>> import numpy as np, torch
>>> task = Task("logistic")
>>> params = task.initial(np.random.default_rng(0))
>>> x, y = torch.zeros(5, 1, 28, 28), torch.zeros(5, dtype=torch.int64)
>>> task.dimension, task.losses(params, x, y).shape, task.gradients(params, x, y).shape
(7850, torch.Size([5]), torch.Size([5, 7850]))
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn

from fedpriv import models
from fedpriv._internal import validation
from fedpriv._internal.memory import bytes_per_unit
from fedpriv.clipping.functional import FunctionalModel
from fedpriv.tasks.losses import LOSSES, Loss, scores, try_loss

_TEST_CHUNK, _TEST_MEMORY = 1000, 2**29  # examples evaluated at once at most, and bytes that they may take
_TRIAL_BATCH = 16  # test examples that are looked at alone and together


def alike(outputs: Tensor, wanted: Tensor) -> bool:
    """Whether outputs differ by rounding alone, to a thousandth of the largest that is wanted; what is not
    finite proves nothing."""
    if not wanted.numel():
        return True
    largest = wanted.abs().amax()
    return bool(((outputs - wanted).abs() <= 1e-3 * largest).all() | ~torch.isfinite(largest))


class Task(FunctionalModel):
    """A model and a loss, functionally.

    Attributes:
        module: the task's own copy of the model; its parameters are placeholders.
        layout: which tensors make up the parameter vector (d,), and where they lie.
        loss: outputs (n, ...), labels (n, ...) -> losses (n,).
        dropout: what the model's dropout draws by.
        right_padded: whether zeros at the right of an input are no part of it, as the module says.
        whole_clients: whether the loss is of all of a client's examples at once. Then they are neither padded
            nor split (:mod:`fedpriv.tasks.client_loss`).
    """

    whole_clients = False

    def __init__(self, model: nn.Module | str, loss: Loss | str = "cross-entropy") -> None:
        """A task for a module, or for a model of :mod:`fedpriv.models` by name.

        Raises ArgumentError where the name or the loss is unknown, or where the module cannot be
        trained privately (see :func:`fedpriv.parameters.layout_of`).
        """
        module = models.build(model) if isinstance(model, str) else model
        if isinstance(loss, str):
            loss = LOSSES[validation.choice("loss", loss, LOSSES)]
        super().__init__(module, loss)
        self.right_padded: bool = getattr(module, "right_padded", False)
        self._untried = loss not in LOSSES.values()
        self._evaluated: dict[Hashable, int] = {}

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """As :meth:`losses`, at the trained tensors by name, as ``layout.split`` has them.

        Raises ArgumentError where the loss does not give one number for each example, whatever others are
        beside it, or none that is finite.
        """
        if self._untried:
            try_loss(self.loss, self._outputs_at(tensors, x), y)
            self._untried = False
        return super().losses_at(tensors, x, y)

    @torch.no_grad()
    def evaluate(self, params: Tensor, x: Tensor, y: Tensor, memory: int = _TEST_MEMORY) -> dict[str, float]:
        """What the model is worth on the public test examples, as many at once as ``memory`` bytes allow.

        Returns:
            the mean ``loss``, and by the loss: for labels the ``accuracy``; for values ``mse``, the mean
            squared error (not halved, as the loss is); for tags ``accuracy``, how often the likeliest tag
            is one of the example's, and ``recall@5``, the part of all tags that are among the five
            likeliest of their example. A loss of your own has the accuracy where y is labels (n,).

        A model whose outputs for an example depend on the others beside it is given one at a time, as it was
        when its gradients were clipped.

        Raises ArgumentError where there is no example.
        """
        if not x.shape[0]:
            raise validation.fail("test set", 0, "hold at least one example")
        outputs_of = self.outputs if self.apart(params, x[:_TRIAL_BATCH]) else self._outputs_one_by_one
        score = scores(self.loss, y)
        sums: dict[str, list[float]] = {}
        step = min(_TEST_CHUNK, max(1, memory // self._test_bytes(params, x)))
        for start in range(0, x.shape[0], step):
            part = y[start : start + step]
            outputs = outputs_of(params, x[start : start + step])
            losses = self.loss(outputs, part)
            for name, pair in {**score(outputs, part), "loss": (losses, torch.ones_like(losses))}.items():
                total = sums.setdefault(name, [0.0, 0.0])
                for side, values in enumerate(pair):
                    total[side] += float(values.double().sum())
        return {name: value / most if most else 0.0 for name, (value, most) in sums.items()}

    def _test_bytes(self, params: Tensor, x: Tensor) -> int:
        """What an example takes that is evaluated; tried once for each kind of input."""
        key = x.shape[1:], x.dtype, x.device
        if key not in self._evaluated:
            self._evaluated[key] = bytes_per_unit(
                lambda count: self.outputs(params, x.new_zeros(count, *x.shape[1:]))
            )
        return self._evaluated[key]

    def apart(self, params: Tensor, x: Tensor) -> bool:
        """Whether the outputs of the examples x (n, ...) are the same without the others beside them."""
        return alike(self.outputs(params, x), self._outputs_one_by_one(params, x))

    def _outputs_one_by_one(self, params: Tensor, x: Tensor) -> Tensor:
        return torch.cat([self.outputs(params, one[None]) for one in x])

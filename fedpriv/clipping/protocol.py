"""What bounded sums of gradients need of a learning task; :class:`fedpriv.tasks.task.Task` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from fedpriv.clipping.dropout import Drawing
from fedpriv.parameters import Layout


class Differentiable(Protocol):
    """A model and a loss, as functions of a flat parameter vector (d,).

    Ghost clipping keeps what it finds out about a model as long as this object lives
    (:func:`fedpriv.clipping.ghost.clipper.clipper_of`), so it must be hashable by identity.
    """

    @property
    def module(self) -> nn.Module:
        """The model, as :func:`fedpriv.clipping.preparation.prepare` gives it."""

    @property
    def loss(self) -> Callable[..., Any]:
        """Outputs (n, ...), labels (n, ...) -> losses (n,)."""

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""

    @property
    def layout(self) -> Layout:
        """Which tensors make up the parameters."""

    @property
    def drawing(self) -> Drawing:
        """What the model's dropout draws by."""

    def initial(self, generator: np.random.Generator) -> Tensor:
        """A first parameter vector (d,)."""

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses (n,) of the examples at the parameters (d,)."""

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """As ``losses``, at the trained tensors by name."""

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters."""

"""The interface of a learning task for bounded sums; :class:`fedpriv.tasks.task.Task` implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from fedpriv.clipping.dropout import SeededDropout
from fedpriv.parameters import Layout


class Differentiable(Protocol):
    """A model and a loss, as functions of a flat parameter vector (d,).

    It must be hashable by identity: ghost clipping caches its inspection of the model under this object
    (:func:`fedpriv.clipping.ghost.clipper.clipper_of`).
    """

    @property
    def module(self) -> nn.Module:
        """The model, as :func:`fedpriv.clipping.preparation.prepare` returns it."""

    @property
    def loss(self) -> Callable[..., Any]:
        """Outputs (n, ...), labels (n, ...) -> losses (n,)."""

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""

    @property
    def layout(self) -> Layout:
        """The position of each trained tensor in the parameter vector."""

    @property
    def dropout(self) -> SeededDropout:
        """The dropout layers of ``module``, and their seeds."""

    def initial(self, generator: np.random.Generator) -> Tensor:
        """An initial parameter vector (d,)."""

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses (n,) of the examples at the parameters (d,)."""

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """As ``losses``, for the trained tensors by name."""

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters."""

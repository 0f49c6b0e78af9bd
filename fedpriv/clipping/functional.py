"""A module and a loss as pure functions of a flat parameter vector, and their clipped sum in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv import models
from fedpriv._internal import kept_state, validation
from fedpriv.clipping.ghost.layers import by_matrix_products, masks_in_full
from fedpriv.clipping.per_example import sum_gradients
from fedpriv.clipping.preparation import prepare
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.parameters import Layout, layout_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_UNREDUCED = "torch's losses are with reduction='none'"


class FunctionalModel:
    """A module and a loss, as functions of a flat parameter vector (d,).

    Attributes:
        module: a copy of the module; its trained parameters are placeholders.
        layout: the position of each trained tensor in the parameter vector (d,).
        loss: outputs (n, ...), labels (n, ...) -> losses (n,).
        dropout: the dropout layers of ``module``, and their seeds.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Raises ArgumentError where the module cannot be trained privately (see
        :func:`fedpriv.parameters.layout_of`)."""
        self.layout: Layout = layout_of(module)
        self.loss = loss
        self.module, self.dropout = prepare(module)
        trained = set(self.layout.names)
        self._fixed = {
            name: tensor.detach()
            for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers())
            if name not in trained
        }

    @property
    def dimension(self) -> int:
        """d, the number of trained parameters."""
        return self.layout.dimension

    def initial(self, generator: np.random.Generator) -> Tensor:
        """An initial parameter vector (d,), float32 on the CPU (see :func:`fedpriv.models.initial`)."""
        return models.initial(self.module, generator, self.layout)

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The model's outputs (n, ...) for inputs x (n, ...) at the parameters (d,)."""
        return self._outputs_at(self.layout.split(params), x)

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses (n,) of the examples (n, ...) at the parameters (d,).

        Raises ArgumentError where the loss does not give one number for each example.
        """
        return self.losses_at(self.layout.split(params), x, y)

    def losses_at(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """As :meth:`losses`, for the trained tensors by name, as ``layout.split`` returns them."""
        losses = self.loss(self._outputs_at(tensors, x), y)
        if losses.shape != x.shape[:1]:
            shape = _without_first_axis(losses)
            raise validation.fail("loss shape", shape, "be (n,): one for each example", _UNREDUCED)
        return losses

    def gradients(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradients (n, d) of the losses with respect to the parameters, by vmap of grad."""
        if not x.shape[0]:
            return params.new_zeros(0, self.dimension)

        def loss_of_one(params: Tensor, x: Tensor, y: Tensor, seed: Tensor | None = None) -> Tensor:
            with self.dropout.seeded(None if seed is None else seed[None]):
                return self.losses(params, x[None], y[None])[0]

        each = (x, y) if self.dropout.seeds is None else (x, y, self.dropout.seeds)
        gradients = torch.func.vmap(torch.func.grad(loss_of_one), (None, *[0] * len(each)))
        with by_matrix_products():
            rows: Tensor = gradients(params, *each)
        return rows

    def kept(self, *first: Tensor) -> kept_state.State:
        """What the module keeps between calls: buffers, and tensors and numbers of its own code.

        Args:
            first: the parameters (d,), examples and labels, of whose shapes a first call is made with zeros.
                It computes constants that wait until they are needed, and sees no example.
        """
        with contextlib.suppress(Exception):  # what is wrong with a model is told where it is used
            params, *examples = first
            self.losses(params, *(torch.zeros_like(part[:1]) for part in examples))
        found = kept_state.of_module(self.module)
        return found | {name: (tensor, tensor._version) for name, tensor in self._fixed.items()}

    def _outputs_at(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        trained = next(iter(tensors.values()))
        with masks_in_full(), self.dropout.forward_pass():
            result: Tensor = torch.func.functional_call(
                self.module, {**self._fixed_like(trained), **tensors}, (x,)
            )
        return result

    def _fixed_like(self, params: Tensor) -> dict[str, Tensor]:
        """Frozen parameters and buffers on the device of ``params``; floats also in its dtype."""
        for name, tensor in self._fixed.items():
            dtype = params.dtype if tensor.is_floating_point() else tensor.dtype
            if tensor.device != params.device or tensor.dtype != dtype:
                self._fixed[name] = tensor.to(params.device, dtype)
        return self._fixed


def clipped_sum(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    clip_norm: float = 1.0,
) -> Tensor:
    """The sum of the examples' gradients, each clipped to ``clip_norm``; private training adds noise to it.

    Where the model's layers allow it, ghost clipping computes the norms and the sum without forming the
    per-example gradients. A gradient that is not finite counts as zero. Each call inspects the model anew.

    Args:
        model: its parameters with ``requires_grad`` are differentiated, at their present values. The output
            for an example must not depend on the others: layers such as BatchNorm are refused. The model is
            not changed; a copy runs in evaluation mode.
        loss: outputs (n, ...), y (n, ...) -> losses (n,), such as ``nn.CrossEntropyLoss(reduction="none")``.
        x, y: the examples (n, ...) and their labels (n, ...); tensors on the model's device, NumPy arrays, or
            lists. Floats are converted to the result's dtype. n may be 0.
        clip_norm: C, the largest norm of one example's contribution; infinity clips nothing.

    Returns:
        one flat tensor (d,) in the order of ``model.named_parameters()``, in the parameters' dtype, or in
        float32 where that has fewer digits;
        ``fedpriv.parameters.layout_of(model).split(total)`` gives the tensors by name.

    Raises:
        ArgumentError: an argument is of another type, the model or the loss mixes examples, the model keeps
            something from call to call, or the clip norm is out of range.

    >>> model, x, y = nn.Linear(3, 2), torch.zeros(4, 3), torch.tensor([0, 1, 1, 1])
    >>> nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)  # doctest: +ELLIPSIS
    (...)
    >>> clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), x, y, clip_norm=0.5)
    tensor([ 0.0000,  0.0000,  0.0000,  0.0000,  0.0000,  0.0000,  0.7071, -0.7071])
    """
    if not isinstance(model, nn.Module):
        raise validation.fail("model", model, "be a torch.nn.Module")
    if not callable(loss):
        raise validation.fail("loss", loss, "be a function of outputs and y", _UNREDUCED)
    functional = FunctionalModel(model, loss)
    params = functional.layout.join({name: p.detach() for name, p in model.named_parameters()})
    if params.dtype in (torch.float16, torch.bfloat16):  # the sum's rounding would exceed the clip norm
        params = params.float()
    examples = _as_tensor("x", x, params), _as_tensor("y", y, params)
    with validation.python_names(("clip-norm",)):
        query = Query((params,), (SumBlock((Term(clip_norm=clip_norm),)),))
        before = functional.kept(params, *examples)
        [total] = sum_gradients(functional, query, *examples)
        if (name := kept_state.changed(before, functional.kept())) is not None:
            allowed = "keep nothing from call to call"
            hint = f"here {name} changes, and would carry one example into the gradients of others"
            raise validation.fail("model", type(model).__name__, allowed, hint)
    return total.to(params.dtype)


def _as_tensor(name: str, value: Any, params: Tensor) -> Tensor:
    """An array or lists as a tensor on the device of ``params``; floats in its dtype, too.

    Raises ArgumentError where they hold anything but numbers, without quoting them.
    """
    tensor: Tensor = value
    if not isinstance(value, Tensor):
        try:
            tensor = torch.as_tensor(np.asarray(value), device=params.device)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise validation.ArgumentError(f"{name} is a {kind} that is no array of numbers.") from None
    return tensor.to(params.dtype) if tensor.is_floating_point() else tensor


def _without_first_axis(losses: Tensor) -> str:
    """The shape without the first axis, whose length is private."""
    if losses.ndim < 2:
        return "another" if losses.ndim else "()"
    return f"(n, {', '.join(map(str, losses.shape[1:]))})"

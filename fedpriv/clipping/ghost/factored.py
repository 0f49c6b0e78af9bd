"""Per-example gradients of one parameter as factors: norms and sums without forming the gradients.

A form represents n gradients of the parameter's shape. Its operations are those that queries need: linear
combinations (two points, a weight with several uses) and sums within groups (clients of several examples).
:class:`Rows` is formed gradients, :class:`~fedpriv.clipping.ghost.outer_product.Outer` is sums of outer
products, the gradients of linear maps. Other forms implement :class:`Factored`.

>>> form = Rows(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
>>> form.squares()
tensor([25.,  4.], dtype=torch.float64)
>>> form.total(torch.tensor([1.0, 0.5]))
tensor([3., 5.])
>>> combine([form, form], (1.0, -1.0)).squares()
tensor([0., 0.], dtype=torch.float64)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from fedpriv.clipping.ghost.norms import accurate_norms, safe_norms

_WIDENED = 2**17  # entries of formed gradients that are copied to float64 at once, on a CPU


class Factored(Protocol):
    """The gradients of n examples for one parameter, at one point or combined over several.

    ``squares`` may return NaN or infinity for an example whose norm is unknown (it is not finite, or outside
    the range of its dtype): that example is then summed as a row. It must never return less than the squared
    norm of what ``total`` adds for the example, except for a rounding error that the form documents.
    """

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """The squared norm of each gradient, divided by ``divisor`` (*shape) first; float64 (n,)."""

    def total(self, factors: Tensor) -> Tensor:
        """The sum over examples of factors (n,) times gradient, added in the factors' dtype: (*shape)."""

    def scaled(self, coefficient: float) -> Self:
        """All gradients times ``coefficient``."""

    def plus(self, other: Self) -> Self:
        """The gradients plus those of ``other``, example by example; accurate where they nearly cancel."""

    def grouped(self, size: int) -> Factored:
        """The n / size sums over groups of ``size`` consecutive examples."""

    def simplified(self) -> Factored:
        """The same gradients in the form with the cheapest norms and sums."""

    def rows(self) -> Tensor:
        """The formed gradients, (n, *shape)."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors (n, ...) that determine the gradients."""


def combine(forms: Sequence[Factored], coefficients: Sequence[float]) -> Factored:
    """sum_j coefficients_j forms_j, simplified; forms without a coefficient are ignored."""
    taken = [
        form if coefficient == 1.0 else form.scaled(coefficient)
        for form, coefficient in zip(forms, coefficients, strict=False)
    ]
    if len({type(form) for form in taken}) > 1:
        taken = [Rows(form.rows()) for form in taken]
    return functools.reduce(lambda total, form: total.plus(form), taken).simplified()


@dataclass(frozen=True)
class Rows:
    """Formed gradients.

    Attributes:
        formed: (n, *permuted shape).
        order: the parameter's axis of each axis of a formed gradient; () where the order is the same.
    """

    formed: Tensor
    order: tuple[int, ...] = ()

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """See :class:`Factored`."""
        if divisor is None:
            return accurate_norms(self.formed.flatten(1)).square_()
        divided = self.formed / (divisor.permute(self.order) if self.order else divisor)
        return safe_norms(divided.flatten(1)).square()

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`Factored`."""
        return restored(_weighted(factors, self.formed.flatten(1)).view(self.formed.shape[1:]), self.order)

    def scaled(self, coefficient: float) -> Rows:
        """See :class:`Factored`."""
        return replace(self, formed=self.formed * coefficient)

    def plus(self, other: Rows) -> Rows:
        """See :class:`Factored`."""
        if self.order == other.order:
            return replace(self, formed=self.formed + other.formed)
        return Rows(self.rows() + other.rows())

    def grouped(self, size: int) -> Rows:
        """See :class:`Factored`."""
        return replace(self, formed=in_groups(self.formed, size).sum(1))

    def simplified(self) -> Rows:
        """See :class:`Factored`."""
        return self

    def rows(self) -> Tensor:
        """See :class:`Factored`."""
        return restored(self.formed, self.order)

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`Factored`."""
        return (self.formed,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's shape."""
        return tuple(restored(self.formed, self.order).shape[1:])


@dataclass(frozen=True)
class Split:
    """Formed gradients, split along one axis of the parameter.

    Attributes:
        parts: the parts, in order.
        axis: the parameter's axis along which they are split.
    """

    parts: tuple[Rows, ...]
    axis: int

    def squares(self, divisor: Tensor | None = None) -> Tensor:
        """See :class:`Factored`."""
        if divisor is None:
            return functools.reduce(Tensor.add_, [part.squares() for part in self.parts])
        pairs = zip(self.parts, torch.split(divisor, self._sizes, self.axis), strict=True)
        return functools.reduce(Tensor.add_, [part.squares(own) for part, own in pairs])

    def total(self, factors: Tensor) -> Tensor:
        """See :class:`Factored`."""
        return torch.cat([part.total(factors) for part in self.parts], self.axis)

    def scaled(self, coefficient: float) -> Split:
        """See :class:`Factored`."""
        return replace(self, parts=tuple(part.scaled(coefficient) for part in self.parts))

    def plus(self, other: Split) -> Split:
        """See :class:`Factored`."""
        if self._sizes != other._sizes:
            return replace(self, parts=(Rows(self.rows() + other.rows()),))
        pairs = zip(self.parts, other.parts, strict=True)
        return replace(self, parts=tuple(one.plus(more) for one, more in pairs))

    def grouped(self, size: int) -> Split:
        """See :class:`Factored`."""
        return replace(self, parts=tuple(part.grouped(size) for part in self.parts))

    def simplified(self) -> Split:
        """See :class:`Factored`."""
        return self

    def rows(self) -> Tensor:
        """See :class:`Factored`."""
        return torch.cat([part.rows() for part in self.parts], 1 + self.axis)

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`Factored`."""
        return tuple(part.formed for part in self.parts)

    @property
    def _sizes(self) -> list[int]:
        return [part.shape[self.axis] for part in self.parts]


def _weighted(factors: Tensor, rows: Tensor) -> Tensor:
    """sum over i of factors_i rows_i, in the factors' dtype; wider copies of rows stay in the cache."""
    if rows.dtype == factors.dtype or rows.device.type != "cpu":
        return factors @ rows.to(factors.dtype)
    total, step = factors.new_zeros(rows.shape[1]), max(1, _WIDENED // max(1, rows.shape[1]))
    for part, own in zip(torch.split(rows, step), torch.split(factors, step), strict=True):
        total.addmv_(part.to(factors.dtype).t(), own)
    return total


def restored(permuted: Tensor, order: tuple[int, ...]) -> Tensor:
    """The tensor (..., *shape) from one whose last axes are in ``order``."""
    if not order:
        return permuted
    lead = permuted.dim() - len(order)
    back = sorted(range(len(order)), key=order.__getitem__)
    return permuted.permute(*range(lead), *(lead + axis for axis in back))


def in_groups(part: Tensor, size: int) -> Tensor:
    """(n, ...) -> (n / size, size, ...)."""
    return part.reshape(-1, size, *part.shape[1:])

"""Matrix products whose rows all have the same alignment in memory.

Matrix libraries may round a row of a product by its place: measured with MKL on AVX2 and AVX-512, where the
rows have no multiple of four numbers and one side of the product has few (up to 13). Padded with zeros to
whole cache lines all rows are computed alike. A product of small sides is then slower (a row of 10 numbers
takes the place of 16), so that it is done only for models that need it
(:mod:`fedpriv.clipping.invariance`).

>>> x, weight = torch.ones(3, 5), torch.ones(2, 5)
>>> with aligned_products(True):
...     torch.nn.functional.linear(x, weight).tolist()
[[5.0, 5.0], [5.0, 5.0], [5.0, 5.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LINE = 16  # float32 numbers in a cache line of 64 bytes


def aligned_products(active: bool) -> AbstractContextManager[Any]:
    """While the context is open and ``active``, products of matrices are padded to whole cache lines."""
    return _AlignedProducts() if active else nullcontext()


class _AlignedProducts(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Call the function, or its padded counterpart."""
        return _PADDED.get(function, function)(*arguments, **(named or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outs, ins = weight.shape
    more, wide = -outs % _LINE, -ins % _LINE
    padded_bias = bias if bias is None or not more else F.pad(bias, (0, more))
    product = F.linear(_pad(input, wide), _pad(weight, wide, more), padded_bias)
    return product[..., :outs] if more else product


def _product(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def padded(one: Tensor, other: Tensor, **named: Any) -> Tensor:
        if named or one.dim() < 2 or other.dim() < 2:
            return function(one, other, **named)
        outs, ins = other.shape[-1], other.shape[-2]
        more, wide = -outs % _LINE, -ins % _LINE
        product = function(_pad(one, wide), _pad(other, more, wide))
        return product[..., :outs] if more else product

    return padded


def _pad(tensor: Tensor, last: int, before: int = 0) -> Tensor:
    """The tensor with so many zeros more along its last axis and along the one before."""
    return F.pad(tensor, (0, last, 0, before)) if last or before else tensor


_PADDED: dict[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    **{
        function: _product(function)
        for function in (torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm)
    },
    Tensor.__matmul__: _product(torch.matmul),
}

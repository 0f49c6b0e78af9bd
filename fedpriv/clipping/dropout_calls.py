"""Dropout that layers of Hugging Face ``transformers`` draw by calling a function, with one seed per example.

Attention of ``transformers`` gives its rate to ``F.dropout`` or ``F.scaled_dot_product_attention`` while its
layer is in training mode. :func:`calling` finds such layers. :func:`seeded_calls` has them in training mode,
and these two functions drop what the examples' seeds say (:mod:`fedpriv.clipping.dropout`). All other layers
stay in evaluation mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from fedpriv.clipping.ghost.layers.hugging_face import PACKAGE

_KERNELS = (None, "sdpa", "eager")  # the attentions whose dropout goes through the two functions

Dropped = Callable[[Tensor, float], Tensor]


def calling(module: nn.Module) -> tuple[nn.Module, ...]:
    """The layers of ``transformers`` that give a positive rate to a function where they are in training mode.

    >>> calling(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    ()
    """
    return tuple(layer for layer in module.modules() if _calls(layer))


def settings_of(module: nn.Module) -> str:
    """The positive dropout settings in configs of ``transformers``: "attn_pdrop=0.1, resid_pdrop=0.1".

    >>> settings_of(nn.Dropout(0.5))
    ''
    """
    found: dict[str, None] = {}
    for layer in module.modules():
        config = getattr(layer, "config", None)
        if type(config).__module__.startswith(PACKAGE):
            found |= {f"{name}={rate:g}": None for name, rate in _rates(config, "drop").items()}
    return ", ".join(found)


@contextmanager
def seeded_calls(layers: Iterable[nn.Module], dropped: Dropped) -> Iterator[None]:
    """Within this block the layers are in training mode, and functional dropout is ``dropped(x, rate)``."""
    before = [(layer, layer.training) for layer in layers]
    try:
        for layer, _ in before:
            layer.training = True
        with _SeededCalls(dropped):
            yield
    finally:
        for layer, mode in before:
            layer.training = mode


class _SeededCalls(TorchFunctionMode):
    """Dropout and attention of ``torch.nn.functional`` drop by a function of x (n, ...) and the rate."""

    def __init__(self, dropped: Dropped) -> None:
        super().__init__()
        self._seeded = {
            F.dropout: functools.partial(_dropout, dropped),
            F.scaled_dot_product_attention: functools.partial(_attention, dropped),
        }

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._seeded.get(func, func)(*args, **(kwargs or {}))


def _dropout(
    dropped: Dropped, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """``F.dropout`` by seeds."""
    if not training or not p:
        return input
    result = dropped(input, p).to(input.dtype)
    return input.copy_(result) if inplace else result


def _attention(
    dropped: Dropped,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Tensor:
    """``F.scaled_dot_product_attention`` by seeds: entries of the attention's weights are dropped."""
    attend = F.scaled_dot_product_attention
    if not dropout_p:
        return attend(query, key, value, attn_mask, is_causal=is_causal, **more)
    # Attention to unit vectors gives the weights.
    places = torch.eye(key.shape[-2], dtype=value.dtype, device=value.device)
    places = places.expand(*value.shape[:-2], *places.shape)
    weights = attend(query, key, places, attn_mask, is_causal=is_causal, **more)
    if more.get("enable_gqa"):
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return dropped(weights, dropout_p).to(value.dtype) @ value


def _calls(layer: nn.Module) -> bool:
    """Whether :func:`calling` finds the layer."""
    kind = type(layer)
    kernel = getattr(getattr(layer, "config", None), "_attn_implementation", None)
    # Training mode would also skip whole layers, or compute parts of them twice.
    more = vars(layer).get("layerdrop") or getattr(layer, "gradient_checkpointing", False)
    if not kind.__module__.startswith(PACKAGE) or kernel not in _KERNELS or more:
        return False
    held = any(isinstance(child, _DropoutNd) and child.p > 0 for child in layer.children())
    return bool(_rates(layer, "dropout")) or (held and "Attention" in kind.__name__)


def _rates(owner: Any, word: str) -> dict[str, float]:
    """The positive numbers among an object's attributes whose names have this word in them."""
    return {
        name: rate
        for name, rate in vars(owner).items()
        if word in name and isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0
    }

"""Layers of Hugging Face ``transformers``, which is not imported: they are known by their names.

``Conv1D`` (GPT-2's) is a linear layer with its weight transposed. The root-mean-square norms
(``LlamaRMSNorm``, ``T5LayerNorm`` and others) multiply x / rms(x) by their weight, or by 1 + weight. Gemma's
embeddings are scaled. OPT's position embeddings look up positions that the attention mask gives, plus an
offset. A class that has such a name and computes something else fails the trial
(:mod:`fedpriv.clipping.ghost.compatibility`), and its gradients are formed.

Code of ``transformers`` looks at the values of an attention mask: if no token is masked, it leaves the mask
out. That cannot be done under ``torch.func.vmap``, and one path for all examples is what makes an example's
result a function of the example alone. :func:`masks_in_full` has it build every mask, as it does where a
compiler traces it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clipping.ghost.layers.base import Call, LayerRule, UnsupportedLayerError, hook_point
from fedpriv.clipping.ghost.layers.embedding import measure_embedding
from fedpriv.clipping.ghost.layers.linear import measure_linear
from fedpriv.clipping.ghost.layers.normalisation import scaling

PACKAGE = "transformers."
_MASKS = "transformers.masking_utils"
_EPSILONS = ("variance_epsilon", "eps", "epsilon")  # what a norm calls its smallest mean square

_in_full: ContextVar[bool] = ContextVar("masks in full", default=False)


def _root_normal(layer: Any, x: Tensor) -> Tensor:
    epsilon = next((vars(layer)[name] for name in _EPSILONS if name in vars(layer)), None)
    if epsilon is None:
        raise UnsupportedLayerError
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)


def record_scaled_embedding(layer: Any, *inputs: Any, **named: Any) -> Call:
    """Record a call of Gemma's embedding, whose rows are multiplied by a constant."""
    if named or len(inputs) != 1 or not hasattr(layer, "embed_scale"):
        raise UnsupportedLayerError
    rows = hook_point(nn.Embedding.forward(layer, inputs[0]))
    return Call(rows * layer.embed_scale.to(rows.dtype), (rows,), inputs[0].detach())


def record_masked_positions(
    layer: Any, attention_mask: Tensor, cached: int = 0, position_ids: Tensor | None = None
) -> Call:
    """Record a call of OPT's position embedding, which counts the tokens of the mask (n, places)."""
    if position_ids is None:
        position_ids = (attention_mask.cumsum(1) * attention_mask - 1).long()[:, cached:]
    looked_up = position_ids + layer.offset
    rows = hook_point(nn.Embedding.forward(layer, looked_up))
    return Call(rows, (rows,), looked_up.detach())


_CONV1D = LayerRule(functools.partial(measure_linear, transposed=True), places=True)
_ROOT_NORM = scaling(_root_normal)
_SCALED_EMBEDDING = LayerRule(measure_embedding, record_scaled_embedding, places=True)
_MASKED_POSITIONS = LayerRule(measure_embedding, record_masked_positions, places=True)


def rule_of(layer: type[nn.Module]) -> LayerRule | None:
    """The rule for a type of layer of ``transformers``, by its name; None where there is none.

    >>> rule_of(nn.Linear) is None
    True
    """
    if not layer.__module__.startswith(PACKAGE):
        return None
    if layer.__name__ == "Conv1D":
        return _CONV1D
    if layer.__name__.endswith("ScaledWordEmbedding") and issubclass(layer, nn.Embedding):
        return _SCALED_EMBEDDING
    if layer.__name__ == "OPTLearnedPositionalEmbedding" and issubclass(layer, nn.Embedding):
        return _MASKED_POSITIONS
    return _ROOT_NORM if layer.__name__.endswith(("RMSNorm", "T5LayerNorm")) else None


@contextmanager
def masks_in_full() -> Iterator[None]:
    """Within this block ``transformers`` builds every attention mask, whatever its values are."""
    masks: Any = sys.modules.get(_MASKS)
    usual = getattr(masks, "is_tracing", None)
    if usual is not None and not hasattr(usual, "fedpriv"):

        @functools.wraps(usual)
        def is_tracing(*arguments: Any) -> bool:
            return _in_full.get() or bool(usual(*arguments))

        is_tracing.fedpriv = True  # type: ignore[attr-defined]
        masks.is_tracing = is_tracing
    token = _in_full.set(True)
    try:
        yield
    finally:
        _in_full.reset(token)

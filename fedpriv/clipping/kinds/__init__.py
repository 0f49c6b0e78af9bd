"""The kinds of layers that book-keeping knows, by their exact type.

A new kind is a module beside this one with a table ``KINDS`` of its own, and a line in :data:`KINDS` here:
its ``measure`` turns what a call saw and the gradient at its taps into factored per-example gradients, and
its ``record`` (where the output alone does not do) says what to tap. Where vmap has no rule for the layer's
forward, :func:`make_batched` gives it one that vmap can run, so that rows can be had too.

>>> import torch
>>> layer = torch.nn.Linear(2, 1)
>>> forms = KINDS[torch.nn.Linear].measure(layer, torch.tensor([[3.0, 4.0]]), (torch.tensor([[2.0]]),))
>>> {name: form.squares().tolist() for name, form in forms.items()}
{'weight': [100.0], 'bias': [4.0]}
"""

from torch import nn

from fedpriv.clipping.kinds import convolution, embedding, linear, norms, recurrent
from fedpriv.clipping.kinds.base import Call, Kind, UnsuitedError, tap

KINDS: dict[type[nn.Module], Kind] = {
    **linear.KINDS,
    **convolution.KINDS,
    **embedding.KINDS,
    **norms.KINDS,
    **recurrent.KINDS,
}
_BATCHED = {**embedding.BATCHED, **recurrent.BATCHED}


def make_batched(module: nn.Module) -> None:
    """Changes the layers of ``module`` that vmap cannot differentiate into ones that compute the same."""
    for layer in module.modules():
        if type(layer) in _BATCHED and "forward" not in vars(layer):
            layer.__class__ = _BATCHED[type(layer)]
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False


__all__ = ["KINDS", "Call", "Kind", "UnsuitedError", "make_batched", "tap"]

"""The kinds of layers that book-keeping knows, by their exact type.

A new kind is a module beside this one with a table ``KINDS`` of its own, and a line in :data:`KINDS` here:
its ``measure`` turns what a call saw and the gradient at its taps into factored per-example gradients, and
its ``record`` (where the output alone does not do) says what to tap.

>>> import torch
>>> layer = torch.nn.Linear(2, 1)
>>> forms = KINDS[torch.nn.Linear].measure(layer, torch.tensor([[3.0, 4.0]]), (torch.tensor([[2.0]]),))
>>> {name: form.squares().tolist() for name, form in forms.items()}
{'weight': [100.0], 'bias': [4.0]}
"""

from torch import nn

from fedpriv.clipping.kinds import convolution, linear
from fedpriv.clipping.kinds.base import Call, Kind, UnsuitedError, tap

KINDS: dict[type[nn.Module], Kind] = {**linear.KINDS, **convolution.KINDS}

__all__ = ["KINDS", "Call", "Kind", "UnsuitedError", "tap"]

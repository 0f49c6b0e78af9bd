"""Bounded sums: each unit's vector is clipped term by term, and the clipped vectors are added.

:func:`clipped_sum` sums a module's clipped gradients over a batch. :func:`sum_rows` sums vectors that are
given as rows. :func:`sum_gradients` sums the gradients of examples, with ghost clipping where it is exact.
Tests compare the last two with plain loops. A vector with a NaN or an infinity counts as zero.

>>> import torch
>>> from fedpriv.mechanism.query import Query
>>> from fedpriv.mechanism.query import SumBlock
>>> from fedpriv.mechanism.query import Term
>>> total, = sum_rows([torch.tensor([[6.0, 8.0], [0.6, 0.8]])], [SumBlock((Term(clip_norm=5.0),))])
>>> total
tensor([3.6000, 4.8000])
"""

from fedpriv.clipping.explicit import sum_rows, sum_rows_loop
from fedpriv.clipping.functional import FunctionalModel, clipped_sum
from fedpriv.clipping.per_example import added, gradients_loop, sum_gradients, sum_gradients_loop, zeros
from fedpriv.clipping.protocol import Differentiable

__all__ = [
    "Differentiable",
    "FunctionalModel",
    "added",
    "clipped_sum",
    "gradients_loop",
    "sum_gradients",
    "sum_gradients_loop",
    "sum_rows",
    "sum_rows_loop",
    "zeros",
]

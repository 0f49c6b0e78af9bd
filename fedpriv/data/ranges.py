"""Which examples of a client's file lie in a run's ranges.

A run's data set says which labels, tokens and numbers there are, and who starts the run chooses the data set.
Whether a value of a private file lies in such a range is therefore a question about its example, which is not
to be answered, not even by an error: who is outside is left out (:mod:`fedpriv.data.client_files`).

>>> words, labels = np.array([[3, 1], [9, 0], [2, 2]]), np.array([0, 1, 7])
>>> within(words, labels, (5,), "label", 2).tolist()
[True, False, False]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedpriv.data.source import Target, as_float32

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def within(x: Array, y: Array, tokens: tuple[int, ...], target: Target, classes: int) -> Mask:
    """Which rows (n,) of ``x`` (n, ...) and ``y`` (n, ...) are examples that the tokens and the target allow.

    All of them where the arrays themselves, by their kinds and shapes, are not: that says nothing of a value,
    and is refused elsewhere (:class:`fedpriv.data.Arrays`).
    """
    if len(x) != len(y):  # refused elsewhere, too
        return np.ones(len(x), np.bool_)
    return _examples(x, tokens) & _targets(y, target, classes)


def blanked(part: Array, kept: Mask) -> Array:
    """``part`` (n, ...) with zeros, which every range holds, in the rows that are not ``kept`` (n,)."""
    if kept.all() or part.dtype.kind not in "iuf":
        return part
    part = part.copy()
    part[~kept] = 0
    return part


def _examples(x: Array, tokens: tuple[int, ...]) -> Mask:
    if tokens and x.dtype.kind in "iu" and x.ndim == 2 and len(tokens) in (1, x.shape[1]):
        return _rows((x >= 0) & (x < np.asarray(tokens)))
    if not tokens and x.dtype.kind == "f":
        return _rows(_finite(x))
    return np.ones(len(x), np.bool_)


def _targets(y: Array, target: Target, classes: int) -> Mask:
    if target == "label" and y.dtype.kind in "iu":
        return _rows((y >= 0) & (y < classes))
    if target != "label" and y.dtype.kind in "iuf":
        return _rows(_finite(y) if target == "value" else np.isin(as_float32(y), (0, 1)))
    return np.ones(len(y), np.bool_)


def _rows(allowed: Mask) -> Mask:
    """Whether all of each row is allowed."""
    return np.asarray(allowed.reshape(len(allowed), -1).all(axis=1)) if len(allowed) else allowed[:0].ravel()


def _finite(values: Array) -> Mask:
    return np.isfinite(as_float32(values))

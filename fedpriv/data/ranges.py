"""Selects the examples of a client's file that lie within the ranges of a run's data set.

The run's data set defines the valid labels, tokens and numbers, and whoever starts the run chooses it.
Whether a private value lies in such a range is information about its example, so it must not be revealed, not
even by an error. Examples outside the ranges are silently ignored (:mod:`fedpriv.data.client_files`).

>>> words, labels = np.array([[3, 1], [9, 0], [2, 2]]), np.array([0, 1, 7])
>>> within(words, labels, (5,), "label", 2).tolist()
[True, False, False]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.source import Target, as_float32

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"


def within(x: Array, y: Array, tokens: tuple[int, ...], target: Target, classes: int) -> Mask:
    """Which rows (n,) of ``x`` (n, ...) and ``y`` (n, ...) are within the ranges of tokens and target.

    If an array has a wrong type or shape, all rows are: this reveals no value, and
    :class:`fedpriv.data.Arrays` refuses such arrays.
    """
    if len(x) != len(y):  # Arrays refuses this, too
        return np.ones(len(x), np.bool_)
    return _examples(x, tokens) & _targets(y, target, classes)


def blanked(part: Array, kept: Mask) -> Array:
    """``part`` (n, ...) with zeros in the rows that are not ``kept`` (n,). Every range contains 0."""
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
    """Whether all entries of each row are allowed, (n,)."""
    return np.asarray(allowed.reshape(len(allowed), -1).all(axis=1)) if len(allowed) else allowed[:0].ravel()


def _finite(values: Array) -> Mask:
    return np.isfinite(as_float32(values))

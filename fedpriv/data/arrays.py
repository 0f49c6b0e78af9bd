"""The finite source: examples held in memory.

>>> x = np.zeros((3, 28, 28), np.uint8); x[1] = 255
>>> toy = Arrays("toy", x, np.array([0, 1, 1]), x[:1], np.array([0]), classes=2)
>>> images, labels = toy.batch(np.array([1, 0]))
>>> tuple(images.shape), labels.tolist(), float(images.max())
((2, 1, 28, 28), [1, 0], 1.0)

>>> words = np.array([[3, 1, 0], [2, 0, 0]], np.uint16)
>>> toy = Arrays("toy", words, np.array([0, 1]), words, np.array([0, 1]), classes=2, tokens=(4,))
>>> toy.shape, toy.batch(np.array([0])).x
((3,), tensor([[3, 1, 0]]))
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.convert import Array, as_array, as_owners
from fedpriv.data.source import (
    DataError,
    Indices,
    Pair,
    Target,
    as_float32,
    kind,
    require_labels,
    to_unit,
    whole,
)
from fedpriv.data.sparse import SparseRows

if TYPE_CHECKING:
    from torch import Tensor

ArrayLike: TypeAlias = "Array | Tensor | SparseRows | Sequence[Any]"
OwnersLike: TypeAlias = "Array | Tensor | Sequence[int] | Sequence[str]"
Kept: TypeAlias = "Tensor | SparseRows"
_SMALL_WHOLE = ("uint8", "int16", "int32")  # the small types that torch can index


class Arrays:
    """A finite source over arrays: images, rows of numbers, sequences of tokens, columns of ids.

    Args:
        name: what to call it.
        x: of the training examples, (n, ...); example i is index i. A NumPy array, a torch tensor, nested
            lists or sparse rows. Without tokens, uint8 are pixels (n, height, width) or (n, channels, height,
            width); other numbers are rounded to float32. With tokens, whole numbers.
        y: (n,) or (n, classes), as the target has it: of the same types; bools are the labels 0 and 1. Tags
            may be sparse.
        test_x, test_y: the public test part.
        classes: the number of labels or tags: a public constant, never counted in clients' data. For
            values it is 1, and may be left out.
        tokens, target: see :class:`fedpriv.data.source.Source`.
        owners: who each training example is from, (n,): numbers from 0, or names, which are numbered in their
            order as text.
        vocabulary: the text of each token, or the name of each column of x, for people; () if unknown.
        class_names: the names of the labels or tags; () if unknown.

    Numbers that have their type already are not copied: do not change them afterwards.

    Raises:
        DataError: the parts do not fit together, or hold what the tokens and the target do not allow; or
            there is no such target, or ``classes`` is missing.
    """

    first = 0

    def __init__(
        self,
        name: str,
        x: ArrayLike,
        y: ArrayLike,
        test_x: ArrayLike,
        test_y: ArrayLike,
        classes: int | None = None,
        *,
        tokens: tuple[int, ...] = (),
        target: Target = "label",
        owners: OwnersLike | None = None,
        vocabulary: Sequence[str] = (),
        class_names: Sequence[str] = (),
    ) -> None:
        self.classes = _checked_classes(name, target, classes)
        if not isinstance(tokens, tuple) or not all(isinstance(t, Integral) and t >= 1 for t in tokens):
            example = f"({tokens},)" if isinstance(tokens, Integral) else "(50,)"
            raise DataError(f"{name}: tokens must be a tuple of numbers of ids, such as {example}")
        self.name, self.tokens, self.target = name, tokens, target
        self._train = self._checked(x, y, "")
        self.size = len(self._train[0])
        self.owners = None if owners is None else as_owners(owners, name)
        self._test = self._checked(test_x, test_y, "test_")
        self.shape: tuple[int, ...] = tuple(self._train[0].shape[1:])
        if tuple(self._test[0].shape[1:]) != self.shape:
            raise DataError(f"{name}: training and test examples must have the same shape")
        if self.owners is not None and len(self.owners) != self.size:
            raise DataError(f"{name}: there must be one owner for each training example")
        self.vocabulary, self.class_names = tuple(vocabulary), tuple(class_names)
        self._require_names()
        self._resident: dict[torch.device, tuple[Kept, Kept]] = {}

    def __repr__(self) -> str:
        """What it holds, without values."""
        kinds = {"label": f"{self.classes} labels", "value": "values", "tags": f"{self.classes} tags"}[
            self.target
        ]
        sizes = f"{self.size:,} examples of shape {self.shape} and {len(self._test[0]):,} for tests"
        return f"{type(self).__name__}({self.name!r}: {sizes}, {kinds})"

    def digest(self) -> str:
        """The SHA-256 digest of all examples. It is private: it confirms a guess of the examples."""
        return self._digest

    def public_digest(self) -> str:
        """The SHA-256 digest of the public test part, and of nothing else."""
        return self._public_digest

    @cached_property
    def _digest(self) -> str:
        return self._digest_of(*self._train, *self._test)

    @cached_property
    def _public_digest(self) -> str:
        return self._digest_of(*self._test)

    def _digest_of(self, *parts: Kept) -> str:
        found = hashlib.sha256(repr((self.name, self.shape, self.classes)).encode())
        for part in parts:
            for numbers in part.parts() if isinstance(part, SparseRows) else [part]:
                found.update(numbers.numpy().tobytes())
        return found.hexdigest()

    def _require_names(self) -> None:
        """Raises DataError unless there is a name for each token, column, label or tag, or for none."""
        ids = self.tokens[0] if len(self.tokens) == 1 else self.shape[0] if len(self.shape) == 1 else 0
        for called, names, many in (
            ("vocabulary", self.vocabulary, ids),
            ("class_names", self.class_names, self.classes),
        ):
            if names and len(names) != many:
                raise DataError(f"{self.name}: {called} must have {many} names; it has {len(names)}")

    def _checked(self, x: ArrayLike, y: ArrayLike, part: str) -> tuple[Kept, Kept]:
        """Both as tensors in the form they are kept in, or a DataError that names no value."""
        inputs, targets = as_array(x, self.name, f"{part}x"), as_array(y, self.name, f"{part}y")
        if not isinstance(inputs, SparseRows) and not inputs.ndim:
            raise DataError(
                f"{self.name}: examples {part}x must have an axis of examples; {_described(inputs)}"
            )
        kept = self._checked_y(targets, len(inputs), f"{part}y")
        return self._checked_x(inputs, f"{part}x"), kept

    def _checked_x(self, x: Array | SparseRows, called: str) -> Kept:
        if isinstance(x, SparseRows):
            if self.tokens or not x.finite():
                raise DataError(f"{self.name}: sparse examples {called} must be finite numbers")
            return x
        if self.tokens:
            return self._checked_tokens(x, called)
        if x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] > 4:
            text = f"images {called} must have their channels first, as x.transpose(0, 3, 1, 2) has them"
            raise DataError(f"{self.name}: {text}; {_described(x)}")
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            return torch.from_numpy(np.ascontiguousarray(x if x.ndim == 4 else x[:, None]))
        if x.dtype.kind not in "fiub" or x.dtype == np.uint8 or x.ndim < 2:
            kinds = "uint8 images (n, height, width) or (n, channels, height, width), or float32 (n, ...)"
            raise DataError(f"{self.name}: examples {called} must be {kinds}; {_described(x)}")
        rounded = as_float32(x)
        if not np.isfinite(rounded).all():
            raise DataError(f"{self.name}: examples {called} must be finite numbers, as float32 has them")
        return torch.from_numpy(rounded)

    def _checked_tokens(self, x: Array, called: str) -> Tensor:
        limits = np.asarray(self.tokens)
        if x.dtype.kind not in "iu" or x.ndim != 2 or len(limits) not in (1, x.shape[1]):
            columns = len(limits) if len(limits) > 1 else "columns"
            text = f"tokens {called} must be whole numbers (n, {columns}); {_described(x)}"
            raise DataError(f"{self.name}: {text}")
        if int(x.min()) < 0 or bool((x.max(axis=0) >= limits).any()):
            raise DataError(f"{self.name}: a token of {called} is outside its range")
        small = x.dtype if x.dtype.name in _SMALL_WHOLE else np.int64
        return torch.from_numpy(np.ascontiguousarray(x, dtype=small))

    def _checked_y(self, y: Array | SparseRows, count: int, called: str) -> Kept:
        what = "a finite value" if self.target == "value" else f"{self.classes} tags"
        allowed = f"{called} must be {what} for each of at least one example"
        refusal = DataError(f"{self.name}: {allowed}; {_described(y)}")
        if isinstance(y, SparseRows):
            if self.target != "tags" or y.shape != (count, self.classes) or not y.finite():
                raise refusal
            if not y.ones():
                raise DataError(f"{self.name}: tags {called} must be 0 or 1")
            return y
        if self.target == "label":
            y = y.astype(np.int64) if y.dtype.kind == "b" else y
            require_labels(self.name, y, count, self.classes, f"labels {called}")
            return torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64))
        expected = (count,) if self.target == "value" else (count, self.classes)
        if not count or y.shape != expected or y.dtype.kind not in "iufb":
            raise refusal
        numbers = as_float32(y)
        if not np.isfinite(numbers).all():
            raise refusal
        if self.target == "tags" and not np.isin(numbers, (0, 1)).all():
            raise DataError(f"{self.name}: tags {called} must be 0 or 1")
        return torch.tensor(numbers)

    def _shown(self, x: Tensor) -> Tensor:
        """Kept examples as they are handed out."""
        if self.tokens:
            return x.to(torch.int64)
        return to_unit(x) if x.dtype == torch.uint8 else x

    def batch(self, indices: Indices, device: torch.device | str = "cpu") -> Pair:
        """The examples at ``indices`` (n,) on ``device``. Raises ArgumentError outside the data."""
        where = torch.device(device)
        if where not in self._resident:
            self._resident[where] = (self._train[0].to(where), self._train[1].to(where))
        x, y = self._resident[where]
        at = torch.from_numpy(whole("indices", indices, below=self.size)).to(where)
        return Pair(self._shown(x.index_select(0, at)), y.index_select(0, at))

    def labels(self, indices: Indices) -> Indices:
        """The labels (n,) at ``indices``. Raises ArgumentError outside the data, or without labels."""
        if self.target != "label":
            raise validation.fail("dataset", self.name, "have labels here", f"its target is {self.target}")
        at = torch.from_numpy(whole("indices", indices, below=self.size))
        labels: Indices = self._train[1].index_select(0, at).numpy()
        return labels

    def test(self, device: torch.device | str = "cpu") -> Pair:
        """The public test examples."""
        everything = torch.arange(len(self._test[0]), device=device)
        x, y = (part.to(device).index_select(0, everything) for part in self._test)
        return Pair(self._shown(x), y)


def _checked_classes(name: str, target: str, classes: int | None) -> int:
    """The number of labels, tags or values. Raises DataError where there is no such target or number."""
    hint = "how many labels or tags there are: public knowledge, and not counted in the data"
    try:
        validation.choice("target", target, get_args(Target))
        if target == "value" and classes in (None, 1):
            return 1
        if target == "value":
            raise validation.fail("classes", classes, "be 1, or left out, where the target is a value")
        return validation.integer("classes", classes, 1, hint)
    except validation.ArgumentError as error:
        raise DataError(f"{name}: {error}") from None


def _described(array: Array | SparseRows) -> str:
    """What an array is, without a word of its values or their number."""
    if isinstance(array, SparseRows):
        return "these are sparse"
    return f"these are {kind(array)} with {array.ndim} {'axis' if array.ndim == 1 else 'axes'}"

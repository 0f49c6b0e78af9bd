"""Converts torch tensors, torch Datasets, lists and tuples of arrays to a source.

>>> as_array([[1, 2], [3, 4]], "mine", "x").dtype.kind
'i'
>>> as_owners(["bob", "ann", "bob"], "mine").tolist()
[1, 0, 1]
>>> source = as_source(([[0.5], [2.0]], [0, 1], [[1.0]], [1]))
>>> source.size, source.classes, source.target
(2, 2, 'label')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv._internal import user_code
from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.lazy import torch
from fedpriv.data.arrays import Arrays
from fedpriv.data.convert import Array, as_array, as_owners
from fedpriv.data.readers.hugging_face import hugging_face
from fedpriv.data.source import DataError, Source, Target, kind
from fedpriv.data.sparse import SparseRows

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch.utils.data import Dataset

__all__ = ["as_array", "as_owners", "as_source", "examples_of"]

_PARTS = tuple(part for part in vars(Source) if not part.startswith("_"))
_WANTED = (
    "a Source such as fedpriv.data.Arrays, a tuple (x, y, test_x, test_y), a pair (train, test) of torch "
    "Datasets of (x, y) pairs, or a DatasetDict of Hugging Face datasets"
)
_PUBLIC = "the test part is public, and fedpriv never takes it from training data by itself"

_NUMBERED = "numpy.searchsorted(names, y) numbers texts; names: all classes in order, which are public"


def as_source(dataset: Any) -> Source:
    """``dataset`` as a source.

    Args:
        dataset: a :class:`~fedpriv.data.source.Source`; or (x, y, test_x, test_y), or ((x, y), (test_x,
            test_y)), of NumPy arrays, torch tensors or lists; or (train, test), two map-style torch Datasets
            of (x, y) pairs, which are read into memory. If y holds whole numbers (n,), they are labels, and
            their number is taken from the TEST part, which is public. Floats (n,) are values; 0 and 1 in
            (n, tags) are tags. Or a DatasetDict of Hugging Face ``datasets`` with train and test, whose
            columns :func:`fedpriv.data.hugging_face` finds. Sequences of tokens need
            :class:`~fedpriv.data.arrays.Arrays`.

    Raises DataError for other types, and if a part is missing or malformed.
    """
    if all(hasattr(dataset, part) for part in _PARTS):
        source: Source = dataset
        return source
    if isinstance(dataset, Mapping) and "train" in dataset:
        return hugging_face(dataset)
    if isinstance(dataset, torch.utils.data.Dataset):
        kind = type(dataset).__name__
        raise DataError(f"dataset is a {kind} without a test part; give a pair (train, test): {_PUBLIC}")
    if not isinstance(dataset, Sequence) or isinstance(dataset, str):
        raise DataError(f"dataset is a {type(dataset).__name__}; it must be {_WANTED}")
    if len(dataset) == 2 and all(isinstance(part, torch.utils.data.Dataset) for part in dataset):
        name = type(dataset[0]).__name__
        return _arrays(name, *_read(dataset[0], "train"), *_read(dataset[1], "test"))
    if len(dataset) == 2 and all(isinstance(part, Sequence) and len(part) == 2 for part in dataset):
        (x, y), (test_x, test_y) = dataset
        return _arrays("arrays", x, y, test_x, test_y)
    if len(dataset) == 2:
        raise DataError(
            f"dataset is a pair (x, y) without a test part; give (x, y, test_x, test_y): {_PUBLIC}"
        )
    if len(dataset) != 4:
        raise DataError(f"dataset has {len(dataset)} parts; it must be {_WANTED}")
    return _arrays("arrays", *dataset)


def examples_of(dataset: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The x and y of examples without a test part: (x, y), or a map-style torch Dataset of such pairs.

    Raises DataError for other types, and if an example is malformed.
    """
    if isinstance(dataset, torch.utils.data.Dataset):
        x, y = _read(dataset, "train")
    elif isinstance(dataset, Sequence) and not isinstance(dataset, str) and len(dataset) == 2:
        x, y = dataset
    else:
        kind = type(dataset).__name__
        raise DataError(f"dataset is a {kind}; it must be (x, y) or a torch Dataset of such pairs")
    name = "dataset"
    return np.asarray(as_array(x, name, "x")), np.asarray(as_array(y, name, "y"))


def _arrays(name: str, x: Any, y: Any, test_x: Any, test_y: Any) -> Arrays:
    public = as_array(test_y, name, "test y")
    target, classes = _target(name, public)
    labels = None if isinstance(y, SparseRows) else np.asarray(y)
    if target == "label" and labels is not None and labels.dtype.kind in "iu" and (labels >= classes).any():
        raise DataError(
            f"{name}: labels y must lie in 0..{classes - 1}, as those of the test part, which is public; if "
            "there are K labels, give fedpriv.data.Arrays(name, x, y, test_x, test_y, classes=K)"
        )
    return Arrays(name, x, y, test_x, public, classes, target=target)


def _target(name: str, y: Array | SparseRows) -> tuple[Target, int]:
    """(the target that the public y describes, the number of its labels or tags)."""
    if isinstance(y, SparseRows) or y.ndim == 2:
        return "tags", int(y.shape[1])
    if y.dtype.kind == "f":
        return "value", 1
    if not y.size or y.dtype.kind not in "iub":
        hint = "" if y.dtype.kind in "iub" else f"; it holds {kind(y)}. {_NUMBERED}"
        raise DataError(f"{name}: test y must hold labels 0..k-1 (n,), values (n,) or tags (n, tags){hint}")
    return "label", max(2, int(y.max()) + 1)


def _read(dataset: Dataset[Any], part: str) -> tuple[Any, Any]:
    """All examples of a map-style data set, as two arrays."""
    name = type(dataset).__name__
    if isinstance(dataset, torch.utils.data.TensorDataset):
        if len(dataset.tensors) != 2:
            raise DataError(
                f"{name}: the {part} data set has {len(dataset.tensors)} tensors; it must have x and y"
            )
        return dataset.tensors
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name}: the {part} data set must be map-style, with __len__ and __getitem__")
    inputs, targets = [], []
    for index in range(len(dataset)):
        try:
            x, y = dataset[index]
        except Exception as error:
            what = user_code.described(error)
            raise user_code.fail("dataset", name, "give a pair (x, y) for each index", what) from error
        inputs.append(_example(x))
        targets.append(np.asarray(_example(y)))
    if len({example.shape for example in inputs}) > 1:
        raise DataError(
            f"{name}: examples of the {part} data set must have one shape; use a transform that resizes"
        )
    return np.stack(inputs), np.stack(targets)


def _example(value: Any) -> npt.NDArray[Any]:
    """One x or y as an array. The channels of a Pillow image come first."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.ndim == 3 and hasattr(value, "getbands"):
        array = np.moveaxis(array, 2, 0)
    return array

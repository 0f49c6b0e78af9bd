"""Tables with named columns as a source: rows of numbers, one image or one text each.

What is public is said by the caller, or by the columns' types: the number of labels is never counted in
clients' rows. Bounds that scale a column are constants that the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.readers import arrow, pictures, text
from fedpriv.data.source import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_LABELS = ("label", "labels", "target", "class", "fine_label", "y")  # usual names of what is predicted


@dataclass(frozen=True)
class Columns:
    """Which columns are used, and how.

    Attributes:
        y: the column that is predicted; "": the only column of class labels, or one with a usual name.
        x: the columns of the inputs: one of images, one of texts, or any of numbers; (): the only one of
            images, else all columns where they hold numbers, else the only one of texts.
        owner: the column that says who a training example is from; "": nobody is named. Names are compared
            letter by letter.
        classes: the number of labels; 0: as the column's type says. Names, in their order, are also allowed.
        value: whether y is a value, and not a label.
        bounds: {column: (low, high)}: public constants by which a column of numbers is brought to [0, 1];
            numbers outside are cut.
        image_size, grey: see :func:`fedpriv.data.readers.pictures.decoded`.
        length, tokenizer, vocabulary_size: see :func:`fedpriv.data.readers.text.ids`.
    """

    y: str = ""
    x: Sequence[str] = ()
    owner: str = ""
    classes: int | Sequence[str] = 0
    value: bool = False
    bounds: Mapping[str, tuple[float, float]] | None = None
    image_size: int = 0
    grey: bool = False
    length: int = 256
    tokenizer: text.Tokenizer | None = None
    vocabulary_size: int = 0


def table(train: str | Path, test: str | Path, **columns: Any) -> Arrays:
    """A CSV (with a header), TSV, Parquet or Arrow file as a source.

    Args:
        train: the file of the training examples.
        test: the file of the test examples, which are public.
        columns: see :class:`Columns`.

    Raises:
        MissingDataError: a file does not exist.
        DataError: a file is damaged or has other columns. It quotes no value.
        ArgumentError: an argument is unknown, or does not fit the table.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "patients.csv"
    ...     _ = path.write_text("age,ill\\n30,no\\n90,yes\\n")
    ...     found = table(path, path, y="ill", classes=["no", "yes"], bounds={"age": (0, 120)})
    >>> found.batch(np.array([1]))
    Pair(x=tensor([[0.7500]]), y=tensor([1]))
    """
    name, owner = Path(train).stem, columns.get("owner")
    parts = [arrow.read([Path(path)], name, [owner] if owner else []) for path in (train, test)]
    return as_arrays(name, parts[0], parts[1], **columns)


def as_arrays(name: str, train: pa.Table, test: pa.Table, **columns: Any) -> Arrays:
    """Two Arrow tables as a source; arguments and errors are as for :func:`table`."""
    for unknown in sorted(set(columns) - set(Columns.__dataclass_fields__)):
        validation.choice("argument", unknown, Columns.__dataclass_fields__)
    return _Reader(name, test, Columns(**columns)).source(train, test)


class _Reader:
    """How the columns of a table become arrays, from the public test table and what the caller says."""

    def __init__(self, name: str, public: pa.Table, columns: Columns) -> None:
        self._name, self._columns, self._features = name, columns, arrow.features(public)
        self._schema = public.schema
        self._y = columns.y or self._found_y()
        self._require(self._y, "y")
        self._x = self._found_x()
        for one in self._x:
            self._require(one, "x")
        for one in columns.bounds or {}:
            self._require(one, "bounds")
        self._kind = self._kind_of(self._x[0])
        if len(self._x) > 1 and any(self._kind_of(one) != "number" for one in self._x):
            raise validation.fail("x", list(self._x), "be one column of images, one of texts, or numbers")
        self._names = self._class_names()

    def source(self, train: pa.Table, test: pa.Table) -> Arrays:
        """The tables as a source."""
        if not {self._y, *self._x} <= set(train.column_names):
            raise DataError(f"{self._name}: the training table lacks columns of the test table")
        tokens = (self._columns.vocabulary_size if self._columns.tokenizer else text.BYTES,)
        owner = self._columns.owner
        owners = self._owners(train, owner) if owner else None
        return Arrays(
            self._name,
            self._inputs(train),
            self._targets(train),
            self._inputs(test),
            self._targets(test),
            1 if self._columns.value else len(self._names),
            tokens=tokens if self._kind == "text" else (),
            target="value" if self._columns.value else "label",
            owners=owners,
            class_names=() if self._columns.value else self._names,
        )

    def _owners(self, train: pa.Table, column: str) -> list[str]:
        if column not in train.column_names:
            hint = validation.near(column, train.column_names) or f"it has {', '.join(train.column_names)}"
            raise validation.fail("owner", column, f"be a column of {self._name}", hint)
        found = self._values(train, column)
        if any(one is None or str(one).strip() == "" for one in found):
            raise DataError(f"{self._name}: column {column} must name somebody in each row")
        return [str(one) for one in found]

    def _require(self, column: str, called: str) -> None:
        if column not in self._schema.names:
            hint = validation.near(column, self._schema.names) or f"it has {', '.join(self._schema.names)}"
            raise validation.fail(called, column, f"be a column of {self._name}", hint)

    def _found_y(self) -> str:
        labelled = [key for key, kind in self._features.items() if kind.get("_type") == "ClassLabel"]
        usual = [key for key in _LABELS if key in self._schema.names]
        if len(labelled) == 1 or (labelled and not usual):
            return labelled[0]
        if usual:
            return usual[0]
        hint = f"it has {', '.join(self._schema.names)}"
        raise validation.fail("y", "", f"name the column of {self._name} that is predicted", hint)

    def _found_x(self) -> tuple[str, ...]:
        given = self._columns.x
        if given:
            return (given,) if isinstance(given, str) else tuple(given)
        left = [key for key in self._schema.names if key not in (self._y, self._columns.owner)]
        for kind in ("image", "number", "text"):
            found = tuple(key for key in left if self._kind_of(key) == kind)
            if kind == "number" and found:
                if others := [key for key in left if key not in found]:
                    hint = f"not all columns hold numbers: {', '.join(others)}"
                    raise validation.fail("x", "", f"name the inputs among {', '.join(found)}", hint)
                return found
            if len(found) == 1:
                return found
            if found:
                raise validation.fail("x", "", f"name one of the columns {', '.join(found)}")
        raise DataError(f"{self._name} has no column of images, texts or numbers besides {self._y}")

    def _kind_of(self, column: str) -> str:
        import pyarrow as pa

        kind = self._schema.field(column).type
        if self._features.get(column, {}).get("_type") == "Image" or pa.types.is_binary(kind):
            return "image"
        if pa.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}:
            return "image"
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return "text"
        numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
        return "number" if any(is_one(kind) for is_one in numbers) else "other"

    def _class_names(self) -> tuple[str, ...]:
        """The names of the labels, public: as given, or as the column's type says."""
        given = self._columns.classes
        if self._columns.value:
            return ()
        if not isinstance(given, int):
            return tuple(str(one) for one in given)
        if given:
            return tuple(map(str, range(validation.integer("classes", given, minimum=2))))
        names = self._features.get(self._y, {}).get("names")
        if isinstance(names, list) and len(names) > 1:
            return tuple(map(str, names))
        hint = "a number, or the labels' names in their order; it is public, and not counted in the data"
        raise validation.fail("classes", given, f"say how many labels {self._y} has", hint)

    def _values(self, part: pa.Table, column: str) -> list[Any]:
        found: list[Any] = part.column(column).to_pylist()
        return found

    def _numbers(self, part: pa.Table, column: str) -> Any:
        try:
            found = part.column(column).to_numpy().astype(np.float64)
        except (TypeError, ValueError):
            raise DataError(f"{self._name}: column {column} must hold numbers") from None
        bounds = (self._columns.bounds or {}).get(column)
        if bounds is None:
            return found
        low, high = bounds
        if not (low < high and math.isfinite(low) and math.isfinite(high)):
            raise validation.fail("bounds", bounds, f"be finite (low, high) with low < high for {column}")
        return (np.clip(found, low, high) - low) / (high - low)

    def _inputs(self, part: pa.Table) -> Any:
        columns = self._columns
        if self._kind == "image":
            values = self._values(part, self._x[0])
            encoded: list[Any] = [one.get("bytes") if isinstance(one, dict) else one for one in values]
            if not all(isinstance(one, bytes) for one in encoded):
                raise DataError(f"{self._name}: column {self._x[0]} must hold the images' bytes, not paths")
            return pictures.decoded(encoded, self._name, columns.image_size, columns.grey)
        if self._kind == "text":
            texts = [one if isinstance(one, str) else "" for one in self._values(part, self._x[0])]
            return text.ids(texts, columns.length, columns.tokenizer, columns.vocabulary_size)
        if self._kind != "number":
            raise validation.fail("x", self._x[0], "be a column of images, texts or numbers")
        return np.stack([self._numbers(part, one) for one in self._x], axis=1)

    def _targets(self, part: pa.Table) -> Any:
        if self._columns.value:
            return self._numbers(part, self._y)
        values = self._values(part, self._y)
        if any(isinstance(one, str) for one in values) or not isinstance(self._columns.classes, int):
            numbers = {label: number for number, label in enumerate(self._names)}
            found = [numbers.get(str(one)) for one in values]
            if None in found:
                raise DataError(f"{self._name}: column {self._y} has a label that is not among the classes")
            return np.array(found, np.int64)
        try:
            labels = np.array(values, np.int64)
            if not np.array_equal(labels, np.array(values)):
                raise ValueError
            return labels
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{self._name}: column {self._y} must hold one whole number a row") from None

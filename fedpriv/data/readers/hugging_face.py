"""Data sets of Hugging Face ``datasets``: a saved folder, Parquet files as on the hub, or objects.

The files are read with pyarrow: nothing is copied into a cache, and no code of a data set runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv._internal import validation
from fedpriv._internal.files import expanded
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError
from fedpriv.data.readers import arrow
from fedpriv.data.readers.table import as_arrays
from fedpriv.data.source import DataError

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "hf:"  # of the setting dataset, before a path
_TEST = ("test", "validation", "valid", "dev")  # the part that is public, the first that there is
_PART = re.compile(r"(?:^|[^a-z])(train|test|validation|valid|dev)(?:[^a-z]|$)")
_MOST_JSON = 1 << 20  # bytes of a folder's own description
_LONGEST_NAME = 255  # bytes of a file's name, on all usual systems


def is_path(dataset: str) -> bool:
    """Whether a setting's value names such files, and no code."""
    return dataset.startswith(PREFIX)


def hugging_face(dataset: Any, partitioner: Any = None, **columns: Any) -> Arrays:
    """A data set of Hugging Face ``datasets`` as a source.

    Args:
        dataset: a folder that ``save_to_disk`` wrote, a folder with Parquet files whose names or folders say
            ``train`` and ``test`` (or ``validation``), or a DatasetDict with these parts. The test part is
            public.
        partitioner: a partitioner of ``flwr_datasets``, which assigns the training examples to clients; use
            it with ``partition=natural``. Examples that it leaves out are left out.
        columns: see :class:`fedpriv.data.readers.table.Columns`. Images, class labels and their names are
            found by the columns' types.

    Raises:
        MissingDataError: there is no such folder, or a part is missing.
        DataError: a file is damaged, or the columns do not fit. It quotes no value.
        ArgumentError: an argument does not fit the data set.
    """
    if isinstance(dataset, str | Path):
        path = expanded(dataset)
        name, parts = path.resolve().name, _of_folder(path)
    elif isinstance(dataset, Mapping):
        name, parts = "datasets", {str(key): _of_object(part) for key, part in dataset.items()}
    else:
        kind = type(dataset).__name__
        raise DataError(f"dataset is a {kind}; it must be a path, or a DatasetDict with train and test")
    public = next((part for part in _TEST if part in parts), None)
    if "train" not in parts or public is None:
        there = ", ".join(sorted(parts)) or "nothing"
        raise MissingDataError(f"{name} must have the parts train, and test or validation; it has {there}")
    train = parts["train"]
    if partitioner is not None:
        if columns.get("owner"):
            raise validation.fail("owner", columns["owner"], "be left out: the partitioner names the owners")
        train, columns = _partitioned(train, partitioner), {**columns, "owner": _CLIENT}
    return as_arrays(name, train, parts[public], **columns)


_ROW, _CLIENT = "fedpriv-row", "fedpriv-client"


def _partitioned(train: pa.Table, partitioner: Any) -> pa.Table:
    """The table with the number of each row's client. Raises DataError if rows are missing or given twice."""
    import datasets

    rows = _with_column(train, _ROW, list(range(train.num_rows)))
    try:
        partitioner.dataset = datasets.Dataset(rows)
    except ValueError:
        raise DataError("partitioner has a data set already; give a new one for each data set") from None
    owners = [-1] * train.num_rows
    for client in range(partitioner.num_partitions):
        for row in partitioner.load_partition(client)[_ROW]:
            if owners[row] >= 0:
                raise DataError("the partitioner gives an example to two clients, which breaks their privacy")
            owners[row] = client
    kept = [row for row, owner in enumerate(owners) if owner >= 0]
    return _with_column(train, _CLIENT, owners).take(kept)


def _with_column(part: pa.Table, name: str, values: list[int]) -> pa.Table:
    import pyarrow as pa

    longer = part.append_column(name, pa.array(values, pa.int64()))
    return longer.replace_schema_metadata(part.schema.metadata)


def _of_object(part: Any) -> pa.Table:
    """A Dataset as a table, with its rows in the order that it shows."""
    import pyarrow as pa

    try:
        found = part.with_format("arrow")[:]
        schema = part.features.arrow_schema
    except (AttributeError, TypeError):
        kind = type(part).__name__
        raise DataError(f"a part of the data set is a {kind}; it must be a datasets.Dataset") from None
    assert isinstance(found, pa.Table)
    return found.replace_schema_metadata(schema.metadata)


def _of_folder(path: Path) -> dict[str, pa.Table]:
    if not path.is_dir():
        raise MissingDataError(f"{path.absolute()} is not a folder of a data set")
    if (path / "dataset_dict.json").is_file():
        return {part: _saved(path / part) for part in _listed(path / "dataset_dict.json", "splits")}
    files: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*.parquet")):
        within = file.relative_to(path).as_posix().lower()
        if file.resolve().is_relative_to(path.resolve()) and (part := _PART.search(within)):
            files.setdefault(part.group(1), []).append(file)
    _require_one_configuration(path, files)
    return {part: arrow.read(found, path.name) for part, found in files.items()}


def _require_one_configuration(path: Path, files: Mapping[str, Sequence[Path]]) -> None:
    """Raises DataError where one part lies in several folders: an example would count more than once."""
    for part, found in files.items():
        folders = {file.parent.relative_to(path).as_posix() for file in found}
        if len(folders) > 1:
            names = ", ".join(sorted(folders))
            raise DataError(
                f"{path} has files of {part!r} in several folders: {names}; name one configuration, as "
                f"{path / min(folders)}"
            )


def _saved(folder: Path) -> pa.Table:
    """One part of a folder that ``save_to_disk`` wrote."""
    names = _listed(folder / "state.json", "_data_files")
    found = [folder / name for name in names]
    if not all(one.resolve().is_relative_to(folder.parent.resolve()) for one in (folder, *found)):
        raise DataError(f"{folder.parent} has a part that lies outside of it")
    return arrow.read(found, folder.name)


def _listed(file: Path, key: str) -> list[str]:
    """The names that a JSON file lists, without their folders, so that no path leads outside."""
    try:
        if file.stat().st_size > _MOST_JSON:
            raise ValueError
        found = json.loads(file.read_bytes())[key]
        if not isinstance(found, list):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        found = [None]
    named = [one.get("filename") if isinstance(one, dict) else one for one in found]
    names = [Path(one).name for one in named if isinstance(one, str)]
    if len(names) < len(named):
        raise DataError(f"{file} is damaged: it must list {key}")
    if ".." in names:
        raise DataError(f"{file} is damaged: it names a folder outside of its own")
    if not all(map(_is_name, names)):
        raise DataError(f"{file} is damaged: {key} holds what cannot be a file's name")
    if len(set(names)) < len(names):  # reading a file once for each mention would fill the memory
        raise DataError(f"{file} is damaged: {key} has a name twice")
    return names


def _is_name(name: str) -> bool:
    """Whether a file could have this name."""
    try:
        return 0 < len(os.fsencode(name)) <= _LONGEST_NAME and "\0" not in name
    except UnicodeEncodeError:
        return False

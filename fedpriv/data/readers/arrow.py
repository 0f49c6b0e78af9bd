"""Tables in files: CSV, Parquet, and Arrow as Hugging Face ``datasets`` saves them.

Files are not trusted: a table is read only if it unpacks to a bounded multiple of its file's size. That of an
Arrow file with compressed buffers, which ``save_to_disk`` does not write, is seen after it was read. Needs
pyarrow (extra ``data``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.files import MissingDataError, most_unpacked, too_large
from fedpriv.data.source import DataError

if TYPE_CHECKING:
    import pyarrow as pa

CSV = (".csv", ".tsv")
PARQUET = (".parquet",)
ARROW = (".arrow",)
_MOST_ROWS = 1 << 16  # rows of a Parquet file that are read at once


def read(paths: Sequence[Path], name: str, as_text: Collection[str] = ()) -> pa.Table:
    """The rows of all files, one after the other; a CSV's columns ``as_text`` are not taken for numbers.

    Raises:
        MissingDataError: there is no file, or one does not exist.
        DataError: pyarrow is not installed, or a file is damaged, of another format, or far larger than it
            says. It quotes no value.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError(f"{name}: pyarrow reads tables: pip install 'fedpriv[data]'") from None
    if not paths:
        raise MissingDataError(f"{name} has no files")
    tables = []
    for path in paths:
        if not path.is_file():
            raise MissingDataError(f"{path.absolute()} does not exist")
        try:
            tables.append(_read_one(path, as_text))
        except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
            if isinstance(error, DataError):
                raise
            # The cause is dropped, because its text may quote the data.
            raise DataError(f"{path} is damaged, or not a table of the format that its name says") from None
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException:
        raise DataError(f"{name}: the files do not have the same columns") from None


def _read_one(path: Path, as_text: Collection[str]) -> pa.Table:
    import pyarrow as pa

    limit = most_unpacked(path.stat().st_size)
    ending = path.suffix.lower()
    if ending in PARQUET:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            if size > limit:
                raise too_large(path, limit)
            # A value is stored once however many rows have it: a row may hold all of the file, and its copies
            # are counted as they are made.
            batches, left = [], limit
            for batch in file.iter_batches(batch_size=max(1, min(_MOST_ROWS, limit // max(1, size)))):
                batches.append(batch)
                left -= batch.nbytes
                if left < 0:
                    raise too_large(path, limit)
            table = pa.Table.from_batches(batches, file.schema_arrow)
    elif ending in ARROW:
        with pa.memory_map(str(path)) as mapped:
            try:
                table = pa.ipc.open_stream(mapped).read_all()
            except pa.ArrowInvalid:
                table = pa.ipc.open_file(mapped).read_all()
            table.validate(full=True)  # reading looks at no offsets, which may point outside the file
    elif ending in CSV:
        import pyarrow.csv as csv

        options = csv.ParseOptions(delimiter="\t" if ending == ".tsv" else ",", newlines_in_values=True)
        kinds = csv.ConvertOptions(column_types=dict.fromkeys(as_text, pa.string()))
        table = csv.read_csv(path, parse_options=options, convert_options=kinds)
    else:
        raise DataError(f"{path} must end in {', '.join((*CSV, *PARQUET, *ARROW))}")
    if table.nbytes > limit:
        raise too_large(path, limit)
    return table


def features(table: pa.Table) -> Mapping[str, Mapping[str, Any]]:
    """{column: what Hugging Face ``datasets`` wrote of it} from the table's metadata; empty without them."""
    try:
        written = json.loads((table.schema.metadata or {})[b"huggingface"])
        found = written["info"]["features"]
        return {str(key): value for key, value in found.items() if isinstance(value, dict)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}

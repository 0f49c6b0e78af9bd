"""Atomic writes, errors of writing that name the file, and numbers out of CSV files."""

from __future__ import annotations

import contextlib
import csv
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from fedpriv._internal import validation


@contextlib.contextmanager
def naming(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Errors of the system name ``path`` where they name no file, as that of a full disk, or its draft."""
    try:
        yield
    except OSError as error:
        # Without a number an error's text is its own, and no file is part of it.
        if error.errno is not None and error.filename in (None, str(draft)):
            error.filename = str(path)
        raise


def unwritable(path: Path) -> str:
    """Why nothing can be written at ``path``, in folders that are made where they are missing; empty where
    something can. Leaves nothing behind."""
    place = path
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        return f"{place} is no folder"
    try:
        with tempfile.TemporaryFile(dir=place):  # os.access promises root folders that let nobody in
            return ""
    except OSError as error:
        return f"{place}: {error.strerror or error}"


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, that appears at ``path``, whole, when the block ends without an error.

    The folder is made where it is missing. After an error nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by tempfile, which makes files for the owner's eyes alone: these follow the user's mask.
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with naming(path, name):
            with name.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def read_numbers(
    name: str, path: str, count: int | None = None, check: Callable[[str, float], object] = validation.real
) -> list[float]:
    """The numbers of a CSV file, one a line and a step; empty lines do not count.

    Raises ArgumentError, by file and line, for a line that is no number or that ``check`` refuses, and where
    there are not ``count`` numbers.
    """
    values = []
    try:
        with Path(path).open(newline="") as file:
            rows = csv.reader(file)
            for row in rows:
                cells = [cell for cell in row if cell.strip()]
                if cells:
                    where = f"{name} {path}, line {rows.line_num}"
                    values.append(_number(where, cells))
                    check(where, values[-1])
    except OSError:
        raise validation.fail(name, path, "be an existing CSV file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise validation.fail(name, path, "be a CSV file of text", str(error)) from None
    if not values:
        raise validation.fail(name, path, "be a CSV file that holds numbers")
    if count is not None and len(values) != count:
        raise validation.fail(name, path, f"have one value a round, {count}", f"it has {len(values)}")
    return values


def _number(where: str, cells: Sequence[str]) -> float:
    """The only cell of a line as a number."""
    if len(cells) == 1:
        try:
            return float(cells[0])
        except ValueError:
            pass
    raise validation.fail(where, ",".join(cells), "be one number")

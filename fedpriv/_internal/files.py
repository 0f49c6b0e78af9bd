"""Files: atomic writes with errors that name the file, lines of JSON, and numbers from CSV files."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import secrets
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from fedpriv._internal import validation


@contextlib.contextmanager
def naming(path: Path, draft: Path | None = None) -> Iterator[None]:
    """System errors within the block name ``path`` if they name no file (as for a full disk) or ``draft``."""
    try:
        yield
    except OSError as error:
        # An OSError without a number does not print its file name.
        if error.errno is not None and error.filename in (None, str(draft)):
            error.filename = str(path)
        raise


def unwritable(path: Path) -> str:
    """Why ``path`` cannot be written even if missing folders are created; empty if it can be written.

    Nothing is left on disk.
    """
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=folder):  # for root, os.access also accepts read-only folders
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror or error}"


@contextlib.contextmanager
def atomic(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """A binary file to write. It appears at ``path``, complete, when the block ends without an error.

    Missing folders are created. After an error nothing is left on disk. Only its owner can read a ``private``
    file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # tempfile would make files that only the owner can read; these follow the user's umask.
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with naming(path, name):
            with open(name, "xb", opener=_for_owner if private else None) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as a line of JSON. A part of a line that a crash left does not take it along."""
    with naming(path), path.open("ab+") as file:
        if file.tell() and not _ends_a_line(file):
            file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of lines, without lines that a crash left incomplete; [] if there is no file."""
    found = []
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(read_json(text))
    return [record for record in found if isinstance(record, dict)]


def quoted(path: str | Path) -> str:
    """The path as a word of a command to paste."""
    return shlex.quote(str(path))


def sync_folder(folder: Path) -> None:
    """Returns once the names of the folder's files are on disk."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expanded(path: str | Path) -> Path:
    """The path with ``~`` as the user's home. ``~name`` stays where there is no such user."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises RuntimeError there


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for anything else, and for brackets without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


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
    except validation.FedprivError:
        raise
    except OSError:
        raise validation.fail(name, path, "be an existing CSV file") from None
    except (ValueError, csv.Error) as error:  # not UTF-8, or a path with a zero byte
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

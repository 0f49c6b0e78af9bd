"""Where data files lie, and writing them so that a reader never sees half of one.

>>> data_folder("~/somewhere").name
'somewhere'
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast


def data_folder(folder: str | Path | None = None) -> Path:
    """``folder``, else $FEDPRIV_DATA, else ``~/.cache/fedpriv``; it need not exist."""
    chosen = folder or os.environ.get("FEDPRIV_DATA") or Path.home() / ".cache" / "fedpriv"
    return Path(chosen).expanduser()


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, that appears at ``path``, whole, when the block ends without an error.

    The folder is made where it is missing. After an error nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield cast(BinaryIO, file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner's eyes; data files follow the user's mask.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

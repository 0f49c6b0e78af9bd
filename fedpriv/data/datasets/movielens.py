r"""MovieLens-100k: ratings of items by users.

``u.data`` has a tab-separated line ``user item rating timestamp`` for each rating, in random order, with
users 1..943 and items 1..1682. An example is (user - 1, item - 1), and its value is the rating, 1 to 5. The
timestamp is not used. Li 2023 (appendix C.1) partition the ratings at random. From their 1,250 steps per
epoch with batches of 64 (appendix C.2) follow 80,000 ratings for training and 20,000 for the test. They do
not publish the partition, so the public split of :mod:`fedpriv.data.splits` is used.

>>> ids, rating = parse(b"196\t242\t3\t881250949\n", "toy")
>>> ids.tolist(), rating.tolist()
([[195, 241]], [3.0])
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import content
from fedpriv.data.registry import files, register
from fedpriv.data.source import DataError, Indices
from fedpriv.data.splits import split

if TYPE_CHECKING:
    import numpy.typing as npt

USERS, ITEMS = 943, 1682
_TEXT = re.compile(rb"(?:\d{1,4}+\t\d{1,4}+\t[1-5]\t\d{1,12}+\r?(?:\n|\Z))++")


def parse(text: bytes, name: str) -> tuple[Indices, npt.NDArray[np.float32]]:
    """User and item numbers from 0, (n, 2), and ratings (n,). Raises DataError if it is not ``u.data``."""
    if not _TEXT.fullmatch(text):
        raise DataError(f"{name} is not MovieLens-100k's u.data; fetch it again")
    table = np.fromstring(text.decode(), np.int64, sep=" ").reshape(-1, 4)
    ids = table[:, :2] - 1
    if ids.min() < 0 or (ids.max(axis=0) >= (USERS, ITEMS)).any():
        raise DataError(f"{name}: users must be 1..{USERS} and items 1..{ITEMS}; fetch it again")
    return ids, table[:, 2].astype(np.float32)


def read(path: Path) -> Arrays:
    """The source of the file at ``path``. A client is a user. Raises DataError if the file is damaged."""
    ids, rating = parse(content(path), str(path))
    train, test = split(len(ids))
    if not len(train) or not len(test):
        raise DataError(f"{path} has too few ratings for a training and a test part; fetch it again")
    return Arrays(
        "movielens-100k",
        ids[train].astype(np.int16),
        rating[train],
        ids[test].astype(np.int16),
        rating[test],
        classes=1,
        tokens=(USERS, ITEMS),
        target="value",
        owners=ids[train, 0],
    )


register("movielens-100k", files("movielens-100k", "u.data"), lambda paths: read(*paths))

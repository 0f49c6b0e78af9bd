"""Texts and examples by user: one JSON object a line, or LEAF's JSON. Each user is a natural client.

Lines of JSON: ``{"user": NAME, "text": TEXT}``, from which the next byte is predicted, or ``{"user": NAME,
"x": [[...], ...], "y": [...]}``. LEAF: ``{"users": [...], "user_data": {NAME: {"x": [...], "y": [...]}}}``,
where x and y may be texts: the last bytes of an x are followed by the first byte of its y.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.files import expanded
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError, content
from fedpriv.data.readers import text
from fedpriv.data.source import DataError

_HASH_BYTES = 8


def users(
    train: str | Path,
    test: str | Path | None = None,
    *,
    classes: int = 0,
    length: int = 80,
    stride: int = 1,
    most: int = 0,
    least_characters: int = 0,
    public_share: float = 0.1,
) -> Arrays:
    """Examples by user as a source for ``partition=natural``: every user is a client.

    Args:
        train: the file of the users' examples, plain or compressed.
        test: the file of the public examples; None: some users are public, and no clients. Whether a user is
            public depends on a hash of the user's own name alone.
        classes: the number of labels, a public constant; not for texts, whose labels are the 257 ids of
            bytes.
        length: of texts, the bytes before the one that is predicted.
        stride: of texts, the bytes from one example to the next.
        most: the examples that a user has at most; 0: all.
        least_characters: users with shorter texts are left out.
        public_share: the share of users that are public without ``test``.

    Raises:
        MissingDataError: a file does not exist.
        DataError: a file is damaged, or an example has another form. It quotes no value.
        ArgumentError: an argument is outside its range.
    """
    validation.integer("length", length, minimum=1)
    validation.integer("stride", stride, minimum=1)
    validation.integer("most", most)
    if test is None and not 0 < public_share < 1:
        raise validation.fail("public_share", public_share, "be above 0 and below 1")
    path = expanded(train)
    reader = _Users(path.name.split(".")[0], length, stride, most, least_characters)
    found = list(reader.examples(path))
    if test is None:
        public = [one for one in found if _is_public(one[0], public_share)]
        found = [one for one in found if not _is_public(one[0], public_share)]
    else:
        public = list(reader.examples(expanded(test)))
    if not found or not public:
        raise DataError(f"{reader.name} has no {'user' if not found else 'public user'} with an example")
    texts = reader.texts
    if not texts:
        validation.integer("classes", classes, 2, "how many labels there are: a public constant")
    shapes = {one[1].shape[1:] for half in (found, public) for one in half}
    if len(shapes) > 1:
        raise DataError(f"{reader.name}: the examples of all users must have one length")
    x, y, test_x, test_y = (
        np.concatenate([one[at] for one in half]) for half in (found, public) for at in (1, 2)
    )
    owners = np.repeat(np.arange(len(found)), [len(y) for _, _, y in found])
    return Arrays(
        reader.name,
        x,
        y,
        test_x,
        test_y,
        classes=text.BYTES if texts else classes,
        tokens=(text.BYTES,) if texts else (),
        owners=owners,
    )


def _is_public(user: str, share: float) -> bool:
    digest = hashlib.sha256(user.encode(errors="surrogatepass")).digest()[:_HASH_BYTES]
    return bool(int.from_bytes(digest, "big") < share * 2 ** (8 * _HASH_BYTES))


def _is_leaf(raw: bytes) -> bool:
    """Whether the file is one object of LEAF: its first line is no user's record."""
    try:
        return "user" not in json.loads(raw.lstrip().split(b"\n", 1)[0])
    except (ValueError, TypeError, RecursionError):
        return raw.lstrip().startswith(b"{")  # an object over several lines


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise DataError(f"{path} names a user twice; put all examples of a user into one entry")
    return found


class _Users:
    """Reads files of users.

    Attributes:
        name: the data set's.
        texts: whether the users read so far have texts.
    """

    def __init__(self, name: str, length: int, stride: int, most: int, least: int) -> None:
        self.name, self.texts = name, False
        self._length, self._stride, self._most, self._least = length, stride, most, least

    def examples(self, path: Path) -> Iterator[tuple[str, Any, Any]]:
        """(user, x, y) of each user with an example, in the order of the file.

        A user who is named twice is refused: both halves together would be one client.
        """
        seen = set[str]()
        for user, record in self._records(path):
            if user in seen:
                raise DataError(f"{path} names a user twice; put all examples of a user into one line")
            seen.add(user)
            x, y = self._of_text(record) if "text" in record else self._of_lists(record, path)
            if len(y):
                yield user, x, y

    def _records(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        if not path.is_file():
            raise MissingDataError(f"{path.absolute()} does not exist")
        raw = content(path)
        try:
            if _is_leaf(raw):
                whole = json.loads(raw, object_pairs_hook=lambda pairs: _unique(pairs, path))
                yield from ((str(user), dict(data)) for user, data in whole["user_data"].items())
                return
            for line in raw.split(b"\n"):
                if line.strip():
                    record = dict(json.loads(line))
                    yield str(record["user"]), record
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            # The cause is dropped, because its text may quote the data.
            wanted = '{"user": ..., "text": ...} in each line, or LEAF\'s {"users": ..., "user_data": ...}'
            raise DataError(f"{path} is damaged: it must have {wanted}") from None

    def _of_text(self, record: dict[str, Any]) -> tuple[Any, Any]:
        self.texts, written = True, record["text"]
        if not isinstance(written, str):
            raise DataError(f"{self.name}: a text must be a string")
        if len(written) < self._least:
            return (), ()
        ids = np.array(text.of_bytes(written), np.int16)
        starts = np.arange(0, max(0, len(ids) - self._length), self._stride)
        starts = starts[: self._most] if self._most else starts
        if not len(starts):
            return (), ()
        windows = np.lib.stride_tricks.sliding_window_view(ids, self._length)
        return windows[starts], ids[starts + self._length].astype(np.int64)

    def _of_lists(self, record: dict[str, Any], path: Path) -> tuple[Any, Any]:
        x, y = record.get("x"), record.get("y")
        if not isinstance(x, Sequence) or not isinstance(y, Sequence) or len(x) != len(y):
            raise DataError(f"{path}: each user must have a text, or as many x as y")
        most = self._most or len(y)
        if len(y) and all(isinstance(one, str) and one for one in (*x, *y)):  # texts, as LEAF's Shakespeare
            self.texts = True
            labels = [text.of_bytes(one)[0] for one in y[:most]]
            last = text.ids(
                x[:most], self._length, lambda one: text.of_bytes(one)[-self._length :], text.BYTES
            )
            return last.astype(np.int16), np.array(labels, np.int64)
        try:
            found = np.array(x[:most], np.float32), np.array(y[:most])
        except (TypeError, ValueError):
            raise DataError(f"{path}: x must be rows of numbers of one length") from None
        if len(y) and (found[0].ndim < 2 or found[1].dtype.kind not in "iu"):
            raise DataError(f"{path}: x must be rows of numbers, and y whole numbers")
        return found

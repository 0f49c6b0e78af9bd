r"""Stack Overflow: predicts the tags of a question (out of the 500 most frequent) from one of its sentences.

The data is read from TensorFlow Federated's release with SQLite only: ``stackoverflow.sqlite`` (extract it
with ``xz --decompress --format=lzma stackoverflow.sqlite.lzma``) with the tables ``client_metadata``
(client_id, split_name, num_examples) and ``examples`` (split_name, client_id, serialized_example_proto), and
the public lists ``stackoverflow.word_count`` (a word and its count per line, sorted by descending count) and
``stackoverflow.tag_count`` (JSON). A row is a tf.train.Example with the features tokens, title and tags.

As in TFF's tag prediction, x is the mean of the one-hot vectors of the words of sentence and title. Words
that are not among the ``vocabulary`` most frequent have a zero vector. y are the tags among the 500 most
frequent.

There are 135,818,730 training sentences of 342,477 users. A fixed part is read: users in a fixed random
order, at most the first ``PER_USER`` sentences of each, until there are 246,092, the number that Li 2023
(appendix C.1) draw. They do not publish which ones they draw. A client is a user. The test part is 10,000
sentences of TFF's held-out users, since TFF's split ``test`` contains later sentences of the training users.

>>> texts(b"\n\x10\n\x0e\n\x05title\x12\x05\n\x03\n\x01a")
{'title': 'a'}
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from fedpriv._internal.files import read_json
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.arrays import Arrays
from fedpriv.data.datasets.imdb import TextSettings
from fedpriv.data.registry import files, register
from fedpriv.data.source import DataError, Indices
from fedpriv.data.sparse import SparseRows
from fedpriv.data.splits import shuffled

FILES = ("stackoverflow.sqlite", "stackoverflow.word_count", "stackoverflow.tag_count")
TRAIN, TEST, PER_USER = 246_092, 10_000, 100
TAGS = 500

_Bag = tuple[Counter[int], int, set[int]]  # (count of each known word, number of all words, tags)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the length-delimited fields of a protocol buffer message.

    Raises ValueError if the message is truncated, or has a group or fixed-size field: an Example has none.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            if at + value > len(message):
                raise ValueError
            yield key >> 3, message[at : at + value]
            at += value
        elif key & 7 != 0:
            raise ValueError


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError


def texts(example: bytes) -> dict[str, str]:
    """The features of a serialised tf.train.Example that consist of one string: {name: string}.

    Raises ValueError (or its subclass UnicodeDecodeError) if it is not an Example.
    """
    found: dict[str, str] = {}
    for _, features in _fields(example):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            for kind, values in _fields(parts.get(2, b"")):
                if kind == 1:  # a list of strings; fields 2 and 3 are lists of numbers
                    strings = [value for _, value in _fields(values)]
                    if len(strings) == 1:
                        found[parts.get(1, b"").decode()] = strings[0].decode()
    return found


def _bag(example: bytes, words: Mapping[str, int], tags: Mapping[str, int]) -> _Bag:
    text = texts(example)
    sentence = f"{text['tokens']} {text['title']}".split()
    known = Counter(words[word] for word in sentence if word in words)
    return known, len(sentence), {tags[tag] for tag in text["tags"].split("|") if tag in tags}


def _read_part(
    database: sqlite3.Connection, split: str, wanted: int, words: Mapping[str, int], tags: Mapping[str, int]
) -> tuple[list[_Bag], list[int]]:
    """(at most ``wanted`` sentences, the number of each sentence's user)."""
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    users = [row[0] for row in database.execute(query, (split,))]
    bags: list[_Bag] = []
    owners: list[int] = []
    query = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
        "ORDER BY rowid LIMIT ?"
    )
    for owner, place in enumerate(shuffled(len(users))):
        if len(bags) == wanted:
            break
        limit = min(PER_USER, wanted - len(bags))
        rows = database.execute(query, (split, users[place], limit)).fetchall()
        bags += [_bag(row[0], words, tags) for row in rows]
        owners += [owner] * len(rows)
    return bags, owners


def _rows(entries: Sequence[Mapping[int, float]], width: int) -> SparseRows:
    offsets = np.concatenate([[0], np.cumsum([len(entry) for entry in entries])])
    columns = [column for entry in entries for column in entry]
    values = [value for entry in entries for value in entry.values()]
    return SparseRows(offsets, np.array(columns), np.array(values), width)


def _arrays(bags: Sequence[_Bag], width: int) -> tuple[SparseRows, SparseRows]:
    x = [{word: count / total for word, count in known.items()} for known, total, _ in bags]
    return _rows(x, width), _rows([dict.fromkeys(tags, 1.0) for _, _, tags in bags], TAGS)


def read_words(path: Path, count: int) -> dict[str, int]:
    """The ``count`` most frequent words: {word: rank}. Raises DataError if there are fewer."""
    try:
        with path.open(encoding="utf-8") as file:
            found = [line.split()[0] for line, _ in zip(file, range(count), strict=False)]
    except (IndexError, UnicodeDecodeError):
        raise DataError(f"{path} is not a list of words and counts, one per line; fetch it again") from None
    if len(set(found)) < count:
        raise DataError(f"{path}: must list at least {count} words; fetch it again")
    return {word: place for place, word in enumerate(found)}


def read_tags(path: Path) -> dict[str, int]:
    """The ``TAGS`` most frequent tags: {tag: rank}. Raises DataError if there are fewer."""
    try:
        counts = dict[str, int](read_json(path.read_text(encoding="utf-8")))
        ranked = sorted(counts, key=lambda tag: -counts[tag])[:TAGS]
    except (ValueError, TypeError):
        raise DataError(f"{path} is not a JSON table of tags and counts; fetch it again") from None
    if len(ranked) < TAGS:
        raise DataError(f"{path}: must list at least {TAGS} tags; fetch it again")
    return {tag: place for place, tag in enumerate(ranked)}


def read(paths: Sequence[Path], vocabulary: int) -> Arrays:
    """The source of TFF's three files. Raises DataError for damaged ones."""
    words, tags = read_words(paths[1], vocabulary), read_tags(paths[2])
    try:
        database = sqlite3.connect(f"file:{quote(str(paths[0].resolve()))}?mode=ro&immutable=1", uri=True)
        try:
            train, owners = _read_part(database, "train", TRAIN, words, tags)
            test, _ = _read_part(database, "heldout", TEST, words, tags)
        finally:
            database.close()
    except (sqlite3.Error, KeyError, ValueError, TypeError):
        # The cause is dropped, because its text may quote the data.
        raise DataError(f"{paths[0]} is not TFF's Stack Overflow database; fetch it again") from None
    if not train or not test:
        raise DataError(f"{paths[0]} has no sentences of train or heldout users; fetch it again")
    parts = (*_arrays(train, vocabulary), *_arrays(test, vocabulary))
    owned: Indices = np.array(owners)
    return Arrays(
        "stackoverflow-tags",
        *parts,
        classes=TAGS,
        target="tags",
        owners=owned,
        vocabulary=tuple(words),
        class_names=tuple(tags),
    )


register(
    "stackoverflow-tags", files("stackoverflow-tags", *FILES), read, {"vocabulary": 10_000}, TextSettings
)

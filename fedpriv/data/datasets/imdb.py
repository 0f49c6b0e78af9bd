"""IMDB: film reviews labelled as negative (0) or positive (1).

The archive (Maas et al. 2011) holds one text file per review in ``aclImdb/{train,test}/{neg,pos}``, and the
public word list ``aclImdb/imdb.vocab``, sorted by descending frequency. Therefore no vocabulary is computed
from the reviews. A review is converted to lower case, HTML line breaks are removed, and it is split into
words (letters and digits, with apostrophes inside) and the marks ! and ?.

``imdb``: the first ``length`` words of a review as tokens. 0 is the padding, 1 a word that is not in the
vocabulary, 2 the most frequent word. Du 2021 state neither of the two sizes. Bu, Dong, Long & Su 2020, whose
experiment they repeat, keep 10,000 words, and 256 words of a review.
``imdb-bag``: whether each of the ``vocabulary`` most frequent words occurs in the review, as 0 and 1. These
are the 10,000 features of Li 2023 (appendix C.1).

>>> words("A<br />so-so film!  Isn't it?")
['a', 'so', 'so', 'film', '!', "isn't", 'it', '?']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.settings import Settings
from fedpriv.data.archives import DamagedArchiveError, blocks, entries
from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError
from fedpriv.data.registry import option, register
from fedpriv.data.source import DataError, Indices
from fedpriv.data.sparse import SparseRows
from fedpriv.data.splits import shuffled

if TYPE_CHECKING:
    import numpy.typing as npt

ARCHIVE = "aclImdb_v1.tar.gz"
CLASS_NAMES = ("negative", "positive")
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d{1,9}_\d{1,2})\.txt")
_VOCABULARY = "aclImdb/imdb.vocab"
_BREAK = re.compile(r"<br\s*/?>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[!?]")


def words(review: str) -> list[str]:
    """The words of a review, in order."""
    return _WORD.findall(_BREAK.sub(" ", review.lower()))


@dataclass(frozen=True)
class _Part:
    """Reviews in the public order, as the ranks of their words in the word list (-1 if a word is not in
    it).
    """

    ranks: list[Indices]
    labels: Indices


def find(folder: Path) -> Path:
    """The archive, or the folder ``aclImdb`` extracted from it.

    Raises MissingDataError if both are missing.
    """
    for path in (folder / ARCHIVE, folder / "aclImdb"):
        if path.exists():
            return path
    raise MissingDataError(
        f"{folder} has neither {ARCHIVE} nor its folder aclImdb: run `fedpriv data fetch imdb`, or set "
        "FEDPRIV_DATA to the folder that contains imdb"
    )


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name within the archive, content) of each review and of the word list."""
    if path.is_dir():
        for file in (path / "imdb.vocab", *path.glob("t*/[np]*/*.txt")):
            if file.is_file():
                yield str(file.relative_to(path.parent).as_posix()), file.read_bytes()
        return
    try:
        for name, _, stream in entries(path):
            if name == _VOCABULARY or _REVIEW.fullmatch(name):
                yield name, b"".join(blocks(path, stream))
    except DamagedArchiveError:
        raise DataError(f"{path} is damaged; delete it and run `fedpriv data fetch imdb`") from None


def _read(path: Path, vocabulary: int) -> tuple[_Part, _Part, list[str]]:
    """(training part, test part, the ``vocabulary`` most frequent words)."""
    reviews: dict[str, bytes] = {}
    listed: bytes | None = None
    for name, data in _files(path):
        if name == _VOCABULARY:
            listed = data
        elif _REVIEW.fullmatch(name):
            reviews[name] = data
    if listed is None:
        raise DataError(f"{path} has no {_VOCABULARY}; delete it and run `fedpriv data fetch imdb`")
    try:
        ranked = listed.decode("utf-8").split()[:vocabulary]
        rank = {word: place for place, word in reversed(list(enumerate(ranked)))}
        return _part(path, reviews, rank, "train"), _part(path, reviews, rank, "test"), ranked
    except UnicodeDecodeError:
        raise DataError(f"{path} has a text that is not UTF-8; fetch it again") from None


def _part(path: Path, reviews: Mapping[str, bytes], rank: Mapping[str, int], part: str) -> _Part:
    names = sorted(name for name in reviews if name.startswith(f"aclImdb/{part}/"))
    if not names:
        raise DataError(f"{path} has no reviews in aclImdb/{part}; fetch it again")
    names = [names[row] for row in shuffled(len(names))]  # the files are sorted by label
    ranks = [
        np.array([rank.get(word, -1) for word in words(reviews[name].decode("utf-8"))], np.int64)
        for name in names
    ]
    return _Part(ranks, np.array([int(f"/{part}/pos/" in name) for name in names]))


def read(path: Path, vocabulary: int, length: int) -> Arrays:
    """``imdb``: tokens (length,) below ``vocabulary``. Raises DataError for a damaged archive."""

    def tokens(part: _Part) -> npt.NDArray[np.int32]:
        table = np.zeros((len(part.ranks), length), np.int32)
        for row, ranks in enumerate(part.ranks):
            table[row, : len(ranks[:length])] = ranks[:length] + 2  # rank -1 becomes token 1
        return table

    train, test, ranked = _read(path, vocabulary - 2)
    parts = tokens(train), train.labels, tokens(test), test.labels
    texts = ["", "<unknown>", *ranked]
    texts += [""] * (vocabulary - len(texts))  # a short list names fewer
    return Arrays("imdb", *parts, classes=2, tokens=(vocabulary,), vocabulary=texts, class_names=CLASS_NAMES)


def read_bags(path: Path, vocabulary: int) -> Arrays:
    """``imdb-bag``: 0 and 1 (vocabulary,). Raises DataError for a damaged archive."""

    def bags(part: _Part) -> SparseRows:
        sets = [np.unique(ranks[ranks >= 0]) for ranks in part.ranks]
        offsets = np.concatenate([[0], np.cumsum([len(some) for some in sets])])
        columns = np.concatenate(sets)
        return SparseRows(offsets, columns, np.ones(len(columns)), vocabulary)

    train, test, ranked = _read(path, vocabulary)
    parts = bags(train), train.labels, bags(test), test.labels
    texts = ranked + [""] * (vocabulary - len(ranked))
    return Arrays("imdb-bag", *parts, classes=2, vocabulary=texts, class_names=CLASS_NAMES)


class TextSettings(Settings):
    """Settings of data sets of texts; a data set may have some of them."""

    vocabulary: int = option("vocabulary", "vocabulary size", at_least=3)
    sequence_length: int = option("sequence-length", "words read per text", at_least=1)


def _find(data: Path) -> Path:
    return find(data / "imdb")


register("imdb", _find, read, {"vocabulary": 10_000, "sequence-length": 256}, TextSettings)
register("imdb-bag", _find, read_bags, {"vocabulary": 10_000}, TextSettings)

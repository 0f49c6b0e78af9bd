"""IMDB: from an archive in its format, or the folder unpacked from it."""

import io
import tarfile

import numpy as np
import pytest

from fedpriv.data import DataError, MissingDataError, load
from fedpriv.data.datasets.imdb import ARCHIVE, words

VOCABULARY = "the\nfilm\n!\nisn't\nbad\ngood\n"
TEXTS = {
    "aclImdb/imdb.vocab": VOCABULARY,
    "aclImdb/train/pos/0_9.txt": "GOOD film!<br /><br />the the",
    "aclImdb/train/neg/10_1.txt": "zzz bad",
    "aclImdb/train/neg/2_3.txt": "",
    "aclImdb/train/unsup/5_0.txt": "good good",
    "aclImdb/train/urls_pos.txt": "http://example.org",
    "aclImdb/test/pos/0_10.txt": "the film isn't bad",
    "aclImdb/test/neg/0_1.txt": "isn't it? caf\u00e9",
}


def write_archive(folder, texts=TEXTS):
    (folder / "imdb").mkdir(exist_ok=True)
    with tarfile.open(folder / "imdb" / ARCHIVE, "w:gz") as tar:
        for name, text in texts.items():
            item = tarfile.TarInfo(name)
            item.size = len(text.encode())
            tar.addfile(item, io.BytesIO(text.encode()))


def write_folder(folder):
    for name, text in TEXTS.items():
        path = folder / "imdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def test_words():
    assert words("It's 10/10 -- the best_ever!<br/>Caf\u00e9 'quoted' rock'n'roll?") == (
        ["it's", "10", "10", "the", "best", "ever", "!", "caf\u00e9", "quoted", "rock'n'roll", "?"]
    )


@pytest.mark.parametrize("write", [write_archive, write_folder])
def test_tokens_are_ranks_in_the_public_list(tmp_path, write):
    write(tmp_path)
    source = load("imdb", tmp_path, vocabulary=7, sequence_length=4)
    # 0 padding, 1 unknown, then the, film, !, isn't, bad; good is the sixth word, beyond the vocabulary.
    assert (source.size, source.shape, source.tokens, source.classes) == (3, (4,), (7,), 2)
    x, y = source.batch(np.arange(3))
    assert sorted(zip(map(tuple, x.tolist()), y.tolist(), strict=True)) == [
        ((0, 0, 0, 0), 0),
        ((1, 3, 4, 2), 1),  # cut to four words
        ((1, 6, 0, 0), 0),
    ]
    test = source.test()
    assert sorted(zip(map(tuple, test.x.tolist()), test.y.tolist(), strict=True)) == [
        ((2, 3, 5, 6), 1),
        ((5, 1, 1, 1), 0),
    ]


@pytest.mark.parametrize("write", [write_archive, write_folder])
def test_bags_say_which_words_occur(tmp_path, write):
    write(tmp_path)
    source = load("imdb-bag", tmp_path, vocabulary=6)
    assert (source.shape, source.tokens, source.target) == ((6,), (), "label")
    x, y = source.batch(np.arange(3))
    assert sorted(zip(map(tuple, x.tolist()), y.tolist(), strict=True)) == [
        ((0, 0, 0, 0, 0, 0), 0),
        ((0, 0, 0, 0, 1, 0), 0),
        ((1, 1, 1, 0, 0, 1), 1),
    ]
    # The two forms have the reviews in one order.
    tokens = load("imdb", tmp_path, vocabulary=8, sequence_length=9)
    assert tokens.batch(np.arange(3)).y.tolist() == y.tolist()


def test_the_papers_numbers_are_the_defaults(tmp_path):
    write_archive(tmp_path)
    source = load("imdb", tmp_path)
    assert (source.tokens, source.shape) == ((10_000,), (256,))
    assert load("imdb-bag", tmp_path).shape == (10_000,)


def test_damage_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"neither aclImdb_v1\.tar\.gz nor"):
        load("imdb", tmp_path)
    for missing, message in (
        ("aclImdb/imdb.vocab", "has no aclImdb/imdb.vocab"),
        ("aclImdb/test/", "no reviews in"),
    ):
        write_archive(tmp_path, {name: text for name, text in TEXTS.items() if not name.startswith(missing)})
        with pytest.raises(DataError, match=message):
            load("imdb", tmp_path)
    path = tmp_path / "imdb" / ARCHIVE
    write_archive(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="is damaged; delete it"):
        load("imdb", tmp_path)

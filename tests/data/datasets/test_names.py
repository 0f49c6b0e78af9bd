"""NAME: letters as tokens, languages as labels."""

import string

import numpy as np
import pytest

from fedpriv.data import DataError, MissingDataError, load
from fedpriv.data.datasets.names import LANGUAGES, LETTERS, encode, plain


def decode(row):
    return "".join(LETTERS[token - 1] for token in row if token)


def test_letters_are_those_of_the_tutorial():
    assert string.ascii_letters + " .,;'" == LETTERS
    assert plain("Ślusàrski") == "Slusarski"
    assert plain("Béringer-Łuk\xa0") == "Beringeruk"
    assert [decode(row) for row in encode(["O'Néàl", "x" * 25])] == ["O'Neal", "x" * 20]
    assert encode(["ab"])[0].tolist() == [1, 2] + [0] * 18


def test_a_language_is_a_file(tmp_path):
    folder = tmp_path / "names"
    folder.mkdir()
    for number, language in enumerate(LANGUAGES):
        names = [f"{language}{letter}" for letter in "ab"[: 1 + number % 2]]
        (folder / f"{language}.txt").write_bytes("\r\n".join(names).encode() + b"\n")
    source = load("names", tmp_path)
    test = source.test()
    assert (source.size, len(test.y)) == (27 * 4 // 5, 27 - 27 * 4 // 5)
    x, y = source.batch(np.arange(source.size))
    for letters, label in zip([*x.numpy(), *test.x.numpy()], [*y.tolist(), *test.y.tolist()], strict=True):
        assert decode(letters)[:-1] == LANGUAGES[label]
    (folder / "Dutch.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"Dutch\.txt is not UTF-8"):
        load("names", tmp_path)
    (folder / "Dutch.txt").write_bytes(b" \n")
    with pytest.raises(DataError, match=r"Dutch\.txt has no names"):
        load("names", tmp_path)
    (folder / "Dutch.txt").unlink()
    with pytest.raises(MissingDataError, match=r"no file Dutch\.txt.* `fedpriv data fetch names`"):
        load("names", tmp_path)


@pytest.mark.data
def test_names_match_the_published_data(data):
    source = load("names", data)
    test = source.test()
    assert (source.size, len(test.y), source.classes, source.shape) == (16_059, 4_015, 18, (20,))
    assert source.tokens == (58,)
    x, y = source.batch(np.arange(source.size))
    counts = np.bincount(y, minlength=18) + np.bincount(test.y, minlength=18)
    assert dict(zip(LANGUAGES, counts.tolist(), strict=True)) == {
        **{"Arabic": 2000, "Chinese": 268, "Czech": 519, "Dutch": 297, "English": 3668, "French": 277},
        **{"German": 724, "Greek": 203, "Irish": 232, "Italian": 709, "Japanese": 991, "Korean": 94},
        **{
            "Polish": 139,
            "Portuguese": 74,
            "Russian": 9408,
            "Scottish": 100,
            "Spanish": 298,
            "Vietnamese": 73,
        },
    }
    assert (x[:, 1:] > 0).logical_and(x[:, :-1] == 0).sum() == 0  # padded on the right
    assert "Khoury" in {decode(row) for row in x[y == 0].numpy()}
    assert source.owners is None

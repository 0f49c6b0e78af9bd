"""The LIBSVM parser against a plain one, and a9a's real files."""

import bz2
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data import DataError, load
from fedpriv.data.libsvm import parse

VALUE = st.floats(-(2.0**100), 2.0**100, width=32)
ROW = st.tuples(st.sampled_from([-1, 1]), st.dictionaries(st.integers(1, 9), VALUE, max_size=9))


def write(rows, end="\n", blank=" "):
    lines = (f"{label:+d}" + "".join(f" {i}:{row[i]!r}" for i in sorted(row)) for label, row in rows)
    return end.join(line + blank for line in lines)


@given(rows=st.lists(ROW, min_size=1, max_size=20), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_it_reads_what_was_written(rows, end, last):
    x, y = parse((write(rows, end) + end * last).encode(), 9, "toy")
    assert y.tolist() == [int(label == 1) for label, _ in rows]
    assert x.dtype == np.float32
    plain = [[np.float32(row.get(i, 0)) for i in range(1, 10)] for _, row in rows]
    assert x.tolist() == np.array(plain, np.float32).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "0 1:1",
        "2 1:1",
        "-1 1:1\n\n+1 2:1",
        "-1 1:1:1",
        "-1 1",
        "-1 :1",
        "-1 1:",
        "-1 1:x",
        "-1 1:nan",
        "-1 1:inf",
        "-1 1:1_0",
        "-1 1:1,2:1",
        "-1 1.0:1",
        "-1 qid:1 1:1",
        "-1 1:1 # comment",
        "-1 0:1",
        "-1 10:1",
        "-1 2:1 1:1",
        "-1 2:1 2:1",
        "-1 1:1e39",
        "-1 1:\u0664",
        "PK\x03\x04",
    ],
)
def test_other_content_is_refused_without_quoting_it(text):
    with pytest.raises(DataError) as caught:
        parse(text.encode(), 9, "toy")
    assert str(caught.value) in {
        "toy is not LIBSVM text with labels -1 and +1; fetch it again",
        "toy: indices must ascend within 1..9",
        "toy: a value is too large for a float32",
    }


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_are_refused(text):
    try:
        x, y = parse(text, 9, "toy")
    except DataError:
        return
    assert len(x) == len(y) > 0


def test_files_may_be_compressed(tmp_path):
    folder = tmp_path / "a9a"
    folder.mkdir()
    (folder / "a9a.gz").write_bytes(gzip.compress(b"-1 3:1 123:1 \n+1 1:1 \n"))
    (folder / "a9a.t.bz2").write_bytes(bz2.compress(b"+1 2:1\n"))
    source = load("a9a", tmp_path)
    x, y = source.batch(np.array([1, 0]))
    assert [row.nonzero().flatten().tolist() for row in x] == [[0], [2, 122]]
    assert y.tolist() == [1, 0]
    assert source.test().x[0].nonzero().flatten().tolist() == [1]
    (folder / "a9a.t.bz2").write_bytes(bz2.compress(b"+1 2:1\n")[:-4])
    with pytest.raises(DataError, match=r"a9a\.t\.bz2: damaged bz2 data"):
        load("a9a", tmp_path)


def test_ijcnn1_is_read_from_bzip2(tmp_path):
    (tmp_path / "ijcnn1").mkdir()
    (tmp_path / "ijcnn1" / "ijcnn1.bz2").write_bytes(bz2.compress(b"-1.000000 1:1 22:-0.731854\n"))
    (tmp_path / "ijcnn1" / "ijcnn1.t.bz2").write_bytes(bz2.compress(b"1.000000 2:0.5\n-1 3:1\n"))
    source = load("ijcnn1", tmp_path)
    assert (source.shape, source.size, source.test().y.tolist()) == ((22,), 1, [1, 0])
    assert source.batch(np.array([0])).x[0, [0, 21]].tolist() == [1.0, float(np.float32(-0.731854))]


@pytest.mark.data
def test_a9a_matches_the_published_data(data):
    source = load("a9a", data)
    assert (source.size, source.shape, source.classes) == (32561, (123,), 2)
    x, y = source.batch(np.arange(source.size))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert int(y.sum()) == 7841  # the share of more than 50K in Adult, 24.08 %
    assert x[0].nonzero().flatten().add(1).tolist() == [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]
    test = source.test()
    assert tuple(test.x.shape) == (16281, 123)
    assert int(test.y.sum()) == 3846

"""Data files of any content: a data set, or one sentence that names the file."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.fuzzing import Reader, amounts, check, for_all, run_hostile
from hypothesis import strategies as st

from fedpriv.data import Arrays, hugging_face, idx, libsvm
from fedpriv.data.catalogue import read_card
from fedpriv.data.client_files import ClientFile
from fedpriv.data.datasets import cifar, infinite_mnist, movielens, names, pneumonia, stack_overflow
from fedpriv.data.files import content
from fedpriv.data.readers.table import table
from fedpriv.data.readers.users import users

IMAGES = (np.arange(6 * 28 * 28) % 251).astype(np.uint8).reshape(6, 28, 28)
LABELS = np.arange(6, dtype=np.uint8) % 3
LIKE = Arrays("like", IMAGES, LABELS, IMAGES, LABELS, classes=3)
PATCH = 1 << 26  # bytes that an unpacked file may have whatever the size of the packed one


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an IDX file."""
    code = {"u1": 8, "f4": 13}[array.dtype.str[1:]]
    lengths = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, code, array.ndim]) + lengths + array.astype(array.dtype.newbyteorder(">")).tobytes()


def npy(array: np.ndarray) -> bytes:
    """The array as an .npy file; objects are pickled."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npz(x: bytes, y: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An .npz archive of these two files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", y)
    return file.getvalue()


def picture(kind: str) -> bytes:
    """A small grey picture."""
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(IMAGES[0]).save(file, kind)
    return file.getvalue()


def read_picture(path: Path) -> object:
    return pneumonia._images(path.parent, 28)


def database(rows: list[tuple[str, str, object]]) -> bytes:
    """TFF's database with rows of (split, user, example)."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
    connection.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    for split, user in {(split, user) for split, user, _ in rows}:
        connection.execute("INSERT INTO client_metadata VALUES (?, ?, 1)", (user, split))
    connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.commit()
    return bytes(connection.serialize())


def field(number: int, data: bytes) -> bytes:
    """A short length-delimited field of a protocol buffer message."""
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def example(**strings: str) -> bytes:
    """A serialised tf.train.Example; it is built without lengths above 127."""
    return b"".join(
        field(1, field(1, field(1, name.encode()) + field(2, field(1, field(1, text.encode())))))
        for name, text in strings.items()
    )


EXAMPLE = example(tokens="a b b", title="c", tags="t1|t2")
TAGS = json.dumps({f"t{number}": 900 - number for number in range(600)}).encode()
WORDS = b"".join(b"%c %d\n" % (97 + number, 30 - number) for number in range(20))
DATABASE = database([("train", "u1", EXAMPLE), ("train", "u2", EXAMPLE), ("heldout", "u3", EXAMPLE)])


def stack_files(name: str) -> dict[str, bytes]:
    """The three files of Stack Overflow but for this one."""
    both = dict(zip(stack_overflow.FILES, (DATABASE, WORDS, TAGS), strict=True))
    return {other: data for other, data in both.items() if other != name}


def read_stack(path: Path) -> object:
    return stack_overflow.read([path.parent / name for name in stack_overflow.FILES], 20)


CARD = b"""name = "card"
title = "T"
homepage = "https://example.org"
licence = "L"
citation = "C"
inputs = "I"
target = "T"
needs = ["digits"]
[[files]]
name = "a.zip"
urls = ["https://example.org/a.zip"]
size = 10
sha256 = "%s"
[[files.members]]
name = "b.bin"
size = 5
""" % (b"0" * 64)

NAME_FILES = {f"{language}.txt": f"{language}\nSmith\n".encode() for language in names.LANGUAGES}
SVM = b"-1 1:0.5 3:1\n+1 2:-2e1\n" * 4


def cifar_source(path: Path) -> object:
    return cifar.read("cifar-10", [path, path], 1, classes=10)


def parquet(compression: str) -> bytes:
    """A table of numbers and a label as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(pa.table(COLUMNS), file, compression=compression)
    return file.getvalue()


def arrow(stream: bool) -> bytes:
    """The same table as Arrow's stream or file."""
    made, file = pa.table(COLUMNS), io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, made.schema) as writer:
        writer.write_table(made)
    return file.getvalue()


def read_table(path: Path) -> object:
    return table(path, path, y="ill", classes=["no", "yes"], bounds={"age": (0, 120)})


def read_users(path: Path) -> object:
    return users(path, length=4, public_share=0.5)


COLUMNS = {"age": [30.0, 90.0, 41.5, 77.0], "ill": ["no", "yes", "no", "yes"]}
CSV = b"age,ill\n30,no\n90,yes\n41.5,no\n77,yes\n"
ROLES = b"".join(
    json.dumps({"user": f"u{number}", "text": "to be or not"}).encode() + b"\n" for number in range(8)
)
LEAF = json.dumps(
    {
        "users": [f"u{number}" for number in range(8)],
        "user_data": {f"u{number}": {"x": ["abcd"] * 2, "y": ["e", "f"]} for number in range(8)},
    }
).encode()
SAVED = pa.table({"x": [1.0, 2.0, 4.0], "label": [0, 1, 1]})


def read_saved(path: Path) -> object:
    """A folder of Hugging Face ``datasets`` in which the file at ``path`` replaces those of its name."""
    folder = path.parent / "saved"
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_stream(folder / part / "data.arrow", SAVED.schema) as writer:
            writer.write_table(SAVED)
        (folder / part / "state.json").write_bytes(STATE)
    (folder / "dataset_dict.json").write_bytes(SPLITS)
    for place in (folder,) if path.name == "dataset_dict.json" else (folder / "train", folder / "test"):
        (place / path.name).write_bytes(path.read_bytes())
    return hugging_face(folder, classes=2)


STATE, SPLITS = b'{"_data_files": [{"filename": "data.arrow"}]}', b'{"splits": ["train", "test"]}'

# An error about a table's columns names them, or the data set, which is called as its file.
ABOUT_A_TABLE = ("people", "y is", "x is", "bounds is", "classes is")

READERS = (
    Reader("CSV", "people.csv", read_table, (CSV,), names=ABOUT_A_TABLE, times=500, slack=PATCH),
    Reader("Parquet", "people.parquet", read_table, tuple(map(parquet, ("none", "snappy", "zstd"))),
           names=ABOUT_A_TABLE, slack=PATCH),
    Reader("Arrow", "people.arrow", read_table, (arrow(True), arrow(False)), names=ABOUT_A_TABLE,
           slack=PATCH),
    Reader("Hugging Face, its parts", "dataset_dict.json", read_saved, (SPLITS,), names=("saved",),
           slack=PATCH),
    Reader("Hugging Face, its files", "state.json", read_saved, (STATE,), names=("saved",), slack=PATCH),
    Reader("users, a line each", "roles.jsonl", read_users, (ROLES,), names=("roles",), times=500),
    Reader("users, gzipped", "roles.jsonl.gz", read_users, (ROLES,), gzip.compress, names=("roles",),
           times=500, slack=PATCH),
    Reader("users, LEAF", "leaf.json", read_users, (LEAF,), names=("leaf",), times=500),
    Reader("IDX", "images.idx", idx.read, (idx_bytes(IMAGES), idx_bytes(IMAGES[0].astype(np.float32)))),
    Reader("IDX, gzipped", "images.idx.gz", idx.read, (idx_bytes(IMAGES),), gzip.compress),
    Reader("gzip", "text.gz", content, (gzip.compress(SVM),), slack=PATCH),
    Reader("bzip2", "text.bz2", content, (bz2.compress(SVM),), slack=PATCH),
    Reader(
        "IDX pair of a client",
        "a-images-idx3-ubyte",
        lambda path: ClientFile(path, LIKE),
        (idx_bytes(IMAGES),),
        beside={"a-labels-idx1-ubyte": idx_bytes(LABELS)},
    ),
    Reader(
        "NPZ",
        "a.npz",
        lambda path: ClientFile(path, LIKE),
        tuple(npz(npy(IMAGES), npy(LABELS), kind) for kind in (0, 8, 12, 14)),
    ),
    Reader(
        "NPZ, its arrays",
        "a.npz",
        lambda path: ClientFile(path, LIKE),
        (npy(IMAGES), npy(IMAGES.astype(np.float32)), npy(np.array([print] * 6))),
        lambda x: npz(x, npy(LABELS)),
    ),
    Reader(
        "NPZ, its labels",
        "a.npz",
        lambda path: ClientFile(path, LIKE),
        (npy(LABELS), npy(LABELS.astype(str)), npy(LABELS.astype(float))),
        lambda y: npz(npy(IMAGES), y),
        slack=8 * IMAGES.size + (1 << 20),
    ),
    # A row of 22 features is 88 bytes, and may stand for the 3 bytes of "+1\n".
    Reader("LIBSVM", "ijcnn1", lambda path: libsvm.read("ijcnn1", [path, path], 22), (SVM,), times=200),
    Reader("CIFAR", "data.bin", cifar_source, (bytes([3]) + bytes(3072) + bytes([9]) + bytes(3072),)),
    Reader("MovieLens", "u.data", movielens.read, (b"196\t242\t3\t881250949\n" * 9,), times=200),
    Reader(
        "NAME",
        "Greek.txt",
        lambda path: names.read([path.parent / f"{language}.txt" for language in names.LANGUAGES]),
        (NAME_FILES["Greek.txt"],),
        beside={name: data for name, data in NAME_FILES.items() if name != "Greek.txt"},
        times=200,
    ),
    Reader("Stack Overflow, database", stack_overflow.FILES[0], read_stack, (DATABASE,),
           beside=stack_files(stack_overflow.FILES[0])),
    Reader(
        "Stack Overflow, examples",
        stack_overflow.FILES[0],
        read_stack,
        (EXAMPLE,),
        lambda data: database([("train", "u1", data), ("heldout", "u3", EXAMPLE)]),
        beside=stack_files(stack_overflow.FILES[0]),
        times=200,
    ),
    Reader("Stack Overflow, words", stack_overflow.FILES[1], read_stack, (WORDS,),
           beside=stack_files(stack_overflow.FILES[1]), times=200),
    Reader("Stack Overflow, tags", stack_overflow.FILES[2], read_stack, (TAGS,),
           beside=stack_files(stack_overflow.FILES[2]), times=200),
    Reader("floats of InfiniteMNIST", "fields.bin", lambda path: infinite_mnist.read_floats(path, 4, 784),
           (bytes(4 * 4 * 784),)),
    Reader("data set cards", "card.toml", read_card, (CARD,), times=500),
)  # fmt: skip


def cards() -> st.SearchStrategy[bytes]:
    """Cards whose tables hold values of any kind."""
    value = st.sampled_from(
        ["1", "-5", "true", '"a"', '"../a"', "[]", '["a"]', "[[1]]", "{}", "{a = 1}", "nan", "2020-01-01"]
    )
    keys = (
        "name",
        "title",
        "needs",
        "files",
        "size",
        "sha256",
        "md5",
        "urls",
        "optional",
        "members",
        "unknown",
    )
    lines = st.lists(st.tuples(st.sampled_from(keys), value), max_size=3, unique_by=lambda pair: pair[0])
    table = lines.map(lambda pairs: "".join(f"{key} = {value}\n" for key, value in pairs))
    start = "".join(f'{key} = "card"\n' for key in ("homepage", "licence", "citation", "inputs", "target"))
    headed = st.tuples(table, st.sampled_from(["", "[[files]]\n", "[[files]]\n[[files.members]]\n"]), table)
    return headed.map(lambda parts: (start + "".join(parts)).encode())


@amounts
def test_a_card_of_other_types_is_refused_in_a_sentence(tmp_path: Path, examples: int) -> None:
    reader = Reader("data set cards, other types", "card.toml", read_card, (), times=500)
    for_all(examples, cards(), lambda text: check(reader, text, tmp_path))


@amounts
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_hostile_file_is_refused_in_a_sentence(reader: Reader, tmp_path: Path, examples: int) -> None:
    run_hostile(reader, examples, tmp_path)


@amounts
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_hostile_picture_is_refused_in_a_sentence(kind: str, tmp_path: Path, examples: int) -> None:
    # An error names the folder: a file's name may identify a patient.
    reader = Reader(
        f"images, {kind}", f"a.{kind.lower()}", read_picture, (picture(kind),), names=("inner",), slack=PATCH
    )
    run_hostile(reader, examples, tmp_path)

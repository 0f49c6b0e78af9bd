"""Stack Overflow tags, from a database of TFF's form."""

import json
import sqlite3

import numpy as np
import pytest

from fedpriv.data import DataError, load, population
from fedpriv.data.datasets import stack_overflow
from fedpriv.data.datasets.stack_overflow import FILES, texts

TAGS = [f"tag{number}" for number in range(600)]


def field(number, data, kind=2):
    """A field of a protocol buffer message: its key, length and content."""
    return varint(number << 3 | kind) + (varint(len(data)) + data if kind == 2 else data)


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def example(score=172, **strings):
    """A serialised tf.train.Example: string features, and an integer one, as TFF's rows have."""
    entries = [(name, field(1, field(1, text.encode()))) for name, text in strings.items()]
    entries.append(("score", field(3, field(1, field(0, b"")[1:] + varint(score)))))
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in entries))


def sentence(tokens, title="how", tags="tag0"):
    return example(creation_date="2010", tokens=tokens, title=title, tags=tags, type="query")


ROWS = [
    ("train", "b", sentence("a b a zzz", "c", "tag1|tag499|tag500|unknown")),
    ("train", "a", sentence("a", "a", "none")),
    ("train", "b", sentence("zzz", "zzz", "tag1")),
    ("train", "c", sentence("b " * 300, "b", "tag0")),
    ("heldout", "d", sentence("a c", "", "tag2")),
    ("test", "a", sentence("later", "later")),
]


def write(folder, rows=ROWS):
    where = folder / "stackoverflow-tags"
    where.mkdir(exist_ok=True)
    (where / FILES[0]).unlink(missing_ok=True)
    with sqlite3.connect(where / FILES[0]) as database:
        database.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        database.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
        )
        database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        for split, client in sorted({row[:2] for row in rows}):
            count = sum(row[:2] == (split, client) for row in rows)
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, count))
    database.close()
    (where / FILES[1]).write_text("a 30\nb 20\nc 10\nd 1\n")
    counts = {tag: 1000 - number for number, tag in enumerate(TAGS)}
    (where / FILES[2]).write_text(json.dumps(dict(reversed(counts.items()))))
    return where


def test_features_of_an_example():
    assert texts(sentence("a b", "t", "x|y")) == {
        **{"creation_date": "2010", "tokens": "a b", "title": "t", "tags": "x|y", "type": "query"}
    }


def test_a_row_is_the_mean_of_its_words_and_its_frequent_tags(tmp_path):
    write(tmp_path)
    source = load("stackoverflow-tags", tmp_path, vocabulary=3)
    assert (source.size, source.shape, source.classes, source.target) == (4, (3,), 500, "tags")
    x, y = source.batch(np.arange(4))
    rows = {
        tuple(np.round(row, 4)): tags.nonzero().flatten().tolist()
        for row, tags in zip(x.tolist(), y, strict=True)
    }
    # Five words: a occurs twice, b and c once, zzz is unknown; tag500 is not among the 500 tags.
    assert rows == {
        (0.4, 0.2, 0.2): [1, 499],
        (1.0, 0.0, 0.0): [],
        (0.0, 0.0, 0.0): [1],
        (0.0, 1.0, 0.0): [0],
    }
    test = source.test()
    assert (test.x.tolist(), test.y[0].nonzero().flatten().tolist()) == ([[0.5, 0.0, 0.5]], [2])


def test_a_client_is_a_user(tmp_path):
    write(tmp_path)
    source = load("stackoverflow-tags", tmp_path, vocabulary=3)
    people = population("natural", source, clients=3)
    sizes = [len(people.examples(np.array([client]))[0]) for client in range(3)]
    assert sorted(sizes) == [1, 1, 2]
    index, _ = people.examples(np.array([sizes.index(2)]))
    assert sorted(source.batch(index).y.sum(1).tolist()) == [1.0, 2.0]


def test_a_user_who_is_listed_twice_is_one_client(tmp_path):
    where = write(tmp_path)
    with sqlite3.connect(where / FILES[0]) as database:
        database.execute("INSERT INTO client_metadata SELECT * FROM client_metadata")
    database.close()
    source = load("stackoverflow-tags", tmp_path, vocabulary=3)
    assert (source.size, source.owners.max()) == (4, 2)


def test_a_public_part_is_read(tmp_path, monkeypatch):
    write(tmp_path, [*ROWS, *(("train", f"u{number}", sentence("a")) for number in range(30))])
    monkeypatch.setattr(stack_overflow, "PER_USER", 1)
    monkeypatch.setattr(stack_overflow, "TRAIN", 20)
    source = load("stackoverflow-tags", tmp_path, vocabulary=3)
    assert source.size == 20
    assert source.owners.tolist() == list(range(20))


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_truncated_example_is_refused_without_quoting_it(tmp_path, cut):
    whole = sentence("secret", "secret")
    write(tmp_path, [("train", "a", whole[:cut]), *ROWS])
    with pytest.raises(DataError, match="is not TFF's Stack Overflow database") as caught:
        load("stackoverflow-tags", tmp_path, vocabulary=3)
    assert "secret" not in str(caught.value)


def test_other_damage_is_named(tmp_path):
    where = write(tmp_path)
    for name, text, message in (
        (FILES[2], "[1]", "not a JSON table"),
        (FILES[2], "{", "not a JSON table"),
        (FILES[2], '{"a": "b"}', "not a JSON table"),
        (FILES[2], '{"a": 1}', "at least 500 tags"),
        (FILES[1], "a 1\n\nb 2\n", "not a list of words and counts"),
        (FILES[1], "a 1\n", "at least 3 words"),
        (FILES[0], "not a database", "not TFF's Stack Overflow database"),
    ):
        (where / name).write_text(text)
        with pytest.raises(DataError, match=message):
            load("stackoverflow-tags", tmp_path, vocabulary=3)
        write(tmp_path)
    write(tmp_path, [row for row in ROWS if row[0] != "heldout"])
    with pytest.raises(DataError, match="no sentences of train or heldout"):
        load("stackoverflow-tags", tmp_path, vocabulary=3)

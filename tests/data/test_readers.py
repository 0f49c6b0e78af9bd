"""Data that people bring: Hugging Face data sets, tables, image folders, texts by user."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, NaturalIdPartitioner
from PIL import Image
from typer.testing import CliRunner

import datasets
from fedpriv import ArgumentError, simulate
from fedpriv.cli import app
from fedpriv.config.schema import Config
from fedpriv.data import DataError, MissingDataError, hugging_face, image_folder, load, table, users
from fedpriv.data.image_decoding import image_decoder
from fedpriv.data.readers import text

DATA = Path(os.environ.get("FEDPRIV_DATA", "/nowhere"))


def png(shade: int, size: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


def pictures(rows: int, first: int = 0) -> datasets.Dataset:
    """Rows with an image, whose shade is the row's number, a label and the user who drew it."""
    kinds = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["even", "odd"]),
        "who": datasets.Value("string"),
    }
    numbers = range(first, first + rows)
    columns = {
        "image": [{"bytes": png(number), "path": None} for number in numbers],
        "label": [number % 2 for number in numbers],
        "who": [f"user {number % 3}" for number in numbers],
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.fixture
def both() -> datasets.DatasetDict:
    return datasets.DatasetDict(train=pictures(12), test=pictures(4, first=100))


def shades(source: Any, indices: Sequence[int] | None = None) -> list[int]:
    wanted = np.arange(source.size) if indices is None else np.array(indices)
    return (source.batch(wanted).x[:, 0, 0, 0] * 255).round().int().tolist()  # type: ignore[no-any-return]


def saved(both: datasets.DatasetDict, folder: Path) -> Path:
    both.save_to_disk(str(folder), max_shard_size="1KB")
    return folder


def as_parquet(both: datasets.DatasetDict, folder: Path) -> Path:
    """The files as the hub has them, training examples in two."""
    (folder / "plain_text").mkdir(parents=True)
    half = len(both["train"]) // 2
    both["train"].select(range(half)).to_parquet(folder / "plain_text/train-00000-of-00002.parquet")
    rest = both["train"].select(range(half, 2 * half))
    rest.to_parquet(folder / "plain_text/train-00001-of-00002.parquet")
    both["test"].to_parquet(folder / "plain_text/test-00000-of-00001.parquet")
    return folder


def test_configurations_are_not_mixed(tmp_path: Path) -> None:
    """An example that lies in two of them would count twice, and its epsilon for one."""
    for version in ("1.0.0", "2.0.0"):
        for part in ("train", "test"):
            path = tmp_path / version / f"{part}-00000-of-00001.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"x": [1.0, 2.0], "label": [0, 1]}), path)
    with pytest.raises(DataError, match=r"in several folders: 1.0.0, 2.0.0; name one") as caught:
        hugging_face(tmp_path)
    assert str(tmp_path / "1.0.0") in str(caught.value)
    assert hugging_face(tmp_path / "1.0.0", classes=2).size == 2


def test_grey_images_of_16_bits_keep_their_shades(tmp_path: Path) -> None:
    """Pillow's own conversion makes all above 255 of 65,535 white."""
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    decoded = image_decoder(("PNG",), 0, True)(tmp_path / "deep.png")
    assert np.array_equal(decoded, ramp // 257)


@pytest.mark.parametrize("form", [saved, as_parquet])
def test_folders_hold_what_the_objects_hold(
    both: datasets.DatasetDict, tmp_path: Path, form: Callable[[datasets.DatasetDict, Path], Path]
) -> None:
    found, same = hugging_face(form(both, tmp_path / "mine")), hugging_face(both)
    assert found.name == "mine"
    assert shades(found) == shades(same) == list(range(12))
    assert found.class_names == ("even", "odd")
    assert (found.shape, found.classes, found.target) == ((3, 4, 4), 2, "label")
    for one, other in ((found.test(), same.test()), (found.batch(np.arange(12)), same.batch(np.arange(12)))):
        assert all(map(torch.equal, one, other))
    assert found.batch(np.arange(12)).y.tolist() == [0, 1] * 6


def test_an_object_gives_its_rows_as_it_shows_them(both: datasets.DatasetDict) -> None:
    """Also those that were selected, shuffled or renamed, which its table holds in another order."""
    both["train"] = both["train"].select([7, 3, 5])
    assert shades(hugging_face(both)) == [7, 3, 5]
    renamed = datasets.DatasetDict({part: rows.rename_column("image", "scan") for part, rows in both.items()})
    assert shades(hugging_face(renamed, x="scan")) == [7, 3, 5]


def test_the_command_line_and_python_take_it(both: datasets.DatasetDict, tmp_path: Path) -> None:
    path = saved(both, tmp_path / "mine")
    assert shades(load(f"hf:{path}"), [4, 2]) == [4, 2]
    config = Config.parse({"dataset": f"hf:{path}"})
    assert config.user_code == {}, "it is no code"
    settings = ["dataset=hf:" + str(path), "model=logistic", "clients=12", "sampling-rate=0.5", "rounds=2"]
    arguments = ["simulate", "--out", str(tmp_path / "run"), "--set", "engine=in-process"]
    result = CliRunner().invoke(app, [*arguments, *(part for one in settings for part in ("--set", one))])
    assert result.exit_code == 0, result.output
    few = {"model": "logistic", "clients": 12, "sampling_rate": 0.5, "rounds": 2}
    assert simulate(dataset=both, progress=False, **few).metrics
    info = CliRunner().invoke(app, ["data", "info", f"hf:{path}"])
    assert info.exit_code == 0, info.output


def test_users_of_a_column_are_clients(both: datasets.DatasetDict) -> None:
    source = hugging_face(both, owner="who")
    assert source.owners is not None
    assert source.owners.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize(
    ("partitioner", "clients"),
    [
        (lambda: IidPartitioner(4), 4),
        (lambda: DirichletPartitioner(2, "label", alpha=1.0, min_partition_size=1, seed=1), 2),
        (lambda: NaturalIdPartitioner("who"), 3),
    ],
)
def test_partitioners_of_flower_assign_examples(
    both: datasets.DatasetDict, partitioner: Callable[[], Any], clients: int
) -> None:
    """Each example keeps its own image and label, with the client whose partition holds it."""
    source, again = hugging_face(both, partitioner()), partitioner()
    again.dataset = both["train"].add_column("row", list(range(12)))
    wanted = {row: client for client in range(clients) for row in again.load_partition(client)["row"]}
    assert source.owners is not None
    assert dict(zip(shades(source), source.owners.tolist(), strict=True)) == wanted


def test_a_partitioner_that_gives_an_example_twice_is_refused(both: datasets.DatasetDict) -> None:
    class Twice(IidPartitioner):
        def load_partition(self, partition_id: int) -> datasets.Dataset:
            return self.dataset.select([0, partition_id + 1])

    with pytest.raises(DataError, match="gives an example to two clients"):
        hugging_face(both, Twice(3))


def test_texts_become_bytes_or_a_tokenizers_ids() -> None:
    kinds = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"]))
    rows = datasets.Dataset.from_dict({"text": ["ab", "höchst"], "label": [0, 1]}, features=kinds)
    both = datasets.DatasetDict(train=rows, validation=rows)
    source = hugging_face(both, length=4)
    assert (source.tokens, source.shape) == ((257,), (4,))
    assert source.batch(np.arange(2)).x.tolist() == [[98, 99, 0, 0], [105, 196, 183, 100]]
    words = hugging_face(both, length=2, tokenizer=lambda text: [len(text)], vocabulary_size=10)
    assert (words.tokens, words.batch(np.arange(2)).x.tolist()) == ((10,), [[2, 0], [6, 0]])
    with pytest.raises(DataError, match=r"an id outside 0\.\.4; vocabulary_size is the number of ids"):
        hugging_face(both, tokenizer=lambda text: [len(text)], vocabulary_size=5)
    with pytest.raises(DataError, match="tokenizer failed with ZeroDivisionError") as caught:
        hugging_face(both, tokenizer=lambda text: 1 / 0, vocabulary_size=5)
    assert "ab" not in str(caught.value)


def test_what_is_missing_or_ambiguous_is_said(both: datasets.DatasetDict, tmp_path: Path) -> None:
    with pytest.raises(
        MissingDataError, match="must have the parts train, and test or validation; it has train"
    ):
        hugging_face({"train": both["train"]})
    with pytest.raises(MissingDataError, match="is not a folder of a data set"):
        hugging_face(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="x is 'picture'; it must be a column"):
        hugging_face(both, x="picture")
    with pytest.raises(ArgumentError, match=r"argument is 'ownr'.*did you mean 'owner'"):
        hugging_face(both, ownr="who")
    bare = datasets.DatasetDict(
        {part: rows.cast_column("label", datasets.Value("int64")) for part, rows in both.items()}
    )
    with pytest.raises(ArgumentError, match=r"classes is 0; it must say how many labels label has"):
        hugging_face(bare)
    assert hugging_face(bare, classes=2).classes == 2
    with pytest.raises(ArgumentError, match="owner is 'who'; it must be left out"):
        hugging_face(both, IidPartitioner(2), owner="who")
    sizes = datasets.DatasetDict(train=both["train"], test=both["test"])
    odd = sizes["train"].to_dict()
    odd["image"][3] = {"bytes": png(3, size=9), "path": None}
    sizes["train"] = datasets.Dataset.from_dict(odd, features=sizes["train"].features)
    with pytest.raises(DataError, match="several sizes; give image_size"):
        hugging_face(sizes)
    assert hugging_face(sizes, image_size=5, grey=True).shape == (1, 5, 5)


def test_a_saved_folder_reads_nothing_outside_it(both: datasets.DatasetDict, tmp_path: Path) -> None:
    """The names of files in its descriptions are used without their folders."""
    folder = saved(both, tmp_path / "mine")
    other = tmp_path / "secret.arrow"
    other.write_bytes((folder / "test/data-00000-of-00001.arrow").read_bytes())
    state = json.loads((folder / "train/state.json").read_text())
    for outside in (str(other), "../../secret.arrow"):
        state["_data_files"] = [{"filename": outside}]
        (folder / "train/state.json").write_text(json.dumps(state))
        with pytest.raises(MissingDataError, match=r"train/secret\.arrow does not exist"):
            hugging_face(folder)
    (folder / "dataset_dict.json").write_text('{"splits": ["..", "test"]}')
    with pytest.raises(DataError, match="names a folder outside of its own"):
        hugging_face(folder)
    (folder / "dataset_dict.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"dataset_dict\.json is damaged"):
        hugging_face(folder)


@pytest.mark.parametrize("name", [3, None, "", "a\0b", "x" * 5000, "\ud800", {"filename": [1]}, {}])
@pytest.mark.parametrize(
    ("file", "key"), [("dataset_dict.json", "splits"), ("test/state.json", "_data_files")]
)
def test_a_saved_folder_that_lists_what_is_no_name_is_refused(
    both: datasets.DatasetDict, tmp_path: Path, file: str, key: str, name: object
) -> None:
    folder = saved(both, tmp_path / "mine")
    (folder / file).write_text(json.dumps({key: ["test", "train", name]}))
    with pytest.raises(DataError, match=rf"{file} is damaged"):
        hugging_face(folder)


def test_a_saved_folder_that_lists_a_file_twice_is_refused(
    both: datasets.DatasetDict, tmp_path: Path
) -> None:
    """The memory for each mention would be taken."""
    folder = saved(both, tmp_path / "mine")
    state = json.loads((folder / "train/state.json").read_text())
    state["_data_files"] *= 2
    (folder / "train/state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"state\.json is damaged: _data_files has a name twice"):
        hugging_face(folder)


def test_a_home_that_does_not_exist_is_named() -> None:
    for read in (
        hugging_face,
        lambda path: image_folder(path, 8),
        lambda path: users(path, length=4, public_share=0.5),
    ):
        with pytest.raises(MissingDataError, match="~nobody-here/data"):
            read("~nobody-here/data")


def test_a_forged_parquet_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    zeros = pa.table({"x": pa.array(np.zeros(20_000_000)), "y": pa.array(np.zeros(20_000_000, np.int8))})
    path = tmp_path / "zeros.parquet"
    pq.write_table(zeros, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="unpacks to more than"):
        table(path, path, y="y", classes=2)
    for damaged in (b"PAR1" + bytes(40), path.read_bytes()[:-9], b""):
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged, or not a table"):
            table(tmp_path / "damaged.parquet", path)


def test_an_arrow_file_whose_offsets_point_outside_is_refused(tmp_path: Path) -> None:
    """Arrow reads such a file and ends the process when a value is looked at."""
    path, offsets = tmp_path / "forged.arrow", pa.py_buffer(np.array([0, 2**30, 4], np.int32))
    texts = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abcd"))
    forged = pa.table({"x": texts, "y": [0, 1]})
    with pa.ipc.new_stream(path, forged.schema) as writer:
        writer.write_table(forged)
    with pytest.raises(DataError, match="is damaged, or not a table"):
        table(path, path, y="y", classes=2)


def test_tables_of_numbers(tmp_path: Path) -> None:
    rows = "age,income,city,ill,who\n40,10.5,Oslo,no,ann\n80,99.5,Rome,yes,bob\n130,0,Oslo,no,ann\n"
    for name, content in (("a.csv", rows), ("a.tsv", rows.replace(",", "\t"))):
        path = tmp_path / name
        path.write_text(content)
        numbers = ["age", "income"]
        bounds = {"age": (0, 100)}
        found = table(path, path, x=numbers, y="ill", classes=["no", "yes"], owner="who", bounds=bounds)
        x, y = found.batch(np.arange(3))
        assert x.tolist() == [[pytest.approx(0.4), 10.5], [pytest.approx(0.8), 99.5], [1.0, 0.0]]
        assert y.tolist() == [0, 1, 0]
        assert found.owners is not None
        assert found.owners.tolist() == [0, 1, 0]
    path = tmp_path / "a.csv"
    priced = table(path, path, y="income", x=["age"], value=True)
    assert (priced.target, priced.batch(np.arange(3)).y.tolist()) == ("value", [10.5, 99.5, 0.0])
    with pytest.raises(DataError, match="has a label that is not among the classes") as caught:
        table(path, path, y="city", x="age", classes=["Rome", "Bern"])
    assert "Oslo" not in str(caught.value)
    with pytest.raises(ArgumentError, match=r"bounds is \(5, 5\)"):
        table(path, path, y="ill", x="age", classes=["no", "yes"], bounds={"age": (5, 5)})
    with pytest.raises(ArgumentError, match=r"bounds is \(0, inf\); it must be finite"):
        table(path, path, y="ill", x="age", classes=["no", "yes"], bounds={"age": (0, math.inf)})
    with pytest.raises(DataError, match="column income must hold one whole number a row"):
        table(path, path, y="income", x=["age"], classes=100)
    needed = r"x is ''; it must name the inputs among age, income \(not all columns hold numbers: city\)"
    with pytest.raises(ArgumentError, match=needed):
        table(path, path, y="ill", classes=["no", "yes"], owner="who")
    with pytest.raises(MissingDataError, match="does not exist"):
        table(tmp_path / "none.csv", path)


def folder_of_images(folder: Path) -> Path:
    for part, rows in (("train", 5), ("test", 3)):
        for number in range(rows):
            path = folder / part / ("cat" if number % 2 else "ant") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(number, size=6 + number))
    return folder


def test_image_folders_and_their_zip_files(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "animals")
    (folder / "train/ant/notes.txt").write_text("not an image")
    with zipfile.ZipFile(tmp_path / "animals.zip", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, Path("deep/animals") / path.relative_to(folder))
        archive.writestr("train/../../outside/0.png", png(9))
        archive.writestr("__MACOSX/deep/animals/train/ant/._0.png", b"of macOS")
    (folder / "train/ant/._0.png").write_bytes(b"of macOS")
    for source in (image_folder(folder, 6), image_folder(tmp_path / "animals.zip", 6)):
        assert (source.shape, source.class_names) == ((3, 6, 6), ("ant", "cat"))
        assert shades(source) == [0, 2, 4, 1, 3]
        assert source.batch(np.arange(5)).y.tolist() == [0, 0, 0, 1, 1]
        assert source.name == "animals"
    assert image_folder(folder, 3, grey=True).shape == (1, 3, 3)
    (folder / "train/bee").mkdir()
    (folder / "train/bee/1.png").write_bytes(png(1))
    with pytest.raises(DataError, match="a folder of train is not a folder of test"):
        image_folder(folder, 6)
    (folder / "train/bee/1.png").unlink()
    (folder / "train/cat/1.png").write_bytes(png(1)[:50])
    with pytest.raises(DataError, match="damaged image") as caught:
        image_folder(folder, 6)
    assert "cat" not in str(caught.value)
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04" + bytes(30))
    with pytest.raises(DataError, match="not an intact zip file"):
        image_folder(tmp_path / "broken.zip", 6)


def test_a_link_out_of_an_image_folder_is_not_followed(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "animals")
    (tmp_path / "private.png").write_bytes(png(77))
    (folder / "train/ant/9.png").symlink_to(tmp_path / "private.png")
    assert 77 not in shades(image_folder(folder, 6))


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_texts_of_users_predict_the_next_byte(tmp_path: Path) -> None:
    train, test = tmp_path / "roles.jsonl.gz", tmp_path / "test.jsonl"
    train.write_bytes(gzip.compress(lines({"user": "b", "text": "abcdef"}, {"user": "a", "text": "xyz"})))
    test.write_bytes(lines({"user": "c", "text": "abcd"}))
    source = users(train, test, length=3, stride=2)
    x, y = source.batch(np.arange(source.size))
    assert [bytes(int(one) - 1 for one in row) for row in x] == [b"abc", b"cde"]
    assert bytes(int(one) - 1 for one in y) == b"df"
    assert (source.name, source.classes, source.tokens) == ("roles", 257, (257,))
    assert source.owners is not None
    assert source.owners.tolist() == [0, 0]
    assert users(train, test, length=2, most=1).size == 2
    assert users(train, test, length=2, least_characters=4).size == 4


def test_a_user_is_public_or_not_by_its_own_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    records = [{"user": f"u{number}", "text": "ab" * number} for number in range(2, 60)]
    path.write_bytes(lines(*records))
    whole = users(path, length=2, public_share=0.3)
    assert whole.owners is not None
    clients = len(set(whole.owners.tolist()))
    assert 30 <= clients <= 50
    for left_out in (0, 20, 57):
        path.write_bytes(lines(*(each for number, each in enumerate(records) if number != left_out)))
        fewer = users(path, length=2, public_share=0.3)
        size = 2 * len(records[left_out]["text"]) // 2 - 2
        assert whole.size + len(whole.test().y) - fewer.size - len(fewer.test().y) == size
        assert size in (whole.size - fewer.size, len(whole.test().y) - len(fewer.test().y))


def test_leaf_and_lines_of_examples_are_the_same_users(tmp_path: Path) -> None:
    data = {"ann": {"x": [[1.0, 2.0]], "y": [1]}, "bob": {"x": [[3, 4], [5, 6]], "y": [0, 1]}}
    leaf, rows = tmp_path / "leaf.json", tmp_path / "rows.jsonl"
    leaf.write_text(json.dumps({"users": list(data), "num_samples": [1, 2], "user_data": data}))
    rows.write_bytes(lines(*({"user": user, **found} for user, found in data.items())))
    for path in (leaf, rows):
        source = users(path, path, classes=2)
        assert source.owners is not None
        assert source.owners.tolist() == [0, 1, 1]
        assert source.batch(np.arange(3)).x.tolist() == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(ArgumentError, match="classes is 0"):
        users(leaf, leaf)
    leaf.write_text(json.dumps({"users": list(data), "user_data": data}, indent=2))
    assert users(leaf, leaf, classes=2).size == 3


def test_leafs_texts_are_sequences_of_bytes(tmp_path: Path) -> None:
    leaf = tmp_path / "shakespeare.json"
    leaf.write_text(json.dumps({"user_data": {"ann": {"x": ["abc", "bcd"], "y": ["d", "e"]}}}))
    source = users(leaf, leaf, length=3)
    x, y = source.batch(np.arange(2))
    assert [bytes(int(one) - 1 for one in row) for row in x] == [b"abc", b"bcd"]
    assert bytes(int(one) - 1 for one in y) == b"de"
    assert (source.classes, source.tokens) == (257, (257,))
    cut = users(leaf, leaf, length=2).batch(np.arange(2)).x
    assert [bytes(int(one) - 1 for one in row) for row in cut] == [b"bc", b"cd"], "the bytes before y"


def test_a_line_that_speaks_of_users_is_no_leaf(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_bytes(lines({"user": "a", "text": 'the "users" of user_data'}, {"user": "b", "text": "abcd"}))
    assert users(path, path, length=2).size == 24


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_an_example_of_nobody_is_refused(both: datasets.DatasetDict, missing: str | None) -> None:
    rows = both["train"].to_dict()
    rows["who"][3] = missing
    both["train"] = datasets.Dataset.from_dict(rows, features=both["train"].features)
    with pytest.raises(DataError, match="column who must name somebody in each row"):
        hugging_face(both, owner="who")


def test_owners_of_a_csv_are_names_and_no_numbers(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("age,who,ill\n1,01,0\n2,1,1\n3,01,0\n")
    test.write_text("age,ill\n1,0\n")  # who is public has no owner
    source = table(train, test, y="ill", classes=2, owner="who")
    assert source.owners is not None
    assert source.owners.tolist() == [0, 1, 0]
    with pytest.raises(ArgumentError, match="owner is 'whom'; it must be a column"):
        table(train, test, y="ill", classes=2, owner="whom")


def test_one_long_value_in_many_rows_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    rows = pa.table({"text": ["a" * 50_000] * 200, "y": [0, 1] * 100})
    path = tmp_path / "many.parquet"
    with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(rows)
    assert path.stat().st_size < 100_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DataError, match="unpacks to more than"):
        table(path, path, y="y", classes=2)
    assert pa.default_memory_pool().max_memory() - before < 200_000_000  # bytes; all of it are twice as many


def test_images_that_unpack_to_far_more_than_their_files_are_refused() -> None:
    blank = png(0, size=2048)
    rows = {"image": [{"bytes": blank, "path": None}] * 16, "label": [0, 1] * 8, "who": ["a"] * 16}
    rows_of = datasets.Dataset.from_dict(rows, features=pictures(1).features)
    with pytest.raises(DataError, match=r"unpack to more than .* image_size makes them smaller"):
        hugging_face({"train": rows_of, "test": rows_of})
    assert hugging_face({"train": rows_of, "test": rows_of}, image_size=8).size == 16


@pytest.mark.parametrize("linked", ["part", "file"])
def test_a_saved_folder_with_a_link_out_of_it_is_refused(
    both: datasets.DatasetDict, tmp_path: Path, linked: str
) -> None:
    folder, other = saved(both, tmp_path / "mine"), saved(both, tmp_path / "other")
    if linked == "part":
        (folder / "train").rename(tmp_path / "old")
        (folder / "train").symlink_to(other / "train")
    else:
        [file] = (folder / "test").glob("*.arrow")
        file.unlink()
        file.symlink_to(next((other / "test").glob("*.arrow")))
    with pytest.raises(DataError, match="has a part that lies outside of it"):
        hugging_face(folder)


def test_a_partitioner_serves_one_data_set(both: datasets.DatasetDict) -> None:
    partitioner = IidPartitioner(2)
    hugging_face(both, partitioner)
    with pytest.raises(DataError, match="give a new one for each data set"):
        hugging_face(both, partitioner)


def test_a_run_that_does_not_use_owners_says_so(both: datasets.DatasetDict) -> None:
    few = {"model": "logistic", "clients": 12, "sampling_rate": 0.5, "rounds": 1, "engine": "in-process"}
    source = hugging_face(both, owner="who")
    said = simulate(dataset=source, progress=False, **few).notes
    assert any("the examples of one person may be of several units" in note for note in said)
    natural = {**few, "clients": 3, "partition": "natural"}
    said = simulate(dataset=source, progress=False, **natural).notes
    assert not any("several units" in note for note in said)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines({"user": "a", "text": "abcdef"}, {"user": "a", "text": "secret"}), "names a user twice"),
        (b'{"user_data": {"a": {"x": [[1.0]], "y": [0]}, "a": {"x": [[1.0]], "y": [0]}}}', "a user twice"),
        (lines({"user": "a", "x": [[1]], "y": [0]}, {"user": "b", "x": [[1, 2]], "y": [0]}), "one length"),
        (lines({"name": "a", "text": "secret"}), "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"secret\n", "is damaged"),
        (b'{"user_data": 3}', "is damaged"),
        (lines({"user": "a", "text": 3}), "a text must be a string"),
        (lines({"user": "a", "x": [[1], [2, 3]], "y": [0, 1]}), "rows of numbers of one length"),
        (lines({"user": "a", "x": [[1.0]], "y": ["secret"]}), "y whole numbers"),
        (lines({"user": "a"}), "as many x as y"),
    ],
)
def test_damaged_files_of_users_are_refused_without_a_word_of_theirs(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        users(path, path, classes=2, length=2)
    assert "secret" not in str(caught.value)


def test_ids_of_bytes_come_back() -> None:
    assert bytes(one - 1 for one in text.of_bytes("höchst")).decode() == "höchst"
    assert len(text.of_bytes("\ud800")) == 3
    with pytest.raises(ArgumentError, match="length is 0"):
        text.ids(["a"], 0)


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "cifar-10-jpeg").is_dir(), reason="needs cifar-10-jpeg under FEDPRIV_DATA")
@pytest.mark.slow
def test_cifar_10_of_the_hub_is_what_datasets_reads() -> None:
    file = DATA / "cifar-10-jpeg/plain_text/test-00000-of-00001.parquet"
    peer = datasets.Dataset(pq.read_table(file, use_threads=False))
    source = load(f"hf:{DATA / 'cifar-10-jpeg'}")
    assert (source.size, source.shape, source.classes) == (50_000, (3, 32, 32), 10)
    x, y = source.test()
    assert len(y) == len(peer)
    for row in (0, 17, 9_999):
        example = peer.cast_column("img", datasets.Image())[row] if "img" in peer.column_names else peer[row]
        wanted = np.asarray(example["img"].convert("RGB")).transpose(2, 0, 1)
        assert np.array_equal((x[row] * 255).round().byte().numpy(), wanted)
        assert int(y[row]) == example["label"]


@pytest.mark.data
@pytest.mark.skipif(
    not (DATA / "shakespeare-roles").is_dir(), reason="needs shakespeare-roles under FEDPRIV_DATA"
)
def test_roles_of_shakespeare_are_users() -> None:
    source = users(DATA / "shakespeare-roles/roles.jsonl.gz", length=80, stride=80, least_characters=200)
    assert source.owners is not None
    clients = len(set(source.owners.tolist()))
    assert clients + 126 >= 1126 >= clients, "of 1,126 roles about a tenth are public"
    assert source.shape == (80,)

"""Configuration of any content: settings, or one sentence that names the file or the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.fuzzing import EXTREMES, FRAGMENTS, Reader, amounts, for_all, mutations, outcome, run_hostile
from hypothesis import strategies as st

from fedpriv._internal.files import read_numbers
from fedpriv.config.reading import read_assignment, read_file
from fedpriv.config.schema import Config
from fedpriv.node.policy import SETTINGS, as_taken

KEYS = Config.keys()
TOML = Config.parse({}).resolved().toml().encode()


def parsed(values: dict[str, Any]) -> object:
    """All that reads a configuration without reading data."""
    config = Config.parse(values)
    found = config.resolved() if ":" not in config.optimizer else config
    return found.table(), found.toml()


READERS = (
    Reader(
        "TOML configuration",
        "run.toml",
        lambda path: parsed(read_file(path)),
        (TOML, b'model = "cnn"\n'),
        names=(*KEYS, "unknown key", "given twice"),
        times=2000,
    ),
    Reader(
        "CSV of numbers",
        "noise.csv",
        lambda path: read_numbers("--noise", str(path)),
        (b"1.0\n0.5\n\n2e3\n",),
        times=200,
    ),
)

scalars: st.SearchStrategy[Any] = (
    st.booleans()
    | st.integers()
    | st.sampled_from(EXTREMES)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "cnn", "module:name", "in-memory:x", "\0", "a\0b", "\ud800", "x" * 5000])
    | st.just(10**400)
    | st.just(2 ** (4 * 5000))
)
values = (
    scalars
    | st.lists(scalars, max_size=2)
    | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
    | st.none()
)
ALLOWED = 1 << 24  # bytes: messages of errors, hints and caches
nodes = st.dictionaries(st.sampled_from(SETTINGS) | st.text(max_size=8), values, max_size=3)
tables = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), values, min_size=1, max_size=3)


@amounts
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_hostile_configuration_is_refused_in_a_sentence(
    reader: Reader, tmp_path: Path, examples: int
) -> None:
    run_hostile(reader, examples, tmp_path)


@amounts
def test_a_hostile_run_config_is_refused_in_a_sentence(examples: int) -> None:
    words = [*KEYS, "unknown key", "given twice"]
    for_all(examples, tables, lambda table: outcome(lambda: parsed(table), words, "run-config", ALLOWED))


@amounts
def test_a_hostile_node_config_is_refused_in_a_sentence(examples: int) -> None:
    def read(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
        outcome(lambda: as_taken(*pair), ["node", "given twice"], "node-config", ALLOWED)

    for_all(examples, st.tuples(tables, nodes), read)


ASSIGNMENTS = tuple(
    f"{key}={value}".encode() for key in ("seed", "out", "model") for value in ("1", '"a"', "[1, 2]")
)


@amounts
def test_a_hostile_assignment_is_refused_in_a_sentence(examples: int) -> None:
    def read(text: bytes) -> None:
        line = text.decode(errors="surrogateescape")  # as Python decodes a command line
        words = [*KEYS, "unknown key", "--set"]
        outcome(lambda: parsed(dict([read_assignment(line)])), words, "--set", ALLOWED)

    texts = mutations(ASSIGNMENTS) | st.sampled_from([b"seed=" + piece for piece in FRAGMENTS])
    for_all(examples, texts, read, ASSIGNMENTS)

"""Hostile inputs: mutations of valid files, and what a reader may do with any of them.

A reader gives a result, or raises an error of fedpriv's own kind whose text is one line and names the file.
It takes no more memory than a multiple of the input's size, changes no file outside the input's folder and
reads no pickle.
"""

from __future__ import annotations

import os
import pickle
import re
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import FedprivError
from helpers import tally

SLACK = 1 << 20  # bytes that reading may take whatever the input: buffers, code objects, caches
LONGEST = 4000  # characters of an error

EXTREMES = (
    0,
    1,
    2**7,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    10**12,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
FRAGMENTS = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"\r", b"\n", b"\n\n", b" ", b"'", b'"', b"-", b"#", b"[" * 3000,
    b"{" * 3000, b'{"a":' * 3000, b"(" * 500, b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b"1e999", b"-1",
    b"nan", b"inf",
    b'"\\ud800"', b"null", b"true", b"[]", b"{}", b'"x"', b"\\ud800", b"../../x", b"/tmp/x", b"~x/",
    b"1000000000000", b"a = 1\n",
    b"2020-01-01", pickle.dumps(print),
)  # fmt: skip


class Unpickled(BaseException):
    """A reader read a pickle. No handler of the code under test catches it."""


def _refuse(*arguments: Any, **options: Any) -> Any:
    raise Unpickled


@contextmanager
def no_pickles() -> Iterator[None]:
    """Within this block, reading any pickle fails the test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load", "loads", "Unpickler"):
            patch.setattr(pickle, name, _refuse)
        yield


@dataclass(frozen=True)
class Reader:
    """A function that reads bytes that come from outside.

    Attributes:
        name: what docs/trust.md calls it.
        file: the name of the file that it reads.
        read: reads the file at a path.
        valid: contents that it accepts.
        seal: makes a file of mutated content, as a forger who knows checksums and hashes would.
        beside: contents of the files beside it, by name.
        names: words of which an error must have one; none: the file's name.
        times: the bytes of memory that it may take for each byte of the input, sealed or not.
        slack: the bytes that it may take whatever the input.
    """

    name: str
    file: str
    read: Callable[[Path], object]
    valid: tuple[bytes, ...]
    seal: Callable[[bytes], bytes] = bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)
    names: Sequence[str] = ()
    times: int = 20
    slack: int = SLACK


class Choices(Protocol):
    """Where the choices of a mutation come from."""

    def integer(self, least: int, most: int) -> int:
        """One of these numbers, both ends included."""

    def among(self, values: Sequence[Any]) -> Any:
        """One of these values."""


@dataclass(frozen=True)
class Drawn:
    """Choices that hypothesis makes, and shrinks."""

    draw: st.DrawFn

    def integer(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def among(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(values))


@st.composite
def mutations(draw: st.DrawFn, valid: tuple[bytes, ...]) -> bytes:
    """Arbitrary bytes, or a valid input with one to four changes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        change(Drawn(draw), data)
    return bytes(data)


def change(choices: Choices, data: bytearray) -> None:
    """Changes these bytes as an adversary would, at one place."""
    # Headers lie at the start and the end, so places there are as likely as all others together.
    size = len(data)
    at = choices.integer(*choices.among(((0, min(size, 64)), (max(size - 64, 0), size), (0, size))))
    kind = choices.among(("flip", "cut", "remove", "number", "digits", "insert", "repeat"))
    if kind == "flip" and at < size:
        data[at] ^= 1 << choices.integer(0, 7)
    elif kind == "cut":
        del data[at:]
    elif kind == "remove":
        del data[at : at + choices.integer(1, 64)]
    elif kind == "number":
        width, order = choices.among("BHIQ"), choices.among("<>")
        number = choices.among(EXTREMES) % 256 ** struct.calcsize(width)
        data[at : at + struct.calcsize(width)] = struct.pack(order + width, number)
    elif kind == "digits" and (runs := list(re.finditer(rb"\d+", data))):
        run = choices.among(runs)
        data[run.start() : run.end()] = choices.among((b"-1", b"0", b"1000000000000", b"9" * 400, b"1e999"))
    elif kind == "insert":
        data[at:at] = choices.among(FRAGMENTS)
    elif kind == "repeat":
        data[at:at] = data[at : at + choices.integer(1, 256)] * choices.integer(1, 8)


def check(reader: Reader, content: bytes, root: Path) -> bool:
    """Reads a content and asserts all that a reader promises; returns whether it was accepted."""
    sealed = reader.seal(content)
    path = root / "inner" / reader.file
    if not path.parent.is_dir():
        path.parent.mkdir()
        for name, other in reader.beside.items():
            (path.parent / name).write_bytes(other)
    path.write_bytes(sealed)
    allowed = reader.slack + reader.times * max(len(sealed), len(content))
    accepted = outcome(lambda: reader.read(path), (*reader.names, path.name), reader.name, allowed)
    assert [entry.name for entry in root.iterdir()] == ["inner"], "a file was written outside the folder"
    return accepted


def outcome(read: Callable[[], object], names: Sequence[str], called: str, allowed: int) -> bool:
    """Whether it was accepted; else asserts that it was refused in one sentence, within ``allowed`` bytes."""
    error: FedprivError | None = None
    tracemalloc.start()
    try:
        with no_pickles():
            read()
    except FedprivError as refusal:
        error = refusal
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= allowed, f"{called}: {peak:,} bytes were allocated where {allowed:,} are allowed"
    tally.count(f"inputs/{called}/{'accepted' if error is None else 'refused'}")
    if error is not None:
        assert_sentence(str(error), names)
    return error is None


def assert_sentence(text: str, names: Sequence[str]) -> None:
    """An error is one line of printable text that names its file or argument."""
    assert any(name in text for name in names), text
    assert "\n" not in text.replace("\\n", ""), text
    assert "Traceback" not in text
    assert 20 < len(text) < LONGEST, text


amounts = pytest.mark.parametrize(
    "examples",
    [
        pytest.param(20, id="few"),
        pytest.param(int(os.environ.get("FEDPRIV_FUZZ", "200")), id="many", marks=pytest.mark.slow),
    ],
)


@dataclass(frozen=True)
class Target:
    """A property as a fuzzer sees it.

    Attributes:
        read: tries the property with the input that these bytes stand for; an error means that it fails.
        seeds: the bytes of valid inputs; none where the bytes are hypothesis's choices.
    """

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...] = ()


# What tries a property in place of hypothesis; tests/helpers/guided_fuzzing.py sets it.
guide: Callable[[Target], None] | None = None


def for_all(
    examples: int,
    strategy: st.SearchStrategy[Any],
    body: Callable[[Any], object],
    seeds: tuple[bytes, ...] = (),
) -> None:
    """Calls ``body`` with so many examples of the strategy.

    Args:
        examples: how many.
        strategy: makes them.
        body: tries one.
        seeds: valid inputs, if inputs are bytes of any content; a fuzzer changes them byte by byte.
    """

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(example: Any) -> None:
        body(example)

    if guide is None:
        run()
    elif seeds:
        guide(Target(body, seeds))
    else:
        guide(Target(run.hypothesis.fuzz_one_input))  # type: ignore[attr-defined]


def run_hostile(reader: Reader, examples: int, root: Path) -> None:
    """The valid contents, and so many mutations of them."""
    for valid in reader.valid:
        check(reader, valid, root)
    for_all(examples, mutations(reader.valid), lambda data: check(reader, data, root), reader.valid)

"""The ledger file: on disk first, chained, repaired, and refused when edited."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event, Ledger, LedgerError, record
from fedpriv.accounting.head import head_path
from fedpriv.accounting.ledger import read
from fedpriv.accounting.record import Reader, parse

EVENTS = [Event(1.0 + i, "poisson", "add-remove", rate=0.1) for i in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {"unit": "client"}) as ledger:
        for event in EVENTS:
            ledger.record([event])
        assert len(ledger) == 4
    return path


def test_reads_back_what_was_written(path: Path) -> None:
    record = read(path)
    assert record.header == {"ledger": 3, "unit": "client"}
    assert record.events == tuple(EVENTS)
    assert record.torn is None
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    assert all(set(json.loads(line)) == {"event", "chain"} for line in lines[1:])


def test_events_are_synced_before_record_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    ledger, _ = Ledger.resume(path)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    ledger.record(EVENTS[:2])
    assert synced == [path.stat().st_size]
    ledger.close()


LINKS = pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links."""

    def link(*names: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)


@LINKS
def test_an_existing_file_is_not_overwritten(
    path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    if not links:
        without_links(monkeypatch)
    with pytest.raises(FileExistsError, match=rf"{path.name}'$"):
        Ledger.create(path, {})
    assert path.read_bytes() == before
    assert set(path.parent.iterdir()) == {path, head_path(path)}


@LINKS
def test_a_new_ledger_is_complete_and_locked(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    if not links:
        without_links(monkeypatch)
    with Ledger.create(path, {"unit": "client"}) as ledger:
        assert set(tmp_path.iterdir()) == {path, head_path(path)}
        with pytest.raises(LedgerError, match="is in use"):
            Ledger.resume(path)
        ledger.record(EVENTS)
    assert read(path).events == tuple(EVENTS)


def test_a_header_that_cannot_be_written_leaves_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even an empty file under its name, at any moment: a run would refuse it until somebody deletes
    it."""
    path, seen = tmp_path / "ledger.jsonl", list[BinaryIO]()

    def full(ledger: Ledger, data: bytes) -> None:
        seen.append(ledger._file)
        assert not path.exists()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_append", full)
        with pytest.raises(OSError, match="No space left"):
            Ledger.create(path, {"unit": "client"})
    assert seen[0].closed
    assert list(tmp_path.iterdir()) == []
    Ledger.create(path, {"unit": "client"}).close()


@pytest.mark.parametrize("cut", [1, 20, 80])
def test_an_incomplete_last_line_is_dropped_with_a_warning(
    path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash: the head is written after the line, so it does not know of the line."""
    sealed = head_path(path).read_bytes()
    ledger, _ = Ledger.resume(path)
    ledger.record([EVENTS[0]])
    ledger.close()
    path.write_bytes(path.read_bytes()[:-cut])
    head_path(path).write_bytes(sealed)
    keeps = cut == 1  # only the newline is missing: the record is whole, so it counts as charged
    ledger, record = Ledger.resume(path)
    assert record.torn == (None if keeps else 6)
    assert ("the incomplete last line 6 was dropped" in caplog.text) is not keeps
    assert record.events == (*EVENTS, *EVENTS[: 1 if keeps else 0])
    ledger.record([EVENTS[3]])
    ledger.close()
    assert read(path).events == (*record.events, EVENTS[3])


@settings(max_examples=60)
@given(st.data())
def test_any_edit_is_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    with Ledger.create(path, {"unit": "client"}) as ledger:
        ledger.record(EVENTS)
    lines = path.read_text().splitlines()
    number = data.draw(st.integers(0, 4))
    body = json.loads(lines[number])
    if number:
        body["event"]["noise_multiplier"] *= 2
    else:
        body["unit"] = "example"
    lines[number] = json.dumps(body)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=f"line {number + 1} "):
        read(path)


def test_a_reader_reads_what_reading_anew_does_and_verifies_a_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reader, verified = tmp_path / "ledger.jsonl", Reader(), list[bytes]()
    verify = record._verify
    monkeypatch.setattr(record, "_verify", lambda line, chain: verified.append(line) or verify(line, chain))
    with Ledger.create(path, {}) as ledger:
        for number in range(4):
            ledger.record([Event(1.0 + number % 2, "none", "add-remove")] * number, round=number)
            assert read(path, reader=reader) == parse(path.read_bytes(), "")
    lines = path.read_bytes().splitlines()
    assert len(lines) == 7
    verified.clear()
    assert read(path, reader=reader).labels[-1] == {"round": 3}
    assert verified == []
    path.write_bytes(path.read_bytes()[:-1])  # its last line is complete without its end, too
    assert len(read(path, reader=reader).events) == 6
    path.write_bytes(path.read_bytes() + b"\n" + lines[-1][:20])
    assert read(path, reader=reader).torn == 8
    assert read(path, reader=reader) == parse(path.read_bytes(), "")


def test_a_reader_notices_what_has_changed_since(path: Path) -> None:
    reader = Reader()
    before = read(path, reader=reader)
    text = path.read_text()
    path.write_text(text.replace(":2.0,", ":9.0,", 1))
    with pytest.raises(LedgerError, match="was edited"):
        read(path, reader=reader)
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="its end was cut"):
        read(path, reader=reader)
    path.write_text(text)
    assert read(path, reader=reader) == before


def test_removed_and_swapped_lines_are_refused(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(LedgerError, match="line 3 "):
        read(path)
    path.write_text("".join([lines[0], lines[2], lines[1], *lines[3:]]))
    with pytest.raises(LedgerError, match="line 2 "):
        read(path)


def test_a_file_without_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(LedgerError, match="line 1 is not the header"):
        read(tmp_path / "empty.jsonl")


def test_the_header_may_not_hold_the_chain(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="chain"):
        Ledger.create(tmp_path / "ledger.jsonl", {"chain": "x"})


def test_events_are_keyed_by_silo(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {}) as ledger:
        ledger.record(EVENTS[:2], silos=[0, 10, 2])
        ledger.record(EVENTS[2:3], silos=[10])
    record = read(path)
    assert record.events == tuple(EVENTS[:3])
    assert [labels["silos"] for labels in record.labels] == [[0, 10, 2], [0, 10, 2], [10]]
    both, more = tuple(EVENTS[:2]), tuple(EVENTS[:3])
    assert record.by_silo() == {"0": both, "2": both, "10": more}
    assert list(record.by_silo()) == ["0", "2", "10"]


def test_an_event_without_a_silo_is_refused(path: Path) -> None:
    ledger, _ = Ledger.resume(path)
    ledger.record(EVENTS[:1], silos=[0])
    ledger.close()
    with pytest.raises(LedgerError, match="Line 2 of the ledger has no label 'silos'"):
        read(path).by_silo()


def test_an_edited_silo_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {}) as ledger:
        ledger.record(EVENTS[:1], silos=[0, 1])
    path.write_text(path.read_text().replace("[0,1]", "[0]"))
    with pytest.raises(LedgerError, match="line 2 "):
        read(path)


def test_a_ledger_of_format_1_can_be_read(tmp_path: Path) -> None:
    chains = (
        "3d261759e5c56802796ad620b21992e358afa9665e54c746c6e5c63e7d17bc4c",
        "f1e8ee76ac5291cbc0469e79ff171ef082c7be4b644c2fbdb1ebdade26f13a55",
    )
    event = '{"noise_multiplier":1.0,"sampling":"none","relation":"add-remove"}'
    lines = [f'{{"ledger":1,"unit":"client","chain":"{chains[0]}"}}']
    lines.append(f'{{"event":{event},"chain":"{chains[1]}"}}')
    (tmp_path / "old.jsonl").write_text("\n".join(lines) + "\n")
    record = read(tmp_path / "old.jsonl")
    assert (record.events, record.labels) == ((Event(1.0, "none", "add-remove"),), ({},))

"""The sealed head: a ledger without its end is refused, and a crash at any byte is not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest

from fedpriv.accounting import Event, Ledger, LedgerError
from fedpriv.accounting import head as heads
from fedpriv.accounting.head import Head, HeadFile, head_path, read_head
from fedpriv.accounting.ledger import read
from fedpriv.accounting.record import link

EVENTS = [Event(1.0 + i, "poisson", "add-remove", rate=0.1) for i in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {"unit": "client"}) as ledger:
        for event in EVENTS:
            ledger.record([event])
    return path


def cut(path: Path, events: int) -> None:
    """Leave so many whole events."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: 1 + events]))


def test_the_head_says_where_the_ledger_ends(path: Path) -> None:
    assert read_head(head_path(path)) == read(path).head == Head(4, read(path).links[4])
    ledger, _ = Ledger.resume(path)
    with ledger:
        ledger.record(EVENTS[:3])
        assert ledger.head == read_head(head_path(path))
    assert read(path).head.length == 7


@pytest.mark.parametrize("events", range(4))
def test_a_ledger_without_its_end_is_refused(path: Path, events: int) -> None:
    cut(path, events)
    before = path.read_bytes()
    said = f"It ends after event {events}, and its head, {head_path(path)}, says 4. Restore the ledger"
    for use in (read, Ledger.resume):
        with pytest.raises(LedgerError) as caught:
            use(path)
        assert said in str(caught.value)
    assert path.read_bytes() == before
    with path.open("ab") as file:  # a line that is as half as after a crash saves nobody
        file.write(b'{"event":')
    with pytest.raises(LedgerError, match="its end was cut"):
        read(path)


def test_a_ledger_without_its_head_is_refused(path: Path) -> None:
    head_path(path).unlink()
    with pytest.raises(LedgerError, match=r"its head, .*\.head, is missing, so lines may have been cut"):
        read(path)
    cut(path, 0)  # a crash may have come between the ledger and its head: nothing was charged
    with Ledger.resume(path)[0]:
        assert read_head(head_path(path)) == read(path).head


def test_the_head_of_another_ledger_is_refused(path: Path, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "other.jsonl", {"unit": "example"}) as other:
        other.record(EVENTS)
    shutil.copy(head_path(tmp_path / "other.jsonl"), head_path(path))
    with pytest.raises(LedgerError, match="is that of another ledger: the hashes after event 4 differ"):
        read(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 384, b"{}\n" * 128, b'{"length":1}', b"[" * 4000, b'{"length":1,"chain":"\\ud800"}'],
)
def test_a_damaged_head_is_refused(path: Path, content: bytes) -> None:
    head_path(path).write_bytes(content)
    for use in (read, Ledger.resume):
        with pytest.raises(LedgerError, match=r"\.head is damaged, so lines may be missing"):
            use(path)


def test_a_deleted_ledger_is_not_begun_anew(path: Path) -> None:
    path.unlink()
    with pytest.raises(LedgerError, match=r"was deleted: its head, .*, seals 4 events"):
        Ledger.create(path, {"unit": "client"})
    assert not path.exists()
    HeadFile.create(head_path(path), Head(0, "a" * 64)).close()  # nothing was charged under this one
    with Ledger.create(path, {"unit": "client"}) as ledger:
        ledger.record(EVENTS[:1])
    assert read(path).head.length == 1


def test_line_head_and_nothing_else_are_synced_in_this_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the head came first, a crash would leave an honest ledger that is refused."""
    synced, names = list[str](), {os.stat(one).st_ino: one.name for one in (path, head_path(path))}

    def sync(handle: int) -> None:
        synced.append(names[os.fstat(handle).st_ino])
        assert len(path.read_bytes().splitlines()) == 6  # and the line is written by then
        wanted = 5 if len(synced) == 2 else 4
        chain = json.loads(path.read_text().splitlines()[wanted])["chain"]
        assert read_head(head_path(path)) == Head(wanted, chain)

    ledger, _ = Ledger.resume(path)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(heads, "_sync", sync)
    ledger.record(EVENTS[:1])
    assert synced == ["ledger.jsonl", "ledger.jsonl.head"]
    ledger.close()


class CrashError(BaseException):
    """The process is gone."""


def crash_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything that is written to ledgers and heads, only the first ``count`` bytes get to the disk."""
    left = count

    def write(file: BinaryIO, data: bytes) -> None:
        nonlocal left
        file.write(data[:left])
        file.flush()
        left -= min(left, len(data))
        if not left:
            raise CrashError

    def slot(self: HeadFile, data: bytes) -> None:
        self._file.seek(self._slot * len(data))
        write(self._file, data)

    monkeypatch.setattr(Ledger, "_append", lambda self, data: write(self._file, data))
    monkeypatch.setattr(HeadFile, "_write", slot)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_after_a_crash_at_any_byte_the_run_resumes_with_every_charge_that_was_used(
    path: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two charges are written, of one event and of two, and the disk stops at each of their bytes."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(heads, "_sync", lambda handle: None)
    kept = {one.name: one.read_bytes() for one in (path, head_path(path))}
    ends, count, finished = set[int](), 0, False
    while not finished:
        count += step
        for name, content in kept.items():
            (tmp_path / name).write_bytes(content)
        ledger, _ = Ledger.resume(path)
        used = 4  # charges after which a release was made
        with monkeypatch.context() as patch:
            crash_after(count, patch)
            try:
                for events in (EVENTS[:1], EVENTS[1:3]):
                    ledger.record(events)
                    used += len(events)
                finished = True
            except CrashError:
                pass
        ledger.close()
        after = {one: one.read_bytes() for one in (path, head_path(path))}
        with Ledger.resume(path)[0] as ledger:
            assert used <= len(ledger) <= 7
            ends.add(len(ledger))
            ledger.record(EVENTS[:1])
            assert read(path).head.length == len(ledger)
        if used > 4:
            for one, content in after.items():
                one.write_bytes(content)
            cut(path, used - 1)
            with pytest.raises(LedgerError, match="its end was cut"):
                read(path)
    assert ends == {4, 5, 6, 7}
    assert count > 800


def test_a_ledger_of_an_earlier_format_gets_a_head_when_it_goes_on(tmp_path: Path) -> None:
    path, chain, lines = tmp_path / "old.jsonl", "", list[str]()
    for body in ({"ledger": 2, "unit": "client"}, *({"event": event.to_json()} for event in EVENTS)):
        chain = link(chain, body)
        lines.append(json.dumps({**body, "chain": chain}) + "\n")
    path.write_text("".join(lines))
    assert not read(path).has_head
    assert not head_path(path).exists()
    with Ledger.resume(path)[0] as ledger:
        ledger.record(EVENTS[:1])
        ledger.record(EVENTS[:1])
    record = read(path)
    assert record.has_head
    assert (record.head.length, record.labels[4:]) == (6, ({"head": True}, {}))
    cut(path, 5)
    with pytest.raises(LedgerError, match="its end was cut"):
        read(path)
    head_path(path).unlink()
    with pytest.raises(LedgerError, match="is missing"):
        read(path)

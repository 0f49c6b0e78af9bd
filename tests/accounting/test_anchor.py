"""Anchors: an older ledger that is put back together with its head is refused."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpriv.accounting import Event, Ledger, LedgerError
from fedpriv.accounting import anchor as anchors
from fedpriv.accounting.head import head_path, read_head
from fedpriv.accounting.ledger import read

EVENTS = [Event(1.0 + i, "poisson", "add-remove", rate=0.1) for i in range(4)]

# Keeps all heads, one a line, and answers with the last of the ledger that is asked for.
KEEPER = """
import json, sys
log, asked = sys.argv[1], json.loads(sys.stdin.readline())
if asked.pop("ask") == "seal":
    open(log, "a").write(json.dumps(asked) + "\\n")
else:
    heads = [json.loads(line) for line in open(log, "a+").seek(0) or open(log)]
    own = [head for head in heads if head["ledger"] == asked["ledger"]]
    print(json.dumps(own[-1]) if own else "")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "keeper.py").write_text(KEEPER)
    return shlex.join([sys.executable, str(tmp_path / "keeper.py"), str(tmp_path / "log")])


def put_back(path: Path, use: Callable[[], None]) -> None:
    """What ``use`` writes is lost again: a copy of the folder is put back."""
    shutil.copytree(path.parent, path.parent.with_name("copy"))
    use()
    shutil.rmtree(path.parent)
    path.parent.with_name("copy").rename(path.parent)


def test_a_file_keeps_the_head_outside_the_folder(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "head"
    with Ledger.create(path, {anchors.FILE: str(file)}) as ledger:
        ledger.record(EVENTS[:2])
        assert read_head(file) == ledger.head

    def use() -> None:
        with Ledger.resume(path)[0] as ledger:
            ledger.record(EVENTS[2:])

    put_back(path, use)
    for uses in (read, Ledger.resume):
        with pytest.raises(LedgerError, match=rf"ends after event 2, and its anchor, {file}, says 4"):
            uses(path)
    file.rename(tmp_path / "moved")
    with pytest.raises(LedgerError, match="keeps no head of it, so lines may have been cut"):
        read(path)
    with pytest.raises(LedgerError, match=r"its anchor, .*moved, says 4"):
        read(path, anchor=tmp_path / "moved")


def test_an_anchor_is_one_charge_behind_after_a_crash(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "head"
    with Ledger.create(path, {anchors.FILE: str(file)}) as ledger:
        ledger.record(EVENTS[:1])
        behind = file.read_bytes()
        ledger.record(EVENTS[1:2])
    file.write_bytes(behind)
    with Ledger.resume(path)[0] as ledger:
        assert len(ledger) == 2
        assert read_head(file) == ledger.head


def test_an_anchor_is_that_of_one_ledger(path: Path, tmp_path: Path) -> None:
    header = {anchors.FILE: str(tmp_path / "head")}
    Ledger.create(path, header).close()
    path.unlink()
    head_path(path).unlink()
    with Ledger.create(path, header) as ledger:  # nothing was charged under it
        ledger.record(EVENTS[:1])
    with pytest.raises(LedgerError, match=r"keeps the head of another ledger, with 1 events\. Name a new"):
        Ledger.create(tmp_path / "other.jsonl", header)
    assert not (tmp_path / "other.jsonl").exists()


def test_a_command_is_given_the_head_before_the_release(path: Path, tmp_path: Path, command: str) -> None:
    with Ledger.create(path, {anchors.COMMAND: command}) as ledger:
        ledger.record(EVENTS[:2])
        last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
        assert last == {"ledger": str(path), **ledger.head.to_json()}
        with Ledger.create(path.with_name("other.jsonl"), {anchors.COMMAND: command}) as other:
            other.record(EVENTS)  # the command tells ledgers apart by their paths

    def use() -> None:
        with Ledger.resume(path, command)[0] as ledger:
            ledger.record(EVENTS[2:])

    put_back(path, use)
    with pytest.raises(LedgerError, match=r"ends after event 2, and its anchor, the command '.*', says 4"):
        read(path, command=command)
    with pytest.raises(LedgerError, match=r"does not start a command that a file names\. Give it as"):
        read(path)


BROKEN = {
    "exit 3": ("import sys; sys.exit('out of order')", "exit status 1: out of order"),
    "no such program": (None, "No such file"),
    "hangs": ("import time; time.sleep(60)", "timed out"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_without_its_anchor_a_charge_is_no_release(
    path: Path, command: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge stands, and the run can be resumed once the command works."""
    monkeypatch.setattr(anchors, "_TIMEOUT", 10.0 if how != "hangs" else 0.5)
    with Ledger.create(path, {anchors.COMMAND: command}) as ledger:
        works = (tmp_path / "keeper.py").read_text()
        code, said = BROKEN[how]
        if code is None:
            ledger._anchor = anchors.CommandAnchor("/nowhere/keeper", path)
        else:
            (tmp_path / "keeper.py").write_text(code)
        with pytest.raises(LedgerError, match=f"did not keep or give the head of .*{said}"):
            ledger.record(EVENTS[:1])
    (tmp_path / "keeper.py").write_text(works)
    monkeypatch.setattr(anchors, "_TIMEOUT", 10.0)
    with Ledger.resume(path, command)[0] as ledger:
        assert len(ledger) == 1


@pytest.mark.parametrize(
    "answer", ["yes", "[]", '{"length": "2", "chain": ""}', '{"length": -1, "chain": ""}']
)
def test_what_a_command_answers_must_be_a_head(path: Path, tmp_path: Path, answer: str) -> None:
    (tmp_path / "talker.py").write_text(f"print({answer!r})")
    command = shlex.join([sys.executable, str(tmp_path / "talker.py")])
    with pytest.raises(LedgerError, match="must answer 'read' with one JSON object"):
        Ledger.create(path, {anchors.COMMAND: command})

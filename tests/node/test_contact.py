"""The file that says when a node last had contact: seldom written, whole, and never an obstacle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedpriv.node.contact import Contact, Times, read_contact

MODULE = "fedpriv.node.contact"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The one clock's time, in a list that a test changes."""
    now = [1000.0]
    monkeypatch.setattr(f"{MODULE}.time.time", lambda: now[0])
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now[0])
    return now


def test_it_is_written_at_most_every_few_seconds(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[float]()
    replace = os.replace
    monkeypatch.setattr(f"{MODULE}.os.replace", lambda *paths: (written.append(clock[0]), replace(*paths)))
    contact = Contact(tmp_path / "contact")
    for _ in range(200):  # a round of 0.1 s each
        clock[0] += 0.1
        contact.asked()
        contact.answers()
    assert len(written) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["contact"]


def test_while_a_message_is_answered_heartbeats_are_the_contact(tmp_path: Path, clock: list[float]) -> None:
    contact = Contact(tmp_path / "contact")
    contact.asked()
    assert read_contact(tmp_path / "contact") == Times(1000, 1000)
    contact.answers()
    clock[0] += 20
    contact.heard()
    assert read_contact(tmp_path / "contact") == Times(1020, None)
    clock[0] += 20
    contact.asked()
    assert read_contact(tmp_path / "contact") == Times(1040, 1040)


def test_it_holds_two_times_and_nothing_else(tmp_path: Path, clock: list[float]) -> None:
    Contact(tmp_path / "contact").asked()
    assert json.loads((tmp_path / "contact").read_text()) == {"heard": 1000, "asked": 1000}


def test_a_file_of_an_earlier_process_does_not_count_and_the_end_takes_it_away(tmp_path: Path) -> None:
    Contact(tmp_path / "contact").heard()
    again = Contact(tmp_path / "contact")
    assert read_contact(tmp_path / "contact") is None
    again.heard()
    again.close()
    assert not list(tmp_path.iterdir())


def test_a_node_goes_on_where_the_file_cannot_be_written(tmp_path: Path) -> None:
    contact = Contact(tmp_path / "missing" / "contact")
    contact.asked()
    contact.close()


HUGE = f'{{"heard": 1{"0" * 400}, "asked": 1}}'  # a number that no float holds


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"heard": "x", "asked": 1}', '{"heard": 1}', "\0", "[" * 100_000, HUGE],
)
def test_a_file_with_another_content_is_no_contact(tmp_path: Path, content: str) -> None:
    (tmp_path / "contact").write_text(content)
    assert read_contact(tmp_path / "contact") is None

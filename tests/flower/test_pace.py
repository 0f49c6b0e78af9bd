"""A node that hangs delays one release, and not all later ones."""

from __future__ import annotations

import itertools

import pytest

from fedpriv import ArgumentError
from fedpriv.flower.pace import Pace


def test_without_a_deadline_it_follows_from_complete_releases() -> None:
    pace = Pace(reply_timeout=600.0)
    for seconds in (2.0, 500.0):  # the first ones include what happens once
        assert pace.deadline == 600.0
        pace.note({1, 2}, {1, 2}, seconds)
    pace.note({1, 2}, {1}, 600.0)
    assert pace.deadline == 600.0, "an incomplete release shows no pace"
    for _ in range(20):
        pace.note({1, 2}, {1, 2}, 7.0)
    assert pace.deadline == 70.0
    for _ in range(20):
        pace.note({1}, {1}, 0.1)
    assert pace.deadline == 30.0, "the least"
    pace.note(set(), set(), 0.0)
    assert pace.deadline == 30.0


def test_a_given_deadline_holds_from_the_first_release() -> None:
    assert Pace(600.0, 5.0).deadline == 5.0
    with pytest.raises(ArgumentError, match=r"round-deadline is 601\.0; it must be at most reply-timeout"):
        Pace(600.0, 601.0)


def test_a_late_node_is_asked_and_not_waited_for_in_the_next_release() -> None:
    pace = Pace(600.0)
    assert pace.awaited({1, 2, 3}) == {1, 2, 3}
    pace.note({1, 2, 3}, {1, 3}, 9.0)
    assert pace.awaited({1, 2, 3}) == {1, 3}
    pace.note({1, 3}, {1, 3}, 9.0)  # a cohort without it tells nothing of it
    assert pace.awaited({1, 2, 3}) == {1, 3}
    assert pace.awaited({2}) == {2}, "somebody is waited for"
    pace.note({1, 2}, {1, 2}, 9.0)
    assert pace.awaited({1, 2, 3}) == {1, 2, 3}


def test_a_node_that_hangs_is_waited_for_ever_less_often_and_a_slow_one_comes_back() -> None:
    pace, waited = Pace(600.0), list[int]()
    for release in range(300):
        if 2 in pace.awaited({1, 2}):
            waited.append(release)
        pace.note({1, 2}, {1}, 9.0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(waited)]
    assert gaps == [2, 3, 5, 9, 17, 33, 65, 65, 65], "pauses of 1, 2, 4, ... and at most 64 releases"
    while 2 not in pace.awaited({1, 2}):
        pace.note({1, 2}, {1}, 9.0)
    pace.note({1, 2}, {1, 2}, 9.0)  # it answers when it is waited for
    pace.note({1, 2}, {1}, 9.0)
    pace.note({1, 2}, {1}, 9.0)
    assert pace.awaited({1, 2}) == {1, 2}, "an answer makes the pauses short again"


def test_an_answer_during_a_pause_ends_it() -> None:
    pace = Pace(600.0)
    for _ in range(4):  # a pause of 1, and one of 2 releases has begun
        pace.note({1, 2}, {1}, 9.0)
    assert pace.awaited({1, 2}) == {1}
    pace.note({1, 2}, {1, 2}, 9.0)
    assert pace.awaited({1, 2}) == {1, 2}

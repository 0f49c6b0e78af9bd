"""The limit of open files is raised as far as the system lets a process."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from fedpriv._internal import descriptors


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit, below which the soft limit is at 512."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield hard if hard != resource.RLIM_INFINITY else descriptors.MOST
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def soft() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_soft_limit_becomes_the_hard_one_or_what_is_enough(hard: int) -> None:
    assert descriptors.allowed() == min(hard, descriptors.MOST)
    assert soft() == 512  # asking changes nothing
    assert descriptors.raise_limit() == soft() == min(hard, descriptors.MOST)


def test_more_than_enough_is_not_asked_for(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "MOST", 600)
    assert descriptors.raise_limit() == soft() == 600
    monkeypatch.setattr(descriptors, "MOST", 550)
    assert descriptors.raise_limit() == 550
    assert soft() == 600  # a higher limit stays


def test_a_system_that_allows_less_than_it_says_leaves_the_limit(
    hard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuses)
    assert descriptors.raise_limit() == 512
    monkeypatch.undo()

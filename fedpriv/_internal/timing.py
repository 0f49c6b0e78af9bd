"""A stopwatch, and a wrapper that times an object's methods.

Only ``fedpriv bench`` uses them. The time of a round reveals the size of its cohort, which can be private, so
a run does not measure it.

>>> watch = Stopwatch()
>>> words = Timed(["b", "a"], watch, {"sort": "sorting"})
>>> words.sort()
>>> words.index("a"), list(watch.take())
(0, ['sorting'])
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Stopwatch:
    """Accumulates seconds by name, since the last ``take``."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Adds the duration of the context to ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - started})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds seconds that were measured elsewhere."""
        for name, more in seconds.items():
            self._spent[name] = self._spent.get(name, 0.0) + more

    def take(self) -> dict[str, float]:
        """The accumulated seconds by name; the stopwatch is reset."""
        spent, self._spent = self._spent, {}
        return spent


class Timed:
    """A proxy of ``inner`` that times the methods in ``parts`` ({method: name in the stopwatch})."""

    def __init__(self, inner: Any, watch: Stopwatch, parts: Mapping[str, str]) -> None:
        self._inner, self._watch, self._parts = inner, watch, parts

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self._parts:
            return attribute

        @functools.wraps(attribute)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self._watch.time(self._parts[name]):
                return attribute(*arguments, **named)

        return timed

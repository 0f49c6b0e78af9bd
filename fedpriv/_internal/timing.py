"""Where time goes: a stopwatch, and objects whose methods it times.

Only ``fedpriv bench`` times anything: how long a cohort takes tells how large it was, which is private, so a
run keeps no such numbers.

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
    """Seconds by the name of what they were spent on, since the last ``take``."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the seconds until the context ends to ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - started})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds that were measured elsewhere."""
        for name, more in seconds.items():
            self._spent[name] = self._spent.get(name, 0.0) + more

    def take(self) -> dict[str, float]:
        """What was spent; the watch starts anew."""
        spent, self._spent = self._spent, {}
        return spent


class Timed:
    """``inner``, with the methods that ``parts`` names timed under the names it gives them."""

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

"""Registries: named entries in the order in which they were added.

>>> colours = Registry[str]("colour")
>>> colours.add("red", "#f00")
'#f00'
>>> colours["rad"]
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: colour is 'rad'; it must be one of red (did you mean 'red'?)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from fedpriv._internal import hints, validation

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry], Generic[Entry]):
    """A mapping from names to entries that only grows.

    Attributes:
        setting: the setting whose values the names are; errors name it.
        hint: what an error adds where no name is close to the one asked for.
    """

    def __init__(self, setting: str, hint: str = "") -> None:
        self.setting, self.hint = setting, hint
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry) -> Entry:
        """Register ``entry`` and return it. Raises ValueError where the name is taken by another entry."""
        if self._entries.get(name, entry) != entry:
            raise ValueError(f"two entries are registered as {self.setting}={name}")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name. Raises ArgumentError, with the closest name, where there is none."""
        if name not in self._entries:
            hint = hints.of_value(self.setting, name, self._entries) or self.hint
            raise validation.not_among(self.setting, name, list(self._entries), hint)
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name, or ``default``."""
        return self._entries.get(name, default)

    def __contains__(self, name: object) -> bool:
        """Whether an entry has that name."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of registration."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, by name, so that each registers what it holds."""
    for module in sorted(found.name for found in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")

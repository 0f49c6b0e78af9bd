"""Registries: named entries, for each setting whose values they are.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from fedpriv._internal import hints, user_code, validation

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry], Generic[Entry]):
    """A mapping from names to entries that only grows.

    Attributes:
        setting: the setting whose values the names are; errors name it.
        hint: what an error adds where no name is close to the one asked for.
        own_code: whether the setting may also name the user's own code, as module:name.
        order: what entries are sorted by; None: they stay in the order in which they were added.
    """

    def __init__(
        self,
        setting: str,
        hint: str = "",
        own_code: bool = False,
        order: Callable[[Entry], int] | None = None,
    ) -> None:
        self.setting, self.hint, self.own_code, self.order = setting, hint, own_code, order
        self._entries: dict[str, Entry] = {}
        self._also_called: dict[str, str] = {}

    def add(self, name: str, entry: Entry, also_called: Iterable[str] = ()) -> Entry:
        """Register ``entry`` and return it. Raises ValueError where the name is taken by another entry.

        ``also_called`` are its names in other libraries and in papers; an error hints at ``name`` for them.
        """
        if self._entries.get(name, entry) != entry:
            raise ValueError(f"two entries are registered as {self.setting}={name}")
        self._entries[name] = entry
        if self.order is not None:
            order = self.order
            self._entries = dict(sorted(self._entries.items(), key=lambda item: order(item[1])))
        self._also_called |= dict.fromkeys(also_called, name)
        return entry

    def only(self, condition: Callable[[Entry], bool]) -> Registry[Entry]:
        """The entries that meet the condition, of those that are registered now."""
        found = Registry[Entry](self.setting, self.hint, self.own_code)
        found._entries = {name: entry for name, entry in self._entries.items() if condition(entry)}
        found._also_called = {other: name for other, name in self._also_called.items() if name in found}
        return found

    def require(self, value: object) -> None:
        """Raises ArgumentError, with the closest name, unless the setting may have this value."""
        if isinstance(value, str) and (value in self._entries or (self.own_code and user_code.named(value))):
            return
        meant = self._also_called.get(validation.normalised(value))
        hint = validation.meant(meant) if meant else hints.of_value(self.setting, value, self._entries)
        raise validation.not_among(self.setting, value, list(self._entries), hint or self.hint)

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name. Raises ArgumentError, with the closest name, where there is none."""
        if name not in self._entries:
            self.require(name)
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name, or ``default``."""
        return self._entries.get(name, default)

    def __contains__(self, name: object) -> bool:
        """Whether an entry has that name."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, by name, so that each registers what it holds."""
    for module in sorted(found.name for found in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")

"""What is protected, and where private steps are made.

>>> PrivacyUnit("example").party, PrivacyUnit("example").of_party(500), PrivacyUnit("client").of_party(500)
('silo', 500, 1)
>>> Level.of({"level": "client"}).by_silo, Level.of({}).by_silo
(True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from fedpriv._internal import validation


class PrivacyUnit(StrEnum):
    """What neighbouring data sets differ in: a client with all its data, or an example of a silo."""

    CLIENT = "client"
    EXAMPLE = "example"

    @property
    def in_silos(self) -> bool:
        """Whether the parties of a run are silos, which hold many units, and not units themselves."""
        return self is PrivacyUnit.EXAMPLE

    @property
    def party(self) -> str:
        """What a party of a run is called."""
        return "silo" if self.in_silos else "client"

    def of_party(self, examples: int) -> int:
        """How many units a party with so many examples holds."""
        return examples if self.in_silos else 1


class Level(StrEnum):
    """Where private steps are made: at the server, or in each silo on its own examples."""

    AGGREGATION = "aggregation"
    CLIENT = "client"

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Level:
        """The level of a run, which is given as its settings by key. Raises ArgumentError for another."""
        return cls(validation.choice("level", run.get("level", cls.AGGREGATION.value), [*cls]))

    @property
    def by_silo(self) -> bool:
        """Whether each silo makes private steps of its own."""
        return self is Level.CLIENT

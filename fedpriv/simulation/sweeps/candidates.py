"""What a sweep's [tune] says: the settings that are chosen for each method, among which values, and how.

>>> axes, how = read({"learning-rate": {"from": 0.1, "to": 10, "values": 3}, "search": "halving"})
>>> axes, how["search"]
({'learning-rate': [0.1, 1.0, 10.0]}, 'halving')
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedpriv._internal import validation
from fedpriv._internal.settings import Scalar, by_key

TUNING_PART = "test-part"
_Search = Literal["grid", "halving"]
_SEARCHES: tuple[_Search, ...] = get_args(_Search)
_RANGE = {"from", "to", "values"}
# What a method is, or what its epsilon means: a search over these would compare other things.
_NO_CANDIDATES = (
    "seed", "epsilon", "delta", "relation", "accounting", "unit", "level", "placement", TUNING_PART,
)  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """The same search for every method.

    Attributes:
        axes: the values of each tuned setting; a candidate is one combination.
        search: grid: each candidate once. halving: the better half of the candidates goes on to twice as
            many new seeds, until one is left.
        private_selection: whether to say what choosing would cost if it were private.
    """

    axes: Mapping[str, Sequence[Scalar]]
    search: _Search = "grid"
    private_selection: bool = False

    @property
    def candidates(self) -> list[dict[str, Scalar]]:
        """All combinations, in order."""
        return [
            dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())
        ]

    @property
    def halving(self) -> bool:
        """Whether the better half goes on."""
        return self.search == "halving"

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """(how many candidates are left, how many new seeds each has) for each rung of the search.

        >>> Tuning({"learning-rate": [0.1, 1, 10, 100, 1000]}, "halving").rungs
        [(5, 1), (3, 2), (2, 4)]
        """
        left, seeds = len(self.candidates), 1
        found = [(left, seeds)]
        while self.halving and (left := math.ceil(left / 2)) > 1:
            seeds *= 2
            found.append((left, seeds))
        return found

    def json(self) -> dict[str, Any]:
        """As [tune] in a file."""
        return {**self.axes, "search": self.search, "private-selection": self.private_selection}


def read(table: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the values of each tuned setting, the other keys of [tune]). Raises ArgumentError; names the key."""
    if not isinstance(table, Mapping):
        raise validation.fail("[tune]", table, "be a table")
    axes = by_key(table)
    how = {"search": axes.pop("search", "grid"), "private_selection": axes.pop("private-selection", False)}
    validation.choice("[tune] search", how["search"], _SEARCHES)
    if not isinstance(how["private_selection"], bool):
        raise validation.fail("[tune] private-selection", how["private_selection"], "be true or false")
    for key in axes:
        if key in _NO_CANDIDATES:
            raise validation.ArgumentError(
                f"[tune] has {key}; it belongs to [grid] or [settings], because tuning compares candidates "
                "of one method and one budget"
            )
    return {
        key: _range(key, values) if isinstance(values, Mapping) else values for key, values in axes.items()
    }, how


def _range(key: str, table: Mapping[str, Any]) -> list[float]:
    """Numbers at equal ratios, with three figures."""
    name = f"[tune] {key}"
    if set(table) != _RANGE:
        raise validation.fail(name, dict(table), "have from, to and values, or be a list")
    low, high = (validation.finite_positive(f"{name} {end}", table[end]) for end in ("from", "to"))
    count = validation.integer(f"{name} values", table["values"], minimum=2)
    if high <= low:
        raise validation.fail(f"{name} to", high, f"be greater than from, {low:g}")
    ratio = math.log(high / low) / (count - 1)
    return [float(f"{low * math.exp(ratio * at):.3g}") for at in range(count)]

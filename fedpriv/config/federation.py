"""How clients come to their examples, and how many slots for examples silos have."""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.partitioning.client_sizes import Sizes

if TYPE_CHECKING:
    from fedpriv.data import Indices, Source

_ALL = "a client with all its examples"
_MOST_UNEQUAL = 10**6  # silos of unequal sizes: their sizes are listed


class Partitioning(StrEnum):
    """How examples are divided among clients that are privacy units.

    :func:`fedpriv.data.population` divides them.

    Attributes:
        client: what a client holds, for reports.
        several: whether a client may hold several examples.
        assigned: whether examples are assigned to clients of configured sizes: a finite data set whole.
    """

    client: str
    several: bool
    assigned: bool

    def __new__(cls, word: str, client: str = _ALL, several: bool = True, assigned: bool = True) -> Self:
        """The member whose value is ``word``."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.client, member.several, member.assigned = client, several, assigned
        return member

    ONE_EXAMPLE = "one-example", "a client with its single example", False, False
    IID = "iid"
    DIRICHLET = "dirichlet"
    SHARDS = "shards"
    NATURAL = "natural", "a user of the data set with all their training examples", True, False

    @property
    def natural(self) -> bool:
        """Whether clients are those of the data set, such as its users."""
        return self is Partitioning.NATURAL

    def clients_of(self, source: Source) -> int | None:
        """How many clients a data set has by itself; None where that is to be configured."""
        if self.natural and source.owners is not None:
            return int(source.owners.max()) + 1
        return None if self.several else source.size


@functools.lru_cache(maxsize=16)
def silo_sizes(kind: str, mean: int, seed: int, silos: int) -> Indices:
    """The public number of slots of each silo, (silos,), read-only; it depends on public numbers alone.

    Args:
        kind: the setting ``client-sizes``.
        mean: the setting ``examples-per-client``: of equal silos the slots of each, else their mean.
        seed: the setting ``partition-seed``.
        silos: the number of silos.

    Raises ArgumentError for more silos of unequal sizes than can be listed.

    >>> silo_sizes("equal", 7, 0, 3).tolist()
    [7, 7, 7]
    """
    if kind != "equal" and silos > _MOST_UNEQUAL:
        raise validation.fail("clients", silos, f"be at most {_MOST_UNEQUAL} silos of unequal sizes")
    sizes = Sizes(kind, mean).of(seed, np.arange(silos))
    sizes.flags.writeable = False
    return sizes

"""How clients come to their examples."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fedpriv.data import Source

_ALL = "a client with all its examples"


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

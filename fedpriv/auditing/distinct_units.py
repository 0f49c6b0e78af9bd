"""An engine of other processes that is asked for a unit in two places of a cohort.

Where neighbours replace a unit, an audit asks for another unit in its place, and the other one may be in the
cohort itself. Nodes refuse requests that name a unit twice. So the second one is asked for in a further
request. Where parties add noise, which depends on the shard, every party gets a shard of its own first, so
that no further request adds noise twice.

>>> import numpy as np
>>> [shard.ids.tolist() for shard in _apart(Shard(0, np.array([4, 5]), parties=3))]
[[4], [5], []]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedpriv.federated.engine import Engine, PartialSum, Shard, SumRequest

_STRIDE = 2**20  # more than the parties of a shard: shards of one party are numbered apart


@dataclass(frozen=True)
class DistinctUnits:
    """An engine of which every request names a unit once.

    Attributes:
        engine: answers the requests.
    """

    engine: Engine

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`. Units may be named twice."""
        shards: Sequence[Shard] = request.shards
        if request.party_stds is not None:
            return self._in_turns(request, [part for shard in shards for part in _apart(shard)])
        named, first, again = set[int](), list[Shard](), list[Shard]()
        for shard in shards:
            new = np.zeros(len(shard.ids), bool)
            new[np.unique(shard.ids, return_index=True)[1]] = True
            new &= ~np.isin(shard.ids, list(named))
            named |= set(shard.ids.tolist())
            first.append(replace(shard, ids=shard.ids[new]))
            if not new.all():
                again.append(replace(shard, ids=shard.ids[~new], parties=1))
        reply = self.engine.gather(replace(request, shards=tuple(first)))
        if not again:
            return reply
        more = self.gather(replace(request, shards=tuple(again)))
        return PartialSum(_sum(reply, more), reply.parties)

    def _in_turns(self, request: SumRequest, shards: Sequence[Shard]) -> PartialSum:
        """The sums over shards of at most one unit, of which no two in one request name the same."""
        named, first, again = set[int](), list[Shard](), list[Shard]()
        for shard in shards:
            units = set(shard.ids.tolist())
            (again if units & named else first).append(shard)
            named |= units
        reply = self.engine.gather(replace(request, shards=tuple(first)))
        if not again:
            return reply
        more = self._in_turns(request, again)
        return PartialSum(_sum(reply, more), reply.parties + more.parties)

    def close(self) -> None:
        """Releases the engine's resources."""
        self.engine.close()


def _sum(one: PartialSum, other: PartialSum) -> tuple[Tensor, ...]:
    return tuple(a + b for a, b in zip(one.sums, other.sums, strict=True))


def _apart(shard: Shard) -> list[Shard]:
    """The shard's clients, a shard each, and its parties without one in a last shard; a silo stays whole."""
    if shard.home is not None:
        return [shard]
    first, count = shard.index * _STRIDE, len(shard.ids)
    singles = [Shard(first + i, shard.ids[i : i + 1], 1) for i in range(count)]
    rest = shard.parties - count
    return singles + ([Shard(first + count, shard.ids[:0], rest)] if rest > 0 else [])

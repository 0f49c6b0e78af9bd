"""The run's own units under audit: its data and its model, with a coin for each of some units.

The units with coins are the run's own, or canaries that are planted among them (:mod:`fedpriv.node.planted`).

A unit whose coin says so is left out of the data, or replaced by the next unit where neighbours replace one.
All other units are there, and the adversary knows them. What a unit adds is computed by the run's own code,
with the unit alone, so a fault that is in this computation, too, is found by its bound S, and not by guesses.
Canaries (:mod:`fedpriv.auditing.canaries`) have closed forms for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedpriv.auditing.audited_units import Floats, numbers
from fedpriv.data import Batch, Indices
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.federated.worker import Units, Worker
from fedpriv.mechanism.query import Query, SumBlock

_NUMBERS = 200_000_000  # of the vectors that are kept at one time
MOST, FEWEST = 200, 10  # units whose coins are guessed, by default


def usual_number(dimension: int) -> int:
    """How many units are guessed by default in a model of ``dimension`` parameters."""
    return max(FEWEST, min(MOST, _NUMBERS // max(1, dimension)))


@dataclass(frozen=True)
class OwnUnits:
    """The run's own units.

    Attributes:
        view: the run's own units.
        side: the run's worker, which computes sums over them.
        coins: the units that are guessed, ascending (m,).
        absent: those of them, and of all others, that are absent or replaced, ascending.
        replaced: whether an absent unit is replaced by the next one.
        span: units are replaced within ranges of this length, so that a silo keeps its own.
    """

    view: Units
    side: Worker
    coins: Indices
    absent: Indices
    replaced: bool
    span: int

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """See :class:`fedpriv.federated.worker.Units`."""
        x, y, owner = self.view.batch(self.asked(client_ids), device)
        if self.replaced:
            return Batch(x, y, owner)
        return Batch(x, y, torch.from_numpy(np.flatnonzero(~np.isin(client_ids, self.absent)))[owner])

    def _next(self, ids: Indices) -> Indices:
        return ids - ids % self.span + (ids % self.span + 1) % self.span

    def shaped(self, values: Floats) -> Floats:
        """As it is."""
        return values

    def asked(self, ids: Indices) -> Indices:
        """Without the absent ones, or with others in their places, so that any engine can be asked."""
        away = np.isin(ids, self.absent)
        return np.where(away, self._next(ids), ids) if self.replaced else ids[~away]

    def total(self, query: Query, release: int, ids: Indices) -> list[Floats]:
        """See :class:`AuditedUnits`."""
        return self._sums(self, query, release, ids)

    def _sums(self, view: Units, query: Query, release: int, ids: Indices) -> list[Floats]:
        """The exact sums over units of a view."""
        request = SumRequest(query, release, (Shard(0, ids, parties=1),))
        return [numbers(part) for part in replace(self.side, view=view).answer(request).sums]

    def _alone(self, query: Query, release: int, ids: Indices) -> list[Floats]:
        """What each unit adds by itself, present: (k, d) for each block of vectors, (k,) for an indicator."""
        each = [self._sums(self.view, query, release, ids[i : i + 1]) for i in range(len(ids))]
        return [np.array([sums[block] for sums in each]) for block in range(len(query.blocks))]

    def expected(
        self, query: Query, release: int, units: Indices, cohort: Indices, rate: float
    ) -> list[Floats]:
        """See :class:`AuditedUnits`."""
        known, added = self._parts(query, release, units, cohort)
        each = zip(known, *added, strict=True)
        return [own + rate / 2 * sum(part.sum(0) for part in rows) for own, *rows in each]

    def _parts(
        self, query: Query, release: int, units: Indices, cohort: Indices
    ) -> tuple[list[Floats], list[list[Floats]]]:
        """(the sums over those of the cohort that have no coin, what each of ``units`` adds by itself).

        Where units are replaced, the second has what the unit after each adds, too.
        """
        known = self._sums(self.view, query, release, np.setdiff1d(cohort, self.coins))
        added = [self._alone(query, release, units)]
        return known, added + ([self._alone(query, release, self._next(units))] if self.replaced else [])

    def ratios(
        self,
        query: Query,
        release: int,
        ids: Indices,
        sums: Sequence[Floats],
        stds: Sequence[float],
        rate: float,
        others: Indices,
        factors: Sequence[float],
    ) -> Iterator[tuple[int, Floats]]:
        """See :class:`AuditedUnits`.

        Other units that are guessed are noise for the adversary: with the probability p they are there, so
        their sum has the mean p sum c_j and the covariance p (1 - p) sum c_j c_j^T, and is taken as Gaussian.
        """
        known, added = self._parts(query, release, ids, others)
        of = [i for i, block in enumerate(query.blocks) if isinstance(block, SumBlock)]
        left = np.concatenate([(sums[i] - known[i]).ravel() / stds[i] for i in of])
        rows = np.concatenate(
            [np.concatenate([each[i].reshape(len(ids), -1) / stds[i] for i in of], axis=1) for each in added]
        )
        part = rate / 2
        left -= part * rows.sum(0)
        logs = np.array([_among_others(rows / factor, left / factor, part) for factor in factors])
        yield from zip((1, -1), np.split(logs, len(added), axis=1), strict=False)

    def moves(self, query: Query, ids: Indices, change: Floats) -> Floats:
        """See :class:`AuditedUnits`."""
        position = next(i for i, block in enumerate(query.blocks) if isinstance(block, SumBlock))
        own = self._alone(query, 0, ids)[position]
        other = self._alone(query, 0, self._next(ids))[position] if self.replaced else 0.0
        return np.asarray(-(own - other) @ change)

    def in_steps(self) -> OwnUnits:
        """The same: nothing is known of them in closed form."""
        return self

    def probed(self, ids: Indices, most: int) -> Indices:
        """The first with a coin, the last without one, and others between them, of those that are there."""
        there = ids if self.replaced else np.setdiff1d(ids, self.absent)
        guessed = np.isin(there, self.coins)
        there = np.concatenate([there[guessed], there[~guessed]])
        return (
            there[np.unique(np.linspace(0, len(there) - 1, most).astype(np.int64))] if len(there) else there
        )

    def flipped(self, unit: int) -> OwnUnits:
        """See :class:`AuditedUnits`."""
        return replace(self, absent=np.setxor1d(self.absent, [unit]))


def _among_others(rows: Floats, left: Floats, part: float) -> Floats:
    """log N(y; c_i, V_i) - log N(y; 0, V_i) for each row c_i (k, d), where y = ``left`` + p c_i has the
    expected sum of all other rows taken off, and V_i = I + p (1 - p) times the sum of their c_j c_j^T.

    With V over all rows c^T V^-1 = (I + p (1 - p) C^T C)^-1 C^T, and a row is taken out of it by the formula
    of Sherman and Morrison.
    """
    spread = part * (1 - part)
    products = rows @ rows.T
    inner = np.linalg.solve(np.eye(len(rows)) + spread * products, np.column_stack([rows @ left, products]))
    own = np.diag(inner[:, 1:])
    return np.asarray((inner[:, 0] + part * own - own / 2) / (1 - spread * own))

"""An engine whose silos' messages are masked: what is gathered is their sum, and no message.

The simulated silos and the server run the protocol of :mod:`fedpriv.secure_aggregation` in this process. A
message is a silo's sum with its share of exact noise, in whole steps of the public grid, so the gathered sum
is that of plain messages bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import zeros
from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.query import Query
from fedpriv.secure_aggregation.errors import ProtocolError
from fedpriv.secure_aggregation.keys import Identity, Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.party import Member
from fedpriv.secure_aggregation.simulated import Leaving, Sent, aggregate

_EXACT = 2.0**53  # whole numbers below it are exact in float64; 64 of them add up to less than 2^63
_MIN_SCALE = 16.0  # steps; the bound of docs/explanation/secure-aggregation.md needs as many


class Silos(Protocol):
    """What answers for one silo (:class:`~fedpriv.federated.worker.Worker`)."""

    def answer(self, request: SumRequest) -> PartialSum:
        """The sums over the request's shards, with their parties' noise."""


class SecureEngine:
    """An :class:`~fedpriv.federated.engine.Engine` over simulated silos that aggregate securely.

    Args:
        silos: answers for each silo.
        parties: the number of silos.
        threshold: fewer survivors release nothing.
        leave: the silos (from 1) that answer no more from an exchange of a release on; none by default.
        sent: called with the replies of each exchange: all that the server sees.
    """

    def __init__(
        self,
        silos: Silos,
        parties: int,
        threshold: int,
        leave: Leaving | None = None,
        sent: Sent = lambda exchange, replies: None,
    ) -> None:
        self._silos, self._threshold, self._leave, self._sent = silos, threshold, leave, sent
        identities = [Identity.fresh() for _ in range(parties)]
        self._cohort = tuple(identity.public for identity in identities)
        self._members = {
            party: Member(identity, self._cohort, threshold) for party, identity in enumerate(identities, 1)
        }

    def gather(self, request: SumRequest) -> PartialSum:
        """The sum of the survivors' messages; of no parties if fewer than the threshold are left."""
        query = request.query
        steps = _steps(request)
        shards = {shard.home: shard for shard in request.shards}
        like = zeros(query)

        def message(party: int) -> Vector:
            one = SumRequest(query, request.release, (shards[party - 1],), request.party_stds)
            return whole_steps(self._silos.answer(one).sums, steps)

        length = sum(total.numel() for total in like)
        session = Session("simulation", request.release, self._cohort, self._threshold, length)
        try:
            total, alive = aggregate(session, self._members, message, self._leave, self._sent)
        except ProtocolError:
            return PartialSum(like, 0).to(query)  # no release; the charge stands
        return PartialSum(_as_sums(total, like, steps), len(alive)).to(query)

    def close(self) -> None:
        """Nothing to release."""


def whole_steps(sums: Sequence[Tensor], steps: Sequence[float]) -> Vector:
    """The sums as one vector of whole numbers of steps, modulo 2^64.

    Raises ValueError if a sum is no multiple of its step, or too large for float64 to tell.
    """
    parts = []
    for total, step in zip(sums, steps, strict=True):
        counts = total.double().cpu().reshape(-1).numpy() / step
        if not (np.abs(counts) < _EXACT).all() or (counts != np.rint(counts)).any():
            raise ValueError("a message is not a whole number of steps of its grid")
        parts.append(counts.astype(np.int64))
    return np.concatenate(parts).view(np.uint64)


def _as_sums(total: Vector, like: Sequence[Tensor], steps: Sequence[float]) -> tuple[Tensor, ...]:
    ends = np.cumsum([block.numel() for block in like])[:-1]
    pieces = np.split(total.view(np.int64).astype(np.float64), ends)
    return tuple(
        torch.from_numpy(piece * step).reshape(block.shape)
        for piece, step, block in zip(pieces, steps, like, strict=True)
    )


def _steps(request: SumRequest) -> list[float]:
    """The public step of each block. Raises ValueError if a share of the noise has too few steps."""
    query: Query = request.query
    stds = request.party_stds or ()
    steps = [noise_step(block, std) for block, std in zip(query.blocks, stds, strict=True)]
    if any(std < _MIN_SCALE * step for std, step in zip(stds, steps, strict=True)):
        raise ValueError(f"a share of the noise has fewer than {_MIN_SCALE:g} steps; use a smaller epsilon")
    return steps

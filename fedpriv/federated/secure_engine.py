"""An engine whose silos' messages are masked: what is gathered is their sum, and no message.

The simulated silos and the server run the protocol of :mod:`fedpriv.secure_aggregation` in this process. A
message is a silo's sum with its share of exact noise, in whole steps of the public grid, so the gathered sum
is that of plain messages bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.federated.availability import Dropouts
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import zeros
from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.query import Query
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import Identity, Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.party import Member
from fedpriv.secure_aggregation.simulated import Leaving, Sent, aggregate, in_process, leaving

_EXACT = 2.0**53  # whole numbers below it are exact in float64; 64 of them add up to less than 2^63
_CHARGED = "; its charge stands. Find out who tampered before you start another run"
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
        member: makes the party of an identity, the cohort's public keys and the threshold.

    Attributes:
        absences: which silos are missing from which releases, and why.

    Somebody who tampers ends the run: ``gather`` raises ProtocolError, and the charge stands. Silos that are
    silent are missing, and with fewer than the threshold nothing is released.
    """

    def __init__(
        self,
        silos: Silos,
        parties: int,
        threshold: int,
        leave: Leaving | None = None,
        sent: Sent = lambda exchange, replies: None,
        member: Callable[[Identity, tuple[bytes, ...], int], Member] = Member,
    ) -> None:
        self._silos, self._threshold, self._leave, self._sent = silos, threshold, leave or {}, sent
        identities = [Identity.fresh() for _ in range(parties)]
        self._cohort = tuple(identity.public for identity in identities)
        self._members = {
            party: member(identity, self._cohort, threshold) for party, identity in enumerate(identities, 1)
        }
        self.absences = Dropouts()

    def gather(self, request: SumRequest) -> PartialSum:
        """The sum of the survivors' messages; of no parties if fewer than the threshold are left."""
        query = request.query
        steps = grid_steps(request)
        shards = {shard.home: shard for shard in request.shards}
        like = zeros(query)

        def message(party: int) -> Vector:
            one = SumRequest(query, request.release, (shards[party - 1],), request.party_stds)
            return whole_steps(self._silos.answer(one).sums, steps)

        length = sum(total.numel() for total in like)
        session = Session("simulation", request.release, self._cohort, self._threshold, length)
        ask = leaving(in_process(self._members, message), self._leave)
        try:
            found = aggregate(session, ask, self._sent)
        except TooFewError as error:  # no release; the charge stands
            self._note(request.release, error.missing)
            return PartialSum(like, 0).to(query)
        except ProtocolError as error:
            raise ProtocolError(f"release {request.release + 1} ended the run: {error}{_CHARGED}") from None
        self._note(request.release, found.missing)
        return PartialSum(as_sums(found.total, like, steps), len(found.survivors)).to(query)

    def _note(self, release: int, why: Mapping[int, str]) -> None:
        reasons = {party - 1: text for party, text in why.items()}
        self.absences.note(reasons, release + 1, release + 1)

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


def as_sums(total: Vector, like: Sequence[Tensor], steps: Sequence[float]) -> tuple[Tensor, ...]:
    """Whole numbers of steps, modulo 2^64, as sums of the shapes of ``like``."""
    ends = np.cumsum([block.numel() for block in like])[:-1]
    pieces = np.split(total.view(np.int64).astype(np.float64), ends)
    return tuple(
        torch.from_numpy(piece * step).reshape(block.shape)
        for piece, step, block in zip(pieces, steps, like, strict=True)
    )


def grid_steps(request: SumRequest) -> list[float]:
    """The public step of each block. Raises ValueError if a share of the noise has too few steps."""
    query: Query = request.query
    stds = request.party_stds or ()
    steps = [noise_step(block, std) for block, std in zip(query.blocks, stds, strict=True)]
    if any(std < _MIN_SCALE * step for std, step in zip(stds, steps, strict=True)):
        raise ValueError(f"a share of the noise has fewer than {_MIN_SCALE:g} steps; use a smaller epsilon")
    return steps

"""An engine whose silos' messages are masked: what is gathered is their sum, and no message.

The silos and the server run the protocol of :mod:`fedpriv.secure_aggregation`, in this process
(:class:`LocalParties`) or over a grid (:mod:`fedpriv.flower.secure_parties`). A message is a silo's sum with
its share of exact noise, in whole steps of the public grid, so the gathered sum is that of plain messages bit
for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.federated.availability import Dropouts
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import zeros
from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.query import Query
from fedpriv.secure_aggregation.aggregation import Ask, Leaving, Sent, aggregate, in_process, leaving
from fedpriv.secure_aggregation.errors import ProtocolError, TooFewError
from fedpriv.secure_aggregation.keys import Identity, Session
from fedpriv.secure_aggregation.masks import Vector
from fedpriv.secure_aggregation.party import Member

_EXACT = 2.0**53  # whole numbers below it are exact in float64; 64 of them add up to less than 2^63
_CHARGED = "; its charge stands. Find out who tampered before you start another run"
_MIN_SCALE = 16.0  # steps; the bound of docs/explanation/secure-aggregation.md needs as many


class Silos(Protocol):
    """What answers for one silo (:class:`~fedpriv.federated.worker.Worker`)."""

    def answer(self, request: SumRequest) -> PartialSum:
        """The sums over the request's shards, with their parties' noise."""


class Parties(Protocol):
    """The silos of a run, wherever they are. Silo k is party k + 1."""

    run: str

    def cohort(self) -> tuple[bytes, ...]:
        """The public identity keys of all parties, in their order."""

    def ask(self, request: SumRequest, session: Session) -> Ask:
        """How the parties are shown their part of an exchange of the request's release."""

    def close(self) -> None:
        """Release what the parties hold."""


class LocalParties:
    """Simulated silos in this process.

    Args:
        silos: answers for each silo.
        parties: the number of silos.
        threshold: fewer survivors release nothing.
        member: makes the party of an identity, the cohort's public keys and the threshold.
    """

    run = "simulation"

    def __init__(
        self,
        silos: Silos,
        parties: int,
        threshold: int,
        member: Callable[[Identity, tuple[bytes, ...], int], Member] = Member,
    ) -> None:
        self._silos = silos
        identities = [Identity.fresh() for _ in range(parties)]
        self._cohort = tuple(identity.public for identity in identities)
        self._members = {
            party: member(identity, self._cohort, threshold) for party, identity in enumerate(identities, 1)
        }

    def cohort(self) -> tuple[bytes, ...]:
        """See :class:`Parties`."""
        return self._cohort

    def ask(self, request: SumRequest, session: Session) -> Ask:
        """See :class:`Parties`."""
        return in_process(self._members, lambda party: message(self._silos, request, party))

    def close(self) -> None:
        """Nothing to release."""


class SecureEngine:
    """An :class:`~fedpriv.federated.engine.Engine` over silos that aggregate securely.

    Args:
        parties: the silos.
        threshold: fewer survivors release nothing.
        leave: the silos (from 1) that answer no more from an exchange of a release on; none by default.
        sent: called with the replies of each exchange: all that the server sees.

    Attributes:
        absences: which silos are missing from which releases, and why.

    Somebody who tampers ends the run: ``gather`` raises ProtocolError, and the charge stands. Silos that are
    silent are missing, and with fewer than the threshold nothing is released.
    """

    def __init__(
        self,
        parties: Parties,
        threshold: int,
        leave: Leaving | None = None,
        sent: Sent = lambda exchange, replies: None,
    ) -> None:
        self._parties, self._threshold = parties, threshold
        self._leave, self._sent = leave or {}, sent
        self.absences = Dropouts()

    def gather(self, request: SumRequest) -> PartialSum:
        """The sum of the survivors' messages; of no parties if fewer than the threshold are left."""
        query, like = request.query, zeros(request.query)
        steps, length = grid_steps(request), sum(total.numel() for total in like)
        parties = self._parties
        asked = (self._threshold, length, digest(request))
        session = Session(parties.run, request.release, parties.cohort(), *asked)
        ask = leaving(parties.ask(request, session), self._leave)
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
        """Release what the parties hold."""
        self._parties.close()


def message(silos: Silos, request: SumRequest, party: int) -> Vector:
    """A party's message: its silo's sums with its share of the noise, in whole steps.

    Args:
        silos: answers for the party's silo.
        request: the release, with the silo's shard among its shards.
        party: its number, from 1.

    Raises ProtocolError unless the request has exactly one shard of the silo.
    """
    shards = tuple(shard for shard in request.shards if shard.home == party - 1)
    if len(shards) != 1:
        raise ProtocolError(f"the release has {len(shards)} shards of party {party}; it must have one")
    one = SumRequest(request.query, request.release, shards, request.party_stds)
    return whole_steps(silos.answer(one).sums, grid_steps(request))


def digest(request: SumRequest) -> bytes:
    """SHA-256 of what a request asks of every party: points, blocks and noise, but not whose shards.

    It is the same on both sides of the wire, where numbers are floats.
    """
    query = request.query
    asked = (query.points, query.blocks, query.relative_noise, query.rate_factor, request.party_stds)
    whole = hashlib.sha256()
    for part in _encoded(asked):
        whole.update(part)
    return whole.digest()


def _encoded(value: Any) -> Iterator[bytes]:
    """The value as bytes that no other value has: each part names its kind and its size first."""
    if isinstance(value, Tensor):
        array = np.ascontiguousarray(value.detach().cpu().numpy())
        yield f"tensor {array.dtype} {array.shape};".encode()
        yield array.tobytes()
    elif is_dataclass(value):
        yield f"{type(value).__name__} {len(fields(value))};".encode()
        for field in fields(value):
            yield from _encoded(getattr(value, field.name))
    elif isinstance(value, tuple):
        yield f"tuple {len(value)};".encode()
        for item in value:
            yield from _encoded(item)
    elif value is None or isinstance(value, bool):
        yield f"{value};".encode()
    else:
        yield f"{float(value).hex()};".encode()


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

"""Silos that train apart (the client level), each with an optimizer that is observed.

The adversary sees every noisy answer inside a silo. The server sees only the change that follows from a
round's answers, so what holds against this adversary holds against the server, too. If the run's engine
trains the silos in other processes, its changes are compared, too (:mod:`fedpriv.auditing.compared_silos`).
Nodes that own their data note what the adversary sees (:mod:`fedpriv.auditing.noting_silos`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from torch import Tensor

from fedpriv.auditing.compared_silos import NOT_FROM_RELEASES, follows
from fedpriv.auditing.noting_silos import NotingSilos
from fedpriv.auditing.subject import Subject
from fedpriv.auditing.watched import Watched
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.node.audited_steps import Step
from fedpriv.node.silo import ModelDelta, SiloEngine, SiloWorker, TrainRequest
from fedpriv.optimizers.base import State


def watched_silos(subject: Subject, watched: Sequence[Watched]) -> SiloEngine:
    """The engine of a run at the client level whose silos are observed, in the order of their numbers."""
    if subject.noting is not None:
        return WatchedNodes(subject.noting, tuple(watched))
    return WatchedSilos.of(subject, watched)


@dataclass(frozen=True)
class WatchedSilos:
    """The engine of a run at the client level, with one observer for each silo.

    Attributes:
        workers: the run's own code for each silo, whose optimizer and engine are observed.
        subject: what is audited.
        watched: the observer of each silo, by number. The first one has the faults of the run's engine, too.
    """

    workers: tuple[SiloWorker, ...]
    subject: Subject
    watched: tuple[Watched, ...]

    @classmethod
    def of(cls, subject: Subject, watched: Sequence[Watched]) -> WatchedSilos:
        """The silos of the subject's plan, in the order of their numbers."""
        plan = subject.plan
        return cls(
            tuple(
                SiloWorker(replace(plan, mechanism=replace(plan.mechanism, optimizer=one)), cast(Worker, one))
                for one in watched
            ),
            subject,
            tuple(watched),
        )

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """See :class:`fedpriv.node.silo.SiloEngine`."""
        deltas = [self.workers[silo].train(replace(request, silos=(silo,))) for silo in request.silos]
        if self.subject.elsewhere is not None and (found := self.subject.elsewhere.fault(request)):
            self.watched[0].residuals.fault(found)
        _compare(self.watched)
        return tuple(delta for answers in deltas for delta in answers)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


@dataclass(frozen=True)
class WatchedNodes:
    """The engine of a run at the client level on nodes that own their data, with one observer for each.

    Attributes:
        nodes: what is asked.
        watched: the observer of each silo, by number. Its residuals get the faults that are found.
    """

    nodes: NotingSilos
    watched: tuple[Watched, ...]
    _slots: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """See :class:`fedpriv.node.silo.SiloEngine`. The noted steps are observed, and the changes compared
        with what follows from them."""
        found = self.nodes.train(request)
        if [change.silo for change, _ in found] != list(request.silos):
            self.watched[0].residuals.fault("a round without one change of each silo")
        for change, steps in found:
            one = self.watched[change.silo]
            if len(steps) != len(request.events):
                one.residuals.fault("a round with another number of steps than were charged")
            if not follows(change, self._end(one, request, steps).double() - request.params.double()):
                one.residuals.fault(NOT_FROM_RELEASES)
        _compare(self.watched)
        return tuple(change for change, _ in found)

    def _end(self, one: Watched, request: TrainRequest, steps: Sequence[Step]) -> Tensor:
        """theta_K of a silo, by the run's own optimizer, from the noted answers alone."""
        silo = one.silo or 0
        slots = self._slots.get(silo) or one.init(request.params).slots
        state = State(request.params, request.round * len(request.events), slots)
        for step in steps[: len(request.events)]:
            query = one.query(state)
            one.asked(SumRequest(query, state.step, (Shard(0, step.cohort, parties=1, home=silo),)))
            state = one.update(state, tuple(part.to(state.params.device) for part in step.answer))
        self._slots[silo] = state.slots
        return state.params

    def close(self) -> None:
        """Does nothing: the caller closes the engine that asks the nodes."""


def _compare(watched: Sequence[Watched]) -> None:
    """Tests the noises of a round's steps against each other: the server sees each silo's change, so that
    noise of two silos would cancel in their difference."""
    noises = [noise for one in watched for noise in one.noises]
    for one in watched:
        one.noises.clear()
    for size in sorted({len(noise) for noise in noises}):  # not all queries have as many blocks
        watched[0].residuals.compare_silos(np.stack([noise for noise in noises if len(noise) == size]))

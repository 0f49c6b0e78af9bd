"""Silos that train apart (the client level), each with an optimizer that is observed.

The adversary sees every noisy answer inside a silo. The server sees only the change that follows from a
round's answers, so what holds against this adversary holds against the server, too. If the run's engine
trains the silos in other processes, its changes are compared, too (:mod:`fedpriv.auditing.compared_silos`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from fedpriv.auditing.noise_tests import Residuals
from fedpriv.auditing.subject import Subject
from fedpriv.auditing.watched import Watched
from fedpriv.federated.worker import Worker
from fedpriv.node.silo import ModelDelta, SiloWorker, TrainRequest


@dataclass(frozen=True)
class WatchedSilos:
    """The engine of a run at the client level, with one observer for each silo.

    Attributes:
        workers: the run's own code for each silo, whose optimizer and engine are observed.
        subject: what is audited.
        residuals: where a fault of the run's engine is recorded.
    """

    workers: tuple[SiloWorker, ...]
    subject: Subject
    residuals: Residuals

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
            watched[0].residuals,
        )

    def train(self, request: TrainRequest) -> tuple[ModelDelta, ...]:
        """See :class:`fedpriv.node.silo.SiloEngine`."""
        deltas = [self.workers[silo].train(replace(request, silos=(silo,))) for silo in request.silos]
        if self.subject.elsewhere is not None and (found := self.subject.elsewhere.fault(request)):
            self.residuals.fault(found)
        return tuple(delta for answers in deltas for delta in answers)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

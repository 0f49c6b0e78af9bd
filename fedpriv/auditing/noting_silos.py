"""Silos on nodes that own their data (the client level), which note their steps for an audit.

A node sends the change of a round, and draws its noise and its cohorts by itself. The nodes of an audit are
their owner's own, who reads what each of them noted of its steps (:mod:`fedpriv.node.audited_steps`): every
noisy answer inside the silo, which the attack is on, and its cohort, by which the noise is tested. A node's
notes are held against what it sent: its change must be the one that the run's optimizer makes of the noted
answers (:class:`fedpriv.auditing.silos.WatchedNodes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.node.audited_steps import Step, StepNotes
from fedpriv.node.silo import ModelDelta, SiloEngine, TrainRequest


@dataclass(frozen=True)
class NotingSilos:
    """The nodes of an audit.

    Attributes:
        engine: asks the nodes, each round once. It must raise an error where a node fails.
        notes: those of each node, by the number of its silo.
    """

    engine: SiloEngine
    notes: tuple[StepNotes, ...]

    @classmethod
    def of(cls, engine: SiloEngine, audit_files: Sequence[Path]) -> NotingSilos:
        """The nodes with these audit files, by the numbers of their silos."""
        return cls(engine, tuple(StepNotes.beside(path) for path in audit_files))

    def train(self, request: TrainRequest) -> Sequence[tuple[ModelDelta, tuple[Step, ...]]]:
        """The change of each silo that answered, and what it noted of the steps; the notes are removed.

        Raises DataError for notes that are not there, or cannot be read, and OSError for others that cannot
        be removed.
        """
        self._remove()  # of an audit that was killed: what is read below is of this request
        try:
            changes = self.engine.train(request)
            return [(change, self.notes[change.silo].read(request.round)) for change in changes]
        finally:
            self._remove()

    def _remove(self) -> None:
        for notes in self.notes:
            notes.remove()

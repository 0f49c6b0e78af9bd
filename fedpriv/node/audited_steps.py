"""What a silo of an audit notes of its steps, for its owner alone (the client level).

A silo sends the change of a whole round. An audit of the node attacks every noisy answer inside the silo, and
tests its noise by the cohort that it is of. So a node with an ``audit-file`` writes both for each step of a
round before it answers the round: one file a round, in the folder ``AUDIT-FILE.steps``. Nothing of it leaves
the node, only the node's user can read it, and the auditor, who is the owner, removes it. A node without an
audit file refuses audits, and notes nothing.

Noisy answers are what the charged releases reveal. Cohorts are private, as the data beside them is.

>>> import tempfile
>>> notes = StepNotes.beside(f"{tempfile.mkdtemp()}/audit.txt")
>>> notes.write(3, [Step(np.array([4, 7]), (torch.zeros(2), torch.tensor(0.5)))])
>>> [step] = notes.read(3)
>>> step.cohort.tolist(), [part.tolist() for part in step.answer]
([4, 7], [[0.0, 0.0], 0.5])
>>> notes.remove()
>>> notes.folder.exists()
False
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedpriv._internal import tensor_io
from fedpriv._internal.files import atomic, read_json
from fedpriv.data import Indices
from fedpriv.data.source import DataError
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.mechanism.query import NoisyAnswer
from fedpriv.optimizers.base import OptimizerWrapper, PrivateOptimizer, State

_NO_UNITS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Step:
    """One private step of a silo.

    Attributes:
        cohort: the numbers of the units that were sampled (n,).
        answer: the noisy answer, a tensor for each block of the query.
    """

    cohort: Indices
    answer: NoisyAnswer


@dataclass(frozen=True)
class StepNotes:
    """The notes of a node's silo.

    Attributes:
        folder: where they are, a file for each round.
    """

    folder: Path

    @classmethod
    def beside(cls, audit_file: str | Path) -> StepNotes:
        """The notes of the node with this audit file."""
        return cls(Path(f"{audit_file}.steps"))

    @classmethod
    def of(cls, audit: bool, node: Mapping[str, Any]) -> StepNotes | None:
        """The notes of a node with this configuration; None unless the run is an ``audit`` and its owner has
        named an audit file."""
        return cls.beside(node["audit-file"]) if audit and node.get("audit-file") else None

    def write(self, number: int, steps: Sequence[Step]) -> None:
        """Writes the steps of round ``number``, in their order. Raises DataError if the disk refuses it."""
        tensors = {f"cohort-{place}": torch.from_numpy(step.cohort) for place, step in enumerate(steps)}
        for place, step in enumerate(steps):
            tensors |= {f"answer-{place}-{block}": part for block, part in enumerate(step.answer)}
        about = {"round": number, "blocks": [len(step.answer) for step in steps]}
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with atomic(self._path(number), private=True) as file:
                file.write(tensor_io.packed(tensors, {"fedpriv": json.dumps(about)}))
        except OSError as error:
            raise DataError(
                f"{self.folder}, this node's notes for the audit, cannot be written ({error.strerror}): free "
                "the disk, or name an audit-file in a folder that the node can write"
            ) from None

    def read(self, number: int) -> tuple[Step, ...]:
        """The steps of round ``number``. Raises DataError if they are not there, or cannot be read."""
        path = self._path(number)
        try:
            with safe_open(path, "pt") as file:
                about = read_json(file.metadata()["fedpriv"])
                if about["round"] != number:
                    raise ValueError("of another round")
                return tuple(
                    Step(
                        np.asarray(file.get_tensor(f"cohort-{place}").numpy(), np.int64),
                        tuple(file.get_tensor(f"answer-{place}-{block}") for block in range(blocks)),
                    )
                    for place, blocks in enumerate(about["blocks"])
                )
        except FileNotFoundError:
            raise DataError(
                f"{path} is missing: a node notes its steps there in an audit; start the node with the "
                "auditor's fedpriv, and audit as the user that runs the nodes"
            ) from None
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise DataError(
                f"{path}, a node's notes of its steps, cannot be read ({type(error).__name__}); audit as the "
                "user that runs the nodes"
            ) from None

    def remove(self) -> None:
        """Removes all notes, where there are any. Raises OSError."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"


@dataclass(frozen=True)
class NotedSteps(OptimizerWrapper):
    """The optimizer and the engine of one round of a silo, whose answers and cohorts are noted.

    Attributes:
        inner: the run's optimizer.
        engine: computes the sums.
        steps: what was noted, in order.
    """

    inner: PrivateOptimizer
    engine: Engine
    steps: list[Step] = field(default_factory=list)
    _cohort: list[Indices] = field(default_factory=list)

    def gather(self, request: SumRequest) -> PartialSum:
        """See :class:`fedpriv.federated.engine.Engine`."""
        self._cohort[:] = [np.concatenate([_NO_UNITS, *(shard.ids for shard in request.shards)])]
        return self.engine.gather(request)

    def update(self, state: State, answer: NoisyAnswer) -> State:
        """See :class:`PrivateOptimizer`."""
        self.steps.append(Step(self._cohort.pop(), tuple(part.clone() for part in answer)))
        return self.inner.update(state, answer)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

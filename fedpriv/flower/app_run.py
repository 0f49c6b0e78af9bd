"""What a private run over a Flower app leaves: its folder, evaluations, checkpoints and report.

The folder is that of `fedpriv simulate` (:mod:`fedpriv.runs.run_dir`): the ledger, which is on disk before
any client is asked, the model, the scores, the report and the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord

from fedpriv._internal import run_files, validation
from fedpriv._internal.version import __version__
from fedpriv.config.plan import Plan
from fedpriv.config.resumable import obstacle
from fedpriv.federated.loop import Progress
from fedpriv.federated.stop_reason import StopReason
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.optimizers.base import State
from fedpriv.report import summary as summary_module
from fedpriv.report.notices import remark
from fedpriv.runs import checkpoints
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.result import TrainedModel, report_files
from fedpriv.runs.run_dir import RunFolder

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

LET_THROUGH = (
    "the clients' own metrics: they were let through without noise (client_metrics='non-private'), and this "
    "epsilon does not cover what they reveal"
)
_MEASURED = "what the ServerApp's evaluate_fn measures"


class DivergedError(Exception):
    """The model is no longer finite, and will not be again."""


class AppRun:
    """One private run over an app, in its folder.

    Args:
        plan: the run's plan.
        arrays: the app's arrays.
        folder: the output folder.
        evaluate: the ServerApp's evaluation on data of its own, or None.
        let_through: whether clients' metrics are shown without noise.
        resumed: what the run resumes from; None for a new run.

    Attributes:
        state: the optimizer's state by now.
        evaluations: what ``evaluate`` returned, by round.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: AppArrays,
        initial: ArrayRecord,
        folder: RunFolder,
        evaluate: Evaluate | None,
        let_through: bool,
        resumed: Checkpoint | None,
    ) -> None:
        self.plan, self.arrays, self.folder = plan, arrays, folder
        self._evaluate, self._let_through = evaluate, let_through
        self.evaluations: dict[int, MetricRecord] = {}
        self.metrics = [dict(record) for record in resumed.metrics] if resumed else []
        self._resumed = resumed.resumed if resumed else ()
        if resumed and resumed.model != checkpoints.digest(arrays.layout):
            raise validation.ArgumentError(
                f"The arrays of the app are not those of the run in {folder.path}: resume it with the model "
                "that it began with."
            )
        self.state: State = (
            resumed.state if resumed else plan.mechanism.optimizer.init(arrays.vector(initial))
        )
        self._untrained = dict(resumed.untrained) if resumed else self._scores(0)

    @property
    def record(self) -> ArrayRecord:
        """The released model as it is by now, as the app has its arrays."""
        return self.arrays.record(self.state.output)

    def begin(self, accountant: RunAccountant) -> None:
        """Take the run's accountant, and write what there is before the first round."""
        self.accountant = accountant
        self.folder.begin(self.plan.config, self._remark(), self.metrics)
        self._save()

    def observe(self, progress: Progress) -> None:
        """Evaluate and store the model of a round. Raises DivergedError if it is not finite."""
        self.state = progress.state
        number, spent = progress.round, self.accountant.progress()
        record: dict[str, Any] = {
            "round": number,
            "releases": self.accountant.releases,
            **self._scores(number),
            "data": _MEASURED,
            "epsilon": spent if math.isfinite(spent) else None,
        }
        if note := self._remark():
            record["remark"] = note
        self.metrics.append(record)
        self.folder.append(run_files.METRICS, record)
        self._save()
        if not bool(torch.isfinite(self.state.params).all()):
            raise DivergedError

    def _scores(self, number: int) -> dict[str, float | None]:
        """The finite numbers that the app's own evaluation gives for the model by now."""
        found = self._evaluate(number, self.record) if self._evaluate else None
        if found is None:
            return {}
        self.evaluations[number] = found
        single = {name: value for name, value in found.items() if isinstance(value, int | float)}
        return {name: float(value) if math.isfinite(value) else None for name, value in single.items()}

    def _remark(self) -> str | None:
        notes = [remark(self.plan.config), "client metrics are NOT PRIVATE" if self._let_through else None]
        return "; ".join(note for note in notes if note) or None

    def _save(self) -> None:
        note = self._remark()
        about = {"fedpriv": __version__, "round": str(self.state.step)} | ({"remark": note} if note else {})
        tensors = self.arrays.tensors(self.state.output)
        self.folder.write(run_files.MODEL, TrainedModel(tensors, self.arrays.layout.names).packed(about))
        if obstacle(self.plan.config) is None:
            head = self.accountant.head
            own = (self.plan, self.arrays.layout, self.state, head, self._resumed, self._untrained)
            self.folder.write(run_files.STATE, checkpoints.packed(*own))

    def finish(self, stopped: StopReason) -> Mapping[str, Any]:
        """Write the report; returns the content of report.json."""
        charged = self.accountant.charged_on_disk()
        summary = summary_module.summarise(
            self.plan,
            charged.events,
            self.metrics,
            stopped,
            resumed=self._resumed,
            untrained=self._untrained or None,
            head=charged.head,
        )
        summary |= {"data set": "the clients' own data", "model": self._model(), "remark": self._remark()}
        summary["result"]["measured on"] = _MEASURED
        summary["privacy"]["unit"] = "client: a Flower node with all its data"
        if self._let_through:
            summary["privacy"]["not covered"] = [LET_THROUGH, *summary["privacy"]["not covered"]]
        if self.arrays.kept:
            summary["model"] += f"; not trained: {', '.join(self.arrays.kept)}"
        spending = [(record["round"], record["epsilon"]) for record in self.metrics]
        for name, content in report_files(summary, self.metrics, spending).items():
            self.folder.write(name, content)
        return summary

    def _model(self) -> str:
        layout = self.arrays.layout
        return f"a Flower app's {len(layout.slots)} arrays of {layout.dimension:,} parameters"

"""One run from plan to output folder, whatever the engine.

A run that is interrupted or fails leaves a valid folder (:mod:`fedpriv.runs.run_dir`) with what it had, and
can be resumed (:mod:`fedpriv.runs.checkpoints`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from fedpriv import models
from fedpriv._internal import run_files, user_code
from fedpriv._internal.version import __version__
from fedpriv.accounting import METHODS
from fedpriv.accounting.head import Head
from fedpriv.config.builders import (
    SCORED_ON,
    choose_device,
    initial_params,
    make_model,
    make_source,
    make_task,
    make_test,
)
from fedpriv.config.plan import Plan
from fedpriv.config.resumable import obstacle
from fedpriv.federated import availability
from fedpriv.federated.availability import Dropouts
from fedpriv.federated.engine import Engine
from fedpriv.federated.loop import Outcome, Progress, advance
from fedpriv.federated.stop_reason import StopReason, divergence
from fedpriv.models import weights
from fedpriv.node import silo
from fedpriv.node.silo import SiloEngine, SiloWorker
from fedpriv.node.silo_state import SiloState
from fedpriv.optimizers.base import State
from fedpriv.report import summary as summary_module
from fedpriv.report.notices import guessing, most_frequent, remark
from fedpriv.runs import checkpoints
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.callbacks import Callback, GuardedCallbacks
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.result import Result, TrainedModel, report_files
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.run_ledger import gate_events, open_accountant
from fedpriv.runs.status import Status as Status
from fedpriv.tasks import metrics as metrics_module


def execute(
    plan: Plan,
    engine: Engine | SiloEngine,
    folder: RunFolder | None = None,
    show: Callable[[Status], None] = lambda status: None,
    resumed: Checkpoint | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run a plan on an engine; the engine is closed at the end, also after errors.

    Args:
        plan: the run.
        engine: where the units are; a SiloEngine if the plan is of the client level. What its attribute
            ``absences`` tells, where it has one, is in the report.
        folder: where outputs go; None keeps them in memory (the ledger then is a temporary file).
        show: called after each round.
        resumed: what the run in ``folder`` resumes from; None for a new run.
        callbacks: called with public values; an error in one of them does not end the run.

    Returns:
        the result; ``stopped`` is DIVERGED where an evaluation found parameters that are not finite: more
        releases would be paid for, for nothing.

    Raises LedgerError where the ledger of a resumed run was changed, is another run's, or is in use.
    """
    with closing(engine):
        absent = getattr(engine, "absences", Dropouts())
        guarded = GuardedCallbacks(callbacks)
        job = _Job(plan, absent, folder, show, resumed, guarded)  # first: where it fails, no ledger is begun
        with open_accountant(plan, folder, resumed) as budget_gate:
            job.begin(budget_gate, engine)
            try:
                stopped = job.train(engine)
            except KeyboardInterrupt:  # while evaluating the last round, say
                stopped = StopReason.INTERRUPTED
            except BaseException as error:
                try:
                    guarded.on_end(job.finish(StopReason.FAILED))
                except Exception as another:
                    error.add_note(f"and its report could not be written: {another}")
                raise
            result = job.finish(stopped)
        guarded.on_end(result)  # the ledger is closed and every file is written
        return replace(result, notes=(*result.notes, *guarded.notes))


def _remark(plan: Plan) -> dict[str, str]:
    note = remark(plan.config)
    return {"remark": note} if note else {}


class _DivergedError(Exception):
    """The parameters are not finite, and will not be again."""


class _Job:
    """The moving parts of one execution: evaluation, metrics, and the files at the end."""

    budget_gate: RunAccountant
    answered: tuple[State, Head]  # the last state that has all charged releases, and the ledger's end then

    def __init__(
        self,
        plan: Plan,
        absent: Dropouts,
        folder: RunFolder | None,
        show: Callable[[Status], None],
        resumed: Checkpoint | None,
        callbacks: GuardedCallbacks,
    ) -> None:
        self.plan, self.absent, self.folder, self.show = plan, absent, folder, show
        self.callbacks = callbacks
        self.estimated = plan.budget is not None and METHODS[plan.budget.method].kind == "estimate"
        self.metrics = [dict(record) for record in resumed.metrics] if resumed else []
        self.spending = [(record["round"], record["epsilon"]) for record in self.metrics]
        self.resumed_from, self.resumed = resumed, resumed.resumed if resumed else ()
        self.unanswered = resumed.unanswered(plan) if resumed else 0
        self.silos: dict[int, SiloState] | None = {}  # in this process, by number
        self.silos_before = dict(resumed.silos) if resumed else {}
        self.absent_before = availability.until(self.metrics)
        source = make_source(plan.config)
        self.inputs = models.Inputs(source.shape, source.classes, source.tokens)
        self.task = make_task(plan.config, source)
        self.key = plan.key()
        device = choose_device(plan.config.device)
        self.test = make_test(plan.config, source, device)
        self.device = device
        self.state = resumed.state if resumed else self._start()
        if resumed:
            resumed.require_model(plan.config, self.task.layout)
        # Before round 1 the model is public: its score costs nothing. It is no record of metrics.jsonl, whose
        # readers expect evaluations after rounds.
        self.untrained = dict(resumed.untrained) if resumed else self._scores()

    def begin(self, budget_gate: RunAccountant, engine: Engine | SiloEngine) -> None:
        """Take the run's accountant, and write what there is before the first round."""
        self.budget_gate = budget_gate
        before = self.resumed_from
        self.answered = self.state, Head(before.releases, before.link) if before else budget_gate.head
        if self.plan.by_silo and not self.plan.config.nodes_own_data:
            # Of silos elsewhere the state cannot be kept, and so no run of them is resumed.
            self.silos = engine.memories if isinstance(engine, SiloWorker) else None
            if self.silos is not None:
                self.silos.update(self.silos_before)
        if self.folder is not None:
            self.folder.begin(self.plan.config, remark(self.plan.config), self.metrics)
            self._save_state()

    def _start(self) -> State:
        params = initial_params(self.task, self.key)
        return State(params) if self.plan.by_silo else self.plan.mechanism.optimizer.init(params)

    def train(self, engine: Engine | SiloEngine) -> StopReason:
        """Run the rounds; says how they ended."""
        try:
            outcome = self._loop(engine)
        except _DivergedError:
            return StopReason.DIVERGED
        if outcome.state.step and (not self.metrics or self.metrics[-1]["round"] != outcome.state.step):
            self._evaluate(outcome.state.step)
        return outcome.stopped

    def _loop(self, engine: Engine | SiloEngine) -> Outcome:
        plan, budget_gate = self.plan, self.budget_gate
        if plan.by_silo:
            start, trainer = self.state, cast(SiloEngine, engine)
            before = start.step, self.unanswered, budget_gate.releases
            return silo.run(plan, start.params, trainer, budget_gate, self._observe, *before)
        loop = (
            plan.mechanism,
            self.state,
            plan.mechanism.rounds,
            cast(Engine, engine),
            budget_gate,
            self.key,
        )
        numbers = budget_gate.releases, self.unanswered
        return advance(*loop, plan.cohorts(self.key), self._observe, *numbers)

    def _observe(self, progress: Progress) -> None:
        self.state = progress.state
        if self.plan.by_silo or progress.releases == self.budget_gate.releases:
            self.answered = progress.state, self.budget_gate.head
        due = progress.round % self.plan.config.evaluate_every == 0
        evaluated = due or progress.round == self.plan.rounds
        if evaluated:
            self._evaluate(progress.round)
        elif self.plan.config.nodes_own_data:  # a lost round cannot be asked for again
            self._save_state()
        last = self.metrics[-1] if self.metrics else {}
        measure = metrics_module.shown(last)
        score = last.get(measure.key)
        if last and score is None:
            score = math.nan
        budget, spent = None, None
        if self.plan.budget is not None:
            budget, spent = self.plan.budget.epsilon, self.budget_gate.progress()
            self.spending.append((progress.round, spent))
        status = Status(
            progress.round,
            self.plan.rounds,
            last.get("round", 0),
            score,
            last.get("epsilon"),
            budget,
            spent,
            measure,
            self.estimated,
            self.plan.config.simulates_noise,
        )
        self.show(status)
        self.callbacks.on_round(status)
        if evaluated and not bool(torch.isfinite(progress.state.params).all()):
            raise _DivergedError

    def _evaluate(self, round_number: int) -> None:
        spent = self.budget_gate.spent()
        record: dict[str, Any] = {
            "round": round_number,
            "releases": self.budget_gate.releases,
            **self._scores(),
            "data": SCORED_ON[self.plan.config.test_part],
            "epsilon": spent if spent != float("inf") else None,
        }
        if self.estimated:
            record["epsilon is"] = "estimate"
        if absences := self.absent.to_json(after=self.metrics[-1]["releases"] if self.metrics else 0):
            record[availability.KEY] = absences
        record |= _remark(self.plan)
        self.metrics.append(record)
        if self.folder is not None:
            self.folder.append(run_files.METRICS, record)
            self._save()
        self.callbacks.on_evaluation(record)

    def _scores(self) -> dict[str, float | None]:
        """The model's scores on the public test set. One that has diverged has none: JSON has no NaN."""
        memory = self.plan.config.memory_budget * 2**20
        scores = self.task.evaluate(self.state.output.to(self.device), *self.test, memory)
        finite = bool(torch.isfinite(self.state.output).all())  # the likeliest of NaN is label 0
        return {name: score if finite and math.isfinite(score) else None for name, score in scores.items()}

    def _save(self) -> None:
        """Write the released model as it is by now."""
        if self.folder is not None:
            about = {"fedpriv": __version__, "round": str(self.state.step)}
            self.folder.write(run_files.MODEL, self._trained().packed(about | _remark(self.plan)))
            self._save_state()

    def _trained(self) -> TrainedModel:
        """The released model as it is by now."""
        layout, config, inputs = self.task.layout, self.plan.config, self.inputs
        objects = user_code.given()

        def build() -> nn.Module:
            with user_code.objects(objects):
                return make_model(config, inputs, started=False)

        tensors = weights.whole(self.task.module, layout.split(self.state.output))
        return TrainedModel(tensors, layout.names, inputs, build)

    def _save_state(self) -> None:
        """Write what the run could be resumed from. What was charged and not answered stays lost then, also
        where the run has failed and writes its last files."""
        if self.folder is not None and self.silos is not None and obstacle(self.plan.config) is None:
            own = (*self.answered, self.resumed, self.untrained, self.silos)
            self.folder.write(run_files.STATE, checkpoints.packed(self.plan, self.task.layout, *own))

    def finish(self, stopped: StopReason) -> Result:
        self._save()  # first: what follows may take seconds
        charged = self.budget_gate.charged_on_disk()
        by_silo = charged.by_silo() if self.plan.by_silo else None
        events = gate_events(self.plan, charged)
        absences = [*self.absent_before, *self.absent.to_json()]
        about = stopped, by_silo, self.resumed, absences, self.untrained, charged.head
        labels = self._labels()
        summary = summary_module.summarise(
            self.plan,
            events,
            self.metrics,
            *about,
            self.task.layout.dimension,
            most_frequent(labels) if labels else None,
        )
        if (spent := summary_module.enforced_guarantee(summary).get("epsilon")) is not None:
            self.spending.append((self.state.step, float(spent)))  # with what was charged and gave no round
        if self.folder is not None:
            for name, content in report_files(summary, self.metrics, self.spending).items():
                self.folder.write(name, content)
        return Result(
            summary,
            self.metrics,
            stopped,
            self.plan.config,
            self._trained(),
            self.folder.path if self.folder else None,
            self.budget_gate.content(),
            self.spending,
            tuple(self._notes(stopped)),
        )

    def _notes(self, stopped: StopReason) -> list[str]:
        """Notes on the last score, where the model has not diverged."""
        if not self.metrics or divergence(stopped, self.metrics):
            return []
        return guessing(self.metrics[-1].get("accuracy"), self._labels())

    def _labels(self) -> list[int]:
        """The labels of the public test set; none where its examples have no single label."""
        _, y = self.test
        return [] if y.dim() != 1 or y.is_floating_point() else y.tolist()


def notes_on(stopped: StopReason, metrics: Sequence[Mapping[str, Any]], y: torch.Tensor) -> list[str]:
    """Notes on the last score by what the test examples' y are; none where the model has diverged."""
    if y.dim() != 1 or y.is_floating_point() or not metrics or divergence(stopped, metrics):
        return []
    return guessing(metrics[-1].get("accuracy"), y.tolist())

"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from fedpriv.accounting import METHODS
from fedpriv.cli.app import note, on_terminal
from fedpriv.config.plan import Plan
from fedpriv.federated.stop_reason import StopReason, divergence
from fedpriv.report.notices import noise, notes, remark
from fedpriv.runs.checkpoints import FILE, Checkpoint, obstacle
from fedpriv.runs.result import Result
from fedpriv.runs.runner import Status
from fedpriv.tasks.metrics import counted, shown

Show = Callable[[Status], None]


def announce(plan: Plan, resumed: Checkpoint | None, odd: Sequence[str], err: bool) -> None:
    """What is about to run, or to go on, what it costs, and what is odd about it, also what ``odd`` says; on
    standard error where ``err``."""
    config = plan.config
    clients = counted(config.clients, "client")
    who = f"{counted(config.units, 'example')} of" if config.centralised else f"{clients} on"
    rounds, added = counted(plan.rounds, "round"), noise(config.placement)
    if plan.by_silo:
        each = counted(config.examples_per_client, "example")
        who = f"{counted(config.clients, 'silo')} of {each} on"
        rounds = f"{rounds} of {counted(config.silo_steps, 'private step')}"
        added = f"{added} in each silo"
    typer.echo(f"{who} {config.dataset}, {config.model}, {config.optimizer}, {rounds}, {added}", err=err)
    if plan.budget is not None:
        first = plan.mechanism.planned_events()[0].noise_multiplier
        typer.echo(
            f"budget epsilon {plan.budget.epsilon:g}, delta {plan.budget.delta:.3g}, held by "
            f"{config.accounting}; noise multiplier {first:.4g} at the first round",
            err=err,
        )
        if METHODS[config.accounting].kind == "estimate":
            text = f"{config.accounting} is an ESTIMATE that can understate epsilon several-fold"
            typer.secho(text, bold=True, err=err)
    for said in (remark(config), *notes(plan), *odd):
        if said:
            note(said, err)
    if resumed:
        lost = f", {resumed.lost} of them after it: paid for and lost" if resumed.lost else ""
        charged = counted(resumed.charged, "release")
        typer.echo(f"taken up again after round {resumed.state.step}; {charged} charged{lost}", err=err)
        for key in resumed.changed:
            code = plan.config.table()[key]
            note(f"the file of {key} {code} is not as it was when the run was left", err)


@contextmanager
def progress(rounds: int, quiet: bool) -> Iterator[Show]:
    """What to call after each of so many rounds."""
    if quiet:
        yield lambda status: None
    elif on_terminal():
        with _bar(rounds) as show:
            yield show
    else:
        yield Lines()


@contextmanager
def _bar(rounds: int) -> Iterator[Show]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}  epsilon {task.fields[epsilon]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("round", total=rounds, score="", epsilon="-", rate="")

        def show(status: Status) -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(
                task,
                completed=status.round,
                score=status.measure.said(status.score),
                epsilon=status.said(status.spent),
                rate=f"{speed:.1f} rounds/s" if speed else "",
            )

        yield show


class Lines:
    """One plain line at each evaluation."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = f"{prefix}: " if prefix else ""

    def __call__(self, status: Status) -> None:
        """Print the status of a round that was evaluated."""
        if status.evaluated != status.round:
            return
        typer.echo(
            f"{self._prefix}round {status.round}/{status.rounds}  {status.measure.said(status.score)}  "
            f"epsilon {status.said(status.epsilon)}"
        )


def conclude(plan: Plan, result: Result, folder: str) -> None:
    """How the run ended and where to read on."""
    last = result.metrics[-1] if result.metrics else {}
    measure = shown(last)
    typer.echo(f"{result.stopped.sentence}; test {measure.said(last.get(measure.key))}")
    if diverged := divergence(result.stopped, result.metrics):
        note(diverged)
    rounds_left = last.get("round", 0) < plan.mechanism.rounds
    if (
        rounds_left
        and result.stopped in (StopReason.INTERRUPTED, StopReason.UNANSWERED)
        and obstacle(plan) is None
    ):
        typer.echo(f"`fedpriv resume {folder}` goes on from there")
    typer.echo(f"{folder}/report.md says what epsilon means; {folder}/curves.png shows the run")


def resume_hint(plan: Plan, folder: Path) -> str:
    """How a run that failed for want of room, or of another thing outside it, goes on; nothing where it
    cannot."""
    if obstacle(plan) is not None or not (folder / FILE).is_file():
        return ""
    return f"`fedpriv resume {folder}` goes on from its last evaluation, once that is mended"

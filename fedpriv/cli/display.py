"""What a person sees of a run: what it is, how it goes on, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpriv._internal import run_files
from fedpriv._internal.files import quoted
from fedpriv.accounting import METHODS
from fedpriv.cli.app import note, say
from fedpriv.cli.progress import Bar
from fedpriv.config.builders import make_source
from fedpriv.config.plan import Plan, gpu_share, gpus, number_of_actors
from fedpriv.config.resumable import obstacle
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import divergence
from fedpriv.report.notices import noise, remark
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import replaced
from fedpriv.runs.runner import Status
from fedpriv.simulation.run import Checked
from fedpriv.tasks.metrics import counted, shown

Show = Callable[[Status], None]


def announce(plan: Plan, folder: Path, resumed: Checkpoint | None, checked: Checked, err: bool) -> None:
    """Print what is about to run, its budget and notes on it; on standard error where ``err``."""
    config = plan.config
    clients = counted(config.clients, "client")
    who = f"{counted(config.units, 'example')} of" if config.centralised else f"{clients}{_each(config)} on"
    rounds, added = counted(plan.rounds, "round"), noise(config.placement, plan.by_silo)
    if plan.by_silo:
        low, high = int(config.silo_sizes.min()), int(config.silo_sizes.max())
        each = counted(high, "example") if low == high else f"{low} to {counted(high, 'example')}"
        who = f"{counted(config.clients, 'silo')} of {each} on"
        rounds = f"{rounds} of {counted(config.silo_steps, 'private step')}"
    say(f"{who} {config.dataset}, {config.model}, {config.optimizer}, {rounds}, {added}", err=err)
    if plan.budget is not None:
        first = plan.mechanism.planned_events()[0].noise_multiplier
        say(
            f"budget epsilon {plan.budget.epsilon:g}, delta {plan.budget.delta:.3g}, enforced by "
            f"{config.accounting}; noise multiplier {first:.4g} at the first round",
            err=err,
        )
        if METHODS[config.accounting].kind == "estimate":
            text = f"{config.accounting} is an ESTIMATE that can understate epsilon several-fold"
            say(text, bold=True, err=err)
    earlier = "" if resumed else replaced(folder)
    for sentence in (remark(config), *checked.warnings(plan), *checked.notes, earlier):
        if sentence:
            note(sentence, err)
    if resumed:
        lost = f", {resumed.lost} of them after that round: paid for and lost" if resumed.lost else ""
        charged = counted(resumed.charged, "release")
        say(f"resumed after round {resumed.state.step}; {charged} charged{lost}", err=err)
        for key in resumed.changed:
            code = plan.config.table()[key]
            note(f"the file of {key}={code} has changed since the run was interrupted", err)


def _each(config: Config) -> str:
    """How many examples a client has on average, where clients share a data set out: it follows from public
    numbers. A finite data set is divided whole, whatever examples-per-client says."""
    if not config.divided:
        return ""
    size = make_source(config).size
    mean = config.examples_per_client if size is None else size / config.clients
    return f" of {mean:.4g} examples on average"


def engine_start(config: Config) -> str:
    """What a run waits for before its first round."""
    if config.in_process:
        return "first round"
    number, share, there = number_of_actors(config), gpu_share(config), gpus(config)
    text = f"starting {counted(number, 'Ray actor')}"
    if not there:
        return text
    idle = there - number * share
    unused = f"; {idle:.3g} of {counted(there, 'GPU')} unused" if idle > 1e-6 else ""
    return f"{text} with {share:.3g} GPU each{unused}"


def follow(bar: Bar) -> Show:
    """What to call after each round, to show it on the bar."""

    def show(status: Status) -> None:
        label = f"round {status.round}/{status.rounds}"
        spent = "" if status.budget is None else f"epsilon {status.epsilon_text(status.spent)}"
        bar.advance(status.round, status.rounds, label, spent)
        if status.evaluated == status.round:
            score, epsilon = status.measure.labelled(status.score), status.epsilon_text(status.epsilon)
            bar.write(f"{label}  {score}  epsilon {epsilon}")
        if status.round == status.rounds:
            bar.wait("writing the report")

    return show


def conclude(plan: Plan, result: Result, folder: str) -> None:
    """How the run ended and where to read on."""
    last = result.metrics[-1] if result.metrics else {}
    measure = shown(last)
    say(f"{result.stopped.sentence}; test {measure.labelled(last.get(measure.key))}")
    if diverged := divergence(result.stopped, result.metrics):
        note(diverged)
    for sentence in result.notes:
        note(sentence)
    rounds_left = last.get("round", 0) < plan.mechanism.rounds
    if rounds_left and result.stopped.resumable and obstacle(plan.config) is None:
        say(f"`fedpriv resume {quoted(folder)}` continues the run")
    say(
        f"{folder}/{run_files.REPORT_TEXT} says what epsilon means; {folder}/{run_files.CURVES} shows the run"
    )


def resume_hint(plan: Plan, folder: Path) -> str:
    """How a run continues that failed for a reason outside it, such as a full disk; empty where it cannot."""
    if obstacle(plan.config) is not None or not (folder / run_files.STATE).is_file():
        return ""
    return f"`fedpriv resume {quoted(folder)}` continues from the last evaluation once the cause is removed"

"""The ServerApp: it makes the plan, runs the round loop over the run's Grid, and writes the output folder.

It runs unchanged in Flower's simulation engine and in a deployment. It prints only public information:
rounds, the score on the public test set, the budget, and which silos do not answer.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpriv._internal import run_files, validation
from fedpriv._internal.files import read_json
from fedpriv._internal.validation import FedprivError
from fedpriv.accounting import ledger
from fedpriv.config import consistency
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.reading import read_run, require_run
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason, end_line
from fedpriv.flower.enrolment import of_environment
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.secure_parties import secured_over
from fedpriv.flower.topology import EngineError
from fedpriv.report.notices import remark
from fedpriv.report.summary import enforced_guarantee
from fedpriv.runs import checkpoints
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.run_dir import RunFolder, default_folder
from fedpriv.runs.runner import Status, execute
from fedpriv.secure_aggregation.errors import ProtocolError

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Runs the configured federation over ``grid``. Outputs go to the folder ``out`` of the run-config.

    User errors are printed in one line before the traceback that Flower prints.

    Raises:
        ArgumentError, DataError: for contradictory settings, before any message is sent.
        EngineError: if nodes do not connect or are not ready, before anything is charged; or if they cannot
            answer later.
    """
    try:
        _run(grid, Config.parse(context.run_config))
    except (FedprivError, OSError) as error:
        print(f"fedpriv: {error}", flush=True)
        if isinstance(error, EngineError):  # the cause is on the nodes, so this traceback does not help
            raise error.with_traceback(None) from None
        raise


def _run(grid: Grid, config: Config) -> None:
    plan, resumed = _continued(config) if config.continues else (make_plan(config), None)
    if config.aggregates_securely and not config.nodes_own_data:
        allowed = "be false on Flower's simulation engine, whose nodes keep no keys from message to message"
        raise validation.fail("secure-aggregation", True, allowed, "`fedpriv simulate` has it")
    consistency.check_no_audit(config)
    if note := remark(config):
        _report(f"NOTE: {note}")
    if config.min_nodes > config.clients:
        hint = "each client is a node"
        raise validation.fail("min-nodes", config.min_nodes, f"be at most {config.clients}", hint)
    out = config.out or default_folder()
    if resumed is None:
        RunFolder.check(out, config.overwrite)
    nodes = config.clients if config.nodes_own_data else None
    silos = config.privacy_unit.in_silos
    engine = GridEngine(
        grid,
        reply_timeout=config.reply_timeout,
        round_deadline=config.round_deadline,
        start_timeout=config.start_timeout,
        min_nodes=config.min_nodes or None,
        nodes=nodes,
        report=_report,
        silos=silos,
        enrolment=of_environment() if config.nodes_own_data else None,
    )
    engine.assemble()
    gathering = secured_over(config, engine) if config.aggregates_securely else engine
    folder = RunFolder.create(out, config.overwrite) if resumed is None else RunFolder(Path(out))
    if folder.replaced:
        _report(f"NOTE: {folder.replaced}")
    if resumed is not None:
        _report(f"NOTE: {_going_on(resumed)}")
    try:
        result = execute(plan, gathering, folder, _print, resumed)
    except (EngineError, ProtocolError):
        _report(end_line(StopReason.FAILED, f"{_spent(folder, plan)}; results are in {folder.path}"))
        raise
    with contextlib.suppress(EngineError):  # the run is over, and its results are there
        engine.note_ledgers()
    _report(end_line(result.stopped, f"; results are in {folder.path}"))


def _continued(config: Config) -> tuple[Plan, Checkpoint]:
    """(the plan of the run in the folder ``out``, what it is continued from).

    Raises ArgumentError if it had other settings or cannot be continued, and LedgerError if it still goes on.
    """
    folder = Path(config.out)
    if not config.out:
        raise validation.fail("out", config.out, "be the folder of the run that this one continues")
    require_run("out", folder, "be the folder of the run that this one continues")
    before = Config.parse(read_run(folder))
    # The nodes make their plans from this run's settings.
    plan = make_plan(config.changed(continues="", out=before.out, overwrite=before.overwrite))
    checkpoints.require_settings(folder, before, plan.config)
    ledger.require_unused(folder / run_files.LEDGER)
    return plan, checkpoints.read(folder, plan)


def _going_on(resumed: Checkpoint) -> str:
    rounds = resumed.begun - resumed.state.step if resumed.begun else resumed.lost
    lost = f", and {rounds} charged after it without an answer" if rounds > 0 else ""
    return f"the run goes on after round {resumed.state.step}{lost}"


def _spent(folder: RunFolder, plan: Plan) -> str:
    """The epsilon that a failed run's report states; empty without noise, or if no report was written."""
    path = folder.path / run_files.REPORT
    guarantee = enforced_guarantee(read_json(path.read_bytes())) if path.is_file() else {}
    if plan.budget is None or (epsilon := guarantee.get("epsilon")) is None:
        return ""
    return f"; epsilon {float(epsilon):.3g} of {plan.budget.epsilon:g} is spent and stays charged"


def _report(line: str) -> None:
    print(line, flush=True)


def _print(status: Status) -> None:
    score = "" if status.score is None else f", test {status.measure.labelled(status.score)}"
    _report(f"round {status.round} of {status.rounds}{score}, epsilon {status.epsilon_text(status.spent)}")

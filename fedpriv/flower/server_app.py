"""The ServerApp: configuration -> plan -> engine over the run's Grid -> the round loop -> output folder.

It runs unchanged in Flower's simulation engine and in a deployment. All it prints is public: rounds,
the score on the public test set, the budget, and which silos do not answer.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpriv._internal.validation import FedprivError
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.topology import EngineError
from fedpriv.report.notices import remark
from fedpriv.runs.run_dir import RunFolder, default_folder
from fedpriv.runs.runner import Status, execute

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Run the configured federation over ``grid``; outputs go to the run-config's ``out``.

    What people can get wrong is said in one line, before the traceback that Flower prints.

    Raises:
        ArgumentError, DataError: settings that do not fit together, before any node is asked.
        EngineError: nodes that do not assemble, or are not ready, before anything is charged; or that
            cannot answer.
    """
    try:
        _run(grid, Config.parse(context.run_config))
    except (FedprivError, OSError) as error:
        print(f"fedpriv: {error}", flush=True)
        if isinstance(error, EngineError):  # of the nodes: where this code found it tells nothing
            raise error.with_traceback(None) from None
        raise


def _run(grid: Grid, config: Config) -> None:
    plan = make_plan(config)
    if note := remark(config):
        _tell(f"NOTE: {note}")
    out = config.out or default_folder()
    RunFolder.check(out, config.overwrite)
    nodes = config.clients if config.nodes_own_data else None
    silos = config.unit == "example"
    engine = GridEngine(grid, reply_timeout=config.reply_timeout, nodes=nodes, tell=_tell, silos=silos)
    engine.assemble()
    folder = RunFolder.create(out, config.overwrite)
    result = execute(plan, engine, folder, _print)
    _tell(f"stopped: {result.stopped}; results are in {folder.path}")


def _tell(line: str) -> None:
    print(line, flush=True)


def _print(status: Status) -> None:
    score = "" if status.score is None else f", test {status.measure.said(status.score)}"
    _tell(f"round {status.round} of {status.rounds}{score}, epsilon {status.said(status.spent)}")

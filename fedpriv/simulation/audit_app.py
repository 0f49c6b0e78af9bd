"""A ServerApp that audits a run on Flower's own simulation engine, or on a deployment's SuperNodes.

`flwr run` starts both, so the auditor goes where the run's ServerApp goes. It asks the nodes over the run's
Grid as the run does (:class:`fedpriv.flower.grid_engine.GridEngine`); the nodes run their own app unchanged.
`fedpriv audit --flower-app FOLDER` writes the app (:mod:`fedpriv.deployment.flower_app`).
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpriv._internal import validation
from fedpriv._internal.validation import FedprivError
from fedpriv.auditing.auditor import audit_own_data
from fedpriv.auditing.statement import lines
from fedpriv.auditing.subject import names_examples_twice, own_plan, with_seed
from fedpriv.auditing.views import AUTO, view_of
from fedpriv.config.schema import Config
from fedpriv.flower.grid_engine import GridEngine

_SOURCE = """\
\"\"\"Audits the run of this app's settings.\"\"\"

from fedpriv.simulation.audit_app import audit_app

app = audit_app({canaries!r}, {view!r}, {confidence!r})
"""


def prepared(config: Config, canaries: int = 0, view: str = AUTO, confidence: float = 0.99) -> Config:
    """The configuration of an audited app: with a seed, by which nodes repeat their noise.

    Args:
        config: a run on data that the configuration names.
        canaries, view, confidence: as in :func:`fedpriv.auditing.auditor.audit_own_data`.

    Raises ArgumentError for a run that cannot be audited so.
    """
    validation.between("confidence", confidence, 0, 1)
    view_of(config, view)
    if config.aggregates_securely:
        allowed = "be false in an app, whose nodes keep no keys from message to message"
        hint = "`fedpriv audit --own-data` has it, and --deployment audits it on `fedpriv node run`"
        raise validation.fail("secure-aggregation", True, allowed, hint)
    if names_examples_twice(config):
        allowed = "be central in an app where an example replaces another one"
        hint = "nodes refuse a message with an example twice; audit it with --own-data and engine=in-process"
        raise validation.fail("placement", config.placement, allowed, hint)
    own_plan(config, canaries)
    return with_seed(config)


def source(canaries: int = 0, view: str = AUTO, confidence: float = 0.99) -> str:
    """The text of the module of an app's ServerApp."""
    return _SOURCE.format(canaries=canaries, view=view, confidence=confidence)


def audit_app(canaries: int = 0, view: str = AUTO, confidence: float = 0.99) -> ServerApp:
    """The ServerApp that audits the run of its run-config and prints the finding.

    Args:
        canaries, view, confidence: as in :func:`fedpriv.auditing.auditor.audit_own_data`.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        try:
            _audit(grid, Config.parse(context.run_config), canaries, view, confidence)
        except (FedprivError, OSError) as error:
            print(f"fedpriv: {error}", flush=True)
            raise

    return app


def _audit(grid: Grid, config: Config, canaries: int, view: str, confidence: float) -> None:
    if config.seed < 0:  # the nodes have this configuration, too, and another seed cannot be sent to them
        raise validation.fail(
            "seed", config.seed, "be 0 or more in an audit of nodes", "they repeat their noise"
        )
    prepared(config, canaries, view, confidence)

    def make_engine(same: Config) -> GridEngine:
        return GridEngine(grid, same.reply_timeout, same.start_timeout, strict=True)

    def observe(done: int) -> None:
        print(f"audited round {done} of {config.rounds}", flush=True)

    # The nodes are other processes, whatever engine a simulation of this configuration has.
    elsewhere = config.changed(engine="ray")
    finding = audit_own_data(elsewhere, make_engine, canaries, confidence, observe, view)
    for line in lines(config, finding):
        print(line, flush=True)

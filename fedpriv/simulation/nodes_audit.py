"""A ServerApp that audits a run on a deployment whose nodes are all of one owner.

`fedpriv audit --deployment FOLDER` draws the coins, writes each node's audit file and a plan for the app, and
has Flower start the app on the deployment's server. The app asks the nodes as the run's ServerApp does
(:mod:`fedpriv.auditing.nodes`), prints the finding and writes it beside the plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpriv._internal import validation
from fedpriv._internal.files import atomic, read_json
from fedpriv._internal.validation import FedprivError
from fedpriv.auditing import nodes
from fedpriv.auditing.auditor import audit_nodes
from fedpriv.auditing.nodes import NodeCoins, Owner
from fedpriv.auditing.statement import lines
from fedpriv.auditing.views import AUTO
from fedpriv.config.schema import Config
from fedpriv.flower.enrolment import of_environment
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.secure_parties import secured_over
from fedpriv.rng import Key

PLAN, FINDING = "plan.json", "finding.json"  # in the audit's folder
_SOURCE = """\
\"\"\"Audits the run of this app's settings on nodes of one owner.\"\"\"

from fedpriv.simulation.nodes_audit import nodes_audit_app

app = nodes_audit_app({folder!r})
"""


def prepare(
    folder: Path,
    config: Config,
    owners: Sequence[Owner],
    canaries: int = 0,
    view: str = AUTO,
    confidence: float = 0.99,
) -> str:
    """Draws the coins, writes the nodes' audit files and the app's plan; the text of the app's module.

    Args:
        folder: for the plan and the finding.
        config: the run.
        owners: the nodes' configurations, by partition.
        canaries: the number of examples with a coin; 0: up to 200, and fewer for large models.
        view, confidence: as in :func:`fedpriv.auditing.auditor.audit_nodes`.

    Raises ArgumentError for a run that cannot be audited so, or while another audit goes on.
    """
    validation.between("confidence", confidence, 0, 1)
    plan = folder / PLAN
    if plan.exists():
        hint = f"if none does, one was killed: remove {plan}"
        raise validation.ArgumentError(f"an audit of this deployment goes on; {hint}")
    coins = nodes.drawn(config, nodes.files_of(owners, "data-file"), canaries, view, Key.fresh())
    nodes.plant(config, coins, nodes.files_of(owners, "audit-file"))
    (folder / FINDING).unlink(missing_ok=True)
    facts = {
        "view": view,
        "confidence": confidence,
        "guessed": coins.guessed.tolist(),
        "absent": coins.absent.tolist(),
        "nodes": [dict(owner) for owner in owners],
    }
    with atomic(plan, private=True) as file:
        file.write(json.dumps(facts).encode())
    return _SOURCE.format(folder=str(folder))


def finish(folder: Path) -> dict[str, Any] | None:
    """Removes the plan; the finding, or None if the app wrote none."""
    (folder / PLAN).unlink(missing_ok=True)
    path = folder / FINDING
    return dict(read_json(path.read_bytes())) if path.exists() else None


def nodes_audit_app(folder: str) -> ServerApp:
    """The ServerApp that audits the run of its run-config by the plan in ``folder``."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        try:
            _audit(grid, Config.parse(context.run_config), Path(folder), context.run_id)
        except (FedprivError, OSError) as error:
            print(f"fedpriv: {error}", flush=True)
            raise

    return app


def _audit(grid: Grid, config: Config, folder: Path, run: int) -> None:
    plan = read_json((folder / PLAN).read_bytes())
    coins = NodeCoins(*(np.array(plan[name], np.int64) for name in ("guessed", "absent")))

    def report(text: str) -> None:
        print(text, flush=True)

    asks = GridEngine(
        grid,
        config.reply_timeout,
        config.start_timeout,
        strict=True,  # sums without a node's part would not be those of its data
        nodes=config.clients,
        report=report,
        silos=True,
        enrolment=of_environment(),
    )
    found = audit_nodes(
        config,
        coins,
        plan["nodes"],
        secured_over(config, asks) if config.aggregates_securely else asks,
        run,
        plan["confidence"],
        lambda done: report(f"audited round {done} of {config.rounds}"),
        plan["view"],
    )
    with atomic(folder / FINDING) as file:
        file.write(json.dumps({"note": "audit run, not for use", **found.json()}).encode())
    for line in lines(config, found):
        report(line)

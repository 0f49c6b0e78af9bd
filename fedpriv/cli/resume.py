"""``fedpriv resume``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv.cli.app import AsJson, RayAddress, app
from fedpriv.cli.simulate import require_ray, run_one
from fedpriv.config.reading import require_run

if TYPE_CHECKING:
    from fedpriv.cli.simulate import Job

_HELP = """Continue a run of `fedpriv simulate` or `fedpriv train` that was interrupted, failed or was killed.

FOLDER is its output folder. The run continues from its last evaluation with what is left of its budget.
Charged releases stay charged, also those after that evaluation, whose rounds are repeated. No noise is used
twice; without a seed all randomness after the evaluation is new.

Runs with max-participations cannot be resumed, nor those of level=client with engine=ray. A deployment's run
is continued by `fedpriv deploy resume`.

\b
Example:
  fedpriv resume runs/20261122-203321
"""


@app.command(help=_HELP, short_help="Continue an interrupted run.")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Output folder of the run.")],
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    run_one(lambda: _taken_up(folder, ray_address), as_json)


def _taken_up(folder: Path, ray_address: str | None) -> Job:
    from fedpriv.simulation.run import resumed

    require_run("FOLDER", folder)
    plan, checkpoint, checked = resumed(folder)
    require_ray(ray_address, plan.config)
    return plan, folder, checkpoint, checked

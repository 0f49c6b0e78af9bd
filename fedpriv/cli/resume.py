"""``fedpriv resume``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, RayAddress, app
from fedpriv.cli.simulate import require_ray, run_one

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

    if not (folder / "config.toml").is_file():
        raise validation.fail("FOLDER", str(folder), "be the output folder of a run", _what_it_is(folder))
    plan, checkpoint, checked = resumed(folder)
    require_ray(ray_address, plan.config)
    return plan, folder, checkpoint, checked


def _what_it_is(folder: Path) -> str:
    """What is there in place of a run's output folder, and what to give where that is near."""
    from fedpriv.simulation.compare import COMPARED

    if not folder.is_dir():
        return "it is a file" if folder.exists() else "there is no such folder"
    runs = sorted(path.parent.name for path in folder.glob("*/config.toml"))
    if not runs:
        return "no config.toml is in it"
    if set(runs) <= set(COMPARED):
        return f"it holds a comparison: give one of its folders {', '.join(runs)}"
    return f"it holds several runs: give the folder of one, such as {folder / runs[-1]}"

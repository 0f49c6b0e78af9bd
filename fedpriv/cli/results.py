"""``fedpriv results``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, app, note, print_table, refusing

_HELP = """Put runs side by side, from their output folders: a table, and a picture of all of them.

Runs are told apart by the settings that they use and differ in. Those that differ in their seed or folder
alone are repetitions, shown by their mean and, after +-, their sample standard deviation, here as in the
picture. A folder that is no run stands for all runs in it, however deep; those that have not ended are left
out, and named.

The picture has scores against rounds and epsilon; of more than 20 rows, the last scores alone, best first.

\b
Examples:
  fedpriv results runs/dp-sgd runs/adadp runs/dp-srm
  fedpriv results runs/sweep --out sweep.png
"""


@app.command(help=_HELP)
def results(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Output folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="PNG file to draw.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    from fedpriv._internal.files import atomic
    from fedpriv.report import comparison as compared
    from fedpriv.report import comparison_plots

    with refusing():
        if out is not None:
            _check_out(out)
        groups = compared.read(folders, lambda said: note(said, err=as_json))
        if out is not None:
            with atomic(out) as file:
                file.write(comparison_plots.picture(groups))
    if as_json:
        typer.echo(json.dumps([group.json() for group in groups]))
        return
    print_table(compared.HEADER, [compared.cells(group) for group in groups])
    for line in compared.said(groups):
        note(line)
    if out is not None:
        many = len(groups) > comparison_plots.MOST_CURVES
        what = "last test scores, best first" if many else "test score against rounds and epsilon"
        typer.echo(f"{out} shows the {what}")


def _check_out(out: Path) -> None:
    """Refuse a picture's name that is no PNG file's, or cannot be written."""
    from fedpriv._internal.files import unwritable

    if out.is_dir():
        raise validation.fail("--out", str(out), "be a PNG file, not a folder")
    if out.suffix.lower() != ".png":
        raise validation.fail("--out", str(out), "end in .png")
    if why := unwritable(out.parent):
        raise validation.fail("--out", str(out), "be a file in a folder to write to", why)

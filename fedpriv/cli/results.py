"""``fedpriv results``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, app, note, print_table, refusing, say, terminal_width

_HELP = """Put runs side by side, from their output folders: a table, and a picture of them.

Each row is a configuration, best score first. Columns are the settings that differ. Runs that differ in their
seed or folder alone are repetitions: their row has the mean and, after +-, the sample standard deviation. A
folder that is no run stands for all runs below it. Runs that have not ended are left out, and a note names
them.

The picture shows scores against rounds, and last scores against budgets where there are several. Of more
than 20 rows it shows the last scores alone.

\b
Examples:
  fedpriv results runs/dp-sgd runs/adadp runs/dp-srm
  fedpriv results runs/sweep --out sweep.png
"""


@app.command(help=_HELP, short_help="Put runs side by side, from their folders.")
def results(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Output folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="PNG file to draw.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    from fedpriv._internal.files import atomic
    from fedpriv.report import comparison as compared
    from fedpriv.report import comparison_plots
    from fedpriv.report.comparison_table import table

    with refusing():
        if out is not None:
            _check_out(out)
        groups = compared.read(folders, lambda text: note(text, err=as_json))
        if out is not None:
            with atomic(out) as file:
                file.write(comparison_plots.picture(groups))
    if as_json:
        typer.echo(json.dumps([group.json() for group in groups]))
        return
    found = table(groups, terminal_width())
    print_table(found.header, found.rows)
    for line in found.about:
        say(line)
    for line in found.notes:
        note(line)
    if out is not None:
        many = len(groups) > comparison_plots.MOST_CURVES
        what = (
            "last test scores, best first"
            if many
            else "test score against rounds, and against budgets where there are several"
        )
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

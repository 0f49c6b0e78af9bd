"""``fedpriv report``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, app, note, print_table, refusing, say, terminal_width

if TYPE_CHECKING:
    from fedpriv.report.comparison import Group

_HELP = """Put runs side by side, from their output folders: a table, and a page about them.

Each row is a configuration, best score first. Columns are the settings that differ. Runs that differ in their
seed or folder alone are repetitions: their row has the mean and, after +-, the sample standard deviation. A
folder that is no run stands for all runs below it. The candidates of a tuned sweep are no rows, but count as
tried; what the sweep chose is below the table.

The page, report.html, is one file that needs no network. It has the table, the pictures whose data exist, a
chart of runs by round, and of each run its privacy statement, its command and its configuration. Runs that
have not ended are in the chart alone; a note says what continues them, and where their spend is. With one
FOLDER the page is in it, otherwise in the current folder.

--pictures writes each picture as PNG and SVG. --json prints a list with an object for each row, which also
has "settings tried" and, of a tuned sweep, "tuning"; it writes files only where --out or --pictures is given.

\b
Examples:
  fedpriv report runs/sweep
  fedpriv report runs/dp-sgd runs/adadp --out both.html --pictures pictures
"""


@app.command(help=_HELP, short_help="Put runs side by side: a table, pictures, and report.html.")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Output folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="HTML file to write.", show_default=False)] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder for the pictures as PNG and SVG.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    from fedpriv._internal.files import atomic
    from fedpriv.report.page import folders as found_in
    from fedpriv.report.page.page import about, page

    with refusing():
        if out is None and not as_json:
            out = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
        _check(out, pictures)
        found = found_in.read(folders)
    for text in found.notes:
        note(text, err=as_json)
    with refusing(1):
        if out is not None:
            named = ", ".join(str(folder) for folder in folders)
            content = page(found, f"fedpriv: {named}")
            with atomic(out) as file:
                file.write(content.encode())
        written = _write_pictures(found.groups, about(found), pictures) if pictures else []
    if as_json:
        typer.echo(json.dumps(found.json()))
        return
    _show(found.groups)
    for search in found.searches:
        for line in search.lines:
            say(line)
    say(f"{about(found)}.")
    has = (
        "the table, the pictures, and what each run claims" if found.groups else "the chart, and all settings"
    )
    typer.echo(f"{out} has {has}")
    if pictures:
        typer.echo(f"{pictures} has {', '.join(written) or 'no picture: the data of none exist'}")


def _show(groups: Sequence[Group]) -> None:
    """A table for each measure by which runs are scored."""
    from fedpriv.report.comparison_table import table

    for words in dict.fromkeys(group.measure.words for group in groups):
        found = table([group for group in groups if group.measure.words == words], terminal_width())
        print_table(found.header, found.rows)
        for line in found.about:
            say(line)
        for line in found.notes:
            note(line)


def _write_pictures(groups: Sequence[Group], about: str, folder: Path) -> list[str]:
    """Write the pictures of the runs; gives their names. A second measure has a folder of its own."""
    from fedpriv._internal import plotting
    from fedpriv._internal.files import atomic
    from fedpriv.report import pictures
    from fedpriv.report.sweep_results import of_groups

    written = []
    for number, words in enumerate(dict.fromkeys(group.measure.words for group in groups)):
        own = folder / words.replace(" ", "-") if number else folder
        own.mkdir(parents=True, exist_ok=True)
        cells = of_groups([group for group in groups if group.measure.words == words])
        for name, _, figure in pictures.drawn(cells, about):
            for suffix, content in ((".png", plotting.png(figure)), (".svg", plotting.svg(figure))):
                with atomic(own / f"{name}{suffix}") as file:
                    file.write(content)
            written.append(str((own / name).relative_to(folder)))
    return written


def _check(out: Path | None, pictures: Path | None) -> None:
    """Refuse names that are no HTML file's or folder's, or cannot be written."""
    from fedpriv._internal.files import unwritable

    if out is not None:
        if out.is_dir():
            raise validation.fail("--out", str(out), "be an HTML file, not a folder")
        if out.suffix.lower() not in (".html", ".htm"):
            raise validation.fail(
                "--out", str(out), "end in .html", "--pictures FOLDER writes PNG and SVG files"
            )
        if why := unwritable(out.parent):
            raise validation.fail("--out", str(out), "be a file in a folder to write to", why)
    if pictures is not None and (why := unwritable(pictures)):
        raise validation.fail("--pictures", str(pictures), "be a folder to write to", why)

"""``fedpriv view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.app import app, refusing, say

_HELP = """Show the page of `fedpriv report` in a browser, with runs that go on.

The page is served on 127.0.0.1 alone, at an address with a random token. It shows the runs in FOLDER and
below it, follows those that go on, and lays runs over each other. Nothing is written, and no file outside of
FOLDER is read, wherever links lead. Ctrl-C ends it.

\b
Examples:
  fedpriv view runs
  fedpriv view runs/sweep --port 8080
"""


@app.command(help=_HELP, short_help="Show runs in a browser while they go on.")
def view(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: any that is free.")] = 0,
) -> None:
    from fedpriv.report.page.server import Viewer

    with refusing():
        server = Viewer(folder, port)
    with server:
        typer.echo(server.address)
        say(
            "Keep this address to yourself: whoever on this machine has it sees the runs. Ctrl-C ends it.",
            err=True,
        )
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return

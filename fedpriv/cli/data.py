"""``fedpriv data list | fetch | show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpriv import _check
from fedpriv.cli.app import data_app, print_table, refusing


@data_app.command("list", help="The data sets that there are, and which are at hand.")
def data_list() -> None:
    from fedpriv import data
    from fedpriv.data import catalogue

    cards = {card.name: card for card in catalogue.list_cards()}
    rows = []
    for name in data.names():
        card = cards.get(name)
        title = card.title if card else ""
        rows.append([name, "yes" if _at_hand(name) else "no", title, card.licence if card else ""])
    print_table(("data set", "at hand", "what it is", "licence"), rows)
    typer.echo(f"data folder: {data.data_folder()}")


def _at_hand(name: str) -> bool:
    from fedpriv import data

    try:
        data.load(name)
    except data.DataError:
        return False
    return True


@data_app.command("fetch", help="Download a data set, verified against the SHA-256 of its card.")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from `fedpriv data list`.")],
    folder: Annotated[str | None, typer.Option(help="Data folder [default: $FEDPRIV_DATA].")] = None,
    optional: Annotated[bool, typer.Option("--optional", help="Also the files it works without.")] = False,
    sha256: Annotated[
        list[str] | None, typer.Option(metavar="FILE=DIGEST", help="Digest of a file the card lacks one for.")
    ] = None,
) -> None:
    from fedpriv import data
    from fedpriv.data import fetch as fetching

    with refusing():
        _check.choice("dataset", name, data.names())
        digests = dict(_pair(text) for text in sha256 or [])
    with refusing(code=1):
        typer.echo(fetching.fetch(name, folder, optional=optional, sha256=digests).summary)


def _pair(text: str) -> tuple[str, str]:
    name, equals, digest = text.partition("=")
    if not equals:
        raise _check.fail("--sha256", text, "be written FILE=DIGEST")
    return name, digest


@data_app.command("show", help="Draw a PNG grid of a data set's first training examples.")
def data_show(
    name: Annotated[str, typer.Argument(help="A name from `fedpriv data list`.")],
    out: Annotated[Path | None, typer.Option(help="PNG file [default: NAME.png].")] = None,
    count: Annotated[int, typer.Option(help="How many examples.")] = 64,
    first: Annotated[int, typer.Option(help="Skip this many training examples.")] = 0,
) -> None:
    import numpy as np

    from fedpriv import data
    from fedpriv.data import show

    with refusing():
        _check.integer("--count", count, 1)
        _check.integer("--first", first)
        source = data.load(name)
        start = source.first + first
        written = show.save_grid(source, np.arange(start, start + count), out or Path(f"{name}.png"))
    typer.echo(f"{written}: {count} examples from index {start}")

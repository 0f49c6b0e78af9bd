"""``fedpriv data list | info | fetch | show``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, data_app, print_table, refusing, say
from fedpriv.tasks.metrics import counted

if TYPE_CHECKING:
    from fedpriv.data import Source
    from fedpriv.data.catalogue import File


@data_app.command("list", help="List the data sets, and which of them are on this machine.")
def data_list(as_json: AsJson = False) -> None:
    from fedpriv import data
    from fedpriv.data import catalogue, loaders

    sets = [
        {
            "data set": card.name,
            "at hand": loaders.at_hand(card.name),
            "an example": card.inputs,
            "to predict": card.target,
            "what it is": card.title,
        }
        for card in catalogue.list_cards()
    ]
    if as_json:
        typer.echo(json.dumps(sets))
        return
    short = [row | {"what it is": re.split(r"[:,](?![^(]*\))", str(row["what it is"]))[0]} for row in sets]
    print_table(tuple(short[0]), [[_text(cell) for cell in row.values()] for row in short])
    say(f"data folder: {data.data_folder()}; `fedpriv data info NAME` shows options, licence and source")
    say("Your own data set is named module:name, here and as a run's dataset.")


def _text(cell: object) -> str:
    return ("no", "yes")[cell] if isinstance(cell, bool) else str(cell)


_NAME = "A name from `fedpriv data list`, or your own as module:name."


@data_app.command("info", help="Show a data set's kind, options, files, licence and citation.")
def data_info(name: Annotated[str, typer.Argument(help=_NAME)], as_json: AsJson = False) -> None:
    from fedpriv._internal import user_code
    from fedpriv.data import catalogue

    with refusing():
        own = user_code.named(name)
        files = () if own else catalogue.card(_known(name)).files
        known = _of_own(name) if own else _of_card(name)
    if as_json:
        typer.echo(json.dumps({"data set": name, **known, "files": [_of_file(file) for file in files]}))
        return
    options = [f"{key} (default {value})" for key, value in known["options"].items()]
    for key, value in (known | {"options": options}).items():
        if text := ", ".join(value) if isinstance(value, list) else _text(value):
            typer.echo(f"{key + ':':12}{text}")
    for file in files:
        size = "" if file.size is None else f", {file.size:,} bytes"
        optional = ", optional" if file.optional else ""
        typer.echo(f"{'file:':12}{file.name}{size}{optional}, {_vouched(file)}")


def _known(name: str) -> str:
    """The name of a data set that there is. Raises ArgumentError."""
    from fedpriv import data
    from fedpriv._internal import user_code

    return validation.choice(
        "dataset", name, data.names(), validation.near(name, data.names()) or user_code.HINT
    )


def _of_card(name: str) -> dict[str, Any]:
    """What is known of a data set of the catalogue."""
    from fedpriv import data
    from fedpriv.data import catalogue, loaders

    card = catalogue.card(name)
    return {
        "what it is": card.title,
        "an example": card.inputs,
        "to predict": card.target,
        "options": loaders.options(name),
        "models": list(card.models),
        "papers": list(card.papers),
        "note": card.note,
        "made from": list(card.needs),
        "licence": card.licence,
        "cite": card.citation,
        "homepage": card.homepage,
        "folder": str(data.data_folder() / name) if card.files else "",
        "at hand": loaders.at_hand(name),
    }


def _of_own(reference: str) -> dict[str, Any]:
    """The same of a user's own."""
    from fedpriv import data

    source = data.load(reference)
    predicted = {"label": f"{source.classes} labels", "value": "a value", "tags": f"{source.classes} tags"}
    owners = "" if source.owners is None else f", of {int(source.owners.max()) + 1} clients"
    training = "endless" if source.size is None else source.size
    return {
        "what it is": f"data of your own: {training} training{owners}, {len(source.test().y)} test",
        "an example": _inputs(source),
        "to predict": predicted[source.target],
        "options": {},
        "at hand": True,
    }


def _inputs(source: Source) -> str:
    """An example in a few words, as the cards have it."""
    if len(source.tokens) > 1:
        return f"ids below {', '.join(map(str, source.tokens))}"
    if source.tokens:
        return f"{source.shape[0]} tokens of {source.tokens[0]}"
    return f"{'x'.join(map(str, source.shape))} {'pixels' if len(source.shape) == 3 else 'features'}"


def _of_file(file: File) -> dict[str, Any]:
    return {
        "name": file.name, "bytes": file.size, "optional": file.optional, "vouched for by": _vouched(file),
    }  # fmt: skip


def _vouched(file: File) -> str:
    if file.sha256 or file.content_sha256:
        return "SHA-256 known"
    if file.verifiable:
        return "MD5 known" if file.md5 else "SHA-256 of what is in it known"
    return "no hash known: a fetch needs --sha256"


@data_app.command("fetch", help="Download a data set and verify its hashes.")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from `fedpriv data list`.")],
    folder: Annotated[
        str | None, typer.Option(help="Data folder [default: $FEDPRIV_DATA, else ~/.cache/fedpriv].")
    ] = None,
    optional: Annotated[bool, typer.Option("--optional", help="Download the optional files, too.")] = False,
    sha256: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE=DIGEST", help="SHA-256 of a file that has no known hash."),
    ] = None,
) -> None:
    from fedpriv import data
    from fedpriv._internal import user_code
    from fedpriv.data import fetch as fetching

    with refusing():
        if user_code.named(name):
            hint = "your own data is not fetched: the function at module:name makes or reads it"
            raise validation.fail("dataset", name, "be a name from `fedpriv data list`", hint)
        validation.choice("dataset", name, data.names())
        digests = dict(_pair(text) for text in sha256 or [])
    with refusing(code=1):
        typer.echo(fetching.fetch(name, folder, optional=optional, sha256=digests).summary)


def _pair(text: str) -> tuple[str, str]:
    name, equals, digest = text.partition("=")
    if not equals:
        raise validation.fail("--sha256", text, "be written FILE=DIGEST")
    return name, digest


_WIDTH = 80  # characters of a line of labels at most

_SHOW_HELP = """Show a data set's first training examples with their labels.

Images become a PNG grid, and their labels are printed as they stand in it. Texts, rows of features and
ratings are printed as a table: the first words or features of each, and what is to be predicted.

\b
Examples:
  fedpriv data show digits
  fedpriv data show names --count 10
"""


@data_app.command("show", help=_SHOW_HELP, short_help="Show a data set's first examples and labels.")
def data_show(
    name: Annotated[str, typer.Argument(help=_NAME)],
    out: Annotated[
        Path | None, typer.Option(help="PNG file of the images [default: NAME.png].", show_default=False)
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            help="How many examples, at most 1,024 [default: 64 images or 20 rows].", show_default=False
        ),
    ] = None,
    first: Annotated[int, typer.Option(help="Skip this many training examples.")] = 0,
) -> None:
    import numpy as np

    from fedpriv import data
    from fedpriv.data import preview

    with refusing():
        validation.integer("--first", first)
        if count is not None and not 1 <= count <= preview.MOST:
            raise validation.fail("--count", count, f"be a whole number from 1 to {preview.MOST:,}")
        source = data.load(name)
        if source.size is not None and first >= source.size:
            raise validation.fail(
                "--first", first, f"be below {source.size:,}, the number of training examples"
            )
        images = preview.is_images(source)
        count, start = count or (64 if images else 20), source.first + first
        end = start + (count if source.size is None else min(count, source.size - first))
        indices = np.arange(start, end)
        if images:
            labels = preview.targets(source, indices)
            width = max(map(len, labels))
            columns = max(1, min(preview.columns_of(len(indices)), (_WIDTH + 1) // (width + 1)))
            written = preview.save_grid(source, indices, out or Path(f"{name}.png"), columns)
        elif out is not None:
            raise validation.fail("--out", str(out), f"be left out: examples of {name} are no images")
        else:
            header, rows = preview.rows(source, indices)
    if not images:
        print_table(header, rows)
        return
    say(f"{written}: {counted(len(indices), 'example')} from index {start}; in its rows the {source.target}s")
    for at in range(0, len(labels), columns):
        typer.echo(" ".join(label.rjust(width) for label in labels[at : at + columns]))

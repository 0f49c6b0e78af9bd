"""The command's skeleton: its two Typer apps, and how refusals, failures and tables are printed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import click
import typer
import typer.core

from fedpriv._internal import user_code, validation
from fedpriv._internal.version import __version__

# Set before anything imports Flower or Ray.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# Typer escapes brackets for Rich where Rich is installed, also in help that is plain text.
typer.core.HAS_RICH = False


class Commands(typer.core.TyperGroup):
    """The commands, in the order in which people need them; an unknown one is refused with the one that was
    most likely meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As click, in our order."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            word = _MEANT.get(name.lower())
            hint = validation.meant(word) if word in known else validation.near(name, known)
            ctx.fail(" ".join(filter(None, (f"There is no command {name!r}.", hint[:1].upper() + hint[1:]))))
        return super().resolve_command(ctx, args)


_ORDER = (
    "simulate", "train", "compare", "sweep", "report", "view", "resume", "audit", "deploy", "bench",
    "account", "calibrate", "optimizers", "data", "init", "check", "enrol", "run", "status",
)  # fmt: skip

# Commands of other programs, and ours.
_MEANT = {
    "download": "fetch", "epsilon": "account", "fit": "train", "grid": "sweep", "plot": "report",
    "results": "report", "run": "simulate",
}  # fmt: skip

app = typer.Typer(
    cls=Commands,
    help="Differentially private federated learning: simulate, compare, audit, account.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def group(parent: typer.Typer, name: str, about: str) -> typer.Typer:
    """A group of commands below ``parent``."""
    made = typer.Typer(cls=Commands, help=about, no_args_is_help=True, rich_markup_mode=None)
    parent.add_typer(made, name=name)
    return made


data_app = group(app, "data", "List, download and show data sets.")
node_app = group(app, "node", "Run a data owner's node of a deployment, under the owner's policy.")


class OfSettings(typer.core.TyperCommand):
    """A command of settings: the last value of each counts, and a setting that is written as an option is
    refused with how to give it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, after the settings in ``args`` are looked at."""
        from fedpriv.cli.arguments import last_of_each, require_pairs
        from fedpriv.config.schema import Config

        ctx.meta[_ARGS] = tuple(args)
        with refusing():
            require_pairs(args)
        args, replaced = last_of_each(args)
        for sentence in replaced:
            note(sentence, err=True)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = validation.normalised(error.option_name.lstrip("-"))
            if key not in set(Config.keys()):
                raise
            raise click.UsageError(f"{key} is a setting; give it as --set {key}=VALUE", ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings, with those of the optimizer that the command line chooses."""
        from fedpriv.cli.settings_help import settings_help

        if _ARGS in ctx.meta:
            formatter.write(f"\n{settings_help(ctx.meta[_ARGS])}\n")


_ARGS = "fedpriv.args"  # a command's arguments as they were typed


def _use_cluster(address: str | None) -> str | None:
    """Has this process's Ray be the cluster at the address."""
    if address:
        os.environ["RAY_ADDRESS"] = address
    return address


RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        callback=_use_cluster,
        show_default=False,
        help="Use the Ray cluster there, or `auto` [default: RAY_ADDRESS, else this machine].",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


# What a disk or a folder can be to blame for, and a network or a pipe cannot.
_OF_FILES = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ENOENT,
        errno.ENAMETOOLONG,
    }
)


@contextmanager
def refusing(code: int = 2, where: Path | None = None, hint: Callable[[], str] = str) -> Iterator[None]:
    """Turn a user's mistake into one line and an exit code; a defect of ours keeps its traceback.

    An error in the user's own code is shown with the part of its traceback that is in that code. An error of
    the file system names its file, or ``where`` if the system names none. Other errors of the system keep
    their words. The hint follows both.
    """
    try:
        yield
    except (click.exceptions.Exit, click.exceptions.Abort, click.ClickException):
        raise
    except validation.FedprivError as error:
        trace = user_code.trace(error) or "\n".join(getattr(error, "__notes__", ()))
        typer.echo("\n".join(filter(None, (f"fedpriv: {error}", trace))), err=True)
        raise typer.Exit(code) from None
    except OSError as error:
        typer.echo(f"fedpriv: {_text(error, where)}", err=True)
        if text := hint():
            typer.echo(text, err=True)
        raise typer.Exit(code) from None
    except Exception as error:
        if not (trace := user_code.trace(error)):
            raise
        typer.echo(f"fedpriv: your own code failed\n{trace}", err=True)
        raise typer.Exit(code) from None


def note(text: str, err: bool = False) -> None:
    """A sentence that people should know of a run, which stands out; on standard error where ``err``."""
    say(f"NOTE: {text}", bold=True, err=err)


def say(text: str, bold: bool = False, err: bool = False) -> None:
    """A sentence, broken between words where it is longer than the terminal's lines; elsewhere one line."""
    width = None if err and not sys.stderr.isatty() else terminal_width()
    if width is not None:
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    typer.secho(text, bold=bold, err=err)


def _text(error: OSError, where: Path | None) -> str:
    """An error of the system in one line, with the place that it is of where there is one."""
    place = error.filename or (where if error.errno in _OF_FILES else None)
    if place and error.strerror:
        return f"{place}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def uncharged() -> Iterator[None]:
    """While a run is made ready, Ctrl-C ends the command, and says that this cost nothing."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted before any work; nothing was charged for it", err=True)
        raise typer.Exit(130) from None


@contextmanager
def ending_cleanly() -> Iterator[Callable[[], None]]:
    """While a run goes on, Ctrl-C asks it to end after its round, as does the SIGTERM of a scheduler; a
    second one ends it at once.

    Yields what to call between rounds: it raises KeyboardInterrupt once it was asked to. An exception at
    any other moment could be lost, or break what it lands in: an import under way, a charge half written.
    """
    asked = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()
        os.write(2, b"\nending after this round; Ctrl-C again ends at once\n")

    def check() -> None:
        if asked:
            raise KeyboardInterrupt
        take()  # again: Ray, where it has started since, has handlers of its own

    def restore() -> None:
        for number, handler in previous.items():
            # None: not of Python's making (Ray's), and not to be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def take() -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}

    previous = take()
    try:
        yield check
    finally:
        restore()


def on_terminal() -> bool:
    """Whether standard output is a person's terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """How many characters a line of a person's terminal has; None where output is no terminal."""
    return shutil.get_terminal_size().columns if on_terminal() else None


_WORD = 20  # characters of a word that a column of a table is not to break
_NUMBER = 16  # characters of a cell with a number that a column is not to break, between words either


def _whole(text: str) -> list[str]:
    """The parts of a cell that stay in one line."""
    number = len(text) <= _NUMBER and any(letter.isdigit() for letter in text)
    return [text] if number else text.split() or [""]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table: drawn to fit a terminal; elsewhere plain aligned columns, one line a row."""
    if on_terminal():
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
        for name, *cells in zip(header, *rows, strict=True):
            words = max(len(part) for text in (name, *cells) for part in _whole(text))
            table.add_column(name, min_width=min(words, _WORD), overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console().print(table, markup=False)
        return
    if title:
        typer.echo(title)
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        typer.echo("  ".join(cells).rstrip())

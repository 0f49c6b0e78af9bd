"""Settings as people write them: TOML files, and assignments on a command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv._internal.settings import Scalar

_NAMED = 4  # runs that a refusal names


def holds_run(folder: Path) -> bool:
    """Whether the folder is that of a run."""
    return (folder / run_files.CONFIG).is_file()


def require_run(name: str, folder: Path, allowed: str = "be the output folder of a run") -> None:
    """Raises ArgumentError about the argument ``name`` unless the folder is that of a run."""
    if not holds_run(folder):
        raise validation.fail(name, str(folder), allowed, _instead(folder))


def _instead(folder: Path) -> str:
    """What is there in place of a run's folder, and what to give where that is near."""
    if not folder.is_dir():
        return "it is a file" if folder.exists() else "there is no such folder"
    runs = sorted(path.parent.name for path in folder.glob(f"*/{run_files.CONFIG}"))
    if not runs:
        return f"no {run_files.CONFIG} is in it"
    if len(runs) <= _NAMED:
        return f"it holds {', '.join(runs)}: give the folder of one run"
    return f"it holds several runs: give the folder of one, such as {folder / runs[-1]}"


def read_file(path: str | Path) -> dict[str, Any]:
    """The table of a TOML configuration file. Raises ArgumentError if it is missing or malformed."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError:
        raise validation.fail("CONFIG", str(path), "be an existing TOML file") from None
    except RecursionError:
        raise validation.fail(
            "CONFIG", str(path), "be a flat table", "its values are nested too deeply"
        ) from None
    except ValueError as error:  # of TOML, of UTF-8, or a number of too many digits
        text = f'CONFIG {path} is not valid TOML: {error}; texts stand in quotes, as in model = "cnn"'
        raise validation.ArgumentError(text) from None


def read_run(folder: Path) -> dict[str, Any]:
    """The settings that a run wrote into its folder, in today's words. Raises ArgumentError as read_file.

    Version 0.1.0 had ``noise-draws = "auto"``: exact where nodes own their data, otherwise fast; and
    ``adadp-authors-code``, true or false, for two of the variants of ADADP.
    """
    table = read_file(folder / run_files.CONFIG)
    if table.get("noise-draws") == "auto":
        table["noise-draws"] = "exact" if table.get("nodes-own-data") else "fast"
    if "adadp-authors-code" in table:
        table["adadp-variant"] = "half-steps" if table.pop("adadp-authors-code") else "paper"
    return table


def read_assignment(text: str) -> tuple[str, Scalar]:
    """``key=value`` as it is typed after --set; the value is read as TOML, else as a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise validation.fail("--set", text, "be written key=value")
    value = value.strip()
    try:
        table = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # no TOML, a number of too many digits, or brackets without end
        return key.strip(), value
    return key.strip(), table["value"] if len(table) == 1 else value

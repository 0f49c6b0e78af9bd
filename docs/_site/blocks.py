"""Text in the repository that is made from the code: tables in README and docs/, Flower's run-config.

``python docs/_site/blocks.py`` (``make generated``) writes it anew; a test compares it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from fedpriv._internal.settings import toml_value
from fedpriv.accounting import METHODS as ACCOUNTING
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.optimizers import METHODS, WRAPPERS, Method

ROOT = Path(__file__).resolve().parents[2]
SECTION = "[tool.flwr.app.config]\n"


def optimizer_table() -> str:
    """The optimizers as a Markdown table; those that differ in their rule alone share a row."""
    lines = ["| `optimizer` | what it is | source |", "|---|---|---|"]
    for summary, methods in groupby(METHODS.values(), lambda method: method.summary):
        kin = list(methods)
        papers = "; ".join(dict.fromkeys(method.paper for method in kin))
        lines.append(f"| {_names(kin)} | {summary} | {papers} |")
    lines += ["", "| around any of them | what it is | source |", "|---|---|---|"]
    lines += [f"| `{w.key}` | {w.summary} | {w.paper} |" for w in WRAPPERS.values()]
    return "\n".join(lines)


def _names(methods: list[Method]) -> str:
    return ", ".join(f"`{method.name}`" for method in methods)


def placement_table() -> str:
    """The placements of the noise as a Markdown table."""
    lines = ["| `placement` | who adds noise | epsilon holds against | who is trusted |", "|---|---|---|---|"]
    lines += [f"| `{p.name}` | {p.summary} | {p.against} | {p.trust} |" for p in PLACEMENTS.values()]
    return "\n".join(lines)


def accounting_table() -> str:
    """The accounting methods as a Markdown table."""
    lines = ["| method | what it is | kind | holds the budget of a run |", "|---|---|---|---|"]
    lines += [
        f"| `{m.name}` | {m.summary} | {m.kind} | {'yes' if m.holds_budgets else 'no'} |"
        for m in ACCOUNTING.values()
    ]
    return "\n".join(lines)


# Files with a table between two comments that name it.
TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "README.md": ("optimizers", optimizer_table),
    "docs/explanation/accounting.md": ("accounting", accounting_table),
    "docs/explanation/placements.md": ("placements", placement_table),
}


def run_config() -> str:
    """Every setting with its default, as Flower's run-config has to list it."""
    return "".join(f"{key} = {toml_value(field.default)}\n" for key, field in Config.all_fields().items())


def with_table(file: str, text: str) -> str:
    """The text of one of the files of ``TABLES``, with its table as it should be."""
    name, table = TABLES[file]
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{table()}\n\n{end}{rest.partition(end)[2]}"


def pyproject(text: str) -> str:
    """pyproject.toml with the run-config as it should be."""
    before, _, rest = text.partition(SECTION)
    return f"{before}{SECTION}{run_config()}\n{rest[rest.index('[') :]}"


def write(root: Path = ROOT) -> None:
    """Write all of them anew, in the repository at ``root``."""
    for name in TABLES:
        (root / name).write_text(with_table(name, (root / name).read_text()))
    (root / "pyproject.toml").write_text(pyproject((root / "pyproject.toml").read_text()))


if __name__ == "__main__":
    write()

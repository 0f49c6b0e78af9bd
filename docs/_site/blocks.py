"""Text in the repository that is made from the code: README's table of optimizers, Flower's run-config.

``python docs/_site/blocks.py`` (``make generated``) writes it anew; a test compares it.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from fedpriv._internal.settings import toml_value
from fedpriv.config.schema import Config
from fedpriv.optimizers import METHODS, WRAPPERS, Method

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- optimizers:begin -->", "<!-- optimizers:end -->"
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


def run_config() -> str:
    """Every setting with its default, as Flower's run-config has to list it."""
    return "".join(f"{key} = {toml_value(field.default)}\n" for key, field in Config.all_fields().items())


def readme(text: str) -> str:
    """README with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{optimizer_table()}\n\n{END}{rest.partition(END)[2]}"


def pyproject(text: str) -> str:
    """pyproject.toml with the run-config as it should be."""
    before, _, rest = text.partition(SECTION)
    return f"{before}{SECTION}{run_config()}\n{rest[rest.index('[') :]}"


def write(root: Path = ROOT) -> None:
    """Write both anew, in the repository at ``root``."""
    for name, made in (("README.md", readme), ("pyproject.toml", pyproject)):
        path = root / name
        path.write_text(made(path.read_text()))


if __name__ == "__main__":
    write()

"""Text in the repository that is made from the code: tables in README and docs/, Flower's run-config.

``python docs/_site/blocks.py`` (``make generated``) writes it anew; a test compares it.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from fedpriv._internal.settings import toml_value
from fedpriv.accounting import METHODS as ACCOUNTING
from fedpriv.accounting.events import Relation
from fedpriv.auditing.views import View
from fedpriv.config.schema import Config
from fedpriv.data.catalogue import list_cards
from fedpriv.data.loaders import options
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.node.policy import NODE_CONFIG
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
    lines += [
        f"| `{p.name}` | {p.summary} | {p.against} | {p.trust.replace('{party}', 'client')} |"
        for p in PLACEMENTS.values()
    ]
    return "\n".join(lines)


def accounting_table() -> str:
    """The accounting methods as a Markdown table."""
    lines = ["| method | what it is | kind | holds the budget of a run |", "|---|---|---|---|"]
    lines += [
        f"| `{m.name}` | {m.summary} | {m.kind} | {'yes' if m.holds_budgets else 'no'} |"
        for m in ACCOUNTING.values()
    ]
    return "\n".join(lines)


def sampler_table() -> str:
    """The samplers as a Markdown table, with the neighbours that their events can be accounted for under."""
    lines = ["| `sampler` | which units | neighbours | remark |", "|---|---|---|---|"]
    for kind in SAMPLERS.values():
        own = kind.sampling.relation
        others = [word for word in Relation if word is not own and kind.allows(word)]
        neighbours = " or ".join([f"{own} (default)" if others else own, *others])
        lines.append(f"| `{kind.name}` | {kind.summary} | {neighbours} | {kind.remark} |")
    return "\n".join(lines)


def data_set_table() -> str:
    """The data sets as a Markdown table, from their cards and their registration."""
    lines = ["| `dataset` | an example | what is predicted | own settings | `model` | papers |"]
    lines.append("|---|---|---|---|---|---|")
    cards = list_cards()
    for card in cards:
        settings = ", ".join(f"`{key}` ({default})" for key, default in options(card.name).items())
        models = ", ".join(f"`{name}`" for name in card.models)
        cells = (f"`{card.name}`", card.inputs, card.target, settings, models, "; ".join(card.papers))
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    notes: dict[str, list[str]] = {}
    for card in cards:
        for note in filter(None, card.note.split("; ")):
            notes.setdefault(note, []).append(f"`{card.name}`")
    lines += [f"- {', '.join(names)}: {note}." for note, names in notes.items()]
    return "\n".join(lines)


def node_settings_table() -> str:
    """The settings of a node as a Markdown table."""
    lines = ["| setting | meaning |", "|---|---|"]
    lines += [f"| `{key}` | {field.description} |" for key, field in NODE_CONFIG.fields().items()]
    return "\n".join(lines)


def _audits() -> dict[str, list[dict[str, Any]]]:
    """What benchmarks/audit.py and tests/helpers/audit_faults.py measured."""
    return dict(json.loads((ROOT / "tests/audits.json").read_text()))


def fault_table() -> str:
    """The faults that audits find, as a Markdown table: by adversary, with the least number of units."""
    lines = [
        "| fault | adversary | releases | units | by guesses alone | what the audit says |",
        "|---|---|---|---|---|---|",
    ]
    rows = _audits()["faults"]
    views = list(dict.fromkeys(row["adversary"] for row in rows))

    def number(row: dict[str, Any], column: str) -> str:
        return f"{row[column]:,}" if row[column] else f"not with {row['tried']:,}"

    for row in sorted(rows, key=lambda row: views.index(row["adversary"])):
        numbers = f"{row['releases']} | {number(row, 'units')} | {number(row, 'guesses')}"
        lines.append(f"| {row['fault']} | {View(row['adversary']).sees} | {numbers} | {row['finding']} |")
    return "\n".join(lines)


def _sound_audits() -> list[str]:
    """The audits of sound runs, as Markdown lines."""
    rows = _audits()["sound"]
    audits = sum(row["audits"] for row in rows)
    violated, exceeded = (sum(row[key] for row in rows) for key in ("violated", "exceeded"))
    least = min(row["least"] for row in rows)
    together = min(1.0, audits * least)
    return [
        f"## Audits of sound runs: {audits}",
        "",
        "| unit | noise | adversary | audits | violations at 99 % | bounds above the claim | largest share | "
        "smallest p-value |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, row.values()))} |" for row in rows),
        "",
        f"Of all {audits}, {violated} had a p-value below 0.01 ({audits / 100:.1f} may), and {exceeded} "
        f"proved more than their claim. The smallest p-value, {least:g}, is {together:.2g} after correction "
        f"for their number: at 99 % confidence for all together {'no' if together >= 0.01 else 'a'} run is "
        "in violation.",
    ]


def _found_faults() -> list[str]:
    """The faults that audits find, by adversary, as Markdown lines."""
    counts = Counter(View(row["adversary"]).sees for row in _audits()["faults"])
    return [
        f"## Faults that audits find: {counts.total()}",
        "",
        "| adversary | faults |",
        "|---|---|",
        *(f"| {adversary} | {number} |" for adversary, number in counts.items()),
    ]


def _planted_faults(run: dict[str, Any]) -> list[str]:
    """The planted faults, as Markdown lines; ``run`` is the last run of `make mutants ARGS=--write`."""
    faults = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    places = Counter("/".join(Path(fault["file"]).parts[:2]).removesuffix(".py") for fault in faults)
    kinds = Counter(fault["audit"].startswith("no: ") for fault in faults if "audit" in fault)
    return [
        f"## Planted faults: {len(faults)}",
        "",
        f"On {run['date']}, {run['caught']} of the {run['listed']} faults of that day's list were caught in "
        f"one run, in {run['minutes']} minutes. Of today's, {kinds.total()} are in the noise, cohorts, sums "
        f"or charges that an adversary meets. Audits find {kinds[False]} of them, and the list names the row "
        f"of the audit guide's table of the same kind. For {kinds[True]} it says why an audit does not.",
        "",
        "| place | faults |",
        "|---|---|",
        *(f"| `{place}` | {number} |" for place, number in sorted(places.items())),
    ]


def trust_table() -> str:
    """What the tests tried, as Markdown tables: results of `make trust`, and lists of faults."""
    results = json.loads((ROOT / "tests/trust.json").read_text())
    tried = [(reader, n["accepted"] + n["refused"], n["refused"]) for reader, n in results["inputs"].items()]
    lines = [
        f"## Hostile inputs: {sum(number for _, number, _ in tried):,} of {len(tried)} kinds",
        "",
        "| reader | inputs | of them refused in a sentence |",
        "|---|---|---|",
        *(f"| {reader} | {number:,} | {refused:,} |" for reader, number, refused in tried),
        "",
        "## Test cases by what they try",
        "",
        "| what | cases |",
        "|---|---|",
        *(f"| {kind} | {number} |" for kind, number in results["cases"].items()),
        "",
        *_sound_audits(),
        "",
        *_found_faults(),
        "",
        *_planted_faults(results["mutants"]),
    ]
    return "\n".join(lines)


# Files with tables, each between two comments that name it.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"optimizers": optimizer_table},
    "docs/explanation/accounting.md": {"accounting": accounting_table, "samplers": sampler_table},
    "docs/explanation/placements.md": {"placements": placement_table},
    "docs/guides/audit.md": {"faults": fault_table},
    "docs/guides/data.md": {"datasets": data_set_table},
    "docs/guides/deploy.md": {"node-settings": node_settings_table},
    "docs/trust.md": {"trust": trust_table},
}


def run_config() -> str:
    """Every setting with its default, as Flower's run-config has to list it."""
    return "".join(f"{key} = {toml_value(field.default)}\n" for key, field in Config.all_fields().items())


def with_tables(file: str, text: str) -> str:
    """The text of one of the files of ``TABLES``, with its tables as they should be."""
    for name, table in TABLES[file].items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table()}\n\n{end}{rest.partition(end)[2]}"
    return text


def pyproject(text: str) -> str:
    """pyproject.toml with the run-config as it should be."""
    before, _, rest = text.partition(SECTION)
    return f"{before}{SECTION}{run_config()}\n{rest[rest.index('[') :]}"


def write(root: Path = ROOT) -> None:
    """Write all of them anew, in the repository at ``root``."""
    for name in TABLES:
        (root / name).write_text(with_tables(name, (root / name).read_text()))
    (root / "pyproject.toml").write_text(pyproject((root / "pyproject.toml").read_text()))


if __name__ == "__main__":
    write()

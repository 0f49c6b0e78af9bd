"""Writes simulations/README.md: what five papers have, what of it is here, and its figures from the results.

    python simulations/papers.py           # writes the page
    python simulations/papers.py --check   # says whether it is current

The rows are in ``papers.toml``. Every figure is computed from the records of a results file: mean and
standard deviation over seeds, the number of seeds, and the largest certified epsilon.
"""

from __future__ import annotations

import csv
import itertools
import json
import statistics
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE, ROWS = FOLDER / "README.md", FOLDER / "papers.toml"
KEYS = {
    *("paper", "what", "code", "run", "published", "why"),
    *("results", "where", "seeds", "by", "score", "as", "epsilon"),
}
TITLES = ("what", "in", "command", "the paper", "ours", "certified epsilon", "why there is no figure")
HEAD = """# Simulations

What the five papers have, row by row: algorithms, tables, figures and baselines.
`python simulations/papers.py` writes this page from `papers.toml` and the results files, and a test holds it
current. Do not edit it.

Figures are mean ± standard deviation, with the number of seeds in brackets; where a row has several
budgets, each follows its epsilon (its sigma or its epochs, where the row says so). Accuracies and errors are
percentages of a public test set. Three seeds are few, and some of them chose settings: each folder's README
says which, and what its epsilon means (unit, neighbours, delta, adversary, method and kind). The largest
epsilon that PLD certifies for a run stands beside it (for DP-AGD that of its zCDP
filter). No epsilon covers the choice of settings.

Folders that are of no paper: [defaults](defaults/README.md) (where default settings come from),
[records](records/README.md) (the best accuracy at a certified epsilon),
[central_vs_local](central_vs_local/README.md), [optimizers](optimizers/README.md),
[non_iid](non_iid/README.md), [cohorts](cohorts/README.md), [silos](silos/README.md),
[secure_aggregation](secure_aggregation/README.md) (questions, each with its answer),
[levels](levels/README.md) (the five papers' optimizers at all levels and placements),
[users](users/README.md) (data sets whose privacy unit is a user) and
[flower_apps](flower_apps/README.md) (ordinary Flower apps, and the lines that make them private).
"""


def rows() -> list[dict[str, Any]]:
    """The rows of papers.toml. Raises ValueError for a row that says nothing, or has an unknown key."""
    found: list[dict[str, Any]] = tomllib.loads(ROWS.read_text())["row"]
    for row in found:
        if unknown := row.keys() - KEYS:
            raise ValueError(f"{row['what']}: unknown keys {sorted(unknown)}")
        if ("results" in row) == ("why" in row):
            raise ValueError(f"{row['what']}: a row has results, or says why it has none")
    return found


def at(record: Mapping[str, Any], path: str) -> Any:
    """The value at a path of keys, of which those of lists are places, or None."""
    value: Any = record
    for key in path.split("/"):
        if isinstance(value, list):
            value = value[int(key)]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def records(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The row's records. Raises ValueError if there are none."""
    low, high = row.get("seeds", (-1, 10**9))
    found = [
        record
        for record in read(FOLDER / row["results"])
        if all(at(record, path) == value for path, value in row.get("where", {}).items())
        and low <= record.get("seed", 0) <= high
    ]
    if not found:
        raise ValueError(f"{row['what']}: {row['results']} has no such records")
    return found


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a results file: JSON lines, or the table of a sweep."""
    if path.suffix != ".csv":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as table:
        return [{key: number(text) for key, text in row.items()} for row in csv.DictReader(table)]


def number(text: str) -> Any:
    """A cell of a table: a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def figures(row: Mapping[str, Any]) -> tuple[str, str]:
    """(our figures, their certified epsilon) of a row with results."""
    by, ours, costs = row.get("by"), [], []
    key = (lambda record: at(record, by)) if by else (lambda record: 0)
    for value, group in itertools.groupby(sorted(records(row), key=key), key):
        some, label = list(group), f"{value if isinstance(value, str) else f'{value:g}'}: " if by else ""
        ours.append(label + spread([score(row, record) for record in some], row.get("as", "percent")))
        if path := row.get("epsilon", "epsilon/pld/epsilon"):  # empty: no privacy
            costs.append(f"{label}{max(at(record, path) for record in some):.3g}")
    return "; ".join(ours), "; ".join(costs)


def score(row: Mapping[str, Any], record: Mapping[str, Any]) -> float:
    """The score of a record: a field, or a sum of fields."""
    paths = [row["score"]] if isinstance(row["score"], str) else row["score"]
    return float(sum(at(record, path) for path in paths))


def spread(values: list[float], kind: str) -> str:
    """Mean ± standard deviation (number of seeds); of one seed the value alone."""
    if kind == "error":
        values = [1 - value for value in values]
    factor, digits = (1, 4 if max(values) < 1 else 3) if kind == "number" else (100, 2)
    values = [factor * value for value in values]
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation} ({len(values)})"


def page() -> str:
    """The page as the results files have it."""
    return "\n".join([HEAD, *_tables()]).rstrip() + "\n"


def _tables() -> Iterator[str]:
    for paper, group in itertools.groupby(rows(), lambda row: row["paper"]):
        yield f"## {paper}\n"
        yield "| " + " | ".join(TITLES) + " |"
        yield "|---" * len(TITLES) + "|"
        for row in group:
            ours, costs = figures(row) if "results" in row else ("", "")
            code, command = (f"`{row[key]}`" if key in row else "" for key in ("code", "run"))
            cells = (row["what"], code, command, row.get("published", ""), ours, costs, row.get("why", ""))
            yield "| " + " | ".join(cells) + " |"
        yield ""


def main() -> None:
    """See the module's docstring."""
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit(f"{PAGE} is not current: run `python simulations/papers.py`")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()

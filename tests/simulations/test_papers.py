"""simulations/README.md is what the results files say, and its commands and files are there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.scripts import script

from fedpriv.config.schema import Config
from fedpriv.data.loaders import DATA_SETS
from fedpriv.models import MODELS
from fedpriv.simulation.sweeps.definition import cells, read

ROOT = Path(__file__).parents[2]
# What each README that reports an epsilon says of it, by the words that say it.
SAID = {
    "unit": r"\bunit is\b|of one unit",
    "neighbours": r"[Nn]eighbours|added or removed",
    "delta": r"\b[Dd]elta\b",
    "adversary": r"adversary\s+(who\s+)?sees",
    "method": r"\bPLD\b|\bRDP\b",
    "kind": r"certified|estimate",
}


@pytest.fixture(scope="module")
def papers() -> ModuleType:
    return script("papers.py")


def test_the_page_is_current(papers: ModuleType) -> None:
    assert papers.PAGE.read_text() == papers.page(), "run `python simulations/papers.py`"


def test_every_file_and_command_of_the_page_is_there(papers: ModuleType) -> None:
    for row in papers.rows():
        assert "code" not in row or (ROOT / row["code"]).is_file(), row["what"]
        if "run" in row:
            check_command(row["run"])


@pytest.mark.parametrize("name", ["centralised", "clients", "server", "silos"])
def test_the_sweeps_over_levels_are_alike(name: str) -> None:
    """The same images, the same expected cohort, as many gradients' releases, the same search, five seeds."""
    sweep = read(ROOT / "simulations" / "levels" / f"{name}.toml")
    assert sweep.grid["optimizer"] == read(ROOT / "simulations" / "levels" / "clients.toml").grid["optimizer"]
    assert len(sweep.grid["seed"]) == 5
    assert sweep.tuning is not None
    assert sweep.tuning.json()["learning-rate"] == [0.01, 0.07, 0.5, 3.5, 25]
    for cell in cells(sweep):
        config = cell.config
        steps = config.silo_steps if config.level == "client" else 1
        assert (config.units, config.sampling_rate, config.rounds * steps) == (250_000, 0.01, 40)
        assert (config.partition == "dirichlet") == (name in ("server", "silos"))
        assert (config.delta, config.accounting) == (1 / (10 * 250_000), "pld")


def test_the_readme_of_the_levels_has_the_tables_of_the_results() -> None:
    readme = (ROOT / "simulations" / "levels" / "README.md").read_text()
    parts = script("levels/table.py").tables().split("\n\n")
    assert any("|" in part for part in parts)
    for part in parts:
        assert part in readme, "run `python simulations/levels/table.py`"


def check_command(command: str) -> None:
    """A script has the flags, or fedpriv has the settings, that the command names."""
    program, *words = shlex.split(command)
    if program == "python":
        text = (ROOT / words[0]).read_text()
        flags = [word for word in words[1:] if word.startswith("--")]
        assert all(f'"{flag}"' in text for flag in flags), command
    else:
        assert program == "fedpriv"
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        assert settings.keys() <= set(Config.keys()), command
        Config.parse({key: _typed(value) for key, value in settings.items()})
        assert settings.get("dataset", "digits") in DATA_SETS, command
        assert settings.get("model", "cnn") in MODELS, command


def _typed(value: str) -> Any:
    return int(value) if value.isdigit() else value


def test_a_figure_is_mean_and_deviation_of_the_rows_records(
    papers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "FOLDER", tmp_path)
    made = [("a", 2, 0, 0.9, 1.5), ("a", 2, 1, 0.8, 1.6), ("a", 1, 1, 0.5, 0.7), ("b", 2, 0, 0.1, 9.0)]
    lines = [
        {"cell": {"method": m, "e": e}, "seed": seed, "accuracy": a, "epsilon": {"pld": {"epsilon": pld}}}
        for m, e, seed, a, pld in made
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    row = {"what": "x", "results": "r.jsonl", "by": "cell/e", "score": "accuracy"}
    row["where"] = {"cell/method": "a"}
    assert papers.figures(row) == ("1: 50.00 (1); 2: 85.00 ± 7.07 (2)", "1: 0.7; 2: 1.6")
    assert papers.figures({**row, "seeds": [1, 1], "as": "error"})[0] == "1: 50.00 (1); 2: 20.00 (1)"
    with pytest.raises(ValueError, match="has no such records"):
        papers.figures({**row, "where": {"cell/method": "c"}})


@pytest.mark.parametrize(
    "folder", sorted(path.parent.name for path in (ROOT / "simulations").glob("*/README.md"))
)
def test_a_readme_says_what_its_epsilon_means(folder: str) -> None:
    text = (ROOT / "simulations" / folder / "README.md").read_text()
    missing = [part for part, words in SAID.items() if not re.search(words, text)]
    assert not missing, f"simulations/{folder}/README.md does not state {missing} of its epsilon"

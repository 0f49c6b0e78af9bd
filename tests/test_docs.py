"""The code in the documents runs and says what they say."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.schema import Config
from fedpriv.simulation.run import simulate

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["python.md"])
def test_a_documents_examples_run(name: str) -> None:
    found = doctest.testfile(str(DOCS / name), module_relative=False)
    assert found.attempted > 20
    assert found.failed == 0


@pytest.fixture
def own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """docs/own.md, in a folder that holds its mine.py: all of its code, in one file."""
    text = (DOCS / "own.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.py").write_text("\n\n".join(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield text
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("data", "settings", "score", "least", "most"),
    [
        ("data", {"model": "mine:net"}, "accuracy", 0.9, 1.0),
        ("words", {"model": "mlp-text", "optimizer": "dp-adam", "learning-rate": 0.05}, "accuracy", 0.7, 1.0),
        ("heights", {"model": "linear", "optimizer": "dp-sgd", "learning-rate": 1.0}, "mse", 0.0, 0.1),
        ("genres", {"model": "logistic"}, "accuracy", 0.7, 1.0),  # a half would be chance
    ],
)
def test_every_kind_of_data_on_the_page_can_be_learnt_from(
    own_page: str, data: str, settings: dict[str, object], score: str, least: float, most: float
) -> None:
    common = {"clients": 5000, "sampling-rate": 0.1, "rounds": 20, "engine": "in-process", "seed": 1}
    result = simulate(Config.parse({**common, **settings, "dataset": f"mine:{data}"}))
    assert least <= result.metrics[-1][score] <= most


@pytest.mark.slow
def test_the_commands_on_ones_own_code_do_what_the_page_says(own_page: str) -> None:
    lines = own_page.replace("\\\n", "")  # as a shell reads them
    commands = re.findall(r"^    fedpriv (.*)$", lines, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["simulate", "bench", "compare"]
    for line in commands:
        told = CliRunner().invoke(app, [*shlex.split(line), "--set", "engine=in-process"])
        assert told.exit_code == 0, told.output
    report = max(Path("runs").glob("*/report.json")).read_text()
    assert "mine:net" in report

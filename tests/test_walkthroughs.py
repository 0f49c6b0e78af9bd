"""The additions of the contributing page, carried out in a copy of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(900)  # each starts a dozen processes, which a busy machine slows down

CARD = """
name = "stripes"
title = "stripes, upright or level: 500 training, 100 test"
inputs = "1x28x28 pixels"
target = "2 labels"
homepage = "https://example.org"
licence = "none needed"
citation = "this test"
models = ["logistic"]
"""

COPIED = (
    "fedpriv",
    "datasets",
    "docs",
    "tests",
    "README.md",
    "pyproject.toml",
    "mkdocs.yml",
    "CONTRIBUTING.md",
)
RUN = ("--set", "engine=in-process", "--set", "model=logistic", "--set", "rounds=2", "--set", "clients=400")
RATE = ("--set", "sampling-rate=0.1")
SEED = ("--seed", "0")  # without one, one audit in a hundred of sound runs finds a violation by chance


def simulated(folder: Path, *options: str) -> Any:
    """The report of a small run in the copy."""
    return json.loads(output(folder, "-m", "fedpriv", "simulate", "--json", *RUN, *RATE, *options))


def passed(folder: Path, *arguments: str) -> bool:
    """Whether tests of the copy pass there; at least one must run."""
    return " passed" in output(folder, "-m", "pytest", "-q", "-x", "-n", "0", *arguments)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the command line and the generated tables need."""
    for part in COPIED:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, tmp_path / part)
    return tmp_path


def changed(folder: Path) -> set[str]:
    """The files of the copy that are new, or differ from the repository's, once all blocks are generated."""
    output(folder, "docs/_site/blocks.py")
    files = {
        str(path.relative_to(folder))
        for part in COPIED
        for path in ((folder / part).rglob("*") if (folder / part).is_dir() else [folder / part])
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {
        file
        for file in files
        if not (ROOT / file).exists() or (ROOT / file).read_bytes() != (folder / file).read_bytes()
    }


def output(folder: Path, *arguments: str, status: int = 0) -> str:
    """What Python prints with these arguments, in the copy; if it is to fail, its errors."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def page_code(name: str) -> str:
    """The code of this file on the contributing page."""
    text = (ROOT / "docs/contributing.md").read_text()
    [code] = re.findall(rf"^```python\n# {name}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(code)


def help_of(folder: Path, *chosen: str) -> str:
    """The help on settings, without its line breaks."""
    return " ".join(output(folder, "-m", "fedpriv", "simulate", "--help", *chosen).split())


def page(folder: Path, name: str) -> str:
    """A page of the documentation that is generated from the code."""
    code = f"import sys; sys.path.insert(0, 'docs/_site'); import generate; print(generate.pages()[{name!r}])"
    return output(folder, "-c", code)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_optimizer_is_a_file_and_a_row_of_the_conformance_table(copy: Path) -> None:
    (copy / "fedpriv/optimizers/nesterov.py").write_text(page_code("nesterov.py"))
    table = copy / "tests/conformance/table.py"
    text = (ROOT / "docs/contributing.md").read_text()
    [row] = re.findall(r"^```python\n(\"dp-nesterov\": .*?)^```", text, re.DOTALL | re.MULTILINE)
    before, start, after = table.read_text().partition("    return {\n")
    assert start
    imported = "import torch\nfrom fedpriv.optimizers.nesterov import DpNesterov\n"
    table.write_text(
        before.replace("from fedpriv.optimizers ", imported + "from fedpriv.optimizers ", 1)
        + start
        + row
        + after
    )
    assert changed(copy) == {
        "fedpriv/optimizers/nesterov.py",
        "tests/conformance/table.py",
        "README.md",
        "pyproject.toml",
    }
    chosen = ("--set", "optimizer=dp-nesterov")
    assert "nesterov-momentum = 0.9" in output(copy, "-m", "fedpriv", "simulate", "--help", *chosen)
    assert "Nesterov 1983" in output(copy, "-m", "fedpriv", "optimizers")
    row = "| `dp-nesterov` | Nesterov's momentum on the noisy mean | Nesterov 1983; Sutskever et al. 2013 |"
    assert row in (copy / "README.md").read_text()
    assert row in page(copy, "reference/optimizers.md")
    assert "`nesterov-momentum`" in page(copy, "reference/settings.md")
    assert "nesterov-momentum = 0.9\n" in (copy / "pyproject.toml").read_text()
    report = simulated(copy, *chosen, "--set", "nesterov-momentum=0.5")
    assert report["optimizer"] == "dp-nesterov"
    placed = ("--placements", "none,central", "--out", "both")
    rows = json.loads(output(copy, "-m", "fedpriv", "compare", "--json", *placed, *RUN, *RATE, *chosen))
    assert [row["placement"] for row in rows] == ["none", "central"]
    assert "claimed: epsilon" in output(copy, "-m", "fedpriv", "audit", *SEED, *RUN, *RATE, *chosen)
    assert passed(copy, "tests/conformance", "-k", "nesterov")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_data_set_is_a_module_and_a_card(copy: Path) -> None:
    (copy / "fedpriv/data/datasets/stripes.py").write_text(page_code("stripes.py"))
    (copy / "datasets/stripes.toml").write_text(CARD)
    assert changed(copy) == {
        "fedpriv/data/datasets/stripes.py",
        "datasets/stripes.toml",
        "docs/guides/data.md",
    }
    row = "| `stripes` | 1x28x28 pixels | 2 labels |  | `logistic` |  |"
    assert row in (copy / "docs/guides/data.md").read_text()
    listed = json.loads(output(copy, "-m", "fedpriv", "data", "list", "--json"))
    assert {"data set": "stripes", "at hand": True}.items() <= next(
        one for one in listed if one["data set"] == "stripes"
    ).items()
    assert "models:     logistic" in output(copy, "-m", "fedpriv", "data", "info", "stripes")
    assert "64 examples" in output(copy, "-m", "fedpriv", "data", "show", "stripes")
    chosen = ("--set", "dataset=stripes")
    assert simulated(copy, *chosen)["data set"] == "stripes"
    placed = ("--placements", "none,central", "--out", "both")
    rows = json.loads(output(copy, "-m", "fedpriv", "compare", "--json", *placed, *RUN, *RATE, *chosen))
    assert [row["placement"] for row in rows] == ["none", "central"]
    assert "claimed: epsilon" in output(copy, "-m", "fedpriv", "audit", *SEED, *RUN, *RATE, *chosen)
    assert passed(copy, "tests/data/test_catalogue.py", "-k", "every_data_set")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_is_one_new_file(copy: Path) -> None:
    (copy / "fedpriv/models/architectures/wide.py").write_text(page_code("wide.py"))
    assert "mlp-text, wide" in help_of(copy)
    assert simulated(copy, "--set", "model=wide")["model"] == "wide"
    sizes = copy / "tests/models/test_models.py"
    sizes.write_text(sizes.read_text().replace("SIZES = [", 'SIZES = [\n    ("wide", MNIST, 1_628_170),', 1))
    assert passed(copy, str(sizes), "-k", "wide or every_model")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_placement_with_a_setting_of_its_own_is_one_new_file(copy: Path) -> None:
    (copy / "fedpriv/mechanism/placement/two_servers.py").write_text(page_code("two_servers.py"))
    assert changed(copy) == {
        "fedpriv/mechanism/placement/two_servers.py",
        "docs/explanation/placements.md",
        "pyproject.toml",
    }
    chosen = ("--set", "placement=two-servers")
    assert "two-servers (two servers add one each)" in help_of(copy)
    assert "second-server-noise" not in help_of(copy)
    assert "second-server-noise = 1.0" in help_of(copy, *chosen)
    assert "second-server-noise = 1.0\n" in (copy / "pyproject.toml").read_text()
    table = (copy / "docs/explanation/placements.md").read_text()
    assert "| `two-servers` | two servers add one each | who sees the models |" in table
    report = simulated(copy, *chosen, "--set", "second-server-noise=2")
    assert report["privacy"]["placement"] == "two-servers"
    refused = output(
        copy, "-m", "fedpriv", "simulate", *RUN, *RATE, "--set", "second-server-noise=2", status=2
    )
    assert "second-server-noise is 2.0, which needs placement=two-servers" in refused
    placed = (
        "--placements",
        "central,two-servers",
        "--out",
        "both",
        "--set",
        "second-server-noise=3",
    )
    rows = json.loads(output(copy, "-m", "fedpriv", "compare", "--json", *placed, *RUN, *RATE))
    assert [row["placement"] for row in rows] == ["central", "two-servers"]
    assert rows[1]["defends against"] == rows[0]["defends against"]
    assert "second-server-noise = 3.0\n" in (copy / "both/two-servers/config.toml").read_text()
    assert "second-server-noise = 1.0\n" in (copy / "both/central/config.toml").read_text()
    assert "claimed: epsilon" in output(copy, "-m", "fedpriv", "audit", *SEED, *RUN, *RATE, *chosen)
    tests = ("tests/mechanism/test_placement.py", "tests/conformance/test_optimizers.py")
    assert passed(copy, *tests, "-k", "two-servers and not network and not logistic")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_sampler_with_a_setting_of_its_own_is_one_new_file(copy: Path) -> None:
    (copy / "fedpriv/mechanism/sampling/panel.py").write_text(page_code("panel.py"))
    assert changed(copy) == {
        "fedpriv/mechanism/sampling/panel.py",
        "docs/explanation/accounting.md",
        "pyproject.toml",
    }
    everyone = ("--set", "sampling-rate=1")
    chosen = ("--set", "sampler=panel", *everyone)
    assert "panel (the same public units every time)" in help_of(copy)
    assert "panel-share = 0.1" in help_of(copy, *chosen)
    assert "panel-share" not in help_of(copy)
    table = (copy / "docs/explanation/accounting.md").read_text()
    assert "| `panel` | the same public units every time | add-remove (default) or replace-one |" in table
    report = simulated(copy, *chosen, "--set", "panel-share=0.25")
    assert report["privacy"]["sampler"].startswith("none: units 0 to 99 take part")
    placed = ("--placements", "central,local", "--out", "both")
    rows = json.loads(output(copy, "-m", "fedpriv", "compare", "--json", *placed, *RUN, *chosen))
    assert [row["placement"] for row in rows] == ["central", "local"]
    assert "claimed: epsilon" in output(copy, "-m", "fedpriv", "audit", *SEED, *RUN, *chosen)
    assert passed(copy, "tests/conformance/test_optimizers.py", "-k", "panel and quadratic and dp-sgd")


@pytest.mark.slow
def test_an_accounting_method_is_a_file_and_its_test(copy: Path) -> None:
    (copy / "fedpriv/accounting/methods/basic.py").write_text(page_code("basic.py"))
    (copy / "tests/accounting/methods/test_basic.py").write_text(page_code("test_basic.py"))
    assert "basic (basic composition, a very loose bound)" in help_of(copy)
    output(copy, "docs/_site/blocks.py")
    table = (copy / "docs/explanation/accounting.md").read_text()
    assert "| `basic` | basic composition, a very loose bound | bound | yes |" in table
    schedule = ("--sampling-rate", "1", "--steps", "10", "--noise-multiplier", "4", "--delta", "1e-5")
    answers = json.loads(output(copy, "-m", "fedpriv", "account", "--json", *schedule))["methods"]
    assert answers["pld"]["epsilon"] < answers["basic"]["epsilon"] < 100
    report = simulated(copy, "--set", "accounting=basic")
    assert report["privacy"]["budget"]["held by"] == "basic"
    assert passed(copy, "tests/accounting/methods/test_basic.py")

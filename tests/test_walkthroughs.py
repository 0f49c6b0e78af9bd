"""The additions of the contributing page, carried out in a copy of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HALVING = '''
"""Halving: DP-SGD whose step size halves every ``halving-period`` releases."""

from fedpriv._internal.settings import Settings, setting
from fedpriv.optimizers.first_order import dp_sgd
from fedpriv.optimizers.registry import Method, register


class HalvingSettings(Settings):
    halving_period: int = setting(20, "releases between two halvings", ge=1)


def build(own, context):
    rate = context.common.learning_rate
    return dp_sgd(lambda step: rate * 0.5 ** (step // own.halving_period), context.common.clip_norm)


register(
    Method(
        name="halving",
        summary="DP-SGD whose step size halves",
        paper="this test",
        settings=HalvingSettings,
        build=build,
    )
)
'''

STRIPES = '''
"""STRIPES: images of upright or level stripes, made on the spot."""

import numpy as np

from fedpriv.data.arrays import Arrays
from fedpriv.data.registry import no_files, register


def read(paths):
    labels = np.arange(600) % 2
    images = np.zeros((600, 28, 28), np.uint8)
    images[labels == 0, ::4], images[labels == 1, :, ::4] = 255, 255
    return Arrays("stripes", images[:500], labels[:500], images[500:], labels[500:], classes=2)


register("stripes", no_files, read)
'''

CARD = """
name = "stripes"
title = "stripes, upright or level: 500 training, 100 test"
inputs = "1x28x28 pixels"
target = "2 labels"
homepage = "https://example.org"
licence = "none needed"
citation = "this test"
"""

RUN = ("--set", "engine=in-process", "--set", "model=logistic", "--set", "rounds=2", "--set", "clients=400")
RATE = ("--set", "sampling-rate=0.1")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the command line and the generated tables need."""
    for part in ("fedpriv", "datasets", "docs/_site", "docs/explanation", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / part, tmp_path / part)
    return tmp_path


def output(folder: Path, *arguments: str) -> str:
    """What Python prints with these arguments, in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_optimizer_is_one_new_file(copy: Path) -> None:
    (copy / "fedpriv/optimizers/halving.py").write_text(HALVING)
    chosen = ("--set", "optimizer=halving")
    assert "halving-period = 20" in output(copy, "-m", "fedpriv", "simulate", "--help", *chosen)
    assert "this test" in output(copy, "-m", "fedpriv", "optimizers")
    output(copy, "docs/_site/blocks.py")
    assert "| `halving` | DP-SGD whose step size halves | this test |" in (copy / "README.md").read_text()
    assert "halving-period = 20\n" in (copy / "pyproject.toml").read_text()
    told = output(
        copy, "-m", "fedpriv", "simulate", "--json", *RUN, *RATE, *chosen, "--set", "halving-period=1"
    )
    assert json.loads(told)["optimizer"] == "halving"
    placed = ("--placements", "none,central", "--out", "both")
    rows = json.loads(output(copy, "-m", "fedpriv", "compare", "--json", *placed, *RUN, *RATE, *chosen))
    assert [row["placement"] for row in rows] == ["none", "central"]
    assert "claimed: epsilon" in output(copy, "-m", "fedpriv", "audit", *RUN, *RATE, *chosen)


@pytest.mark.slow
def test_a_data_set_is_a_module_and_a_card(copy: Path) -> None:
    (copy / "fedpriv/data/datasets/stripes.py").write_text(STRIPES)
    (copy / "datasets/stripes.toml").write_text(CARD)
    listed = json.loads(output(copy, "-m", "fedpriv", "data", "list", "--json"))
    assert {"data set": "stripes", "at hand": True}.items() <= next(
        one for one in listed if one["data set"] == "stripes"
    ).items()
    told = output(copy, "-m", "fedpriv", "simulate", "--json", *RUN, *RATE, "--set", "dataset=stripes")
    assert json.loads(told)["data set"] == "stripes"


def page_code(name: str) -> str:
    """The code of this file on the contributing page."""
    text = (ROOT / "docs/contributing.md").read_text()
    [code] = re.findall(rf"^```python\n# {name}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(code)


def help_of(folder: Path) -> str:
    """The help on settings, without its line breaks."""
    return " ".join(output(folder, "-m", "fedpriv", "simulate", "--help").split())


@pytest.mark.slow
def test_a_model_is_one_new_file(copy: Path) -> None:
    (copy / "fedpriv/models/architectures/wide.py").write_text(page_code("wide.py"))
    assert "mlp-text, wide" in help_of(copy)
    told = output(copy, "-m", "fedpriv", "simulate", "--json", *RUN, *RATE, "--set", "model=wide")
    assert json.loads(told)["model"] == "wide"
    sizes = copy / "tests/models/test_models.py"
    sizes.write_text(sizes.read_text().replace("SIZES = [", 'SIZES = [\n    ("wide", MNIST, 1_628_170),', 1))
    assert " passed" in output(copy, "-m", "pytest", "-q", "-x", str(sizes), "-k", "wide or every_model")


@pytest.mark.slow
def test_a_placement_is_a_type(copy: Path) -> None:
    with (copy / "fedpriv/mechanism/placement.py").open("a") as file:
        file.write("\n\n" + page_code("placement.py"))
    chosen = ("--set", "placement=two-servers")
    assert "two-servers (two servers add one each)" in help_of(copy)
    output(copy, "docs/_site/blocks.py")
    table = (copy / "docs/explanation/placements.md").read_text()
    assert "| `two-servers` | two servers add one each | who sees the models |" in table
    told = output(copy, "-m", "fedpriv", "simulate", "--json", *RUN, *RATE, *chosen)
    assert json.loads(told)["privacy"]["placement"] == "two-servers"
    placed = ("--placements", "central,two-servers", "--out", "both")
    rows = json.loads(output(copy, "-m", "fedpriv", "compare", "--json", *placed, *RUN, *RATE))
    assert [row["placement"] for row in rows] == ["central", "two-servers"]
    assert rows[1]["defends against"] == rows[0]["defends against"]
    tests = ("tests/mechanism/test_placement.py", "tests/conformance/test_optimizers.py")
    assert " passed" in output(
        copy, "-m", "pytest", "-q", "-x", *tests, "-k", "two-servers and not network and not logistic"
    )


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
    chosen = ("--set", "accounting=basic")
    told = output(copy, "-m", "fedpriv", "simulate", "--json", *RUN, *RATE, *chosen)
    assert json.loads(told)["privacy"]["budget"]["held by"] == "basic"
    assert " passed" in output(copy, "-m", "pytest", "-q", "-x", "tests/accounting/methods/test_basic.py")

"""What one new file brings: an optimizer and a data set, added to a copy of the repository and used there."""

from __future__ import annotations

import json
import os
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
    for part in ("fedpriv", "datasets", "docs/_site"):
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

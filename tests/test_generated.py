"""What is made from the code is as the code is: tables in README and docs/, and Flower's run-config."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from helpers.scripts import script

from fedpriv.config.schema import Config
from fedpriv.optimizers import METHODS, WRAPPERS

ROOT = Path(__file__).parents[1]
blocks = script("../docs/_site/blocks.py")


@pytest.mark.parametrize("name", blocks.TABLES)
def test_generated_tables_are_as_the_code_is(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text == blocks.with_tables(name, text), "run `make generated`"


def test_readmes_table_lists_every_optimizer_with_its_source() -> None:
    text = (ROOT / "README.md").read_text()
    for method in METHODS.values():
        assert f"`{method.name}`" in text
        assert method.paper in text
    assert all(f"`{key}`" in text for key in WRAPPERS)


def test_flowers_run_config_lists_every_setting() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert text == blocks.pyproject(text), "run `make generated`"
    table = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    assert list(table) == Config.keys()
    assert Config.parse(table) == Config.parse({})

"""The code in the documents runs and says what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["python.md"])
def test_a_documents_examples_run(name: str) -> None:
    found = doctest.testfile(str(DOCS / name), module_relative=False)
    assert found.attempted > 20
    assert found.failed == 0

"""Where real data lies, for tests marked ``data``."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    folder = os.environ.get("FEDPRIV_DATA", "")
    if not folder or not (Path(folder) / "mnist").is_dir():
        pytest.skip("needs MNIST under FEDPRIV_DATA")
    return Path(folder).resolve()

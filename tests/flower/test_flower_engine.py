"""The two apps under ``flwr run`` on Flower's own simulation engine equal one process.

With `test_engines.py` this closes the ladder: plain loop, in-process vectorised, our Ray grid and
Flower's engine give the same parameters for the same seed.
"""

from pathlib import Path

import pytest
import torch

from fedpriv.config import Config

from .harness import Federation
from .toy import TOY, in_process, saved_params

SILOS = {"unit": "example", "clients": 3, "examples-per-client": 200, "placement": "local"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    with Federation(tmp_path_factory.mktemp("flower"), simulation=True) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, SILOS], ids=["clients-central", "silos-local"])
def test_flowers_engine_equals_one_process(
    federation: Federation, tmp_path: Path, changes: dict[str, object]
) -> None:
    out = tmp_path / "run"
    settings = {**TOY, **changes, "out": str(out)}
    log = federation.run(settings, "num-supernodes=2 client-resources-num-cpus=1")
    assert "stopped: rounds" in log, log + federation.log("superlink")
    config = Config.parse(settings)
    torch.testing.assert_close(saved_params(out, config), in_process(config), rtol=0, atol=1e-6)

"""The two apps under ``flwr run`` on Flower's own simulation engine equal one process.

With `test_engines.py` this closes the ladder: plain loop, in-process vectorised, our Ray grid and
Flower's engine give the same parameters for the same seed.
"""

from pathlib import Path

import pytest
import torch
from helpers.hosted_grid import Federation
from helpers.toy_app import TOY, in_process, saved_params

from fedpriv.config.schema import Config

SILOS = {"unit": "example", "clients": 3, "examples-per-client": 200, "placement": "local"}
# Three silos on two nodes, which keep each silo's momentum between rounds.
CLIENT_LEVEL = {
    **SILOS,
    "placement": "central",
    "level": "client",
    "silo-steps": 3,
    "optimizer": "dp-sgd",
    "momentum": 0.5,
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    with Federation(tmp_path_factory.mktemp("flower"), simulation=True) as started:
        yield started


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "changes",
    [{}, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in (SILOS, CLIENT_LEVEL))],
    ids=["clients-central", "silos-local", "client-level"],
)
def test_flowers_engine_equals_one_process(
    federation: Federation, tmp_path: Path, changes: dict[str, object]
) -> None:
    out = tmp_path / "run"
    settings = {**TOY, **changes, "out": str(out)}
    log = federation.run(settings, "num-supernodes=2 client-resources-num-cpus=1")
    assert "stopped: rounds" in log, log + federation.log("superlink")
    config = Config.parse(settings)
    torch.testing.assert_close(saved_params(out, config), in_process(config), rtol=0, atol=1e-6)

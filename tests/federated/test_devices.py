"""A round on a device: no tensor of the host is mixed in, and the host synchronises once per chunk.

No device is needed (tests/helpers/remote_device.py stands in for one), so this holds on every machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.remote_device import DEVICE, Elsewhere, elsewhere
from helpers.small import small, write_mnist

from fedpriv.clipping import invariance
from fedpriv.runs.runner import Status
from fedpriv.simulation.run import simulate

__all__ = ["elsewhere"]

SEVERAL = {"partition": "dirichlet", "examples_per_client": 4, "client_sizes": "lognormal"}
RUNS: dict[str, dict[str, object]] = {
    "embedded digits": {},
    "cnn": {"model": "cnn"},
    "mlp": {"model": "mlp"},
    "files": {"dataset": "mnist"},
    "deformed files": {"dataset": "infinite-mnist"},
    "per-layer": {"clipping": "per-layer", "model": "mlp"},
    "adaptive clip norm": {"adaptive_quantile": 0.5},
    "local noise": {"placement": "local", "max_participations": 2},
    "distributed noise": {"placement": "distributed"},
    "several examples": SEVERAL,
    "local steps": {**SEVERAL, "work": "local-steps", "local_steps": 2},
    **{name: {"optimizer": name} for name in ("dp2-rmsprop", "dp-srm", "adadp", "adaptive-adp-sgd")},
}

# Two points, a divisor, or noise that clients add.
VECTORS = dict.fromkeys(("dp-srm", "dp2-rmsprop", "local noise", "distributed noise"), 2)


ALIKE = (
    "cnn", "mlp", "files", "deformed files", "per-layer", "several examples", "adadp", "adaptive-adp-sgd",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in ALIKE else ()) for name in RUNS]
)
@pytest.mark.slow
def test_the_host_synchronises_once_per_chunk_and_sends_only_new_data(
    name: str, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All cohorts are padded to one size, so that no other size is tried in a later round.
    monkeypatch.setattr(invariance, "_STEP", 512)
    changes: dict[str, object] = {"dp2_sgd_steps": 1, "dp2_adaptive_steps": 1} if "dp2" in name else {}
    changes |= {"rounds": 8, "evaluate_every": 8, "accounting": "gdp-clt", "seed": 0, "chunk_size": 512}
    config = small(data_folder=str(write_mnist(tmp_path, 0)), **changes, **RUNS[name])
    rounds: list[tuple[int, list[int], list[int]]] = []

    def after_round(status: Status) -> None:
        rounds.append((elsewhere.looks, list(elsewhere.down), list(elsewhere.up)))
        elsewhere.clear()

    result = simulate(config, after_round)
    blocks = [result.params.numel()] + [1] * (name == "adaptive clip norm")
    # The first rounds bring the data there, try the model out and measure what it takes; the last one is
    # evaluated.
    # Clients of several sizes try further numbers in some of them: the quietest shows what a round needs.
    several = name in ("several examples", "local steps")
    quiet = [min(rounds[2:-1], key=lambda spent: len(spent[1]))] if several else rounds[2:4]
    for looks, down, up in quiet:
        # Clients of each size are a chunk.
        assert looks == 1 or several
        assert down == blocks
        vectors = [size for size in up if size == result.params.numel()]
        assert len(vectors) <= VECTORS.get(name, 1)
        # The rest are numbers of clients and of their examples, whose pixels would be 30,000 at least.
        assert sum(up) - sum(vectors) < 15_000


def test_the_test_device_refuses_like_a_real_one(elsewhere: Elsewhere) -> None:
    own = torch.ones(3, 4, device=DEVICE)
    theirs = torch.ones(4)
    for mixed in (lambda: own + theirs, lambda: own.mul_(theirs), lambda: own @ theirs):
        with pytest.raises(RuntimeError, match=r"both sides|not on the expected device"):
            mixed()
    assert float((own * 2).sum().cpu()) == 1.0
    assert bool((own > 0).all())
    assert own[torch.tensor([0, 2])].to(DEVICE).shape == (2, 4)
    torch.ones(3, 4).copy_(own)
    own.copy_(torch.ones(3, 4))
    assert (elsewhere.looks, elsewhere.down, elsewhere.up) == (1, [1, 12], [2, 12])

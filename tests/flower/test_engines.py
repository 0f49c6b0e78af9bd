"""One toy on every engine of this process: the same seed gives the same parameters.

`test_flower_engine.py` adds Flower's own simulation engine, `test_deployment.py` a deployment.
"""

import itertools
from collections.abc import Callable

import pytest
import ray
import torch
from helpers.toy_app import TOY, in_process, pairs, params_from

from fedpriv.config.builders import make_source, make_task, make_view
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine, PartialSum, SumRequest
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.grids.ray import RayGrid
from fedpriv.mechanism.query import SumBlock
from fedpriv.mechanism.release import add_party_noise
from fedpriv.node.factory import make_worker
from fedpriv.rng import Key
from fedpriv.runs.runner import Status, execute

CASES: dict[str, dict[str, object]] = {
    "central": {},
    "local": {"placement": "local", "sampler": "fixed-size"},
    "silos": {"unit": "example", "clients": 4, "examples-per-client": 100, "placement": "distributed"},
}
CASES |= {f"fast {name}": {**settings, "noise-draws": "fast"} for name, settings in CASES.items()}


class PlainLoop:
    """One unit after the other, without vectorisation: its gradient, its norm, its clipped vector."""

    def __init__(self, config: Config) -> None:
        source = make_source(config)
        self.task, self.view = make_task(config, source), make_view(config, source)
        self.key, self.exact = Key.of(config.seed), config.exact_noise

    def gather(self, request: SumRequest) -> PartialSum:
        [block] = request.query.blocks
        assert isinstance(block, SumBlock)
        [clip] = [term.clip_norm for term in block.terms]
        total = torch.zeros_like(request.query.points[0])
        for shard in request.shards:
            part = torch.zeros_like(total)
            for unit in shard.ids:
                batch = self.view.batch(shard.ids[shard.ids == unit])
                [row] = self.task.gradients(request.query.points[0], batch.x, batch.y)
                part += row * min(1.0, clip / float(row.norm()))
            if request.party_stds is not None:
                draw = self.key, request.release, shard.index, request.query.blocks if self.exact else ()
                [part] = add_party_noise([part], request.party_stds, shard.parties, *draw)
            total = total + part
        return PartialSum((total,), sum(shard.parties for shard in request.shards))

    def close(self) -> None:
        """Nothing to release."""


def ray_engine(actors: int) -> Callable[[Config], Engine]:
    return lambda config: GridEngine(RayGrid(actors, config.table(), num_cpus=0.5))


ENGINES: dict[str, Callable[[Config], Engine]] = {
    "plain loop": PlainLoop,
    "in-process grid of 3": lambda config: GridEngine(InProcessGrid(3, config.table())),
    "2 actors": ray_engine(2),
}


SLOW = [(case, "2 actors") for case in CASES if case != "central"]
AGAIN = [(case, engine) for case, engine in SLOW if case.startswith("fast")]
AGAIN += [(case, "plain loop") for case in CASES if case.startswith("fast") and case != "fast silos"]


@pytest.mark.parametrize(("case", "engine"), pairs(CASES, ENGINES, slow=SLOW, again=AGAIN))
def test_every_engine_gives_the_same_parameters(ray_instance: None, engine: str, case: str) -> None:
    config = Config.parse({**TOY, **CASES[case]})
    params = params_from(config, ENGINES[engine](config))
    torch.testing.assert_close(params, in_process(config), rtol=0, atol=1e-6)
    if engine != "plain loop":  # its sums are in another order
        assert torch.equal(params, in_process(config))


@pytest.mark.slow
def test_many_rounds_agree_bit_for_bit_on_any_number_of_nodes() -> None:
    """Chunks are the same and their sums are added without rounding, so the order does not matter."""
    # Constant noise, because it is calibrated quickly.
    config = Config.parse({**TOY, "optimizer": "dp-sgd", "rounds": 25, "evaluate-every": 25})
    whole = in_process(config)
    for nodes in (1, 2, 4):
        assert torch.equal(params_from(config, GridEngine(InProcessGrid(nodes, config.table()))), whole)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("actors", "tree"), [(1, False), (4, False), (4, True)])
def test_a_hundred_rounds_agree_on_any_number_of_actors(
    ray_instance: None, actors: int, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where four actors add their sums in a tree, as for large models."""
    if tree:
        monkeypatch.setattr("fedpriv.flower.grids.ray._DRIVER_ADDS", 0)
    config = Config.parse({**TOY, "rounds": 100, "evaluate-every": 100})
    engine = GridEngine(RayGrid(actors, config.table(), num_cpus=0.25))
    assert torch.equal(params_from(config, engine), in_process(config))


@pytest.mark.slow
@pytest.mark.parametrize("tree", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_the_shares_of_killed_actors_are_computed_again_once(
    ray_instance: None, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One actor is killed in mid-run, and another one later; noise of the nodes is counted once, too."""
    if tree:
        monkeypatch.setattr("fedpriv.flower.grids.ray._DRIVER_ADDS", 0)
    config = Config.parse({**TOY, "rounds": 12, "evaluate-every": 4, "placement": "distributed"})
    grid = RayGrid(4, config.table(), num_cpus=0.25, stateless=True)

    def kill(status: Status) -> None:
        if status.round in (3, 8):
            ray.kill(grid._actors[status.round // 2])

    result = execute(make_plan(config), GridEngine(grid), show=kill)
    assert torch.equal(result.params, in_process(config))


def test_another_seed_gives_other_parameters() -> None:
    config = Config.parse(TOY)
    assert not torch.allclose(in_process(config), in_process(config.changed(seed=4)), atol=1e-3)


def test_without_a_seed_the_noise_differs_each_time() -> None:
    config = Config.parse({**TOY, "rounds": 1}).changed(seed=-1)
    assert not torch.allclose(in_process(config), in_process(config), atol=1e-3)


def test_a_node_uses_seeded_noise_only_if_the_configuration_has_a_seed() -> None:
    config = Config.parse({**TOY, **CASES["silos"]})
    assert make_worker(config.table()).key.reproducible
    assert not make_worker(config.changed(seed=-1).table()).key.reproducible


QUERIES: dict[str, dict[str, object]] = {
    "adaptive clipping": {"optimizer": "dp-sgd", "adaptive-quantile": 0.5},
    "layers": {"optimizer": "dp-sgd", "clipping": "per-layer"},
    "adadp": {"optimizer": "adadp"},
    "dp-srm": {"optimizer": "dp-srm"},
    "local steps": {"optimizer": "dp-sgd", "work": "local-steps"},
}


PLACES = [case for case in CASES if "fast" not in case]
TRIED = [pair for pair in itertools.product(QUERIES, PLACES) if pair != ("local steps", "silos")]


@pytest.mark.parametrize(("kind", "place"), TRIED)
def test_no_honest_reply_is_dropped(kind: str, place: str) -> None:
    """Clip norms that clip every unit, and a strict engine, for which a dropped reply is an error."""
    values = {**TOY, **CASES[place], **QUERIES[kind], "clip-norm": 1e-3}
    config = Config.parse(values)
    params = params_from(config, GridEngine(InProcessGrid(3, config.table()), strict=True))
    assert bool(torch.isfinite(params).all())

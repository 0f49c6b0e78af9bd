"""The two apps themselves: their defaults in pyproject, and what a node answers and refuses."""

import math
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from helpers.hosted_grid import ROOT
from helpers.toy_app import TOY

from fedpriv.config.builders import make_source, make_task
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.flower.client_app import app
from fedpriv.flower.grids.base import HostedGrid, load_client_app, node_context
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.serialization import read_reply, request_content, shared_records
from fedpriv.mechanism.query import Query, SumBlock, Term

LOCAL = {**TOY, "placement": "local", "sampler": "fixed-size"}


def flower_section() -> dict[str, Any]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    section: dict[str, Any] = table["tool"]["flwr"]["app"]
    return section


def test_flowers_run_config_is_the_configuration_with_its_defaults() -> None:
    assert flower_section()["config"] == Config().table()


def test_pyproject_names_the_two_apps() -> None:
    components = flower_section()["components"]
    assert load_client_app(components["clientapp"]) is app
    assert components["serverapp"] == "fedpriv.flower.server_app:app"


@pytest.mark.parametrize("name", ["central", "local", "client"])
def test_the_deployments_configurations_are_valid(name: str) -> None:
    values = tomllib.loads((ROOT / "deploy" / f"{name}.toml").read_text())
    config = make_plan(Config.parse(values)).config
    assert (name == "client", config.nodes_own_data) == (config.level == "client", True)
    assert config.placement == ("local" if name == "local" else "central")


def make_request(config: Config, party_stds: tuple[float, ...] | None) -> SumRequest:
    task = make_task(config, make_source(config))
    query = Query((task.initial(np.random.default_rng(0)),), (SumBlock((Term(1.0),)),))
    return SumRequest(query, 0, (Shard(0, np.arange(4), 4), Shard(1, np.arange(7, 9), 2)), party_stds)


def answer(values: dict[str, Any], content: RecordDict, kind: str = "train") -> Message:
    """The app's own reply, as a server sees it: guarded."""
    grid: HostedGrid = InProcessGrid(nodes=1)
    message = grid.create_message(content, kind, 1, "")
    return app(message, node_context(1, 1, Config.parse(values).table()))


def sums(values: dict[str, Any], party_stds: tuple[float, ...] | None) -> torch.Tensor:
    request = make_request(Config.parse(values), party_stds)
    reply = answer(values, request_content(shared_records(request), request.shards))
    result = read_reply(reply.content, request)
    assert result.parties == 6
    return result.sums[0]


def test_a_node_describes_itself() -> None:
    fields = answer(TOY, RecordDict(), "query").content["node"]
    assert dict(fields) == {"partition-id": 0, "num-partitions": 1}


def test_a_node_adds_no_noise_unless_asked() -> None:
    assert torch.equal(sums(TOY, None), sums({**TOY, "seed": -1}, None))


def test_a_seeded_node_repeats_its_noise() -> None:
    assert torch.equal(sums(LOCAL, (1.0,)), sums(LOCAL, (1.0,)))


def test_an_unseeded_node_never_sends_the_same_noise_twice() -> None:
    one, two = (sums({**LOCAL, "seed": -1}, (1.0,)) for _ in range(2))
    # The difference of two independent noises of 6 parties: std sqrt(12), in 7850 coordinates, whose
    # sample std is within 0.8 % (one sigma): 10 % are 12 sigma, a flake rate below 1e-30.
    assert float((one - two).std()) == pytest.approx(12**0.5, rel=0.1)


@pytest.mark.parametrize("stds", [None, (0.0,)])
@pytest.mark.parametrize("placement", ["local", "distributed"])
def test_a_node_that_must_add_noise_refuses_requests_without_it(placement: str, stds: Any) -> None:
    values = {**LOCAL, "placement": placement}
    request = make_request(Config.parse(values), stds)
    reply = answer(values, request_content(shared_records(request), request.shards))
    assert reply.error.reason == "MessageError"


def test_a_node_that_must_add_noise_refuses_requests_without_clipping() -> None:
    request = make_request(Config.parse(LOCAL), (1.0,))
    query = Query(request.query.points, (SumBlock((Term(math.inf),)),))
    reply = answer(LOCAL, request_content(shared_records(replace(request, query=query)), request.shards))
    assert reply.error.reason == "MessageError"


def test_a_malformed_request_is_refused_with_the_error_type_only() -> None:
    reply = answer(TOY, RecordDict())
    assert reply.error.reason == "MessageError"

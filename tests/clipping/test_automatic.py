"""Automatic clipping: rows, book-keeping and the plain loop agree, and no unit adds more than C."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.clipping_paths import assert_all_ways_agree, noise, two_point_query
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import sum_gradients, sum_rows, sum_rows_loop
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import SumRequest
from fedpriv.flower.serialization import read_request, request_content, shared_records
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task


def automatic(query, gamma, per_layer=False):
    blocks = [
        replace(block, terms=tuple(replace(t, gamma=gamma, per_layer=per_layer) for t in block.terms))
        for block in query.blocks
    ]
    return replace(query, blocks=tuple(blocks))


@pytest.mark.parametrize("per_layer", [False, True])
def test_all_ways_of_summing_gradients_agree(per_layer):
    task = Task(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3), nn.Linear(3, 3)))
    x, y = noise(6, 1, 4, 4, seed=1), torch.arange(6) % 3
    query = two_point_query(task, x, y)
    scaled = automatic(query, 0.3, per_layer)
    assert not torch.allclose(sum_gradients(task, query, x, y)[0], sum_gradients(task, scaled, x, y)[0])
    assert_all_ways_agree(task, scaled, x, y, 1e-9)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e3, 1e25, math.nan]), min_size=1, max_size=5),
    st.sampled_from([0.1, 2.0]),
    st.sampled_from([1e-6, 0.01, 5.0]),
)
def test_a_unit_adds_its_vector_times_c_over_its_norm_and_gamma(scales, clip_norm, gamma):
    rows = noise(len(scales), 3, seed=2).float() * torch.tensor(scales)[:, None]
    block = SumBlock((Term(clip_norm, -0.5, gamma=gamma),))
    assert block.sensitivity == 0.5 * clip_norm
    for row in rows:
        (added,) = sum_rows([row[None]], [block])
        wide = row.double()
        want = -0.5 * clip_norm * wide / (wide.norm() + gamma) if bool(row.isfinite().all()) else 0 * added
        torch.testing.assert_close(added.double(), want.double(), rtol=1e-5, atol=1e-30)
        assert float(added.double().norm()) <= block.sensitivity * (1 + 1e-6)
    torch.testing.assert_close(sum_rows([rows], [block])[0], sum_rows_loop([rows], [block])[0])


def test_tiny_gradients_are_bounded_where_squares_underflow():
    """Squares of 1e-25 vanish in float32: their norm would be 0, and C / gamma no bound for 1e-25 / gamma."""
    task = Task(nn.Linear(4, 1, bias=False), lambda outputs, y: outputs[:, 0])
    x, y = torch.full((2, 4), 1e-25), torch.zeros(2)
    query = Query((torch.zeros(4),), (SumBlock((Term(1.0, gamma=1e-12),)),))
    (total,) = sum_gradients(task, query, x, y)
    torch.testing.assert_close(total, 2 * x[0] / 1e-12, rtol=1e-5, atol=0)


def test_requests_carry_it():
    query = Query((torch.zeros(3),), (SumBlock((Term(2.0, gamma=0.25),)),))
    request = SumRequest(query, 0, (), None)
    assert read_request(request_content(shared_records(request), ())).query.blocks == query.blocks


def test_a_run_is_configured_to_scale_at_the_same_noise():
    keys = {"optimizer": "dp-sgd", "rounds": 6}
    plan = make_plan(Config.parse({**keys, "clipping": "automatic", "clip-gamma": 0.5}))
    flat = make_plan(Config.parse(keys))
    query = plan.mechanism.optimizer.query(plan.mechanism.optimizer.init(torch.zeros(4)))
    assert [term.gamma for block in query.blocks for term in block.terms] == [0.5]
    assert plan.events == flat.events
    assert query.noise_stds(1.0) == (1.0,)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clip-norm": math.inf, "placement": "none"}, "clip-norm is inf; it must be finite with clipping"),
        ({"adaptive-quantile": 0.5}, "clipping is 'automatic'; it must be flat"),
    ],
)
def test_what_does_not_go_with_it_is_refused(keys, message):
    with pytest.raises(ArgumentError, match=message):
        make_plan(Config.parse({"optimizer": "dp-sgd", "clipping": "automatic", **keys}))
    with pytest.raises(ArgumentError, match="clip-norm with automatic clipping is inf"):
        Term(math.inf, gamma=0.1)

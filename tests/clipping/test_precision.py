"""Passes of reduced precision: sums are close to exact, and no unit adds more than its clip norm."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from helpers.clipping_paths import noise, one_point_query, two_point_query

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import per_example, sum_gradients
from fedpriv.clipping.ghost import bookkeeping, compatibility
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.precision import computing
from fedpriv.config.builders import make_work
from fedpriv.config.schema import Config
from fedpriv.federated import client_update
from fedpriv.federated.client_update import LocalSteps, OneGradient
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("asked", [one_point_query, two_point_query])
@pytest.mark.slow
def test_bf16_is_near_and_differs(name, asked, monkeypatch):
    task, exact = Task(name), Task(name)
    x, y = noise(8, 1, 28, 28).abs().float(), torch.arange(8)
    query = asked(exact, x.double(), y, scale=0.05)
    blocks = tuple(
        SumBlock(tuple(Term(t.clip_norm, t.weight, t.at[:1]) for t in block.terms), block.share)
        for block in query.blocks
        if isinstance(block, SumBlock)
    )
    blocks = tuple(SumBlock(block.terms, 1 / len(blocks)) for block in blocks)
    query = Query(tuple(p.float() for p in query.points), blocks)
    wanted = sum_gradients(exact, query, x, y)
    assert clipper_of(task, "bf16").coverage(task, query.points[0], x, y)
    monkeypatch.setattr(task, "gradients", lambda *_: pytest.fail("rows were formed"))
    for got, want in zip(sum_gradients(task, query, x, y, precision="bf16"), wanted, strict=True):
        assert got.dtype == torch.float32
        lost = float((got - want).norm() / want.norm())
        assert 1e-5 < lost < 0.1


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("per_layer", [False, True])
def test_one_example_adds_at_most_its_clip_norm(name, per_layer):
    task = Task(name)
    params = 0.1 * noise(task.dimension).float()
    for seed in range(5):
        x, y = noise(1, 1, 28, 28, seed=seed).float(), torch.tensor([seed])
        query = Query((params,), (SumBlock((Term(0.1, per_layer=per_layer),)),))
        (total,) = sum_gradients(task, query, x, y, precision="bf16")
        assert float(total.double().norm()) == pytest.approx(0.1, rel=2e-6)


def test_a_device_without_autocast_computes_in_float32_and_refuses_bf16():
    with computing("float32", torch.device("meta")):
        product = torch.ones(2, 2, device="meta") @ torch.ones(2, 2, device="meta")
    assert product.dtype == torch.float32
    with pytest.raises(RuntimeError, match="meta"), computing("bf16", torch.device("meta")):
        pass


def test_tf32_is_float32_on_devices_without_it():
    x, y = noise(4, 1, 28, 28).float(), torch.arange(4)
    task = Task("mlp")
    params = 0.1 * noise(task.dimension).float()
    query = Query((params,), (SumBlock((Term(0.1),)),))
    one, other = (sum_gradients(task, query, x, y, precision=p)[0] for p in ("tf32", "float32"))
    assert torch.equal(one, other)


def test_the_precision_ends_with_the_context():
    ones = torch.ones(2, 2)
    with computing("bf16", CPU):
        assert (ones @ ones).dtype == torch.bfloat16
    assert (ones @ ones).dtype == torch.float32


def test_local_steps_of_reduced_precision_are_refused():
    with pytest.raises(ArgumentError, match="precision"):
        make_work(Config.parse({"work": "local-steps", "precision": "bf16"}))


@pytest.mark.parametrize("work", [OneGradient(), LocalSteps(2, 0.1), LocalSteps(2, 0.1, 3)])
def test_every_gradient_is_computed_in_a_known_precision(work, monkeypatch):
    """GPUs round float32 convolutions to tf32 by default; then rows and book-keeping would differ."""
    depth, found = 0, []

    @contextmanager
    def watched(precision, device):
        nonlocal depth
        depth += 1
        with computing(precision, device):
            yield
        depth -= 1

    for module in (per_example, compatibility, bookkeeping, client_update):
        monkeypatch.setattr(module, "computing", watched)
    task = Task("cnn")
    name = "gradients" if isinstance(work, OneGradient) else "losses_at"  # trials compare losses outside
    inner = getattr(task, name)
    monkeypatch.setattr(task, name, lambda *given: (found.append(depth), inner(*given))[1])
    query = Query((0.1 * noise(task.dimension).float(),), (SumBlock((Term(1.0),)),))
    x, y = noise(6, 1, 28, 28).float(), torch.arange(6)
    client_update.clipped_sum(work, task, query, x, y, torch.arange(6) // 2, 3)
    if isinstance(work, OneGradient):
        centred = replace(query.blocks[0], terms=(Term(1.0, offset=query.points[0]),))
        sum_gradients(task, replace(query, blocks=(centred,)), x, y)
    assert len(found) >= 2
    assert all(found)

"""Subclasses that inherit the forward of a layer with a rule have its rule."""

import copy

import pytest
import torch
from helpers.clipping_paths import assert_all_ways_agree, noise, one_point_query, two_point_query
from torch import nn

from fedpriv.clipping import per_example
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers import RULES, rule_of
from fedpriv.tasks.task import Task


def own(base):
    """A subclass that does not change what the forward computes."""
    return type("Own", (base,), {"note": lambda self: f"an own {base.__name__}"})


class Doubled(nn.Linear):
    """Another forward."""

    def forward(self, x):
        return super().forward(x) * 2


class Standard(nn.Conv2d):
    """The same forward with another helper."""

    def _conv_forward(self, x, weight, bias):
        weight = weight - weight.mean((1, 2, 3), keepdim=True)
        return super()._conv_forward(x, weight, bias)


class Raw(nn.Linear):
    """The same forward, and a parameter that the forward does not use."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.extra = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize("base", RULES, ids=lambda base: base.__name__)
def test_types_that_inherit_a_forward_have_its_rule(base):
    assert rule_of(own(base)) is RULES[base]
    changed = type("Changed", (base,), {"forward": lambda self, x: x})
    assert rule_of(changed) is None
    assert rule_of(own(changed)) is None


def test_other_types_have_no_rule():
    assert rule_of(nn.modules.linear.NonDynamicallyQuantizableLinear) is RULES[nn.Linear]
    assert rule_of(Doubled) is None
    assert rule_of(nn.Bilinear) is None


def recurrent(kind):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.run, self.last = own(kind)(2, 4, batch_first=True), own(nn.Linear)(4, 3)

        def forward(self, x):
            return self.last(self.run(x.view(-1, 4, 2))[0][:, -1])

    return Last()


def tokens():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.bag = own(nn.Embedding)(9, 4), own(nn.EmbeddingBag)(9, 4)
            self.last = own(nn.Linear)(4, 3)

        def forward(self, x):
            x = (x.abs() * 3).long().clamp(0, 8)
            return self.last(torch.tanh(self.table(x)).mean(1) + self.bag(x))

    return Tokens()


def images():
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)),
        own(nn.Conv2d)(2, 4, 2, padding=1),
        own(nn.GroupNorm)(2, 4),
        nn.Tanh(),
        own(nn.InstanceNorm2d)(4, affine=True),
        nn.Flatten(),
        own(nn.LayerNorm)(36),
        own(nn.Linear)(36, 3),
    )


@pytest.mark.parametrize(
    "make",
    [lambda: recurrent(nn.LSTM), lambda: recurrent(nn.GRU), tokens, images],
    ids=["lstm", "gru", "tokens", "images"],
)
@pytest.mark.slow
def test_user_subclasses_are_summed_exactly(make, monkeypatch):
    task, x, y = Task(make()), noise(6, 8, seed=1), torch.arange(6) % 3
    for asked in (one_point_query, two_point_query):
        query = asked(task, x, y)
        monkeypatch.setattr(per_example, "_by_rows", lambda *a, **k: pytest.fail("rows were formed"))
        assert_all_ways_agree(task, query, x, y, 1e-9)
        del task.gradients
    layers = [layer for layer in task.module.modules() if hasattr(layer, "note")]
    assert layers
    assert all(layer.note().startswith("an own") for layer in layers)
    copy.deepcopy(task)


@pytest.mark.parametrize("module", [Standard(1, 3, 2), nn.Sequential(Raw(4, 4), nn.Flatten())])
def test_other_changes_of_a_subclass_are_found(module):
    body = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), module, nn.Flatten())
    width = body(torch.zeros(1, 16)).shape[1]
    task = Task(nn.Sequential(body, nn.Linear(width, 3)))
    x, y = noise(6, 16, seed=1), torch.arange(6) % 3
    query = one_point_query(task, x, y)
    plan = clipper_of(task).coverage(task, query.points[0], x, y)
    assert plan is None or not any("0.1" in name for name in plan.layers)
    assert_all_ways_agree(task, query, x, y, 1e-10, fast=False)

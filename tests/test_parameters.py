import json

import pytest
import torch
from torch import nn

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping.functional import clipped_sum
from fedpriv.parameters import Layout, Slot, layout_of, vector_of


def model() -> nn.Module:
    frozen = nn.Linear(4, 4)
    frozen.bias.requires_grad_(False)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), frozen)


def test_a_vector_and_its_tensors_are_each_others_inverse():
    module = model()
    layout = layout_of(module)
    vector = vector_of(module)
    assert vector.dtype == torch.float32
    assert vector.shape == (layout.dimension,) == (2 * 9 + 2 + 16,)
    for name, tensor in layout.split(vector).items():
        assert torch.equal(tensor, module.get_parameter(name))
    assert torch.equal(layout.join(layout.split(vector)), vector)


def test_the_layout_names_what_is_trained_and_what_is_frozen_in_order():
    layout = layout_of(model())
    assert layout.names == ("0.weight", "0.bias", "2.weight")
    assert layout.frozen == ("2.bias",)
    assert [slot.offset for slot in layout.slots] == [0, 18, 20]


def test_leading_axes_are_kept():
    layout = layout_of(model())
    assert layout.split(torch.zeros(5, layout.dimension))["0.weight"].shape == (5, 2, 1, 3, 3)


def test_a_layout_travels_as_json():
    layout = layout_of(model())
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"slots": [{"name": "w", "shape": [2], "offset": 1}], "frozen": []},
        {"slots": [{"name": "w", "shape": [-2], "offset": 0}], "frozen": []},
        {"slots": [{"name": "w", "shape": [2.5], "offset": 0}], "frozen": []},
        {"slots": 3, "frozen": []},
    ],
)
def test_a_broken_layout_is_refused(value):
    with pytest.raises(ArgumentError):
        Layout.from_json(value)


def test_names_must_be_distinct():
    with pytest.raises(ArgumentError, match="distinct"):
        Layout((Slot("w", (2,), 0), Slot("w", (2,), 2)))


def test_a_vector_of_another_length_is_refused():
    layout = layout_of(model())
    with pytest.raises(ArgumentError, match="36"):
        layout.split(torch.zeros(35))
    with pytest.raises(ArgumentError, match=r"0\.bias"):
        layout.join({**layout.split(torch.zeros(36)), "0.bias": torch.zeros(3)})


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.MultiheadAttention(4, 2, dropout=0.5, add_zero_attn=True),
        nn.Linear(2, 2, dtype=torch.complex64),
        nn.LazyLinear(3),
        nn.ReLU(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_clipping_does_not_bound_are_refused_by_name(layer):
    with pytest.raises(ArgumentError) as error:
        layout_of(nn.Sequential(nn.Flatten(), layer))
    assert "1" in str(error.value) or type(layer) is nn.ReLU


def test_a_frozen_batchnorm_is_accepted_and_keeps_examples_apart():
    """With its running statistics it is a constant affine function; anything less frozen is refused."""
    frozen = nn.BatchNorm1d(4).eval().requires_grad_(False)
    frozen.running_mean.uniform_()
    frozen.running_var.uniform_(0.5, 2)
    network, loss = (
        nn.Sequential(nn.Linear(3, 4), frozen, nn.ReLU(), nn.Linear(4, 2)),
        nn.CrossEntropyLoss(reduction="none"),
    )
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    statistics = frozen.running_mean.clone()
    whole = clipped_sum(network, loss, x, y, 0.1)
    alone = sum(clipped_sum(network, loss, x[i : i + 1], y[i : i + 1], 0.1) for i in range(6))
    assert torch.allclose(whole, alone, atol=1e-6)
    far = torch.cat([x[:5], 1e6 * torch.ones(1, 3)])
    moved = clipped_sum(network, loss, far, y, 0.1) - whole
    assert moved.norm() <= 0.2 * 1.0001, "one example moves the sum by at most twice the clip norm"
    assert torch.equal(frozen.running_mean, statistics), "the user's layer is as it was"
    for half_frozen in (nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4).requires_grad_(False)):
        with pytest.raises(ArgumentError, match=r"freeze a pretrained one: layer\.eval\(\)"):
            layout_of(nn.Sequential(nn.Linear(3, 4), half_frozen))
    without = nn.BatchNorm1d(4, track_running_stats=False).eval().requires_grad_(False)
    with pytest.raises(ArgumentError, match="mix the examples"):
        layout_of(nn.Sequential(nn.Linear(3, 4), without))


@pytest.mark.parametrize("layer", [nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.LayerNorm(4)])
def test_normalisation_within_an_example_is_accepted(layer):
    assert layout_of(nn.Sequential(layer, nn.Dropout(0.5))).dimension == 8

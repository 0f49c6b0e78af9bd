import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpriv import models
from fedpriv._check import ArgumentError
from fedpriv.vectors import layout_of, vector_of


@pytest.mark.parametrize(
    ("name", "dimension"), [("linear", 785), ("logistic", 7850), ("mlp", 269322), ("cnn", 26010)]
)
def test_the_models_have_the_papers_sizes(name, dimension):
    model = models.build(name)
    assert layout_of(model).dimension == dimension
    assert not vector_of(model).any()
    assert model(torch.zeros(3, 1, 28, 28)).shape == ((3,) if name == "linear" else (3, 10))


def test_the_cnn_suits_other_images():
    assert models.build("cnn", (3, 32, 36), 7)(torch.zeros(2, 3, 32, 36)).shape == (2, 7)
    with pytest.raises(ArgumentError, match="14x14"):
        models.build("cnn", (1, 12, 28))


def test_the_cnn_is_the_network_of_the_tutorials():
    model = models.build("cnn")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(np.random.default_rng(1).normal(0, 0.1, parameter.shape)))
    x = torch.from_numpy(np.random.default_rng(2).random((4, 1, 28, 28), dtype=np.float32))
    first, second, hidden, classes = (
        model.get_submodule(name) for name in ("first", "second", "hidden", "classes")
    )
    h = F.max_pool2d(F.relu(first(x)), 2, 1)
    h = F.max_pool2d(F.relu(second(h)), 2, 1)
    torch.testing.assert_close(model(x), classes(F.relu(hidden(h.flatten(1)))))


def test_unknown_names_are_refused():
    with pytest.raises(ArgumentError, match="logistic"):
        models.build("resnet")


def test_nothing_touches_the_global_generator():
    state = torch.get_rng_state()
    models.initial(models.build("cnn"), np.random.default_rng(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_parameters_follow_torchs_law():
    """Uniform on +-1/sqrt(fan-in); a Kolmogorov distance above 2.7/sqrt(n) has probability < 1e-6."""
    model = models.build("mlp")
    vector = models.initial(model, np.random.default_rng(3))
    pieces = layout_of(model).split(vector)
    for name, fan_in in (("first.weight", 784), ("second.weight", 256), ("second.bias", 256)):
        scaled = np.sort(pieces[name].numpy().ravel() * math.sqrt(fan_in))
        uniform = np.linspace(-1, 1, len(scaled))
        assert np.abs(scaled - uniform).max() < 2 * 2.7 / math.sqrt(len(scaled))
    assert torch.equal(vector, models.initial(model, np.random.default_rng(3)))
    assert not torch.equal(vector, models.initial(model, np.random.default_rng(4)))


def test_other_layers_keep_their_own_values():
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    vector = models.initial(module, np.random.default_rng(0))
    assert torch.equal(vector[16:], torch.tensor([1.0] * 4 + [0.0] * 4))


def test_standardised_inputs_are_the_models_own() -> None:
    model = models.build("logistic")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    outputs = models.Standardised(model, 0.1307, 0.3081)(x)
    torch.testing.assert_close(outputs, model((x - 0.1307) / 0.3081))
    with pytest.raises(ArgumentError, match="input-std"):
        models.Standardised(model, 0.0, 0.0)

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from fedpriv import models
from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.per_example import sum_gradients, sum_gradients_loop
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.models.layers import Standardised
from fedpriv.parameters import layout_of, vector_of
from fedpriv.tasks.task import Task

MNIST = ((1, 28, 28), 10)
MOVIELENS = ((2,), 1, (943, 1682))
SIZES = [
    ("linear", MNIST, 785),
    ("logistic", MNIST, 7850),
    ("logistic", ((10_000,), 500), 5_000_500),  # Li 2023, C.1: Stack Overflow, "roughly 5 million"
    ("logistic-binary", ((10_000,), 2), 10_001),  # Li 2023, C.1: IMDB
    ("logistic-binary-no-bias", ((123,), 2), 123),  # Wang 2023, 7.1: a9a has 123 features
    ("mlp", MNIST, 269_322),
    ("mlp-no-bias", MNIST, 784 * 256 + 256 * 256 + 2560),
    ("mlp-no-bias-3", MNIST, 334_336),  # Koskela & Honkela 2020, 5.1
    ("cnn", MNIST, 26_010),
    ("vgg11", ((3, 32, 32), 10), 9_225_610),
    ("resnet-20", ((3, 32, 32), 10), 272_282),  # He et al. 2016, table 6: 0.27 million
    ("wrn-16-4", ((3, 32, 32), 10), 2_748_890),  # Zagoruyko & Komodakis 2016, table 4: 2.8 million
    ("normalised-linear", ((81, 7, 7), 10), 39_700),
    ("normalised-cnn", ((81, 7, 7), 10), 81 * 9 * 64 + 64 + 64 * 9 * 10 + 10),
    ("scattering-linear", MNIST, 39_700),  # Tramer & Boneh 2021
    ("lstm", ((20,), 18, (58,)), 58 * 64 + 4 * 128 * (64 + 128 + 2) + 128 * 18 + 18),
    ("mlp-text", ((256,), 2, (10_000,)), 160_306),  # Bu et al. 2020
    ("factors", MOVIELENS, 262_500),  # Li 2023, C.1
    ("factors-biases", MOVIELENS, 262_500 + 943 + 1682 + 1),
]


@pytest.mark.parametrize(("name", "inputs", "dimension"), SIZES)
def test_the_models_have_the_papers_sizes(name, inputs, dimension):
    model = models.build(name, *inputs)
    assert layout_of(model).dimension == dimension
    assert not vector_of(model).any()
    shape, classes, *tokens = inputs
    x = torch.zeros(3, *shape, dtype=torch.int64 if tokens else torch.float32)
    outputs = {"linear": (3,), "logistic-binary": (3, 1), "logistic-binary-no-bias": (3, 1)}
    assert model(x).shape == outputs.get(name, (3,) if name.startswith("factors") else (3, classes))


def test_every_model_has_its_size_above():
    assert {name for name, *_ in SIZES} == set(models.MODELS)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("lstm", MNIST, "model=lstm does not support .* numbers; use one of linear, "),
        ("cnn", ((20,), 18, (58,)), "which are sequence; use one of lstm, mlp-text"),
        ("mlp", MOVIELENS, "which are ids; use one of factors, factors-biases"),
        ("logistic-binary", MNIST, "needs 2 classes, but the data set has 10"),
        ("vgg11", ((3, 28, 28), 10), "at least 32x32"),
        (
            "cnn",
            ((784,), 10),
            r"14x14 \(the model is for images; rows of numbers are for model=log",
        ),
        ("cnn", ((28, 28, 1), 10), r"14x14 \(channels come first: x.transpose\(0, 3, 1, 2\)"),
        ("vgg11", ((32, 32, 3), 10), r"32x32 \(channels come first: x.transpose\(0, 3, 1, 2\)"),
        ("factors", ((3,), 1, (5, 6, 7)), "needs two columns of ids"),
        ("mlp", ((0,), 10), "input shape is 0"),
        ("lstm", ((4,), 3, (0,)), "tokens is 0"),
    ],
)
def test_unsupported_inputs_are_refused(name, inputs, message):
    with pytest.raises(ArgumentError, match=message):
        models.build(name, *inputs)


def drawn(name, *inputs, seed=0):
    """The model at its first parameters."""
    model = models.build(name, *inputs)
    vector = models.initial(model, np.random.default_rng(seed))
    with torch.no_grad():
        for key, tensor in layout_of(model).split(vector).items():
            model.get_parameter(key).copy_(tensor)
    return model


LOOPED = {  # inputs that a plain loop over examples can bear
    "mlp-text": ((6,), 2, (9,)),
    "lstm": ((6,), 3, (9,)),
    "factors": ((2,), 1, (5, 7)),
    "factors-biases": ((2,), 1, (5, 7)),
    "logistic-binary": ((9,), 2),
    "logistic-binary-no-bias": ((9,), 2),
    "vgg11": ((3, 32, 32), 2),
}
FORMED = ("resnet-20", "wrn-16-4")  # their gradients are formed; tests/models/test_residual.py has their sums


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow, pytest.mark.exhaustive]) if n == "vgg11" else n
        for n in models.MODELS
        if n not in FORMED
    ],
)
def test_ghost_clipping_of_every_model_equals_the_loop(name):
    """Neither vmap nor rows: each parameter is used through its layer, which book-keeping knows."""
    shape, classes, *tokens = LOOPED.get(name, ((1, 28, 28), 10))
    values = name.startswith("factors") or name == "linear"
    task = Task(models.build(name, shape, classes, *tokens), "squared-error" if values else "cross-entropy")
    generator = np.random.default_rng(0)
    if tokens:
        columns = tokens[0] * (shape[0] // len(tokens[0]))
        x = torch.stack([torch.from_numpy(generator.integers(0, most, 3)) for most in columns], 1)
    else:
        x = torch.from_numpy(generator.random((3, *shape), dtype=np.float32))
    y = torch.from_numpy(generator.integers(0, classes, 3))
    y = y.float() + 3 if values else y
    query = Query((task.initial(generator),), (SumBlock((Term(0.05),)),))
    assert clipper_of(task).coverage(task, query.points[0], x, y)
    (total,), (plain,) = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(total, plain, rtol=1e-3, atol=1e-5)
    assert float(total.norm()) > 0.03


@pytest.mark.parametrize("name", ["lstm", "mlp-text"])
def test_padding_does_not_change_the_outputs(name):
    model = drawn(name, (6,), 4, (9,))
    words = torch.tensor([[3, 1, 8, 8, 2, 5], [7, 0, 0, 0, 0, 0], [4, 4, 0, 0, 0, 0]])
    longer = torch.cat([words, torch.zeros(3, 5, dtype=torch.int64)], 1)
    torch.testing.assert_close(model(words), model(longer))
    torch.testing.assert_close(model(words[2:, :2]), model(words)[2:])
    assert bool(torch.isfinite(model(torch.zeros(1, 6, dtype=torch.int64))).all())


def test_the_lstm_reads_one_character_after_the_other():
    """The equations of Hochreiter & Schmidhuber 1997 with forget gates, in torch's order i, f, g, o."""
    model = drawn("lstm", (6,), 4, (9,))
    h = c = torch.zeros(128)
    for token in (3, 1, 8):
        e, net = model.embedding.weight[token], model.lstm
        gates = net.weight_ih_l0 @ e + net.bias_ih_l0 + net.weight_hh_l0 @ h + net.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    outputs = model(torch.tensor([[3, 1, 8, 0, 0, 0]]))[0]
    torch.testing.assert_close(outputs, model.classes(h), rtol=1e-4, atol=1e-5)


def test_the_text_model_takes_the_mean_of_its_words():
    model = drawn("mlp-text", (6,), 4, (9,))
    mean = (model.embedding.weight[3] + 2 * model.embedding.weight[8]) / 3
    outputs = model(torch.tensor([[8, 3, 8, 0, 0, 0]]))[0]
    torch.testing.assert_close(outputs, model.classes(F.relu(model.hidden(mean))))


def test_factors_multiply_and_biases_add():
    x = torch.tensor([[4, 1], [0, 6]])
    plain, biased = drawn("factors", (2,), 1, (5, 7)), drawn("factors-biases", (2,), 1, (5, 7))
    wanted = torch.stack([plain.users.weight[u] @ plain.items.weight[i] for u, i in x.tolist()])
    torch.testing.assert_close(plain(x), wanted)
    with torch.no_grad():
        for name, tensor in (("users", plain.users.weight), ("items", plain.items.weight)):
            biased.get_submodule(name).weight.copy_(tensor)
        biased.mean.weight.fill_(3.5)
        biased.user_bias.weight.copy_(torch.arange(5.0)[:, None])
        biased.item_bias.weight.copy_(torch.arange(7.0)[:, None] / 10)
    torch.testing.assert_close(biased(x), wanted + torch.tensor([3.5 + 4 + 0.1, 3.5 + 0 + 0.6]))


def test_vgg_is_the_network_of_torchvision_without_batch_norm():
    model = drawn("vgg11", (3, 32, 32), 10)
    kinds = [type(layer) for layer in model]
    convolutions = [layer.out_channels for layer in model if isinstance(layer, nn.Conv2d)]
    assert convolutions == [64, 128, 256, 256, 512, 512, 512, 512]
    assert kinds.count(nn.MaxPool2d) == 5
    assert kinds.count(nn.ReLU) == 8
    assert model(torch.rand(1, 3, 64, 32)[:, :, :32]).shape == (1, 10)


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
        models.build("perceptron")


def test_nothing_touches_the_global_generator():
    state = torch.get_rng_state()
    models.initial(models.build("cnn"), np.random.default_rng(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_parameters_follow_torchs_defaults():
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


def distance_from(law, values):
    """Kolmogorov's distance of ``values`` from a law of scipy, times sqrt(n): above 2.7 has p < 1e-6."""
    return stats.kstest(np.asarray(values, np.float64).ravel(), law).statistic * math.sqrt(values.numel())


def test_initializers_of_embeddings_recurrent_layers_and_factors():
    """Torch's default laws, and of factors a normal cut to two standard deviations, as Li's authors do."""
    lstm = drawn("lstm", (20,), 18, (58,))
    assert distance_from(stats.norm.cdf, lstm.embedding.weight.detach()) < 2.7
    side = 1 / math.sqrt(128)
    for name, weight in lstm.lstm.named_parameters():
        assert distance_from(stats.uniform(-side, 2 * side).cdf, weight.detach()) < 2.7, name
    for name, scale in (("factors", 0.01), ("factors-biases", 0.1)):
        model = drawn(name, *MOVIELENS)
        for factor in (model.users.weight.detach(), model.items.weight.detach()):
            assert distance_from(stats.truncnorm(-2, 2, scale=scale).cdf, factor) < 2.7
            assert float(factor.abs().max()) <= 2 * scale
        if name == "factors-biases":
            assert not any(bias.weight.any() for bias in (model.mean, model.user_bias, model.item_bias))
    assert not models.initial(models.build("logistic-binary", (9,), 2), np.random.default_rng(0)).any()


def test_torchs_layers_have_the_same_distributions():
    """Against torch's own first values, at p < 1e-6 each."""
    torch.manual_seed(5)
    for layer in (nn.LSTM(64, 128), nn.Embedding(58, 64), nn.Linear(64, 128)):
        ours = layout_of(layer).split(models.initial(layer, np.random.default_rng(1)))
        for name, tensor in layer.named_parameters():
            one, other = tensor.detach().numpy().ravel(), ours[name].numpy().ravel()
            assert stats.ks_2samp(one, other).pvalue > 1e-6


def test_rows_of_padding_start_at_zero():
    rows = models.initial(nn.Embedding(4, 3, padding_idx=1), np.random.default_rng(0)).view(4, 3)
    assert [bool(row.any()) for row in rows] == [True, False, True, True]


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
    outputs = Standardised(model, 0.1307, 0.3081)(x)
    torch.testing.assert_close(outputs, model((x - 0.1307) / 0.3081))
    with pytest.raises(ArgumentError, match="input-std"):
        Standardised(model, 0.0, 0.0)

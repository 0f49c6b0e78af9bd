"""The models of the papers, by name, and how any model's first parameters are drawn.

| name | inputs | what it is | parameters |
|---|---|---|---|
| ``linear`` | numbers | one linear output, for values | 785 on 28x28 |
| ``logistic`` | numbers | linear to the classes | 7,850 on 28x28; Li's Stack Overflow 5,000,500 |
| ``logistic-binary`` | numbers | one logit for two classes, from 0: Li's IMDB | 10,001 on 10,000 words |
| ``logistic-binary-no-bias`` | numbers | the same without a bias: Wang 7.1 | 123 on a9a, 22 on ijcnn1 |
| ``mlp`` | numbers | 256 and 256 hidden units with ReLU | 269,322 on 28x28 |
| ``mlp-no-bias`` | numbers | the same without biases: Koskela 5.1 as it is told | 268,800 on 28x28 |
| ``mlp-no-bias-3`` | numbers | 256, 256 and 256 units: Koskela 5.1 as it is counted | 334,336 on 28x28 |
| ``cnn`` | images | two convolutions, two linear layers: Du A.9; Wang 7.2 | 26,010 on 28x28 |
| ``vgg11`` | images | VGG-11 without batch norm: Du A.10 | 9,225,610 on CIFAR-10 |
| ``lstm`` | tokens | embedding 64, one LSTM layer of 128, linear: Du A.9 | 105,362 on NAME |
| ``mlp-text`` | tokens | mean of embeddings of 16, linear, linear: Du A.9 on IMDB | 160,306 on 10,000 words |
| ``factors`` | user, item | Li's matrix factorisation, embeddings of 100 | 262,500 on MovieLens-100k |
| ``factors-biases`` | user, item | the same with a mean and biases | 265,126 on MovieLens-100k |

``cnn`` is the form that DP tutorials share, and that Wang 2023 refer to: convolution of 16 filters 8x8 with
stride 2, pool, convolution of 32 filters 4x4 with stride 2, pool, 32 hidden units, classes; ReLU throughout,
2x2 max pooling of stride 1. Du 2021 give no sizes for ``mlp-text``: they are those of Bu et al. 2020, whose
experiments theirs follow.

A model of your own is named ``module:name``: a function or a class that gives an ``nn.Module``, called
with the :class:`Inputs` that it is for, or with nothing where all of its parameters have defaults. It starts
from the values that it is built with.

The models above are built with zero parameters, without touching torch's global generator; :func:`initial`
draws the first parameter vector from a generator that is given. Each parameter is used through its layer
alone, so that clipped sums can be had from what layers see.

>>> import numpy as np
>>> model = build("cnn")
>>> initial(model, np.random.default_rng(0)).shape
torch.Size([26010])
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpriv._internal import user_code, validation
from fedpriv.models import dense, images, matrix_factorization, sequences
from fedpriv.models.images import Pool
from fedpriv.models.initializers import initial, keep
from fedpriv.models.inputs import IDS, NUMBERS, SEQUENCE, Inputs, Shape

__all__ = ["MODELS", "Inputs", "Pool", "Standardised", "build", "initial"]

# Name -> what it takes, and how it is made.
MODELS: dict[str, tuple[str, Callable[[Inputs], nn.Module]]] = {
    "linear": (NUMBERS, dense.linear),
    "logistic": (NUMBERS, dense.logistic),
    "logistic-binary": (NUMBERS, dense.logistic_binary),
    "logistic-binary-no-bias": (NUMBERS, dense.logistic_binary_no_bias),
    "mlp": (NUMBERS, dense.mlp),
    "mlp-no-bias": (NUMBERS, dense.mlp_no_bias),
    "mlp-no-bias-3": (NUMBERS, dense.mlp_no_bias_3),
    "cnn": (NUMBERS, images.cnn),
    "vgg11": (NUMBERS, images.vgg11),
    "lstm": (SEQUENCE, sequences.lstm),
    "mlp-text": (SEQUENCE, sequences.mlp_text),
    "factors": (IDS, matrix_factorization.plain),
    "factors-biases": (IDS, matrix_factorization.with_biases),
}


def build(
    name: str, shape: Shape = (1, 28, 28), classes: int = 10, tokens: Shape = (), seed: int = 0
) -> nn.Module:
    """The model of that name for inputs (n, *shape), with all parameters zero; or a model of your own.

    Args:
        name: one of ``MODELS``, or ``module:name``.
        shape, classes, tokens: see :class:`fedpriv.models.inputs.Inputs`.
        seed: of torch's generator on the CPU while a model of your own is built, so that all nodes have the
            same. The generator is put back.

    Raises ArgumentError where the name is unknown or the inputs do not suit the model.
    """
    inputs = Inputs(tuple(shape), classes, tuple(tokens))
    if user_code.named(name):
        return _own(name, inputs, seed)
    hint = validation.near(name, MODELS) or user_code.HINT
    kind, make = MODELS[validation.choice("model", name, MODELS, hint)]
    if kind != inputs.kind:
        suited = ", ".join(other for other, (takes, _) in MODELS.items() if takes == inputs.kind)
        raise validation.fail("model", name, f"be one of {suited} for data that is {inputs.kind}")
    with torch.device("meta"):  # building on a real device would draw from the global generator
        model = make(inputs)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def _own(name: str, inputs: Inputs, seed: int) -> nn.Module:
    """The user's model, which is drawn from its own parameters, whatever its layers' laws are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        given = user_code.held("model", name) if user_code.in_memory(name) else None
        if isinstance(given, nn.Module):
            model = copy.deepcopy(given)  # what follows must not change the user's object
        else:
            model = user_code.called("model", name, inputs)
    if not isinstance(model, nn.Module):
        raise user_code.fail("model", name, "give an nn.Module", f"it gives {type(model).__name__}")
    for own, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise user_code.fail("model", name, "know its layers' sizes", f"{own} is lazy")
        if not bool(parameter.isfinite().all()):
            raise user_code.fail("model", name, "start from finite values", f"{own} has others")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise user_code.fail("model", name, "have trainable parameters")
    return keep(model.to("cpu"))


class Standardised(nn.Module):
    """``model`` on inputs (x - mean) / std: public constants, never computed from data of clients."""

    def __init__(self, model: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.model = model
        self.mean = validation.real("input-mean", mean)
        self.std = validation.finite_positive("input-std", std)

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs for raw inputs (n, ...)."""
        outputs: Tensor = self.model((x - self.mean) / self.std)
        return outputs

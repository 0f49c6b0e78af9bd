"""Built-in models by name, and the initialisation of any model's parameters.

| name | inputs | description | parameters |
|---|---|---|---|
| ``linear`` | numbers | one linear output, for values | 785 on 28x28 |
| ``logistic`` | numbers | one linear layer, one output per class | 7,850 on 28x28; 5,000,500 for Li's Stack
Overflow |
| ``logistic-binary`` | numbers | one logit for two classes, initialised to 0: Li's IMDB | 10,001 on 10,000
words |
| ``logistic-binary-no-bias`` | numbers | the same without a bias: Wang 7.1 | 123 on a9a, 22 on ijcnn1 |
| ``mlp`` | numbers | 256 and 256 hidden units with ReLU | 269,322 on 28x28 |
| ``mlp-no-bias`` | numbers | the same without biases: Koskela 5.1 by its text | 268,800 on 28x28 |
| ``mlp-no-bias-3`` | numbers | 256, 256 and 256 units: Koskela 5.1 by its parameter count | 334,336 on 28x28
|
| ``cnn`` | images | two convolutions, two linear layers: Du A.9; Wang 7.2 | 26,010 on 28x28 |
| ``vgg11`` | images | VGG-11 without batch norm: Du A.10 | 9,225,610 on CIFAR-10 |
| ``lstm`` | tokens | embedding 64, one LSTM layer of 128, linear: Du A.9 | 105,362 on NAME |
| ``mlp-text`` | tokens | mean of embeddings of 16, linear, linear: Du A.9 on IMDB | 160,306 on 10,000 words |
| ``factors`` | user, item | Li's matrix factorisation, embeddings of 100 | 262,500 on MovieLens-100k |
| ``factors-biases`` | user, item | the same with a mean and biases | 265,126 on MovieLens-100k |

``cnn`` is the network of many DP tutorials, to which Wang 2023 refer: a convolution with 16 filters of 8x8
and stride 2, a pool, a convolution with 32 filters of 4x4 and stride 2, a pool, 32 hidden units, the classes.
It uses ReLU and 2x2 max pooling with stride 1. Du 2021 give no sizes for ``mlp-text``; here they are those of
Bu et al. 2020, whose experiments Du 2021 follow.

A custom model is named ``module:name``: a function or a class that returns an ``nn.Module``. It is called
with the :class:`Inputs` of the data set, or without arguments if all of its parameters have defaults. Its
training starts from the parameters with which it is built.

The built-in models are built with zero parameters, without using torch's global generator; :func:`initial`
draws the initial parameter vector from a given generator. Each parameter is used only through its layer, so
that ghost clipping works for all of them.

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

# Name -> (kind of inputs, constructor).
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
    """The model called ``name`` for inputs (n, *shape). A built-in model has all parameters zero.

    Args:
        name: one of ``MODELS``, or ``module:name`` of a custom model.
        shape, classes, tokens: see :class:`fedpriv.models.inputs.Inputs`.
        seed: the seed of torch's CPU generator while a custom model is built, so that all nodes build equal
            parameters. The generator's state is restored afterwards.

    Raises ArgumentError if the name is unknown or the model does not support these inputs.
    """
    inputs = Inputs(tuple(shape), classes, tuple(tokens))
    if user_code.named(name):
        return _own(name, inputs, seed)
    hint = validation.near(name, MODELS) or user_code.HINT
    kind, make = MODELS[validation.choice("model", name, MODELS, hint)]
    if kind != inputs.kind:
        suited = ", ".join(other for other, (takes, _) in MODELS.items() if takes == inputs.kind)
        raise validation.ArgumentError(
            f"model={name} does not support the data set's inputs, which are {inputs.kind}; use one of "
            f"{suited}"
        )
    with torch.device("meta"):  # on a real device the layers would draw from the global generator
        model = make(inputs)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def _own(name: str, inputs: Inputs, seed: int) -> nn.Module:
    """The custom model, which starts from the parameters with which it was built."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        given = user_code.held("model", name) if user_code.in_memory(name) else None
        if isinstance(given, nn.Module):
            model = copy.deepcopy(given)  # what follows must not change the user's object
        else:
            model = user_code.called("model", name, inputs)
    if not isinstance(model, nn.Module):
        raise user_code.fail("model", name, "return an nn.Module", f"it returns {type(model).__name__}")
    for own, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise user_code.fail("model", name, "know the sizes of its layers", f"{own} is lazy")
        if not bool(parameter.isfinite().all()):
            raise user_code.fail("model", name, "start from finite values", f"{own} has NaN or infinity")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise user_code.fail("model", name, "have trainable parameters")
    return keep(model.to("cpu"))


class Standardised(nn.Module):
    """``model`` applied to (x - mean) / std. Both are public constants, not computed from clients' data."""

    def __init__(self, model: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.model = model
        self.mean = validation.real("input-mean", mean)
        self.std = validation.finite_positive("input-std", std)

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs for inputs (n, ...) before standardisation."""
        outputs: Tensor = self.model((x - self.mean) / self.std)
        return outputs

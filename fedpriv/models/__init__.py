"""Built-in models by name, and the initialisation of any model's parameters.

``MODELS`` has each model with its inputs, its number of parameters and its source.

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

from fedpriv._internal import user_code, validation
from fedpriv._internal.lazy import nn, torch
from fedpriv._internal.registry import import_modules
from fedpriv.models import architectures
from fedpriv.models.initializers import initial, keep, seeded
from fedpriv.models.inputs import Inputs, Shape
from fedpriv.models.registry import MODELS, Model

import_modules(architectures.__name__, architectures.__path__)  # each registers its models

__all__ = ["MODELS", "Inputs", "Model", "build", "initial"]


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
    chosen = MODELS[name]
    if chosen.inputs != inputs.kind:
        suited = ", ".join(MODELS.only(lambda other: other.inputs == inputs.kind))
        raise validation.ArgumentError(
            f"model={name} does not support the data set's inputs, which are {inputs.kind}; use one of "
            f"{suited}"
        )
    with torch.device("meta"):  # on a real device the layers would draw from the global generator
        model = chosen.build(inputs)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def _own(name: str, inputs: Inputs, seed: int) -> nn.Module:
    """The custom model, which starts from the parameters with which it was built."""
    with seeded(seed):
        given = user_code.object_in_memory("model", name) if user_code.in_memory(name) else None
        if isinstance(given, nn.Module):
            model = copy.deepcopy(given)  # what follows must not change the user's object
        else:
            model = user_code.called("model", name, inputs)
    if not isinstance(model, nn.Module):
        raise user_code.fail("model", name, "return an nn.Module", f"it returns {type(model).__name__}")
    for own, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise user_code.fail("model", name, "know the sizes of its layers", f"{own} is lazy")
        if not bool(parameter.isfinite().all()):
            raise user_code.fail("model", name, "start from finite values", f"{own} has NaN or infinity")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise user_code.fail("model", name, "have trainable parameters")
    return keep(model.to("cpu"))

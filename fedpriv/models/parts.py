"""Which parts of a model are trained: all but frozen parameters, or LoRA adapters.

Fewer trained numbers need less noise for the same epsilon. Adapters are those of ``peft`` (Hu et al. 2022,
"LoRA: Low-rank adaptation of large language models"): a chosen layer with weight W computes with
W + (alpha / rank) B A, where only A and B are trained, and B begins at zero.

>>> model = freeze(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), "0.*")
>>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
['1.weight', '1.bias']
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedpriv._internal import patterns, validation
from fedpriv._internal.lazy import nn
from fedpriv.models.initializers import seeded
from fedpriv.models.weights import some

_LAYERS = ("Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "Conv1D")  # Conv1D is GPT-2's linear layer


def freeze(model: nn.Module, frozen: str) -> nn.Module:
    """The model, whose parameters with these names are not trained.

    Args:
        model: changed in place.
        frozen: names with ``*`` and ``?``, separated by spaces.

    Raises ArgumentError where a pattern names no parameter, and where none would be trained.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name in _matching("frozen", frozen, names, "a trained parameter"):
        model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise validation.fail("frozen", frozen, "leave a parameter that is trained")
    return model


def adapt(model: nn.Module, rank: int, alpha: int, layers: str, beside: str, seed: int) -> nn.Module:
    """A ``peft`` model around this one: frozen, with trained adapters in chosen layers.

    Args:
        model: changed in place; its present values stay.
        rank: the rank of the adapters, at least 1.
        alpha: the adapters' products are scaled by alpha / rank; 0: alpha is the rank.
        layers: names, with ``*`` and ``?``, of the linear, embedding and convolution layers that get
            adapters, separated by spaces.
        beside: names of layers that are trained as a whole, such as a new head.
        seed: of A's initial values, so that all nodes build the same model.

    Raises ArgumentError where a pattern names no such layer, where peft refuses them, and where peft is not
    installed.
    """
    try:
        import peft
    except ImportError:
        hint = "adapters are those of peft: pip install 'fedpriv[lora]'"
        raise validation.fail("lora-rank", rank, "be 0 where peft is not installed", hint) from None
    within = {name: layer for name, layer in model.named_modules() if name and not list(layer.children())}
    whole = _matching("lora-beside", beside, within, "a layer")
    for name in within.keys() - whole:
        if any(name.endswith(one) for one in whole):  # which peft would train, too
            raise validation.fail(
                "lora-beside", beside, f"name {name}, too", "peft compares the ends of names"
            )
    able = [name for name, layer in within.items() if type(layer).__name__ in _LAYERS and name not in whole]
    chosen = _matching("lora-layers", layers, able, "a linear, embedding or convolution layer")
    found = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha or rank,
        target_modules="|".join(map(re.escape, chosen)),  # a list would match the ends of names
        modules_to_save=whole or None,
        fan_in_fan_out=all(type(within[name]).__name__ == "Conv1D" for name in chosen),
    )
    with seeded(seed):
        try:
            return peft.get_peft_model(model, found)
        except (ValueError, TypeError, NotImplementedError) as error:
            allowed = "name layers that peft supports"
            raise validation.fail(
                "lora-layers", layers, allowed, f"{type(error).__name__}: {error}"
            ) from None


def _matching(key: str, text: str, names: Iterable[str], what: str) -> list[str]:
    """The names that fit the patterns in a setting's text. Raises ArgumentError where a pattern fits none."""
    known = list(names)
    allowed = f"be the name of {what}, with * and ?"
    return patterns.matching(key, text.split(), known, allowed, f"it has {some(known)}")

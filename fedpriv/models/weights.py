"""All tensors of a model, and models that start from a file of tensors.

A model's file (``model.safetensors``) is complete: it has the trained parameters, the frozen parameters and
the buffers under the names of ``module.state_dict()``. Its metadata lists the trained parameters.

>>> module = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1).requires_grad_(False))
>>> sorted(whole(module, {"0.weight": torch.ones(1, 2), "0.bias": torch.zeros(1)}))
['0.bias', '0.weight', '1.bias', '1.weight']
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpriv._internal import validation

_SHOWN = 3  # the largest number of names in an error
KEY = "initial-weights"


def whole(module: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of ``module.state_dict()``, with the ``trained`` tensors in place of the module's.

    A parameter with several names has the same values under each name.
    """
    state = module.state_dict(keep_vars=True)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        name: trained.get(names.get(id(tensor), name), tensor.detach())
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The module, in float32, with these tensors as its values.

    Raises ArgumentError if names or shapes differ from the module's.
    """
    if why := _mismatch(module, tensors):
        raise validation.fail("module", type(module).__name__, "be the model that was trained", why)
    module.float().load_state_dict(dict(tensors), strict=False)
    return module


def read(path: str) -> dict[str, Tensor]:
    """The tensors of a file of initial weights. Raises ArgumentError if it is missing or malformed."""
    if not Path(path).is_file():
        raise validation.fail(KEY, path, "be an existing .safetensors file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        hint = f"{type(error).__name__}: {error}"
        raise validation.fail(KEY, path, "be a file in the safetensors format", hint) from None


def start_from(module: nn.Module, path: str, trained_only: bool = False) -> nn.Module:
    """The module, with the values of the file at ``path``.

    Args:
        module: changed in place.
        path: a .safetensors file with every trained parameter under its name in the module. Frozen parameters
            and buffers in the file are used, too.
        trained_only: whether to refuse a file with frozen parameters or buffers.

    Raises ArgumentError, before anything is changed, if names or shapes differ from the module's, or if a
    value is not finite.
    """
    tensors = read(path)
    if why := _mismatch(module, tensors):
        raise validation.fail(KEY, path, "hold the weights of this model", why)
    trained = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    fixed = sorted(set(tensors) - trained)
    if trained_only and fixed:
        hint = f"it has {some(fixed)}; if nodes own their data, frozen tensors come from the model's code"
        raise validation.fail(KEY, path, "contain trained parameters only", hint)
    state = module.state_dict()
    used = {name: tensor.to(state[name].dtype) for name, tensor in tensors.items()}
    if broken := [name for name, tensor in used.items() if not bool(torch.isfinite(tensor).all())]:
        raise validation.fail(KEY, path, "contain finite numbers", f"{some(broken)} has NaN or infinity")
    module.load_state_dict(tensors, strict=False)
    return module


def _mismatch(module: nn.Module, tensors: Mapping[str, Tensor]) -> str:
    """Why the tensors do not match the module, or an empty text if they do.

    A trained parameter may be missing, or a tensor may have an unknown name or a wrong shape. A parameter
    with several names needs one of them.
    """
    state = module.state_dict(keep_vars=True)
    there = {id(state[name]) for name in tensors if name in state}
    trained = (name for name, tensor in state.items() if getattr(tensor, "requires_grad", False))
    if missing := [name for name in trained if id(state[name]) not in there]:
        return f"{some(missing)} is missing; it has {some(sorted(tensors))}"
    if unknown := sorted(set(tensors) - set(state)):
        return f"the model has no {some(unknown)}"
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            return f"{name} has the shape {tuple(tensor.shape)}, but {tuple(state[name].shape)} in the model"
    return ""


def some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")

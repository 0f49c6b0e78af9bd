"""The built-in models by name: each module of :mod:`fedpriv.models.architectures` registers its models.

A model is its module and a line of the changelog; nothing else lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv._internal import user_code
from fedpriv._internal.registry import Registry
from fedpriv.models.inputs import Inputs

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model:
    """A built-in model.

    Attributes:
        name: the value of ``model``.
        inputs: the kind of an example (:mod:`fedpriv.models.inputs`).
        build: makes it for these inputs. Raises ArgumentError for inputs that it does not support.
        summary: what it is, in a few words, for tables.
        parameters: how many parameters it has, on a data set.
        source: the papers that use it, if any.
    """

    name: str
    inputs: str
    build: Callable[[Inputs], nn.Module]
    summary: str
    parameters: str
    source: str = ""


MODELS = Registry[Model]("model", user_code.HINT, own_code=True)


def register(model: Model) -> Model:
    """Add a model to MODELS."""
    return MODELS.add(model.name, model)

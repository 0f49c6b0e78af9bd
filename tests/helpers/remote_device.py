"""A simulated GPU for tests: operations that would fail or synchronise on a GPU are recorded.

Tensors of the meta device have shapes and no values. Operations on them go through here: one that takes
tensors of both sides is an error, as on a GPU, and where the host would wait for a value, or get or send an
array, that is written down. A value that is asked for is 1, or true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("meta")


@dataclass
class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What went between the host and the device while the mode was open.

    Attributes:
        looks: how often the host waited for one value.
        down: the sizes of the arrays that the host waited for.
        up: the sizes of the arrays that it sent.
    """

    looks: int = 0
    down: list[int] = field(default_factory=list)
    up: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Clear the records."""
        self.looks = 0
        self.down.clear()
        self.up.clear()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, or emulate it."""
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if not any(there(t) for t in given):
            if name == "_to_copy" and kwargs.get("device") == DEVICE:
                self.up.append(args[0].numel())
            return function(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.looks += 1
            return torch.ones((), dtype=args[0].dtype).item()
        if name == "_to_copy" and kwargs.get("device", DEVICE) != DEVICE:
            self.down.append(args[0].numel())
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "copy_" and there(args[0]) != there(args[1]):
            (self.up if there(args[0]) else self.down).append(args[1].numel())
            return args[0] if there(args[0]) else args[0].fill_(1)
        if name == "index":  # a GPU takes the host's indices, after sending them
            self.up += [t.numel() for t in given[1:] if not there(t)]
        elif any(t.dim() and not there(t) for t in given):
            raise RuntimeError(f"{name} of tensors on both sides")
        return function(*args, **kwargs)


def there(tensor: Tensor) -> bool:
    """Whether it is on the device."""
    return tensor.device == DEVICE


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """Make fedpriv compute on the simulated device, with the mode active."""
    for module in ("config.builders", "node.factory", "runs.runner"):
        monkeypatch.setattr(f"fedpriv.{module}.choose_device", lambda name: DEVICE)
    with Elsewhere() as mode:
        yield mode

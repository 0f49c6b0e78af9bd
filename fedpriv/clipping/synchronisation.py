"""Whether reading a tensor would synchronise with the device.

Some code is faster when it reads values first (whether all norms are in range, say). On a GPU such a read
waits for all queued work, so the code skips it there. A chunk of units then synchronises once, at its end.
"""

from __future__ import annotations

from torch import Tensor


def readable(tensor: Tensor) -> bool:
    """Whether the tensor's values can be read without waiting for a device."""
    return tensor.device.type == "cpu"

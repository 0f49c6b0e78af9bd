"""When the host may look at numbers: a device first has to finish all that it was given.

Code that is faster for a look at its inputs (whether all norms are ordinary, say) asks here, and does
without where that would be to wait. A chunk of units then waits for its device once, at its end.
"""

from __future__ import annotations

from torch import Tensor


def at_hand(tensor: Tensor) -> bool:
    """Whether a look at the tensor's values waits for nothing."""
    return tensor.device.type == "cpu"

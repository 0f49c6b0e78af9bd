"""How many of the machine's cores and GPUs this process may use.

>>> usable() >= 1
True
>>> gpus("cpu")
0
"""

from __future__ import annotations

import os

import torch


def usable() -> int:
    """The cores that the scheduler gives this process: fewer than the machine's in many containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # no affinity on macOS and Windows


def gpus(device: str) -> int:
    """The GPUs that torch sees, for a device by its name in settings: none for ``cpu``."""
    return 0 if device == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()

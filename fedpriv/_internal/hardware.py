"""How many of the machine's cores and GPUs this process may use, and how much memory it took.

>>> usable() >= 1
True
>>> gpus("cpu")
0
"""

from __future__ import annotations

import os
import sys

import torch


def usable() -> int:
    """The cores that the scheduler gives this process: fewer than the machine's in many containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # no affinity on macOS and Windows


def gpus(device: str) -> int:
    """The GPUs that torch sees, for a device by its name in settings: none for ``cpu``."""
    return 0 if device == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()


def peak_memory() -> int:
    """Bytes of memory that this process took at most; 0 where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
